"""`compare`: two pipelines or methods, or a published row: what differs in the making, and what in the figures.

Reads `data/train/<run>/<method>/` of both sides and the published tables; writes `data/compare/<A>__<B>/
comparison.json`. No stage of the DAG. All figures are fractions, printed ones too; differences are first minus second.

Sides may differ in embeddings and training settings, which `evaluate` refuses within one pipeline: here they are what
is compared, so they are listed beside the difference they may have made. Test items must be the same.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from daamctl.artifacts.io import write_json
from daamctl.artifacts.results import Fold, read_fold, read_folds
from daamctl.config import Config, load_config, pipeline_names
from daamctl.errors import ArtifactError, ConfigError, UnknownNameError
from daamctl.evaluation.comparison import COMPARED, SCHEMA, compare_methods, item_table
from daamctl.evaluation.consistency import check_method, check_methods, differences, flat
from daamctl.evaluation.scoring import Items, items_of, score_items
from daamctl.evaluation.settings_diff import CANNOT_SECTIONS, code_changed, differing, facts, merged
from daamctl.evaluation.statistics import holm, nadeau_bengio
from daamctl.evaluation.summary import spread
from daamctl.layout import Layout
from daamctl.reporting.published import (
    DEFAULT_SOURCE,
    SPEECH_PROTOCOL,
    PublishedRow,
    PublishedTable,
    published_tables,
    read_published,
)

logger = logging.getLogger(__name__)

PUBLISHED = "published:"
MOST_CONSISTENT = 10
LORA_SESSIONS = (5, 3, 1, 2, 4)
"""IEMOCAP session behind each printed column of a LoRA row; column k of all other rows is session k (D15)."""
NOT_PRINTED = (
    "of further settings the table says nothing; where the papers' code departs from their text: daamctl deviations"
)
NO_TEST = (
    "no p: a printed row has no test items to pair with ours, and its folds were trained, selected and scored under "
    "another protocol, so a p would be of protocols, not of methods"
)
PRINTED_TEST = (
    "Nadeau-Bengio on the printed folds, n_test / n_train taken as 0.25; folds are rounded to 0.1 points and each is "
    "the best epoch on its own test session"
)
PRINTED_RATIO = 0.25
"""n_test / n_train of five sessions of about one size, one of them tested."""
ALPHA = 0.05
CUTTING = ("segment.max_duration_s", "segment.tail", "segment.tail_below_s")


@dataclass(frozen=True)
class Trained:
    """A side that has folds.

    Args:
        name: pipeline or run, without a method.
        layout: where its folds lie.
        config: its settings of now.
        methods: the methods asked for: one, or all.
        one: whether one method was asked for.
    """

    name: str
    layout: Layout
    config: Config
    methods: tuple[str, ...]
    one: bool

    @property
    def seeds(self) -> tuple[int, ...] | None:
        """The seeds that a pipeline lists; None for an ad-hoc run: those there are."""
        return self.config.train.seeds if self.layout.pipeline else None


@dataclass(frozen=True)
class Printed:
    """A side that is printed in a paper.

    Args:
        name: `published:` and the table.
        table: the table.
        methods: the rows asked for: one, or all.
        one: whether one row was asked for.
    """

    name: str
    table: PublishedTable
    methods: tuple[str, ...]
    one: bool

    def row(self, method: str) -> PublishedRow:
        """The row of a method in `methods`."""
        row = self.table.row(method)
        assert row is not None
        return row


@dataclass(frozen=True)
class _Loaded:
    """One method of a trained side: its folds, and what each of them was scored on."""

    name: str
    folds: list[Fold]
    items: list[Items]
    table: pl.DataFrame
    facts: dict[str, Any]

    @property
    def label(self) -> str:
        """The name as it stands beside a figure."""
        return f"{self.name.rpartition('/')[0]}/{self.folds[0].label}"


def run(root: Path, first: str, second: str, *, unit: str | None = None) -> Path:
    """Compare two sides.

    Args:
        root: project folder.
        first: a pipeline or run, `pipeline/method`, `published:TABLE` or `published:TABLE/method`.
        second: likewise; methods of whole pipelines and tables are matched by name.
        unit: "utterance" or "clip"; None: `evaluate.unit` of the sides, which must agree.

    Returns:
        Path of comparison.json: first, second (as named); kind ("paired", "printed" for a published row and ours,
        "both-printed"); unit; matched (pairs of methods); unmatched; settings (can_change, cannot_change, not_known);
        family; comparisons; notes.

    Raises:
        UnknownNameError: there is no such pipeline, run, method or row.
        ConfigError: the sides share no method, are one and the same, or differ in `evaluate.unit`.
        ArtifactError: folds are missing or differ among themselves, or the sides were tested on other items.
    """
    a, b = _side(root, first), _side(root, second)
    pairs = _match(a, b)
    chosen = _unit(a, b, unit)
    if isinstance(a, Trained) and isinstance(b, Trained):
        result = _paired(a, b, pairs, chosen, f"daamctl compare {first} {second}")
    else:
        result = _with_print(a, b, pairs, chosen)
    report = {
        "first": first,
        "second": second,
        "kind": result.pop("kind"),
        "unit": chosen,
        "matched": [list(pair) for pair in pairs],
        "unmatched": {
            "first": [name for name in a.methods if name not in {pair[0] for pair in pairs}],
            "second": [name for name in b.methods if name not in {pair[1] for pair in pairs}],
        },
        **result,
    }
    path = root / "data" / "compare" / f"{_safe(first)}__{_safe(second)}" / "comparison.json"
    write_json(path, report)
    logger.info("comparison: %s", path)
    return path


def _safe(name: str) -> str:
    """A name as part of a folder's name on any file system."""
    return re.sub(r"[^\w.-]+", ".", name)


