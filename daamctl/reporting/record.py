"""Sections of record: cost, learning curves, confusion matrices, missing folds, and what it takes to repeat a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median, stdev
from typing import Any

import numpy as np

from daamctl.reporting import pictures, plots
from daamctl.reporting.document import (
    DASH,
    Block,
    Bullets,
    Cell,
    Code,
    Files,
    Folded,
    Number,
    Plot,
    Section,
    Table,
    Text,
    listed,
    percent,
)
from daamctl.reporting.verdict import Evaluation, order

CURVES = {"train": "Training", "dev": "Held-out training group", "test": "Test group"}


@dataclass(frozen=True)
class RunFacts:
    """What a finished fold says of itself beyond its scores.

    Args:
        label: method as it stands beside figures.
        fold: 1-based.
        seed: of the run.
        key: content key of its inputs.
        num_parameters: trainable.
        decoder_parameters: those of the decoder; None: the weights are not at hand.
        train_s: wall time in seconds.
        peak_memory_bytes: None: not recorded.
        epochs: trained.
        selected_epoch: 1-based.
        device: of the training.
        settings: the method's own, other than its defaults.
        eval_batches: size, order and hash of the order, for methods whose predictions depend on their batch.
        num_heads: h of a density; 0 without one.
        kernel: of a density.
        offset: lowest, highest and mean learned offset; None without a density, like the next.
        scaled_variance: lowest, highest and mean.
    """

    label: str
    fold: int
    seed: int
    key: str
    num_parameters: int
    decoder_parameters: int | None
    train_s: float
    peak_memory_bytes: int | None
    epochs: int | None
    selected_epoch: int | None
    device: str
    settings: Mapping[str, Any]
    eval_batches: Mapping[str, Any] | None
    num_heads: int = 0
    kernel: str = "2xi"
    offset: tuple[float, float, float] | None = None
    scaled_variance: tuple[float, float, float] | None = None


def cost(runs: Sequence[RunFacts], evaluation: Evaluation) -> Section:
    """Parameters, time and memory of every method."""
    title = "Parameters and cost"
    by_method = {name: part for name in order(evaluation) if (part := [run for run in runs if run.label == name])}
    if not by_method:
        return Section("cost", title, [Text("The trained folds are not at hand, so their cost is not known here.")])
    rows = [_cost_row(name, part) for name, part in by_method.items()]
    columns = [
        "Method", "Trainable parameters", "Of which fusion", "Of which decoder", "Seconds per fold",
        "Peak memory (MiB)",
        "Epochs", "Epoch reported, median", "Runs",
    ]  # fmt: skip
    devices = sorted({run.device for run in runs})
    note = (
        f"Seconds: wall time of training, mean ± sample std over runs, on {listed(devices)}; what else ran there is "
        "not known. Memory: highest of any run; recorded on GPUs only."
    )
    table = Table("cost", "Trainable parameters, training time and memory", columns, rows, note=note)
    return Section("cost", title, [table, Folded("Every run", [_run_table(runs)])])


def learning(curves: Mapping[str, Mapping[str, Mapping[str, Any]]], evaluation: Evaluation, files: Files) -> Section:
    """Learning curves of every method.

    Args:
        curves: label -> train, dev and test (those that exist) -> epochs, mean, low and high.
        evaluation: labelled.
        files: one picture per method.
    """
    chance = evaluation["chance"]["clip"]["majority_fraction"]
    named = {name: {CURVES[key]: part for key, part in curves[name].items()} for name in order(evaluation)}
    rule = evaluation["selection"]
    text = "Mean over folds and seeds; the shade spans the lowest and the highest. The test curve " + (
        "picks the epoch reported." if rule == "best-on-test" else "is shown only; it picks nothing."
    )
    rows: list[list[Cell]] = []
    for name, part in named.items():
        last: list[Cell] = [Number(part[label]["mean"][-1]) if label in part else DASH for label in CURVES.values()]
        test = [-1.0 if value is None else value for value in part[CURVES["test"]]["mean"]]
        best = int(np.argmax(test))
        epochs = part[CURVES["test"]]["epochs"]
        rows.append([name, Number(epochs[-1], "count"), *last, Number(test[best]), Number(epochs[best], "count")])
    columns = [
        "Method", "Epochs", *(f"{label}, last epoch" for label in CURVES.values()), "Test group, highest mean",
        "At epoch",
    ]  # fmt: skip
    table = Table("learning", "Accuracy per clip in percent along training, mean over folds and seeds", columns, rows)
    label = f"Accuracy per clip over the epochs, {len(named)} methods; the numbers are in the table."
    drawn = pictures.parts(
        "learning", label, named, pictures.PER_PICTURE, lambda part: pictures.learning_panels(part, chance)
    )
    plot = Plot("learning", "learning", label, plots.learning_data(named, chance), drawn)
    return Section("learning", "Learning curves", [Text(text), plot, Folded(table.caption, [table]), files])


def confusion(evaluation: Evaluation, files: Files) -> Section:
    """Confusion matrices of every method."""
    unit, classes = evaluation["main_unit"], evaluation["classes"]
    counts = {name: evaluation["methods"][name]["confusion"][unit] for name in order(evaluation)}
    shares = {name: row_shares(part) for name, part in counts.items()}
    text = f"All test {unit}s of all folds and seeds. Rows are actual classes and sum to 100 %."
    rows: list[list[Cell]] = [
        [name, label, *(Number(value, "count") for value in row)]
        for name, part in counts.items()
        for label, row in zip(classes, part, strict=True)
    ]
    table = Table("confusion", f"Confusion matrices, counts of test {unit}s",
                  ["Method", "Actual class", *(f"Predicted {label}" for label in classes)], rows,
                  frozenset({1}))  # fmt: skip
    label = (
        f"Confusion matrices of {len(counts)} methods. Highest method {next(iter(counts))}: share of each actual class "
        "predicted rightly "
        + ", ".join(f"{name} {percent(float(share))} %" for name, share in
                    zip(classes, np.diag(next(iter(shares.values()))), strict=True))
        + ". The counts are in the table."
    )  # fmt: skip
    drawn = pictures.parts(
        "confusion", label, shares, pictures.PER_PICTURE, lambda part: pictures.confusion_panels(part, classes)
    )
    plot = Plot("confusion", "confusion", label, plots.confusion_data(counts, classes, unit), drawn)
    return Section("confusion", "Confusion matrices", [Text(text), plot, Folded(table.caption, [table]), files])


def row_shares(counts: Sequence[Sequence[int]]) -> Any:
    """Shares of every row, shape (C, C); a row without items stays 0."""
    array = np.asarray(counts, dtype=float)
    totals = array.sum(axis=1, keepdims=True)
    return np.divide(array, totals, out=np.zeros_like(array), where=totals > 0)


def missing(evaluation: Evaluation) -> Section:
    """Folds without a result, and methods left out."""
    rows: list[list[Cell]] = [
        [name, str(fold), str(seed)] for name, entry in evaluation["methods"].items() for fold, seed in entry["missing"]
    ]
    skipped = list(evaluation.get("skipped", {}))
    texts = [] if rows else ["Every fold of every method is finished."]
    if skipped:
        texts.append(f"Left out, because training skipped them: {listed(skipped)}.")
    if rows:
        texts.append("Means of these methods rest on the finished folds alone and are not fully comparable.")
    tables = [Table("missing", "Folds without a result", ["Method", "Fold", "Seed"], rows)] if rows else []
    return Section("missing", "Missing folds", [*map(Text, texts), *tables])


def provenance(
    evaluation: Evaluation, runs: Sequence[RunFacts], *, texts: Mapping[str, str], commands: Sequence[str]
) -> Section:
    """Everything needed to repeat the run: commands, code, machine, embeddings, seeds, batches and settings.

    Args:
        evaluation: labelled.
        runs: of all methods.
        texts: settings as YAML, by title.
        commands: that make this report from nothing.
    """
    facts = evaluation["provenance"]
    rows: list[list[Cell]] = [
        ["Git commit", ", ".join(facts["git_commits"])],
        ["daamctl", ", ".join(facts["daamctl"])],
        *[[name, version] for name, version in facts["versions"].items()],
        ["Embeddings key", facts["embeddings_key"]],
        ["Seeds", ", ".join(map(str, evaluation["seeds"]))],
        ["Device", ", ".join(facts["devices"])],
        ["Precision", ", ".join(facts["precisions"])],
        ["Training time, all methods (s)", f"{sum(facts['train_s'].values()):,.0f}"],
    ]
    encoder: list[list[Cell]] = [[str(name), _plain(value)] for name, value in facts["encoder"].items()]
    clips: list[list[Cell]] = [
        [str(row[0]), *(Number(cell, "count") for cell in row[1:])] for row in facts["clips_per_fold"]
    ]
    blocks: list[Block] = _code_notes(facts["git_commits"])
    blocks += [
        Text("To repeat it:"),
        Code("\n".join(commands)),
        Table("software", "Code, machine and seeds", ["What", "Value"], rows, frozenset({1})),
        Table("encoder", "Encoder, as recorded in the embeddings", ["What", "Value"], encoder, frozenset({1})),
        Table("clips", "Clips per fold", ["Fold", "Training", "Held out for selection", "Test"], clips),
        *_batches(runs),
        *_readings(evaluation),
        *(Folded(title, [Code(text)]) for title, text in texts.items()),
    ]
    return Section("provenance", "Provenance", blocks)


def _cost_row(name: str, runs: Sequence[RunFacts]) -> list[Cell]:
    first, seconds = runs[0], [run.train_s for run in runs]
    decoder = first.decoder_parameters
    memory = [run.peak_memory_bytes for run in runs if run.peak_memory_bytes]
    epochs = sorted({run.epochs for run in runs if run.epochs})
    selected = [run.selected_epoch for run in runs if run.selected_epoch]
    return [
        name,
        Number(first.num_parameters, "count"),
        Number(None if decoder is None else first.num_parameters - decoder, "count"),
        Number(decoder, "count"),
        Number(mean(seconds), "seconds", std=stdev(seconds) if len(seconds) > 1 else None),
        Number(max(memory, default=None), "mib"),
        Number(epochs[0], "count") if len(epochs) == 1 else ", ".join(map(str, epochs)) or DASH,
        Number(median(selected) if selected else None, "count"),
        Number(len(runs), "count"),
    ]


def _run_table(runs: Sequence[RunFacts]) -> Table:
    rows: list[list[Cell]] = [
        [run.label, str(run.fold), str(run.seed), run.key, Number(run.selected_epoch, "count"),
         Number(run.epochs, "count"), Number(run.train_s, "seconds"), Number(run.peak_memory_bytes, "mib"), run.device]
        for run in runs
    ]  # fmt: skip
    columns = ["Method", "Fold", "Seed", "Content key", "Epoch reported", "Epochs", "Seconds", "Memory (MiB)", "Device"]
    return Table("runs", "Every finished run; equal content keys mean equal inputs", columns, rows, frozenset({3, 8}))


def _batches(runs: Sequence[RunFacts]) -> list[Block]:
    rows: list[list[Cell]] = [
        [run.label, str(run.fold), str(run.seed), str(run.eval_batches["size"]), str(run.eval_batches["order"]),
         str(run.eval_batches["clips_sha256"])]
        for run in runs if run.eval_batches
    ]  # fmt: skip
    if not rows:
        return []
    columns = ["Method", "Fold", "Seed", "Clips per batch", "Order", "SHA-256 of the clips in that order"]
    caption = "Test batches of methods whose predictions depend on them (D1)"
    return [Folded(caption, [Table("batches", caption, columns, rows, frozenset({4, 5}))])]


def _readings(evaluation: Evaluation) -> list[Block]:
    found = [
        f"{name}: {entry['reconstructed']}" for name, entry in evaluation["methods"].items() if entry["reconstructed"]
    ]
    return [Text("Reconstructed methods and the reading chosen:"), Bullets(found)] if found else []


def _code_notes(commits: Sequence[str]) -> list[Block]:
    notes: list[Block] = []
    if any("+changes" in commit for commit in commits):
        text = (
            "The folds were trained from a working copy with changes that are in no commit: the commit alone does not "
            "give this code."
        )
        notes.append(Text(text, caution=True))
    if len(commits) > 1:
        notes.append(Text(f"The folds were trained with {len(commits)} different versions of the code.", caution=True))
    return notes


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {item}" for name, item in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
