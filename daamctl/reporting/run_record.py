"""Sections that document a run: cost, learning curves, confusion matrices, missing folds, and provenance.

The functions take an evaluation after `verdict.labelled`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median, stdev
from typing import Any, Literal

import numpy as np

from daamctl.artifacts.evaluation import AdapterEffect, Evaluation
from daamctl.artifacts.terms import listed, without_path
from daamctl.reporting import figures
from daamctl.reporting.document import (
    DASH,
    Block,
    Bullets,
    Cell,
    Code,
    Files,
    Folded,
    Number,
    Section,
    Table,
    Text,
    count,
)
from daamctl.reporting.figure_spec import Confusion
from daamctl.reporting.sentences import say
from daamctl.reporting.terms import held_out, is_official, moment, runs, tested, tuned_seeds
from daamctl.reporting.verdict import order

CURVES = ("train", "dev", "test")
"""Parts of a fold whose accuracy is recorded after every epoch."""
MAX_MATRIX_COLUMNS = 20
"""Above this number of classes, the table lists the most frequent confusions instead of all counts."""
CONFUSIONS = 10
"""Number of confusions listed per method in that case."""
MAX_LISTED_CLASSES = 12
"""Above this number of classes, the text alternative of the figure does not list them."""


@dataclass(frozen=True)
class RunFacts:
    """Facts about a finished fold other than its scores; what was not recorded, or does not apply, is None.

    Args:
        key: content key of its inputs.
        num_parameters: number of trainable parameters.
        decoder_parameters: parameters of the decoder, or of a fine-tuned encoder's classifier; None if there are no
            weights on this machine.
        train_s: wall time in seconds; joules: energy of the GPU in that time.
        settings: settings of the method that differ from its defaults.
        eval_batches: for methods whose predictions depend on their batch.
        adapted: number of adapted modules.
        num_heads: H of a density; 0 without a density.
        offset: lowest, highest and mean learned offset of a density, and likewise its scaled variance.
    """

    label: str
    fold: int
    seed: int
    key: str
    num_parameters: int
    decoder_parameters: int | None
    train_s: float
    joules: float | None
    peak_memory_bytes: int | None
    steps: int | None
    epochs: int | None
    selected_epoch: int | None
    device: str
    settings: Mapping[str, Any]
    eval_batches: Mapping[str, int | str] | None
    adapted: int = 0
    num_heads: int = 0
    kernel: str = "2xi"
    offset: tuple[float, float, float] | None = None
    scaled_variance: tuple[float, float, float] | None = None


def curve_names(evaluation: Evaluation) -> dict[str, str]:
    """Names of the parts of a fold."""
    names = {"train": "training", "dev": held_out(evaluation), "test": tested(evaluation)}
    return {part: f"{name[:1].upper()}{name[1:]}" for part, name in names.items()}


def cost(
    facts: Sequence[RunFacts], evaluation: Evaluation, *, extraction: tuple[float, float] | None = None
) -> Section:
    """Parameters, time, energy and memory of every method, and the effect of fine-tuning on the encoder.

    Args:
        extraction: seconds and joules that a clip took; None: its energy is not recorded.
    """
    title = "Parameters and cost"
    by_method = {name: part for name in order(evaluation) if (part := [run for run in facts if run.label == name])}
    if not by_method:
        return Section("cost", title, [Text("The cost is unknown, because the trained folds are not on this machine.")])
    rows = [_cost_row(name, part) for name, part in by_method.items()]
    tuned = any(evaluation.methods[name].effect is not None for name in by_method)
    inner, head = ("fusion or adapters", "decoder or classifier") if tuned else ("fusion", "decoder")
    each = "run" if is_official(evaluation) else "fold"
    columns, rows = _filled([
        "Method", "Trainable parameters", f"In {inner}", f"In {head}", f"Seconds per {each}", f"Energy per {each} (J)",
        "Peak memory (MiB)", "Steps", "Epochs", "Reported epoch, median", "Runs",
    ], rows)  # fmt: skip
    devices = sorted({run.device for run in facts})
    note = say("note_cost", devices, " ".join(columns), extraction, evaluation.task.clip, tuned)
    table = Table("cost", "Trainable parameters, training time and memory", columns, rows, note=note)
    return Section("cost", title, [table, *_effects(by_method, evaluation), Folded("Every run", [_run_table(facts)])])


def _effects(by_method: Mapping[str, Sequence[RunFacts]], evaluation: Evaluation) -> list[Block]:
    """Whether the tensors that fine-tuning trains in the encoder have any effect."""
    rows: list[list[Cell]] = []
    for name, part in by_method.items():
        effect = evaluation.methods[name].effect
        if effect is not None:
            counts = (part[0].adapted, effect.tensors, effect.with_gradient)
            cells = [Number(number, "count") for number in counts]
            rows.append([name, *cells, Number(effect.output_change, "plain"), _effect(effect)])
    if not rows:
        return []
    columns = [
        "Fine-tuning method", "Adapted modules", "Tensors trained in the encoder", "With a gradient",
        "Largest change of a logit", "Do they have an effect?",
    ]  # fmt: skip
    notes = [note for name in by_method for note in evaluation.methods[name].notes]
    caption = "What fine-tuning changes in the encoder"
    table = Table("effects", caption, columns, rows, frozenset({5}), say("note_effects"))
    return [table, Text("Notes on these methods:"), Bullets(notes)] if notes else [table]


def _effect(effect: AdapterEffect) -> str:
    """Whether the tensors trained in the encoder have an effect, in a few words."""
    if not effect.tensors:
        return "none are trained"
    if not effect.is_active:
        return "no: the adapters have no effect"
    inactive = effect.tensors - effect.with_gradient
    return f"{inactive} do not" if inactive else "yes"


def learning(
    curves: Mapping[str, Mapping[str, Mapping[str, Any]]], evaluation: Evaluation, raw_names: Mapping[str, str]
) -> Section | None:
    """Learning curves of every method that was trained in steps; None if there is none.

    Args:
        curves: label -> train, dev and test (if they exist) -> epochs or steps (`at`), mean, low and high.
    """
    if not curves:
        return None
    chance, clip = evaluation.chance["clip"].majority_fraction, evaluation.task.clip
    parts, over = curve_names(evaluation), runs(evaluation)
    named = {
        name: {parts[key]: part for key, part in curves[name].items()} for name in order(evaluation) if name in curves
    }
    rows: list[list[Cell]] = []
    for name, part in named.items():
        last: list[Cell] = [Number(part[label]["mean"][-1]) if label in part else DASH for label in parts.values()]
        test, at = part[parts["test"]]["mean"], part[parts["test"]]["at"]
        best = int(np.argmax([-1.0 if value is None else value for value in test]))  # None: not scored here
        rows.append([name, Number(at[-1], "count"), *last, Number(test[best]), Number(at[best], "count")])
    unit = moment(evaluation)
    columns = [
        "Method", f"Last {unit}", *(f"{label}, at the end" for label in parts.values()),
        f"{parts['test']}, highest mean", f"At {unit}",
    ]  # fmt: skip
    table = Table("learning", f"Accuracy per {clip} in percent along training, mean over {over}", columns, rows)
    label = f"Accuracy per {clip} along training, {len(named)} methods. The numbers are in the table."
    figure = figures.learning(named, chance, clip, unit, label)
    files = Files("Learning curves, one file per method", figures.per_method(figure, raw_names, "Learning curves"))
    text = Text(say("learning", evaluation, probes=len(curves) < len(evaluation.methods)))
    return Section("learning", "Learning curves", [text, figures.drawn(figure), Folded(table.caption, [table]), files])


def confusion(evaluation: Evaluation, raw_names: Mapping[str, str]) -> Section:
    """Confusion matrices of every method; `raw_names`: label -> method."""
    classes = evaluation.classes
    counts = {name: evaluation.scores.confusion(name) for name in order(evaluation)}
    text = f"All test {evaluation.item}s of all {runs(evaluation)}. Rows are the actual classes and sum to 100 %."
    if len(classes) > MAX_MATRIX_COLUMNS:
        text += " The colour scale is the square root of the share, so that rare confusions are visible."
        table = _confusions(evaluation, counts)
    else:
        table = _counts(evaluation, counts)
    best = next(iter(counts))
    right = np.diag(Confusion(counts[best]).shares)  # percent
    label = f"Confusion matrices of {len(counts)} methods. {best}: share of each actual class predicted "
    if len(classes) > MAX_LISTED_CLASSES:
        label += (
            f"correctly from {right.min():.1f} to {right.max():.1f} %, half of the {len(classes)} classes above "
            f"{np.median(right):.1f} %. The most frequent confusions are in the table."
        )
    else:
        label += "correctly " + ", ".join(f"{name} {share:.1f} %" for name, share in zip(classes, right, strict=True))
        label += ". The counts are in the table."
    figure = figures.confusion(counts, classes, label)
    files = Files("Confusion matrices, one file per method", figures.per_method(figure, raw_names, "Confusion matrix"))
    blocks: list[Block] = [Text(text), figures.drawn(figure), Folded(table.caption, [table]), files]
    return Section("confusion", "Confusion matrices", blocks)


def _counts(evaluation: Evaluation, counts: Mapping[str, Any]) -> Table:
    """Whole matrices."""
    classes = evaluation.classes
    rows: list[list[Cell]] = [
        [name, label, *(Number(value, "count") for value in row)]
        for name, part in counts.items()
        for label, row in zip(classes, part.tolist(), strict=True)
    ]
    columns = ["Method", "Actual class", *(f"Predicted {label}" for label in classes)]
    caption = f"Confusion matrices, counts of test {evaluation.item}s"
    return Table("confusion", caption, columns, rows, frozenset({1}))


def _confusions(evaluation: Evaluation, counts: Mapping[str, Any]) -> Table:
    """The most frequent confusions of each method."""
    classes = evaluation.classes
    rows: list[list[Cell]] = []
    for name, part in counts.items():
        wrong, shares = part.copy(), Confusion(part).shares
        np.fill_diagonal(wrong, 0)
        for place in np.argsort(-wrong, axis=None, kind="stable")[:CONFUSIONS]:
            actual, predicted = np.unravel_index(place, wrong.shape)
            if wrong[actual, predicted]:
                share = Number(float(shares[actual, predicted]) / 100)
                rows.append(
                    [name, classes[actual], classes[predicted], Number(int(wrong[actual, predicted]), "count"), share]
                )
    caption = f"Most frequent confusions of each method, counts of test {evaluation.item}s"
    number = count(len(classes) ** 2)
    note = f"The {CONFUSIONS} most frequent confusions of each method. confusion.parquet has all {number} counts."
    columns = ["Method", "Actual class", "Predicted class", "Count", "Share of the actual class (%)"]
    return Table("confusion", caption, columns, rows, frozenset({1, 2}), note)


def missing(evaluation: Evaluation) -> Section | None:
    """Folds without a result, and methods that were excluded; None if there are none."""
    rows: list[list[Cell]] = [
        [name, str(fold), str(seed)] for name, entry in evaluation.methods.items() for fold, seed in entry.missing
    ]
    skipped = list(evaluation.skipped)
    if not rows and not skipped:
        return None
    texts = []
    if skipped:
        texts.append(f"Excluded, because training skipped them: {listed(skipped)}.")
    if rows:
        texts.append("The means of these methods use only the finished runs and are not fully comparable.")
    tables = [Table("missing", "Runs without a result", ["Method", "Fold", "Seed"], rows)] if rows else []
    return Section(
        "missing", "Missing runs" if is_official(evaluation) else "Missing folds", [*map(Text, texts), *tables]
    )


def use(commands: Sequence[str], metric: str) -> Section | None:
    """Commands that take the method with the highest metric further; None if there are none."""
    if not commands:
        return None
    text = f"Take the method over stored layers with the highest {metric} further, and apply it to new data:"
    return Section("use", "Use a trained method", [Text(text), Code("\n".join(commands))])


def provenance(
    evaluation: Evaluation, found: Sequence[RunFacts], *, texts: Mapping[str, str], commands: Sequence[str]
) -> Section:
    """Everything needed to reproduce the run: commands, code, machine, embeddings, seeds, batches and settings.

    Args:
        texts: settings as YAML, by title.
        commands: commands that reproduce this report from scratch.
    """
    facts = evaluation.provenance
    tuned = tuned_seeds(evaluation)
    own: list[list[Cell]] = [["Seeds of fine-tuning", ", ".join(map(str, tuned))]]
    versions: list[list[Cell]] = [[name, version] for name, version in facts.versions.items()]
    rows: list[list[Cell]] = [
        ["Git commit", ", ".join(facts.git_commits)],
        ["daamctl", ", ".join(facts.daamctl)],
        *versions,
        ["Embeddings key", facts.embeddings_key],
        ["Seeds", ", ".join(map(str, evaluation.seeds))],
        *(own if tuned else []),
        ["Device", ", ".join(facts.devices)],
        ["Precision", ", ".join(facts.precisions)],
        ["Training time, all methods (s)", f"{sum(facts.train_s.values()):,.0f}"],
    ]
    origin = "Given embeddings" if evaluation.given else "Encoder, as recorded in the embeddings"
    encoder: list[list[Cell]] = [[str(name), _plain(without_path(value))] for name, value in facts.encoder.items()]
    clips: list[list[Cell]] = [
        [str(row[0]), *(Number(cell, "count") for cell in row[1:])] for row in facts.clips_per_fold
    ]
    caption = f"{evaluation.task.clip.capitalize()}s per fold"
    cautions = []
    if any("+changes" in commit for commit in facts.git_commits):
        cautions.append(
            "The folds were trained with uncommitted changes, so the commit alone does not reproduce the code."
        )
    if (number := facts.code_versions or len(facts.git_commits)) > 1:
        cautions.append(f"The folds were trained with {number} different versions of the code.")
    read = [f"{name}: {one.reconstructed}" for name, one in evaluation.methods.items() if one.reconstructed]
    title = "Reconstructed methods and the interpretation chosen:"
    readings: list[Block] = [Text(title), Bullets(read)] if read else []
    blocks: list[Block] = [
        *(Text(text, caution=True) for text in cautions),
        Text("To reproduce this report:"),
        Code("\n".join(commands)),
        Table("software", "Code, machine and seeds", ["What", "Value"], rows, frozenset({1})),
        Table("encoder", origin, ["What", "Value"], encoder, frozenset({1})),
        Table("clips", caption, ["Fold", "Training", "Held out for selection", "Test"], clips),
        *_batches(found, evaluation.task.clip),
        *readings,
        *(Folded(title, [Code(text)]) for title, text in texts.items()),
    ]
    return Section("provenance", "Provenance", blocks)


def _filled(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> tuple[list[str], list[list[Cell]]]:
    """The columns of a table in which any row has a value: most machines record no energy, most recipes no epoch."""
    kept = [index for index in range(len(columns)) if any(str(row[index]) != DASH for row in rows)]
    return [columns[index] for index in kept], [[row[index] for index in kept] for row in rows]


def _cost_row(name: str, found: Sequence[RunFacts]) -> list[Cell]:
    first, seconds = found[0], [run.train_s for run in found]
    decoder = first.decoder_parameters
    joules = [run.joules for run in found if run.joules is not None]
    memory = [run.peak_memory_bytes for run in found if run.peak_memory_bytes]
    selected = [run.selected_epoch for run in found if run.selected_epoch]
    return [
        name,
        Number(first.num_parameters, "count"),
        Number(None if decoder is None else first.num_parameters - decoder, "count"),
        Number(decoder, "count"),
        _mean(seconds, "seconds"),
        _mean(joules, "joules"),
        Number(max(memory, default=None), "mib"),
        _lengths([run.steps for run in found]),
        _lengths([run.epochs for run in found]),
        Number(median(selected) if selected else None, "count"),
        Number(len(found), "count"),
    ]


def _lengths(values: Sequence[int | None]) -> Cell:
    """The length of all trainings, or the different ones."""
    known = sorted({value for value in values if value})
    return Number(known[0], "count") if len(known) == 1 else ", ".join(map(str, known)) or DASH


def _mean(values: Sequence[float], kind: Literal["seconds", "joules"]) -> Number:
    return Number(mean(values) if values else None, kind, std=stdev(values) if len(values) > 1 else None)


def _run_table(found: Sequence[RunFacts]) -> Table:
    all_rows: list[list[Cell]] = [
        [run.label, str(run.fold), str(run.seed), run.key, Number(run.steps, "count"),
         Number(run.selected_epoch, "count"), Number(run.epochs, "count"), Number(run.train_s, "seconds"),
         Number(run.joules, "joules"), Number(run.peak_memory_bytes, "mib"), run.device]
        for run in found
    ]  # fmt: skip
    columns, rows = _filled(["Method", "Fold", "Seed", "Content key", "Steps", "Reported epoch", "Epochs", "Seconds",
                             "Energy (J)", "Memory (MiB)", "Device"], all_rows)  # fmt: skip
    plain = frozenset({3, len(columns) - 1})
    return Table("runs", "Finished runs. Equal content keys mean equal inputs", columns, rows, plain)


def _batches(found: Sequence[RunFacts], clip: str) -> list[Block]:
    rows: list[list[Cell]] = [
        [run.label, str(run.fold), str(run.seed), str(run.eval_batches["size"]),
         str(run.eval_batches["order"]).replace("clip", clip), str(run.eval_batches["clips_sha256"])]
        for run in found if run.eval_batches
    ]  # fmt: skip
    if not rows:
        return []
    clips = f"{clip.capitalize()}s"
    columns = ["Method", "Fold", "Seed", f"{clips} per batch", "Order", f"SHA-256 of the {clip}s in that order"]
    caption = "Test batches of methods whose predictions depend on them (D1)"
    return [Folded(caption, [Table("batches", caption, columns, rows, frozenset({4, 5}))])]


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {item}" for name, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return "—" if value is None else str(value)