def _side(root: Path, text: str) -> Trained | Printed:
    if text.startswith(PUBLISHED):
        return _printed(text.removeprefix(PUBLISHED))
    name, _, method = text.partition("/")
    layout, config = _run(root, name)
    there = _trained_methods(layout)
    listed = config.methods if layout.pipeline else there
    if not method:
        return Trained(name, layout, config, tuple(listed), one=False)
    known = dict.fromkeys([*listed, *there])
    if method not in known:
        raise UnknownNameError(f"method of '{name}'", method, known)
    return Trained(name, layout, config, (method,), one=True)


def _run(root: Path, name: str) -> tuple[Layout, Config]:
    """Layout and settings of a pipeline, or of an ad-hoc run, whose corpus and encoder its folds name."""
    pipelines = pipeline_names(root)
    if name in pipelines:
        config = load_config(root, name)
        return Layout.of(root, name, config), config
    made = {path.parts[-4]: path.parent for path in (root / "data" / "train").glob("*/*/fold*/result.json")}
    if name not in made:
        raise UnknownNameError("pipeline or run", name, {*pipelines, *made})
    settings = read_fold(made[name]).result["run"]["config"]
    corpus, encoder = settings["download"]["corpus"], settings["extract"]["encoder"]
    config = load_config(root, None, {"download.corpus": corpus, "extract.encoder": encoder})
    return Layout(root, None, corpus, name, corpus, encoder), config


def _trained_methods(layout: Layout) -> list[str]:
    return sorted({path.parts[-3] for path in layout.method("").glob("*/fold*/result.json")})


def _printed(text: str) -> Printed:
    """A published table, or one row of it."""
    tables = published_tables()
    short = [name.removeprefix(f"{DEFAULT_SOURCE}/") for name in tables]
    known = {*tables, *short}
    name, method = (text, "") if text in known else (text.rpartition("/")[0], text.rpartition("/")[2])
    if name not in known:
        raise UnknownNameError("published table", text, short)
    table = read_published(name)
    rows = tuple(dict.fromkeys(row.method for row in table.rows))
    if method and method not in rows:
        raise UnknownNameError(f"row of '{PUBLISHED}{name}'", method, rows)
    return Printed(PUBLISHED + name, table, (method,) if method else rows, one=bool(method))


