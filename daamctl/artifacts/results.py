"""Result of one trained fold: `data/train/<run>/<method>/fold<k>-seed<s>/`.

Folds of fine-tuned encoders have the same files; their weights are only the trained tensors.

Files: `result.json` (three parts: run, metrics, meta; written last, so its presence means the fold is complete),
`weights.safetensors`, `predictions.parquet` (one row per test clip, with logits) and `history.parquet` (one row per
epoch). Methods with a density add `density.safetensors` (mean maps over the test pass, shape (L, D)); methods that
weigh whole layers add `layer_weights.safetensors` (shape (L,)).
"""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict

from daamctl.artifacts.io import read_json, write_json
from daamctl.errors import ArtifactError

if TYPE_CHECKING:  # only to leave a note: `daamctl train --if-listed` should import neither
    import numpy as np
    import polars as pl

SKIPPED_FILE = "skipped.json"
FOLD_DIR = re.compile(r"^fold(\d+)-seed(\d+)$")


class RunPart(TypedDict):
    """What was run, and with which settings."""

    key: str
    """Content key of all inputs; if it is unchanged, the fold need not be trained again."""
    pipeline: str
    method: str
    fold: int
    """1-based; the test group is `groups[fold - 1]`."""
    num_folds: int
    seed: int
    test_group: str
    dev_group: str | None
    """Group that selected the epoch; None unless selection is `dev-group`."""
    classes: list[str]
    layers: list[int]
    """Stored layer numbers used, in order (Hugging Face's hidden-state index)."""
    embed_dim: int
    num_parameters: int
    """Trainable parameters, decoder included."""
    reconstructed: str
    """Which reading, for methods without an available definition of their own; empty for all others."""
    eval_batches: dict[str, int | str] | None
    """For methods whose predictions depend on their batch: size, order and clips_sha256, a hash of the test clips in
    that order; None for all others."""
    config: dict[str, Any]
    """Resolved settings: sections download, segment, extract, train and the method's own. A fine-tuned encoder adds
    finetune, and of train has only what the two share; a closed-form probe has of train only what affects it."""
    modality: NotRequired[str]
    """Modality of the clips: speech, text or image; missing in folds older than the other two."""
    finetune: NotRequired[bool]
    """True if the encoder itself was trained; this and the following fields are absent for methods over stored
    layers."""
    effect: NotRequired[dict[str, Any]]
    """What the activity check found before training, see `daamctl.adapters.activity_check.Effect`."""
    adapted: NotRequired[list[str]]
    """Names of the encoder's adapted modules."""
    notes: NotRequired[list[str]]
    """Caveats to show beside the figures."""
    micro_batch: NotRequired[int]
    """Most items per forward pass through the encoder."""


class MetaPart(TypedDict):
    """Environment of the run, and its inputs."""

    daamctl: str
    versions: dict[str, str]
    git_commit: str | None
    device: str
    precision: str
    embeddings_key: str
    """Content key of the embeddings; for a fine-tuned encoder, of the clips, how they are read, and the encoder before
    training."""
    encoder: dict[str, Any]
    """The encoder facts recorded in the embeddings (id, revision, weights hash, transformers version, …)."""
    code: NotRequired[dict[str, str]]
    """Hashes of the code that the fold depends on: `training`, and `method`; missing in older folds."""
    vectors_key: NotRequired[str]
    """Content key of the vectors alone, without labels and folds; missing in older folds and for a fine-tuned
    encoder."""
    train_s: float
    """Wall time of the training of this fold, in seconds."""
    peak_memory_bytes: int | None
    num_train_clips: int
    num_dev_clips: int
    num_test_clips: int
    evaluation_precision: NotRequired[str]
    """For a fine-tuned encoder: number format of its weights, used in evaluation; its classifier is float32."""
    features: NotRequired[str]
    """Where training read its features from: memory, device or stream; missing in folds older than streaming."""
    together: NotRequired[int]
    """Number of folds trained jointly, if several."""


class CandidatePart(TypedDict):
    """One candidate of a search."""

    settings: dict[str, float | str]
    """Settings of the candidate: lr, and weight_decay and standardize if they were searched; for a closed-form probe
    penalty, and layer if that is chosen too: the best one at this penalty."""
    dev_accuracy: list[float]
    """On the held-out group after each epoch before the choice; for a closed-form probe a single value, from
    leave-one-out on the training clips if no group is held out."""
    dev_loss: list[float]
    """Mean cross-entropy on the held-out group after the same epochs; for a closed-form probe the mean squared
    error."""
    added: bool
    """True if it was added because the best candidate so far was at an edge of the grid."""


class SearchPart(TypedDict):
    """Record of a search: what was tried before the final training of a fold, and what was chosen."""

    epochs: int
    """Epochs of the longest-trained candidate; 0 for a closed-form probe."""
    candidates: list[CandidatePart]
    """In the order in which they were tried."""
    chosen: int
    """Index of the chosen candidate."""
    edges: list[str]
    """Settings chosen at the lowest or highest value tried, although there were values between."""


