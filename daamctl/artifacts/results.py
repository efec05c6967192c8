"""Result of one trained fold: `data/train/<run>/<method>/fold<k>-seed<s>/`.

Folds of fine-tuned encoders have the same files; their weights are only the trained tensors.

Files: `result.json` (three parts: run, metrics, meta; written last, so its presence means the fold is complete),
`weights.safetensors`, `predictions.parquet` (one row per test clip, with logits) and `history.parquet` (one row per
record). Methods with a density add `density.safetensors` (mean maps over the test pass, shape (L, D)); methods that
weigh whole layers add `layer_weights.safetensors` (shape (L,)).

`result.json` is sealed and holds the hash of every other file (see `daamctl.store.artifact`). It says which run,
method, fold and seed it belongs to, which is compared with the names of its folders.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    NotRequired,  # pydantic needs these before Python 3.12
)

from typing_extensions import TypedDict

from daamctl.artifacts.layout import split_recipe
from daamctl.errors import ArtifactError
from daamctl.store.artifact import Artifact
from daamctl.store.records import check_file
from daamctl.store.tables import read_frame

if TYPE_CHECKING:
    import numpy as np
    import polars as pl

    from daamctl.data.task import Task

log = logging.getLogger(__name__)

FOLD_DIR = re.compile(r"^fold(\d+)-seed(\d+)$")
RESULT = "result.json"
IN_RUN = ("train", "ablate", "truncate")
"""Folders of folds, by run and method."""
WEIGHTS = "weights.safetensors"
ENTRY = "daamctl"
"""Metadata entry of a safetensors file, JSON. There is only one, because several are written in random order."""


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
    modality: str
    """Modality of the clips."""
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
    date: NotRequired[str]
    """Day on which the training ended, in UTC; earlier versions did not record it."""
    device: str
    precision: str
    bfloat16_speed: NotRequired[dict[str, float]]
    """On a CPU: how many times faster bfloat16 was measured to be than float32, by operation (`cpu_formats`)."""
    embeddings_key: str
    """Content key of the embeddings; for a fine-tuned encoder, of the clips, how they are read, and the encoder before
    training."""
    encoder: dict[str, Any]
    """The encoder facts recorded in the embeddings (id, revision, weights hash, transformers version, …)."""
    code: NotRequired[dict[str, str]]
    """Hashes of the code that the fold depends on: `training`, and `method`."""
    vectors_key: NotRequired[str]
    """Content key of the vectors alone, without labels and folds; absent for a fine-tuned encoder."""
    train_s: float
    """Wall time of the training of this fold, in seconds."""
    joules: NotRequired[float]
    """Energy of the GPU in that time; missing where the driver does not tell."""
    peak_memory_bytes: int | None
    num_train_clips: int
    num_dev_clips: int
    num_test_clips: int
    evaluation_precision: NotRequired[str]
    """For a fine-tuned encoder: number format of evaluation: that of its weights, or of autocast."""
    features: NotRequired[str]
    """Where training read its features from: memory, device or stream; absent for a fine-tuned encoder."""
    together: NotRequired[int]
    """Number of folds trained jointly, if several."""


class CandidatePart(TypedDict):
    """One candidate of a search."""

    settings: dict[str, float | str]
    """Settings of the candidate: lr, and weight_decay and standardize if they were searched; for a closed-form probe
    penalty, and layer if that is chosen too: the best one at this penalty."""
    dev_accuracy: list[float]
    """On the held-out group at each record; for a closed-form probe a single value, from leave-one-out on the training
    clips if no group is held out."""
    dev_loss: list[float]
    """Mean cross-entropy on the held-out group at the same records; for a closed-form probe the mean squared error."""


class SearchPart(TypedDict):
    """Record of a search: what was tried before the final training of a fold, and what was chosen."""

    steps: int
    """Optimiser steps of every candidate; 0 for a closed-form probe."""
    candidates: list[CandidatePart]
    """In the order in which they were tried."""
    chosen: int
    """Index of the chosen candidate."""
    edges: list[str]
    """Settings chosen at the lowest or highest value tried, although there were values between."""


def edges_of(tried: Sequence[Mapping[str, float | str]]) -> dict[str, tuple[float, float]]:
    """Lowest and highest value of each number that a search tried, where there are values between.

    Args:
        tried: settings of each candidate.
    """
    found = {}
    for name in ("lr", "weight_decay"):
        values = {float(one[name]) for one in tried if name in one}
        if len(values) > 2:  # of two, each is an edge
            found[name] = (min(values), max(values))
    return found


class FoldResult(TypedDict):
    """The content of `result.json`."""

    run: RunPart
    metrics: dict[str, float | int | None]
    """On clips of the test group. accuracy: of the weights that are kept, at the selected epoch or the end;
    accuracy_best_on_test: at the best record on the test group itself (published style); accuracy_last: at the last
    record; train_accuracy: of the last steps before the kept weights; dev_accuracy: on the dev group (None without
    one); selected_epoch: 1-based, and epochs: number of epochs to select from, both None with a budget of steps;
    chosen_layer: for methods that select one layer on the dev group; collapsed: 1 if the refit ended with a higher
    training loss than its candidate; replaced_refits: number of refits of better candidates that did. With
    `train.refit`, accuracies on the test group are the refit's, those on the dev group its candidate's."""
    meta: MetaPart
    search: NotRequired[SearchPart]
    """Absent if a single set of settings was given."""
    files: dict[str, str]
    """SHA-256 of the fold's other files."""