def _match(a: Trained | Printed, b: Trained | Printed) -> list[tuple[str, str]]:
    """The pairs of methods: two single ones as they are, all others by name."""
    if a.one and b.one:
        pairs = [(a.methods[0], b.methods[0])]
    elif a.one or b.one:
        single, many = (a, b) if a.one else (b, a)
        if single.methods[0] not in many.methods:
            raise UnknownNameError(f"method of '{many.name}'", single.methods[0], many.methods)
        pairs = [(single.methods[0], single.methods[0])]
    else:
        pairs = [(name, name) for name in a.methods if name in b.methods]
    if not pairs:
        raise ConfigError(
            f"'{a.name}' ({', '.join(a.methods)}) and '{b.name}' ({', '.join(b.methods)}) share no method",
            fix=f"name one of each: daamctl compare {a.name}/{a.methods[0]} {b.name}/{b.methods[0]}",
        )
    for one, other in pairs:
        if _identity(a, one) == _identity(b, other):
            raise ConfigError(f"'{a.name}/{one}' and '{b.name}/{other}' are one and the same: nothing to compare")
    return pairs


def _identity(side: Trained | Printed, method: str) -> tuple[Any, ...]:
    if isinstance(side, Trained):
        return (side.layout.method(method),)
    return side.table.source, side.row(method)


def _unit(a: Trained | Printed, b: Trained | Printed, wanted: str | None) -> str:
    units = {side.name: side.config.evaluate.unit for side in (a, b) if isinstance(side, Trained)}
    if not units:
        if wanted is not None:
            raise ConfigError("--unit does not apply to two published rows: they stand as printed")
        return "as printed"
    if wanted is None and len(set(units.values())) > 1:
        met = ", ".join(f"{unit} for '{name}'" for name, unit in units.items())
        raise ConfigError(f"evaluate.unit differs: {met}", fix="choose one for both: --unit utterance or --unit clip")
    return wanted or next(iter(units.values()))


def _load(side: Trained, methods: Sequence[str], unit: str) -> dict[str, _Loaded]:
    """Every method's finished folds, checked to be complete and alike, and what they were scored on.

    Raises:
        ArtifactError: a fold is missing, or folds were made with different settings.
    """
    found: dict[str, list[Fold]] = {}
    for method in methods:
        fix = side.layout.command("train", "--method", method)
        folds = read_folds(side.layout.method(method))
        folds = [fold for fold in folds if side.seeds is None or fold.seed in side.seeds]
        if not folds:
            raise ArtifactError(f"'{side.name}/{method}' has no finished fold", fix=f"train it: {fix}")
        seeds, done = side.seeds or {fold.seed for fold in folds}, {(fold.fold, fold.seed) for fold in folds}
        numbers = range(1, folds[0].result["run"]["num_folds"] + 1)
        missing = [(fold, seed) for fold in numbers for seed in sorted(seeds) if (fold, seed) not in done]
        if missing:
            shown = ", ".join(f"fold {fold} seed {seed}" for fold, seed in missing[:5])
            more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
            raise ArtifactError(f"'{side.name}/{method}' lacks {shown}{more}", fix=f"train them: {fix}")
        check_method(method, folds, fix=fix)
        found[method] = folds
    check_methods(found, fix=side.layout.command("train"))
    return {method: _loaded(f"{side.name}/{method}", folds, unit) for method, folds in found.items()}


def _loaded(name: str, folds: list[Fold], unit: str) -> _Loaded:
    predictions = [fold.predictions() for fold in folds]
    items = [items_of(part, unit) for part in predictions]
    return _Loaded(name, folds, items, item_table(folds, items), facts(folds, predictions))