class FoldResult(TypedDict):
    """The content of `result.json`."""

    run: RunPart
    metrics: dict[str, float | int | None]
    """On clips of the test group. accuracy: at the selected epoch; accuracy_best_on_test: best epoch on the test group
    itself (published style); accuracy_last: final epoch; dev_accuracy: on the dev group at the selected epoch (None
    without one);
    selected_epoch: 1-based; epochs: number of epochs to select from; chosen_layer: for methods that select one layer on
    the dev group; finished: False if the selected epoch lies in the last tenth of the allowed epochs, None if no epoch
    is selected. With `train.refit`, accuracies on the test group are the refit's, which ends at the selected epoch;
    dev_accuracy, epochs and finished are from the training before it."""
    meta: MetaPart
    search: NotRequired[SearchPart]
    """Absent if a single set of settings was given."""


@dataclass(frozen=True)
class Fold:
    """A finished fold on disk; its tables are read on demand.

    Args:
        folder: the fold's folder.
        result: content of its `result.json`.
    """

    folder: Path
    result: FoldResult

    @property
    def fold(self) -> int:
        """1-based fold number."""
        return self.result["run"]["fold"]

    @property
    def seed(self) -> int:
        """Seed of the run."""
        return self.result["run"]["seed"]

    @property
    def modality(self) -> str:
        """Modality of the clips."""
        return self.result["run"].get("modality", "speech")

    @property
    def label(self) -> str:
        """The method's name as shown beside a figure, with important caveats.

        `sga (reconstructed)` if its definition is this project's; `lora-r8 (fine-tuned)` if the encoder was trained
        too; `lora-r8-published (no effect)` if nothing that is trained reaches the encoder.
        """
        run = self.result["run"]
        effect = run.get("effect") or {}
        marks = ["reconstructed"] if run.get("reconstructed") else []
        if effect.get("tensors"):
            marks.append("fine-tuned" if effect["with_gradient"] and effect["output_change"] else "no effect")
        return f"{run['method']} ({', '.join(marks)})" if marks else run["method"]

    def predictions(self) -> pl.DataFrame:
        """Test clips: clip_id, utterance_id, label, speaker, group, target (class id), logits (list of C).

        If predictions depend on their batch, also batch (its number).
        """
        from daamctl.artifacts.utterances import read_frame

        return read_frame(self.folder / "predictions.parquet")[0]

    def history(self) -> pl.DataFrame:
        """Epochs: epoch, lr, train_loss, train_accuracy, dev_accuracy, dev_loss, test_accuracy (fractions; clips).

        A refit holds nothing out; its dev_accuracy and dev_loss are those of the training before it.
        """
        from daamctl.artifacts.utterances import read_frame

        return read_frame(self.folder / "history.parquet")[0]

    def density(self) -> dict[str, np.ndarray] | None:
        """Mean density maps `trained` and `untrained`, each (L, D) float32; None for methods without a density."""
        return self._maps("density.safetensors")

    def layer_weights(self) -> dict[str, np.ndarray] | None:
        """Mean layer weights `trained` and `untrained`, each (L,) float32; None for methods that weigh no layers."""
        return self._maps("layer_weights.safetensors")

    def _maps(self, name: str) -> dict[str, np.ndarray] | None:
        path = self.folder / name
        if not path.exists():
            return None
        from safetensors.numpy import load_file

        return load_file(path)


def marked(label: str, mark: str) -> str:
    """Add a mark to a method's label: `sga (reconstructed)` becomes `sga (reconstructed, undertrained)`."""
    if not mark:
        return label
    return f"{label[:-1]}, {mark})" if label.endswith(")") else f"{label} ({mark})"


def mark_skipped(method_dir: Path, method: str) -> None:
    """Write a note in place of folds: the pipeline does not list the method. Removes earlier folds."""
    shutil.rmtree(method_dir, ignore_errors=True)
    write_json(method_dir / SKIPPED_FILE, {"method": method, "reason": "not listed by the pipeline"})


def fold_dir(method_dir: Path, fold: int, seed: int) -> Path:
    """Folder of one fold of a method."""
    return method_dir / f"fold{fold}-seed{seed}"


def read_fold(folder: Path) -> Fold:
    """Read a finished fold.

    Raises:
        ArtifactError: it is missing or damaged.
    """
    result = read_json(folder / "result.json")
    if not isinstance(result, dict) or not {"run", "metrics", "meta"} <= result.keys():
        raise ArtifactError(f"{folder / 'result.json'} is not a fold result", fix=f"delete {folder} and train it again")
    return Fold(folder, result)  # type: ignore[arg-type]


def read_folds(method_dir: Path) -> list[Fold]:
    """All finished folds of a method, by fold then seed; empty if there are none."""
    if not method_dir.is_dir():
        return []
    folders = [path for path in method_dir.iterdir() if FOLD_DIR.match(path.name) and (path / "result.json").exists()]
    return sorted((read_fold(path) for path in folders), key=lambda fold: (fold.fold, fold.seed))
