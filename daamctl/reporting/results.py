"""Sections made from evaluation.json: headline, folds, selection, gaps, provenance. Input: fractions."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import mean, stdev
from typing import Any

from daamctl.reporting.document import (
    DASH,
    Section,
    Table,
    count,
    duration,
    listed,
    mean_std,
    percent,
    points,
)

Evaluation = Mapping[str, Any]

SELECTION_RULES = {
    "dev-group": "the epoch reported is the best on one training group held out for that, never on the test group",
    "best-on-test": "the epoch reported is the best on the test group itself, as published, so figures are optimistic",
    "last": "the epoch reported is the last one, so no data selects it",
}


def headline(evaluation: Evaluation) -> Section:
    """What was run, which method is best, and what answering without looking would give."""
    unit, chance = evaluation["main_unit"], evaluation["chance"][evaluation["main_unit"]]
    best = order(evaluation)[0]
    top = evaluation["methods"][best]["summary"][unit]["accuracy"]
    size, counts = len(evaluation["classes"]), evaluation["counts"]
    corpus, encoder = _names(evaluation)
    done = max(len(entry["per_fold"]) for entry in evaluation["methods"].values())
    what = (
        f"Corpus {corpus}, frozen encoder {encoder}: {count(counts['utterance'])} test utterances "
        f"({count(counts['clip'])} clips) of {size} classes ({', '.join(evaluation['classes'])}), in "
        f"{evaluation['num_folds']} folds, each testing one group that its training never sees, with "
        f"{_plural(len(evaluation['seeds']), 'seed')} each. The main figure is accuracy per {unit}; "
        f"{SELECTION_RULES[evaluation['selection']]}."
    )
    lost = "" if chance["majority_fraction"] < top["mean"] else " No method beats that."
    guess = (
        f"Always answering “{chance['majority_class']}”, the most frequent class, would give "
        f"{percent(chance['majority_fraction'])} % accuracy and {percent(chance['uniform_fraction'])} % balanced "
        f"accuracy.{lost}"
    )
    return Section(
        "headline", "Headline",
        paragraphs=[what, _best_sentence(evaluation), guess],
        facts=[
            ("Best method", best),
            (f"Accuracy per {unit}", f"{mean_std(top)} %"),
            ("Most frequent class", f"{percent(chance['majority_fraction'])} %"),
            ("Folds × seeds done", f"{done} of {evaluation['num_folds'] * len(evaluation['seeds'])}"),
        ],
        warnings=list(evaluation["notes"]),
    )  # fmt: skip


def order(evaluation: Evaluation) -> list[str]:
    """Methods by mean accuracy of the main unit, best first; ties in report order."""
    unit = evaluation["main_unit"]
    methods = evaluation["methods"]
    return sorted(methods, key=lambda name: -methods[name]["summary"][unit]["accuracy"]["mean"])


def paired(evaluation: Evaluation, first: str, second: str) -> list[float]:
    """Accuracy of `first` minus `second` on every fold and seed that both have; main unit."""
    unit = evaluation["main_unit"]
    tables = [
        {(row["fold"], row["seed"]): row[unit]["accuracy"] for row in evaluation["methods"][name]["per_fold"]}
        for name in (first, second)
    ]
    return [tables[0][key] - tables[1][key] for key in sorted(tables[0].keys() & tables[1].keys())]


def folds(evaluation: Evaluation) -> Section:
    """Methods x folds, in the main unit."""
    unit, methods = evaluation["main_unit"], evaluation["methods"]
    best, groups = order(evaluation)[0], evaluation["counts"]["groups"]
    seeds = len(evaluation["seeds"])
    others = [name for name in evaluation["metrics"] if name != "accuracy"]
    numbers = range(1, evaluation["num_folds"] + 1)
    columns = ["Method", *[_fold_heading(number, groups) for number in numbers], "Mean ± std", "n"]
    columns += [evaluation["metrics"][name]["alias"] for name in others] + ["Parameters"]
    rows = []
    for name, entry in methods.items():
        cells = [_fold_cell(entry, number, unit) for number in numbers]
        summary = entry["summary"][unit]
        mark = " (best)" if name == best and len(methods) > 1 else ""
        rows.append(
            [name, *cells, mean_std(summary["accuracy"]) + mark, str(summary["accuracy"]["n"]),
             *[mean_std(summary[other]) for other in others], count(entry["num_parameters"])]
        )  # fmt: skip
    note = "Std is the sample standard deviation (divisor n − 1) over folds" + (
        f" and seeds; a fold’s cell is the mean of its {seeds} seeds." if seeds > 1 else "."
    )
    caption = f"Accuracy per {unit} in percent, by test fold (the group named was tested, the others trained)"
    table = Table(caption, columns, rows, note=f"{note} Parameters: trainable, decoder included.")
    return Section("results", "Methods by fold", tables=[table, _clip_and_pooled(evaluation)])


def selection(evaluation: Evaluation) -> Section:
    """What choosing the epoch on the test group adds."""
    rows = []
    for name, entry in evaluation["methods"].items():
        part = entry["selection"]
        chosen, best, last = (part[key] for key in ("accuracy", "accuracy_best_on_test", "accuracy_last"))
        gain = None if chosen is None or best is None else best["mean"] - chosen["mean"]
        rows.append([name, mean_std(chosen), mean_std(best), mean_std(last), points(gain)])
    rule = evaluation["selection"]
    text = (
        "The published code reports the best epoch on the test fold itself. The same runs, read three ways, show what "
        f"that choice adds. Here {SELECTION_RULES[rule]}."
    )
    columns = ["Method", "As reported", "Best epoch on test", "Last epoch", "Inflation (points)"]
    caption = "Accuracy per clip in percent, mean ± sample std over folds, by the rule that chooses the epoch"
    note = "Inflation: best epoch on test minus as reported. Per clip, because epochs are scored per clip."
    return Section("selection", "What choosing the epoch on the test fold adds", [text],
                   tables=[Table(caption, columns, rows, note=note)])  # fmt: skip


def missing(evaluation: Evaluation) -> Section:
    """Folds without a result, and methods left out."""
    rows = [
        [name, str(fold), str(seed)] for name, entry in evaluation["methods"].items() for fold, seed in entry["missing"]
    ]
    skipped = list(evaluation.get("skipped", {}))
    paragraphs = [] if rows else ["Every fold of every method is finished."]
    if skipped:
        paragraphs.append(f"Left out, because training skipped them: {listed(skipped)}.")
    if rows:
        paragraphs.append("Means of these methods rest on the finished folds alone and are not fully comparable.")
    tables = [Table("Folds without a result", ["Method", "Fold", "Seed"], rows)] if rows else []
    return Section("missing", "Missing folds", paragraphs, tables=tables)


def provenance(evaluation: Evaluation, config_yaml: str) -> Section:
    """Versions, encoder, machines, times and settings."""
    facts = evaluation["provenance"]
    rows = [
        ["Git commit", ", ".join(facts["git_commits"])],
        ["daamctl", ", ".join(facts["daamctl"])],
        *[[name, version] for name, version in facts["versions"].items()],
        ["Embeddings key", facts["embeddings_key"]],
        ["Device", ", ".join(facts["devices"])],
        ["Precision", ", ".join(facts["precisions"])],
        *[[f"Training time, {name}", duration(seconds)] for name, seconds in facts["train_s"].items()],
    ]
    encoder = [[str(name), _plain(value)] for name, value in facts["encoder"].items()]
    clips = [[str(cell) for cell in row] for row in facts["clips_per_fold"]]
    return Section(
        "provenance", "Provenance",
        tables=[
            Table("Code, machine and times", ["What", "Value"], rows, frozenset({1})),
            Table("Encoder, as recorded in the embeddings", ["What", "Value"], encoder, frozenset({1})),
            Table("Clips per fold", ["Fold", "Training", "Held out for selection", "Test"], clips),
        ],
        code={"Settings (YAML)": config_yaml},
    )  # fmt: skip


def _best_sentence(evaluation: Evaluation) -> str:
    best, *others = order(evaluation)
    unit = evaluation["main_unit"]
    top = evaluation["methods"][best]["summary"][unit]["accuracy"]
    text = f"{best} is highest with {mean_std(top)} % accuracy per {unit} (n = {top['n']})"
    if not others:
        return f"{text}; no other method was run."
    gaps = paired(evaluation, best, others[0])
    if not gaps:
        return f"{text}, before {others[0]}; the two share no fold, so they cannot be compared."
    wins = sum(gap > 0 for gap in gaps)
    text += (
        f", before {others[0]}: on the folds both have, the difference is {points(mean(gaps))} points, and {best} is "
        f"ahead in {wins} of {len(gaps)}."
    )
    if len(gaps) < 2 or abs(mean(gaps)) <= stdev(gaps):
        text += " A difference this small against its spread over folds does not show that one is better."
    return text


def _clip_and_pooled(evaluation: Evaluation) -> Table:
    """The other reading of the same predictions: per unit, and pooled over folds."""
    columns, rows = ["Method"], []
    for unit in evaluation["units"]:
        columns += [f"Per {unit}, mean of folds", f"Per {unit}, pooled"]
    for name, entry in evaluation["methods"].items():
        cells = []
        for unit in evaluation["units"]:
            cells += [mean_std(entry["summary"][unit]["accuracy"]), percent(entry["pooled"][unit]["accuracy"])]
        rows.append([name, *cells])
    note = "Pooled: all test items of all folds and seeds scored as one set, so larger folds weigh more."
    return Table("Accuracy in percent, per utterance and per clip", columns, rows, note=note)


def _fold_heading(number: int, groups: Mapping[str, str]) -> str:
    group = groups.get(str(number))
    return f"Fold {number}" + (f" ({group})" if group else "")


def _fold_cell(entry: Mapping[str, Any], number: int, unit: str) -> str:
    values = [row[unit]["accuracy"] for row in entry["per_fold"] if row["fold"] == number]
    return percent(mean(values)) if values else "missing"


def _names(evaluation: Evaluation) -> tuple[str, str]:
    made = evaluation["provenance"]["config"]
    corpus = made.get("download", {}).get("corpus", evaluation["run"])
    encoder = made.get("extract", {}).get("encoder") or evaluation["provenance"]["encoder"].get("id", DASH)
    return str(corpus), str(encoder)


def _plural(number: int, word: str) -> str:
    return f"{number} {word}" + ("" if number == 1 else "s")


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {item}" for name, item in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