def _paired(a: Trained, b: Trained, pairs: Sequence[tuple[str, str]], unit: str, command: str) -> dict[str, Any]:
    """Both sides have test items: paired tests, one family per metric over all pairs."""
    first, second = _load(a, [pair[0] for pair in pairs], unit), _load(b, [pair[1] for pair in pairs], unit)
    settings, comparisons, notes = {}, [], []
    for one, other in pairs:
        left, right = first[one], second[other]
        settings[one] = differing({**left.facts, **_later(a)}, {**right.facts, **_later(b)})
        result = _compare(a, b, left, right, unit, command)
        figures = {key: value for key, value in result["comparisons"][0].items() if key not in ("first", "second")}
        comparisons.append(
            {
                **{"first": left.name, "second": right.name, "first_label": left.label, "second_label": right.label},
                **figures,
                "disagreements": _disagreements(left, right),
                "design": result["design"],
                "floor": result["family"]["floor"],
            }
        )
        notes += [*result["notes"], *_method_notes(a, left), *_method_notes(b, right)]
        if code_changed(left.folds, right.folds):
            notes.append(
                f"{left.name} and {right.name}: settings and embeddings agree but content keys do not, so the code of "
                "the method changed in between"
            )
    family = _family([pair[0] for pair in pairs], comparisons)
    if family["floor"] is not None and family["floor"] <= ALPHA < family["floor_holm"]:
        notes.append(
            f"corrected over {family['size']} methods no p below {family['floor_holm']:.4g} is possible, so no "
            f"difference can reach {ALPHA:g}, however large; a smaller family could"
        )
    notes.append(
        "a difference between the sides is that of everything listed as able to change it, not of one setting alone"
        if any(part["can_change"] for part in settings.values())
        else "nothing that is recorded and can change a figure differs"
    )
    return {
        "kind": "paired",
        "settings": {**merged(settings), "not_known": None},
        "family": family,
        "comparisons": comparisons,
        "notes": list(dict.fromkeys(notes)),
    }


def _later(side: Trained) -> dict[str, Any]:
    """The settings that are read after training, as they are now, and the methods listed."""
    sections = {name: side.config.section(name) for name in CANNOT_SECTIONS}
    return {**flat(sections), "methods": list(side.config.methods)}


def _compare(a: Trained, b: Trained, left: _Loaded, right: _Loaded, unit: str, command: str) -> dict[str, Any]:
    """`compare_methods` on one pair.

    Raises:
        ArtifactError: they were tested on other items or targets; says which settings differ and which command helps.
    """
    names = [row["name"] for row in differing(left.facts, right.facts)["can_change"]]
    made = [name for name in names if name.startswith(("download.", "segment."))]
    again = f"they differ in {', '.join(made)}" if made else "their settings of download and segment agree"
    again += f"; make the one out of date again: {a.layout.command('download')}, {b.layout.command('download')}"
    if "data.classes" in names:
        met = " and ".join(", ".join(loaded.facts["data.classes"]) for loaded in (left, right))
        raise ArtifactError(f"'{left.name}' and '{right.name}' have different targets: {met}", fix=again)
    cut = [name for name in names if name in CUTTING or name == "data.test_clips_key"]
    if unit == "clip" and cut and "data.test_utterances_key" not in names:
        raise ArtifactError(
            f"'{left.name}' and '{right.name}' were tested on the same utterances but on other clips of them, so clips "
            f"cannot be paired (differing: {', '.join(cut)})",
            fix=f"compare them by utterance: {command} --unit utterance",
        )
    # compare_methods takes the sizes of the first; of sides that differ the larger share tested is the cautious one
    ratios = [
        float(np.divide(loaded.facts["data.test_clips"], loaded.facts["data.train_clips"]).mean())
        for loaded in (left, right)
    ]
    sizes = (left if ratios[0] >= ratios[1] else right).table.select("fold", "n_test", "n_train").unique("fold")
    tables = {
        loaded.name: loaded.table.drop("n_test", "n_train").join(sizes, on="fold", how="left").select(list(SCHEMA))
        for loaded in (left, right)
    }
    try:
        result = compare_methods(tables, alpha=ALPHA)
    except ArtifactError as error:
        raise ArtifactError(error.message, fix=again) from error
    if ratios[0] != ratios[1]:
        shares = " and ".join(f"{ratio:.3g}" for ratio in ratios)
        result["notes"].append(f"n_test / n_train is {shares}; the test over folds takes the larger one")
    return result


