"""The result of one trained fold: `data/train/<run>/<method>/fold<k>-seed<s>/`.

A fine-tuned encoder's folds have the same files; its weights are the trained tensors alone.

Files: `result.json` (three parts: run, metrics, meta; written last, so its presence means the fold is whole),
`weights.safetensors`, `predictions.parquet` (one row per test clip, with logits), `history.parquet` (one row per
epoch) and, for methods with a density, `density.safetensors` (mean maps over the test pass, shape (L, D)), for methods
that weigh whole layers `layer_weights.safetensors` (shape (L,)).
"""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict

from daamctl.artifacts.io import read_json, write_json
from daamctl.errors import ArtifactError

if TYPE_CHECKING:  # only to leave a note, `daamctl train --if-listed` should load neither
    import numpy as np
    import polars as pl

SKIPPED_FILE = "skipped.json"
FOLD_DIR = re.compile(r"^fold(\d+)-seed(\d+)$")


class RunPart(TypedDict):
    """What was run."""

    key: str
    """Content key of every input: equal keys mean the fold need not be trained again."""
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
    """Which reading, for methods whose own definition is not available; empty for all others."""
    eval_batches: dict[str, int | str] | None
    """For methods whose predictions depend on their batch: size, order and clips_sha256, a hash of the test clips in
    that order; None for all others."""
    config: dict[str, Any]
    """Resolved settings: sections download, segment, extract, train and the method's own; of a fine-tuned encoder also
    finetune, and of train what the two share; of a closed-form probe of train what it depends on."""
    modality: NotRequired[str]
    """What the clips are: speech, text or image; folds made before the other two lack it."""
    finetune: NotRequired[bool]
    """True where the encoder itself was trained; this and what follows is absent for methods over stored layers."""
    effect: NotRequired[dict[str, Any]]
    """What the adapters were found to do before training, see `daamctl.adapters.activity_check.Effect`."""
    adapted: NotRequired[list[str]]
    """Names of the encoder's adapted modules."""
    notes: NotRequired[list[str]]
    """What a reader of the figures must know."""
    micro_batch: NotRequired[int]
    """Most items that went through the encoder at once."""


class MetaPart(TypedDict):
    """Where and with what it was run."""

    daamctl: str
    versions: dict[str, str]
    git_commit: str | None
    device: str
    precision: str
    embeddings_key: str
    """Content key of the embeddings; of a fine-tuned encoder that of the clips, of how they are read and of the encoder
    before training."""
    encoder: dict[str, Any]
    """The encoder facts recorded in the embeddings (id, revision, weights hash, transformers version, …)."""
    train_s: float
    """Wall time of the training of this fold, in seconds."""
    peak_memory_bytes: int | None
    num_train_clips: int
    num_dev_clips: int
    num_test_clips: int
    evaluation_precision: NotRequired[str]
    """Of a fine-tuned encoder: number format of its weights, in which it is evaluated; its classifier is in float32."""
    features: NotRequired[str]
    """Where the training clips were taken from: memory, device or stream; folds made before streaming lack it."""
    together: NotRequired[int]
    """Number of folds that were trained in one program, where that was done."""


class CandidatePart(TypedDict):
    """One candidate of a search."""

    settings: dict[str, float | str]
    """What it was trained with: lr, and weight_decay and standardize where they were searched; of a closed-form probe
    penalty, and layer where that is chosen too: the best under this penalty."""
    dev_accuracy: list[float]
    """On the held-out group after every epoch before the choice; of a closed-form probe one value, leave-one-out on the
    training clips where no group is held out."""
    dev_loss: list[float]
    """Mean cross-entropy on the held-out group, likewise; of a closed-form probe the mean squared error."""
    added: bool
    """True where it was added because the best candidate so far lay at an edge of the grid."""


class SearchPart(TypedDict):
    """What was tried before a fold was trained to its end, and what was chosen; the test group has no part in it."""

    epochs: int
    """Epochs that every candidate was trained for; 0 for a closed-form probe."""
    candidates: list[CandidatePart]
    """In the order in which they were tried."""
    chosen: int
    """Index of the chosen one."""
    edges: list[str]
    """Settings of which the lowest or highest value tried was chosen, although there was a choice."""


class FoldResult(TypedDict):
    """The content of `result.json`."""

    run: RunPart
    metrics: dict[str, float | int | None]
    """On clips of the test group. accuracy: at the selected epoch; accuracy_best_on_test: best epoch on the test
    group itself (published style); accuracy_last: final epoch; dev_accuracy: on the dev group at the selected epoch
    (None without one); selected_epoch: 1-based; epochs: number from which it was selected; chosen_layer: for methods
    that pick one layer on the dev group; finished: False where the selected epoch lies in the last tenth of the epochs
    allowed, None where no epoch is selected. With `train.refit` the accuracies on the test group are those of the
    refit, which ends at the selected epoch; dev_accuracy, epochs and finished are those of the training before it."""
    meta: MetaPart
    search: NotRequired[SearchPart]
    """Absent where one set of settings was given rather than searched."""


@dataclass(frozen=True)
class Fold:
    """A finished fold on disk; its tables are read when asked for.

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
        """What the clips are."""
        return self.result["run"].get("modality", "speech")

    @property
    def label(self) -> str:
        """The method's name as it stands beside a figure, with what must not be overlooked.

        `sga (reconstructed)` where its definition is ours, `lora-r8 (fine-tuned)` where the encoder was trained too,
        `lora-r8-published (no effect)` where that was meant but nothing trained reaches the encoder.
        """
        run = self.result["run"]
        effect = run.get("effect") or {}
        marks = ["reconstructed"] if run.get("reconstructed") else []
        if effect.get("tensors"):
            marks.append("fine-tuned" if effect["with_gradient"] and effect["output_change"] else "no effect")
        return f"{run['method']} ({', '.join(marks)})" if marks else run["method"]

    def predictions(self) -> pl.DataFrame:
        """Test clips: clip_id, utterance_id, label, speaker, group, target (class id), logits (list of C).

        Where predictions depend on their batch, also batch (its number).
        """
        from daamctl.artifacts.utterances import read_frame

        return read_frame(self.folder / "predictions.parquet")[0]

    def history(self) -> pl.DataFrame:
        """Epochs: epoch, lr, train_loss, train_accuracy, dev_accuracy, dev_loss, test_accuracy (fractions; clips).

        Of a refit, which holds nothing out, dev_accuracy and dev_loss are those of the training before it.
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
    """A method's label with a further mark: `sga (reconstructed)` becomes `sga (reconstructed, undertrained)`."""
    if not mark:
        return label
    return f"{label[:-1]}, {mark})" if label.endswith(")") else f"{label} ({mark})"


def mark_skipped(method_dir: Path, method: str) -> None:
    """Leave a note in the place of folds: the pipeline does not list the method. Earlier folds are removed."""
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
    """Every finished fold of a method, by fold then seed; empty if there is none."""
    if not method_dir.is_dir():
        return []
    folders = [path for path in method_dir.iterdir() if FOLD_DIR.match(path.name) and (path / "result.json").exists()]
    return sorted((read_fold(path) for path in folders), key=lambda fold: (fold.fold, fold.seed))