@dataclass(frozen=True)
class Rule:
    """How the weights of a training were chosen.

    Args:
        selection: what chose: "dev-group", "best-on-test" or "last" (nothing).
        to_the_end: whether the last weights are kept, not those of a selected epoch.
        searched: whether settings were chosen.
        refit: whether the held-out group joined the training part at the end.
    """

    selection: str
    to_the_end: bool
    searched: bool
    refit: bool


@dataclass(frozen=True)
class Fold:
    """A finished fold on disk; its tables are read on demand.

    Args:
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
        return self.result["run"]["modality"]

    @property
    def task(self) -> Task:
        """What it was trained for."""
        from daamctl.data.task import task_of

        return task_of(self.modality, self.result["run"]["classes"])

    @property
    def is_few_shot(self) -> bool:
        """Whether it was trained on sentences that its seed has drawn (`train.shots`)."""
        return self.result["run"]["config"].get("train", {}).get("shots") is not None

    @property
    def rule(self) -> Rule:
        """How its weights were chosen: as `train` says, in fine-tuning as `finetune.schedule` and its search allow."""
        config = self.result["run"]["config"]
        train, tuned = config["train"], bool(self.result["run"].get("finetune"))
        own, selection = config.get("finetune", {}) if tuned else train, train["selection"]
        to_the_end = own.get("schedule") != "constant" if tuned else own.get("steps") is not None
        searched = "search" in self.result if tuned else own.get("search") != "none"
        held_out = selection == "dev-group"
        solved = not tuned and "steps" not in own  # a closed-form probe records only what it uses, and has no epoch
        if (tuned and to_the_end and not searched) or (solved and selection == "best-on-test"):
            selection = "last"
        # where the held-out group has chosen an epoch, nothing is trained again
        return Rule(selection, to_the_end, searched, bool(train.get("refit")) and held_out and (to_the_end or solved))

    @property
    def num_fitted(self) -> int:
        """Number of clips that the tested weights were trained on: after a refit also those of the held-out group."""
        meta = self.result["meta"]
        return meta["num_train_clips"] + (meta["num_dev_clips"] if self.rule.refit else 0)

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

        Recordings also have duration_s (seconds). If predictions depend on their batch, also batch (its number).

        Raises:
            ArtifactError: the file is missing, damaged, or of another fold. So do the following methods.
        """
        return read_frame(self._file("predictions.parquet"))[0]

    def history(self) -> pl.DataFrame:
        """Records: step, epoch, lr, train_loss, train_accuracy, dev_accuracy, dev_loss, test_accuracy (of clips).

        With a budget of steps, epoch is null. A refit holds nothing out; its dev_accuracy and dev_loss are those of its
        candidate.
        """
        return read_frame(self._file("history.parquet"))[0]

    def density(self) -> dict[str, np.ndarray] | None:
        """Mean density maps `trained` and `untrained`, each (L, D) float32; None for methods without a density."""
        return self._maps("density.safetensors")

    def layer_weights(self) -> dict[str, np.ndarray] | None:
        """Mean layer weights `trained` and `untrained`, each (L,) float32; None for methods that weigh no layers."""
        return self._maps("layer_weights.safetensors")

    def weights(self) -> Path | None:
        """File of the weights; None if it was deleted, e.g. to save space."""
        return self._file(WEIGHTS) if (self.folder / WEIGHTS).exists() else None

    def check(self) -> None:
        """Check the files that are there; weights may have been deleted. Raises ArtifactError, see `predictions`."""
        for name in self.result["files"]:
            if (self.folder / name).exists():
                self._file(name)

    def _file(self, name: str) -> Path:
        """The file, compared with its recorded hash."""
        return check_file(self.folder / name, self.result["files"].get(name))

    def _maps(self, name: str) -> dict[str, np.ndarray] | None:
        from safetensors.numpy import load_file

        return load_file(self._file(name)) if name in self.result["files"] else None