def _method_notes(side: Trained, loaded: _Loaded) -> list[str]:
    """What must be known of one method's figures."""
    run_part, method = loaded.folds[0].result["run"], loaded.name
    notes = []
    if run_part["config"]["train"]["selection"] == "best-on-test":
        notes.append(f"{side.name}: epochs are selected on the test groups themselves (D7), so its figures flatter it")
    if run_part.get("reconstructed"):
        notes.append(f"{method}: {run_part['reconstructed']}; a reconstruction, not a replication")
    if run_part.get("eval_batches"):
        notes.append(f"{method}: a prediction depends on the other clips of its batch (D1)")
    changed = {text for fold in loaded.folds for text in differences(fold, side.config.section("train"))}
    return notes + [f"{method}: trained with other settings than those of now: {text}" for text in sorted(changed)]


def _disagreements(left: _Loaded, right: _Loaded) -> list[dict[str, Any]]:
    """The items on which the sides disagree most: by share of seeds right, then by probability of the true class."""
    classes = left.folds[0].result["run"]["classes"]
    averaged = [
        loaded.table.with_columns(
            probability=np.concatenate(
                [part.probabilities[np.arange(len(part)), part.targets] for part in loaded.items]
            )
        )
        .group_by("fold", "item")
        .agg(pl.col("speaker", "target").first(), pl.col("correct", "probability").mean())
        for loaded in (left, right)
    ]
    gap = pl.col("correct") - pl.col("correct_right")
    surer = pl.col("probability") - pl.col("probability_right")
    rows = averaged[0].join(averaged[1], on=["fold", "item"], suffix="_right", validate="1:1").filter(gap != 0)
    rows = rows.sort(gap.abs(), surer.abs(), "item", descending=[True, True, False]).head(MOST_CONSISTENT)
    return [
        {
            "item": row["item"],
            "fold": row["fold"],
            "speaker": row["speaker"],
            "class": classes[row["target"]],
            "first_right": row["correct"],
            "second_right": row["correct_right"],
            "first_probability": row["probability"],
            "second_probability": row["probability_right"],
        }
        for row in rows.iter_rows(named=True)
    ]


def _family(methods: list[str], comparisons: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Correct p over all pairs, per metric and test, in place; `floor` is the smallest p the test allows."""
    for metric in COMPARED:
        for test in ("primary", "secondary"):
            _fill_holm([entry["metrics"][metric][test] for entry in comparisons])
    size, floor = len(methods), max((entry["floor"] for entry in comparisons if entry["floor"]), default=None)
    return {
        **{"methods": methods, "size": size, "alpha": ALPHA, "correction": "holm", "floor": floor},
        "floor_holm": None if floor is None else min(1.0, floor * size),
    }


def _fill_holm(results: Sequence[dict[str, Any] | None]) -> None:
    adjusted = holm([result["p"] if result else None for result in results])
    for result, p in zip(results, adjusted, strict=True):
        if result:
            result["p_holm"] = p


def _with_print(
    a: Trained | Printed, b: Trained | Printed, pairs: Sequence[tuple[str, str]], unit: str
) -> dict[str, Any]:
    """At least one side is a printed row: its folds and their mean are all there is."""
    both = isinstance(a, Printed) and isinstance(b, Printed)
    told: list[dict[str, dict[str, Any]]] = []
    figures: list[dict[str, dict[str, Any]]] = []
    notes: list[str] = []
    for side, methods in ((a, [pair[0] for pair in pairs]), (b, [pair[1] for pair in pairs])):
        if isinstance(side, Trained):
            loaded = _load(side, methods, unit)
            told.append({name: _told_by_folds(part, unit) for name, part in loaded.items()})
            figures.append({name: _trained_figures(part) for name, part in loaded.items()})
            notes += [note for part in loaded.values() for note in _method_notes(side, part)]
        else:
            told.append({name: _told_by_print(side, name, both=both) for name in methods})
            figures.append({name: _printed_figures(side, name) for name in methods})
            notes.append(f"{side.name}: {side.table.protocol}")
    settings = {one: differing(told[0][one], told[1][other]) for one, other in pairs}
    comparisons = [_summary(figures[0][one], figures[1][other]) for one, other in pairs]
    _fill_holm([entry["test"] for entry in comparisons])
    tested = any(entry["test"] for entry in comparisons)
    family = {"methods": [pair[0] for pair in pairs], "size": len(pairs), "correction": "holm"}
    notes += [note for entry in comparisons for note in _print_notes(entry)]
    return {
        "kind": "both-printed" if both else "printed",
        "settings": {**merged(settings), "not_known": NOT_PRINTED},
        "family": family if tested else None,
        "comparisons": comparisons,
        "notes": list(dict.fromkeys(notes)),
    }


def _told_by_folds(loaded: _Loaded, unit: str) -> dict[str, Any]:
    """Of a trained method, the facts that a published table tells too."""
    known, layers = loaded.facts, loaded.facts["model.layers"]
    whole = layers == list(range(1, known.get("encoder.num_layers", 0) + 1))
    return {
        **{name: known[name] for name in ("method", "download.corpus", "extract.encoder", "train.selection")},
        "model.layers": "all" if whole else ", ".join(map(str, layers)),
        "scoring.unit": unit,
        "runs.num_folds": known["runs.num_folds"],
        "runs.per_fold": len(known["runs.seeds"]),
    }


def _told_by_print(side: Printed, method: str, *, both: bool) -> dict[str, Any]:
    """The facts that a published table tells; with `both`, also those that only two tables have in common."""
    table, row = side.table, side.row(method)
    speech = table.protocol == SPEECH_PROTOCOL
    known: dict[str, Any] = {
        "method": method,
        "download.corpus": table.dataset,
        "extract.encoder": table.encoder,
        "train.selection": "best-on-test",
        "model.layers": row.layers or "all",
        "scoring.unit": "clip" if speech else "item",
        "runs.num_folds": len(row.folds) if speech else 1,
        "runs.per_fold": 1 if speech else len(row.folds),
    }
    if both:
        known["table"] = f"{table.source}/{row.table}"
        known["data.sessions"] = _sessions(side, row)
    return known


def _sessions(side: Printed, row: PublishedRow) -> list[int] | None:
    """The session behind each printed column; None where columns are repeats of one split."""
    if not all(name.startswith("F") for name in row.folds):
        return None
    columns = [int(name[1:]) for name in row.folds]
    grouped = side.table.dataset == "iemocap" and row.method.startswith("lora")
    return [LORA_SESSIONS[column - 1] for column in columns] if grouped else columns


def _printed_figures(side: Printed, method: str) -> dict[str, Any]:
    """A printed row, with what its own folds give."""
    row = side.row(method)
    values = [value / 100 for value in row.folds.values()]
    sessions: Sequence[int | None] = _sessions(side, row) or [None] * len(values)
    folds = zip(row.folds, sessions, values, strict=True)
    return {
        "name": f"{side.name}/{method}",
        "label": f"{side.name}/{method}",
        "corpus": side.table.dataset,
        "print": {
            "text": row.printed or None,
            "mean_agrees": bool(row.mean_agrees),
            "std_is": row.std_is,
            "disagrees": bool(row.disagrees),
        },
        "as_published": spread(values),
        "as_reported": None,
        "folds": [{"fold": name, "session": session, "value": value} for name, session, value in folds],
    }


def _trained_figures(loaded: _Loaded) -> dict[str, Any]:
    """Ours under the published scoring (per clip, best epoch on test), and as reported."""
    best = [float(fold.result["metrics"]["accuracy_best_on_test"] or 0.0) for fold in loaded.folds]
    scores = [score_items(part, len(loaded.facts["data.classes"])) for part in loaded.items]
    by_fold: dict[int, list[float]] = {}
    for fold, value in zip(loaded.folds, best, strict=True):
        by_fold.setdefault(fold.fold, []).append(value)
    folds = zip(loaded.facts["data.test_groups"], by_fold.values(), strict=True)
    return {
        "name": loaded.name,
        "label": loaded.label,
        "corpus": loaded.facts["download.corpus"],
        "print": None,
        "as_published": spread(best),
        "as_reported": {name: spread([score[name] for score in scores]) for name in COMPARED},
        "folds": [
            {"fold": group, "session": _last_number(group), "value": float(np.mean(values))} for group, values in folds
        ],
    }


def _last_number(group: str) -> int | None:
    """Session1 and Ses01 -> 1."""
    digits = re.search(r"\d+$", group)
    return int(digits[0]) if digits else None


def _summary(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Two summaries side by side, fold by fold where folds are the same sessions."""
    not_aligned, folds = _not_aligned(first, second), None
    sides = [{fold["session"]: fold["value"] for fold in side["folds"]} for side in (first, second)]
    if not_aligned is None:
        pairs = {session: (sides[0][session], sides[1][session]) for session in sorted(sides[0])}
        folds = [
            {"session": session, "first": one, "second": other, "difference": one - other}
            for session, (one, other) in pairs.items()
        ]
    test, no_test = _printed_test(first, second, folds)
    return {
        "first": first["name"],
        "second": second["name"],
        "figures": {"first": first, "second": second},
        "difference": first["as_published"]["mean"] - second["as_published"]["mean"],
        "folds": folds,
        "not_aligned": not_aligned,
        "same_columns": folds is not None and list(sides[0]) == list(sides[1]),
        "test": test,
        "no_test": no_test,
    }


def _not_aligned(first: Mapping[str, Any], second: Mapping[str, Any]) -> str | None:
    """Why folds of two sides cannot be set beside one another; None if they are the same sessions."""
    if first["corpus"] != second["corpus"]:
        return f"the corpora differ: {first['corpus']} and {second['corpus']}"
    sessions = [[fold["session"] for fold in side["folds"]] for side in (first, second)]
    if any(None in part for part in sessions):
        return "columns or groups are not numbered sessions"
    if sorted(sessions[0]) != sorted(sessions[1]) or len(set(sessions[0])) < len(sessions[0]):
        return f"the folds are not the same sessions: {sessions[0]} and {sessions[1]}"
    return None


def _printed_test(
    first: Mapping[str, Any], second: Mapping[str, Any], folds: Sequence[Mapping[str, Any]] | None
) -> tuple[dict[str, Any] | None, str | None]:
    """A test between two printed rows of IEMOCAP; else None and why."""
    if first["print"] is None or second["print"] is None:
        return None, NO_TEST
    if folds is None:
        return None, "no p: the printed columns cannot be paired"
    if first["corpus"] != "iemocap":
        return None, f"no p: n_test / n_train of the folds of {first['corpus']} is not known"
    result = nadeau_bengio([fold["difference"] for fold in folds], PRINTED_RATIO, 1.0)
    return {"test": "nadeau-bengio", "unit": "printed fold", "label": PRINTED_TEST, **result, "p_holm": None}, None


def _print_notes(entry: Mapping[str, Any]) -> list[str]:
    """What must be known of one comparison with a printed row."""
    notes, name = [], f"{entry['first']} and {entry['second']}"
    if entry["not_aligned"]:
        notes.append(f"{name}: not fold by fold, since {entry['not_aligned']}")
    elif not entry["same_columns"]:
        order = ", ".join(map(str, LORA_SESSIONS))
        notes.append(
            f"{name}: the columns are not aligned, those of a LoRA row are sessions {order} (D15); paired by session"
        )
    for side in entry["figures"].values():
        if side["print"] and side["print"]["disagrees"]:
            wrong = [] if side["print"]["mean_agrees"] else ["mean"]
            wrong += ["deviation"] if side["print"]["std_is"] == "neither" else []
            notes.append(f"{side['name']}: no folds that round to the printed ones give the printed {', '.join(wrong)}")
    return notes