def marked(label: str, mark: str) -> str:
    """Add a mark to a method's label: `sga (reconstructed)` becomes `sga (reconstructed, undertrained)`."""
    if not mark:
        return label
    return f"{label[:-1]}, {mark})" if label.endswith(")") else f"{label} ({mark})"


def fold_dir(method_dir: Path, fold: int, seed: int) -> Path:
    """Folder of one fold of a method."""
    return method_dir / f"fold{fold}-seed{seed}"


@dataclass(eq=False)
class FoldArtifact(Artifact[FoldResult]):
    """A fold where it belongs: here it is decided whether it is finished, whole, and of its folder and its key."""

    def key_of(self, record: FoldResult) -> str:
        """The content key in a record."""
        return record["run"]["key"]

    def read(self) -> FoldResult:
        """See `Artifact.read`; also refuses a fold of another run, method, fold or seed than its folders say."""
        result, folder = super().read(), self.folder.absolute()
        run, place, method = result["run"], FOLD_DIR.match(folder.name), folder.parent.name
        owner = ""
        if place and (int(place[1]), int(place[2])) != (run["fold"], run["seed"]):
            owner = f"fold {run['fold']} with seed {run['seed']}"
        elif folder.parents[2].name in IN_RUN:  # else the folders say nothing more
            if folder.parents[1].name != run["pipeline"]:
                owner = f"the run '{run['pipeline']}', not '{folder.parents[1].name}'"
            elif method != run["method"] and not method.endswith(f"-{run['method']}"):  # others put layers first
                owner = f"method '{run['method']}'"
        if owner:
            raise ArtifactError(f"{self.path} belongs to {owner}", path=self.path)
        return result

    def fold(self, result: FoldResult | None) -> Fold | None:
        """The fold of a record from `keep` or `lock`."""
        return None if result is None else Fold(self.folder, result)


def read_fold(folder: Path) -> Fold:
    """Read a finished fold. Its other files are checked when they are read.

    Args:
        folder: `fold<k>-seed<s>` in the folder of the method.

    Raises:
        ArtifactError: it is missing, damaged, or of another method, fold or seed than its folder says.
    """
    return Fold(folder, FoldArtifact(folder / RESULT, FoldResult).read())


def read_folds(method_dir: Path) -> list[Fold]:
    """All finished folds of a method, by fold then seed; empty if there are none.

    Raises:
        ArtifactError: one is damaged, see `read_fold`, or was trained on other embeddings or clips than those that lie
            beside it now.
    """
    folds = [read_fold(path) for path in fold_dirs(method_dir)]
    for fold in folds:
        _check_inputs(fold)
    return sorted(folds, key=lambda fold: (fold.fold, fold.seed))


def _check_inputs(fold: Fold) -> None:
    """Compare a fold with the embeddings beside it, or if the encoder was fine-tuned, its test clips with the clips."""
    from daamctl.artifacts.clips import read_clips
    from daamctl.artifacts.embeddings import CLIP_COLUMNS, METADATA_FILE, read_head

    run, meta, place = fold.result["run"], fold.result["meta"], fold.folder.absolute().parents[2]
    name = split_recipe(run["pipeline"])[0]
    embeddings, clips = place.parent / "extract" / name, place.parent / "segment" / name / "clips.parquet"
    if place.name not in IN_RUN:
        return
    whole = fold.folder.parents[1]  # all methods of the run have the same inputs
    if not run.get("finetune"):
        if (embeddings / METADATA_FILE).exists() and read_head(embeddings).key != meta["embeddings_key"]:
            what = f"{fold.folder} was trained on other embeddings than those in {embeddings} now"
            raise ArtifactError(what, path=whole)
    elif clips.exists():
        table, tested = read_clips(clips), fold.predictions()
        if tested.join(table.rows, on=CLIP_COLUMNS, how="semi").height < tested.height:
            what = f"{fold.folder} was tested on other clips than those in {clips} now"
            raise ArtifactError(what, path=whole)


def intact_folds(method_dir: Path) -> list[Fold]:
    """Like `read_folds`, without damaged folds."""
    found = []
    for path in fold_dirs(method_dir):
        try:
            found.append(read_fold(path))
        except ArtifactError as error:
            log.warning("left out: %s", error.message)
    return sorted(found, key=lambda fold: (fold.fold, fold.seed))


def fold_dirs(method_dir: Path) -> list[Path]:
    """Folders of the finished folds of a method."""
    if not method_dir.is_dir():
        return []
    return [path for path in method_dir.iterdir() if FOLD_DIR.match(path.name) and (path / RESULT).exists()]
