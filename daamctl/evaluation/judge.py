"""Which of several models is best? Verdicts on the predictions of any tools (`prediction_files`).

The comparisons are those of `daamctl compare`: items are paired, repeats averaged, and the test flips the signs of
whole groups, e.g. speakers. Scores are fractions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from numbers import Real

import numpy as np
import polars as pl

from daamctl.artifacts.predictions import (
    COUNTED,
    ERRORS,
    NUMBERS,
    SCORED,
    SETS,
    VALUED,
    Predictions,
    Verdict,
    in_order,
    only_right,
)
from daamctl.artifacts.scores import ALPHA, Compared
from daamctl.artifacts.statistics import Interval, NonInferiority
from daamctl.data.item_names import groups_in_names
from daamctl.data.spans import is_tag
from daamctl.data.task import FIGURES, TASKS, Task
from daamctl.errors import ConfigError, first_few
from daamctl.evaluation.comparison import SCHEMA, compare_methods, method_intervals, not_worse, with_holm, with_progress
from daamctl.evaluation.figures import FIGURES_OF_SUMS, FigureOfErrors, labels_in
from daamctl.evaluation.prediction_columns import by_last_part
from daamctl.evaluation.trials import Trials, compare_trials, figure_not_worse, mean_figure, trial_intervals

NO_FOLDS = ", and the folds differ"
MOST_CLASSES = 100
"""With more labels, these are answers rather than classes, unless a metric of classes is asked for."""
MOST_CELLS = 50_000_000
"""Classes times items of an F1 of more classes; that many take about 9 GB."""


class _Graded(Task):
    """Items with a score, but without classes."""

    over_items = ("accuracy",)


def judge(
    files: Sequence[Predictions], *, metric: str = "accuracy", margin: float | None = None, common: bool = False
) -> Verdict:
    """Compare models on the same items.

    Args:
        files: at least two.
        metric: which ranks the models: accuracy, balanced_accuracy or one of `FIGURES_OF_SUMS`.
        margin: test that each model is less than this fraction of the metric worse than the first file.
        common: judge the items that all files have, if they differ.

    Raises:
        ConfigError: the items differ, or an item has different labels or groups; or there are no classes, or numbers,
            for this metric.
        ArtifactError: see `compare_methods`.
    """
    _check(files, metric, margin)
    names, figure = [file.name for file in files], FIGURES_OF_SUMS.get(metric)
    rows, notes = _matched(files, common=common)
    group, word = _groups(rows, files)
    if not any(file.group for file in files) and (named := groups_in_names(rows[0]["item"].unique())):
        corpus, word, group = named
        item, one = group.sort("item").row(0)
        notes.append(f"{word}s are known from the names of {corpus}, e.g. {one} from {item}; --group names others")
    labels = _labels(rows, files)
    classes = _classes(labels, files, metric)
    if metric == "entity_f1" and word is None:
        raise ConfigError("entity F1 needs the sentence or document of every word", fix="name its column with --group")
    if classes and metric != "entity_f1" and all(map(is_tag, classes)):
        notes.append("labels are tags of words, which are compared by entity F1: --metric entity-f1")
    if metric == "entity_f1":
        rows, told = _in_sentences(rows, names)
        notes += told
    names_of_classes = [*classes]
    if metric in SETS:
        names_of_classes = sorted(set[str]().union(*map(labels_in, labels["label"])))
        if not names_of_classes:
            raise ConfigError(f"there is no {FIGURES[metric]}: no item has a label")
        notes += _other_labels(rows, names, names_of_classes)
    if figure is not None and issubclass(figure, FigureOfErrors):
        if metric in SCORED:
            rows, told = _with_scores(rows, labels, names, figure)
            notes += told
        else:
            rows = [_with_errors(table, labels, name, figure) for table, name in zip(rows, names, strict=True)]
    # only the words of this task are used, and which figures it has
    base = replace(TASKS["embeddings"], item="item", clip="item", source=word or "item")
    task = replace(base, unknown="Which items belong together is not known")
    if figure is not None:
        task = figure(**vars(task))
    elif not classes:
        task = _Graded(**vars(task))
    tables = {
        name: _comparable(table, labels, classes, None if word is None else group)
        for name, table in zip(names, rows, strict=True)
    }
    compared, family = compare_methods(tables, task=task, same_folds=False, alpha=ALPHA)
    items = _items(tables, labels if classes else labels.with_columns(label=None), group, word)
    tested = family.design.unit is not None
    if word is not None and not tested:
        notes.append("to test single items, name their column with --group")
    intervals = {name: one.metrics for name, one in method_intervals(tables, task=task).items()} if tested else {}
    tests: dict[str, NonInferiority] = {}
    if margin is not None and figure is None:
        tests = not_worse(tables, reference=names[0], margin=margin, metric=metric, task=task, alpha=ALPHA)[1]
    if figure is not None:
        if metric == "entity_f1":  # also predicted tags that no word has
            said = pl.concat([table["prediction"] for table in rows]).drop_nulls().unique().sort()
            names_of_classes += [tag for tag in said if is_tag(tag) and tag not in classes]
        asked = replace(task, classes=tuple(names_of_classes), source=family.design.unit_word)
        parts = zip(tables.items(), rows, strict=True)
        trials = {name: _trials(asked, table, part) for (name, part), table in parts}
        further, drawn = _by_figure(asked, trials, items, tested=tested)
        if margin is not None:
            tests = figure_not_worse(asked, trials, names[0], margin, ALPHA, tested=tested)
        compared = [*compared, *further]
        intervals = {name: {**intervals[name], metric: interval} for name, interval in drawn.items()}
    values: dict[str, dict[str, float]] = {}
    for one in compared:
        values.setdefault(one.metric, {}).update({one.first: one.first_value, one.second: one.second_value})
    if metric in ("auroc", "eer_accuracy") and (under := [name for name in names if values[metric][name] < 0.5]):
        notes.append(f"below 50 %, so the scores of {', '.join(under)} may be those of the other class")
    models = sorted(names, key=lambda name: (-values[metric][name], name))
    # the better model comes first in every pair, and the pairs of the best model before others
    place = {name: number for number, name in enumerate(models)}
    pairs = [one if place[one.first] < place[one.second] else one.turned() for one in compared]
    pairs.sort(key=lambda one: (place[one.first], place[one.second]))
    best = next(one for one in pairs if (one.metric, one.first, one.second) == (metric, *models[:2]))
    return Verdict(
        models=models,
        values=values,
        intervals=intervals,
        metric=metric,
        pairs=pairs,
        needed=_units_needed(best, len(models)),
        not_worse={name: one for name, one in tests.items() if name != names[0]},
        margin=margin,
        # folds do not count here: their models may come from anywhere
        design=replace(family.design, reason=family.design.reason.removesuffix(NO_FOLDS)),
        items=items,
        notes=[*notes, *_notes(files, [note.removesuffix(NO_FOLDS) for note in family.notes])],
    )


def _check(files: Sequence[Predictions], metric: str, margin: float | None) -> None:
    if len(files) < 2:
        raise ConfigError(f"a comparison needs predictions of two models or more, got {len(files)}")
    if metric not in (metrics := (*Task.over_items, *FIGURES_OF_SUMS)):
        raise ConfigError(f"metric '{metric}' is not known; known: {', '.join(metrics)}")
    if margin is not None and not (isinstance(margin, Real) and 0 <= margin <= 1):
        raise ConfigError(f"margin must be a fraction from 0 to 1, got {margin!r}")
    if margin == 1 and metric not in (*NUMBERS, *VALUED):
        raise ConfigError(
            f"a margin of 1 is 100 points of {FIGURES[metric]}; it must be less",
            fix="for one point, give margin=0.01 in Python, or --margin 1",
        )
    names = [file.name for file in files]
    wrong = next((name for name in names if names.count(name) > 1 or name in ("item", "group", "label")), None)
    if wrong is not None:
        raise ConfigError(f"'{wrong}' cannot be the name of a model, or is that of two", fix="name models: NAME=FILE")


def _classes(labels: pl.DataFrame, files: Sequence[Predictions], metric: str) -> dict[str, int]:
    """Labels and their numbers; empty if the labels are none of classes.

    Raises:
        ConfigError: the metric needs classes, or the predictions are numbers, which this metric does not read.
    """
    if metric in ERRORS:
        return {}
    number = labels["label"].n_unique()
    numbers = next((file.name for file in files if file.rows["correct"].null_count()), None)
    if numbers is not None:
        if number == 2:
            raise ConfigError(
                f"{numbers}: predictions are scores, not classes",
                fix="rank the models by them: --metric auroc or eer-accuracy",
            )
        raise ConfigError(
            f"{numbers}: labels and predictions are numbers, not classes",
            fix="rank the models by agreement: --metric ccc, pearson, spearman or r2",
        )
    number = 0 if labels["label"].null_count() else number
    most = {"accuracy": MOST_CLASSES, "balanced_accuracy": len(labels)}.get(
        metric, max(MOST_CLASSES, MOST_CELLS // len(labels))
    )
    most = min(most, len(labels) // 2)  # labels that hardly repeat are answers, e.g. of a language model
    if 2 <= number <= most:
        return {name: index for index, name in enumerate(sorted(labels["label"].unique()))}
    if metric != "accuracy":
        raise ConfigError(
            f"there is no {FIGURES[metric]}: {len(labels)} items have {number} labels, and 2 to {most} are needed",
            fix="rank the models by --metric accuracy",
        )
    return {}


def _comparable(
    table: pl.DataFrame, labels: pl.DataFrame, classes: Mapping[str, int], group: pl.DataFrame | None
) -> pl.DataFrame:
    """The rows of a model as `compare_methods` reads them.

    Args:
        group: item and group; None: every item is alone.
    """
    items = table.select("item")
    unit, target = table["item"], pl.zeros(len(table), dtype=pl.Int64, eager=True)
    numbers = pl.col("fold", "seed").str.pad_start(9)  # texts, in the order of their numbers: 2 before 10
    if group is not None:  # no item has this name
        unit = "group " + items.join(group, on="item", how="left", maintain_order="left")["group"]
    if classes:
        found = items.join(labels, on="item", how="left", maintain_order="left")["label"]
        target = found.replace_strict(classes, return_dtype=pl.Int64)
    return pl.DataFrame(
        {
            "item": table["item"],
            "speaker": unit,
            # a test over folds would need the training sizes, which no file tells
            "fold": 0,
            # an item may be tested in several folds and seeds: all of them are repeats, which are averaged
            "seed": table.select(pl.struct(numbers).rank("dense").cast(pl.Int64)).to_series(),
            "target": target,
            "correct": table["correct"],
            "n_test": 1,
            "n_train": 1,
        },
        schema_overrides={**SCHEMA, "correct": pl.Float64},
    )


def _units_needed(lead: Compared, models: int) -> int | None:
    """Units that a verdict on the lead takes with 80 % power; None if it is given, or the number is not known."""
    level = ALPHA / (models - 1)  # see `tie_tiers`
    needed = None if lead.p is not None and lead.p <= level else lead.units_needed(level)
    return None if needed is None or lead.units is None or needed <= lead.units else needed


def _in_sentences(rows: Sequence[pl.DataFrame], names: Sequence[str]) -> tuple[list[pl.DataFrame], list[str]]:
    """The rows with the sentence of every word, if a file tells it, in the order of the first file, and notes.

    An entity goes on from word to word, so files in two orders would have two sets of true entities.
    """
    orders = [table["item"].unique(maintain_order=True) for table in rows]
    sentence = _one_value(list(zip(names, rows, strict=True)), "sentence")
    if 0 < len(sentence) < len(orders[0]):
        absent = orders[0].filter(~orders[0].is_in(sentence["item"].to_list()))
        raise ConfigError(
            f"{len(absent)} of {len(orders[0])} words have no sentence, e.g. '{absent[0]}'",
            fix="complete the column, or rename it",
        )
    place = orders[0].to_frame().with_row_index("place").join(sentence, on="item", how="left")
    tables = [
        table.drop("sentence").join(place, on="item").sort("place", maintain_order=True).drop("place") for table in rows
    ]
    moved = [name for name, order in zip(names, orders, strict=True) if not order.equals(orders[0])]
    return tables, [f"words are in the order of {names[0]}; that of {first_few(moved)} is another"] if moved else []


def _other_labels(rows: Sequence[pl.DataFrame], names: Sequence[str], known: Sequence[str]) -> list[str]:
    """Notes on predicted labels that no item has, of items that may have several."""
    notes = []
    for table, name in zip(rows, names, strict=True):
        said = set[str]().union(*map(labels_in, table["prediction"]))
        others = sorted(said.difference(known))
        if others and len(others) == len(said):
            raise ConfigError(
                f"{name}: no predicted label ({first_few(others, 5)}) is among the labels ({first_few(known, 5)})",
                fix="write both in the same way, as names or as numbers; scores need labels of 0 and 1",
            )
        if others:
            told = f"{len(others)} of {len(said)} predicted labels are no label of any item ({first_few(others, 3)})"
            notes.append(f"{name}: {told}")
    return notes


def _with_scores(
    rows: Sequence[pl.DataFrame], labels: pl.DataFrame, names: Sequence[str], figure: type[FigureOfErrors]
) -> tuple[list[pl.DataFrame], list[str]]:
    """`_with_errors` of scores of two classes, whose labels are 0 and 1, and which class has the higher scores."""
    metric = FIGURES[figure.primary]
    pair = in_order(labels["label"].drop_nulls().unique())
    if len(pair) != 2:
        raise ConfigError(f"{metric} needs two classes, and there are {len(pair)} labels: {first_few(pair)}")
    codes = labels.with_columns(pl.col("label").replace(dict(zip(pair, "01", strict=True))))
    tables = []
    for table, name in zip(rows, names, strict=True):
        if table["score"].null_count() == 0:  # a score for each class
            table = table.with_columns(prediction=pl.col("score"))
        if (given := table["prediction"].drop_nulls()).n_unique() < 3:
            raise ConfigError(
                f"{name}: {metric} needs scores, and the predictions are {first_few(in_order(given.unique()))}",
                fix="name the column of the scores with --prediction",
            )
        tables.append(_with_errors(table, codes, name, figure))
    # the second number, or true, has the higher scores; of names, that for which most are right
    is_told = pl.Series(pair).cast(pl.Float64, strict=False).null_count() == 0 or pair[1].lower() == "true"
    is_told |= any(table["score"].null_count() == 0 for table in rows)
    if not is_told and np.mean([table["correct"].mean() for table in tables]) > 0.5:
        pair.reverse()
        tables = [table.with_columns(label=1 - pl.col("label"), correct=1 - pl.col("correct")) for table in tables]
    told = [f"higher scores mean '{pair[1]}', not '{pair[0]}'"]
    if (folds := max(table["fold"].n_unique() for table in tables)) > 1:
        told.append(f"scores of {folds} folds are ranked together, though their models may have other scales")
    return tables, told


def _with_errors(table: pl.DataFrame, labels: pl.DataFrame, name: str, figure: type[FigureOfErrors]) -> pl.DataFrame:
    """The rows of a model with labels and predictions as the figure reads them, and their distance as `correct`."""
    table = table.drop("label").join(labels, on="item", how="left", maintain_order="left")
    numbers, metric = not figure.of_texts, FIGURES[figure.primary]
    for column in ("prediction",) if figure.primary in VALUED else ("label", "prediction"):
        values = table[column].cast(pl.Float64, strict=False) if numbers else table[column]
        wrong = ~values.is_finite().fill_null(value=False) if numbers else values.is_null()
        if figure.primary == COUNTED:
            wrong |= (values < 0).fill_null(value=False)
        if not numbers and column == "prediction" and not wrong.all():  # of an utterance in which nothing was heard
            continue
        if wrong.any():
            value, item = (table[one].filter(wrong)[0] for one in (column, "item"))
            met = "that" if value is None else f"'{value}'"
            told = f"{int(wrong.sum())} of {len(table)} {column}s are none, e.g. {met} of item '{item}'"
            kind = "numbers from 0 on" if figure.primary == COUNTED else "numbers" if numbers else "texts"
            fix = "correct them, or leave these items out; --common judges those that all files have"
            raise ConfigError(f"{name}: {metric} needs {kind}, and {told}", fix=fix)
        table = table.with_columns(values)
    if figure.primary == COUNTED and table["label"].sum() == 0:
        raise ConfigError(f"there is no {metric}: errors are counted of nothing, all labels are 0")
    if figure.primary in NUMBERS and table["label"].n_unique() < 2:
        raise ConfigError(f"there is no {metric}: all labels are the same")
    return table.with_columns(correct=figure.item_errors(table["label"], table["prediction"]))


def _trials(task: Task, table: pl.DataFrame, tested: pl.DataFrame) -> Trials:
    """Sums of the items in the first repeat of each, in the second, and so on.

    Args:
        table: rows of a model.
        tested: the same rows as `compare_methods` reads them.
    """
    label, prediction = table["label"], table["prediction"]
    if task.primary not in ERRORS:
        if prediction.null_count() == len(prediction):
            raise ConfigError(f"{task.metric} needs predictions, and a file says only which are right")
        codes = {name: number for number, name in enumerate(task.classes)}
        label, prediction = tested["target"], prediction.replace_strict(codes, default=-1, return_dtype=pl.Int64)
    rows = tested.select("item", "seed", unit="speaker", error="correct")
    rows = rows.with_columns(label=label, prediction=prediction, sentence=table["sentence"])
    rows = rows.sort("seed", maintain_order=True).with_columns(trial=pl.int_range(pl.len()).over("item"))
    parts = rows.partition_by("trial", maintain_order=True)
    if len({len(part) for part in parts}) > 1:
        raise ConfigError(f"{task.metric} needs every item equally often, and some are tested up to {len(parts)} times")
    try:
        return {number: task.sums(part) for number, part in enumerate(parts)}
    except ValueError as error:  # of tags
        raise ConfigError(f"there is no {task.metric}: {error}") from error


def _by_figure(
    task: Task, trials: Mapping[str, Trials], items: pl.DataFrame, *, tested: bool
) -> tuple[list[Compared], dict[str, Interval]]:
    """All pairs of models in a figure of sums, and the interval of each model; without a test, there are no intervals.

    Args:
        items: see `Verdict`.
    """
    values = {name: mean_figure(task, own.values()) for name, own in trials.items()}
    found = []
    for first, second in with_progress(list(combinations(trials, 2))):
        one, two = values[first], values[second]
        row = Compared(
            first=first, second=second, metric=task.primary, first_value=one, second_value=two, difference=one - two
        )
        if tested:
            row = compare_trials(task, trials[first], trials[second], (first, second))
        won, lost = only_right(first, second, task.primary)
        wins, losses = map(int, items.select(won.sum().alias("wins"), lost.sum().alias("losses")).row(0))
        found.append(replace(row, wins=wins, losses=losses, ties=len(items) - wins - losses))
    drawn = trial_intervals(task, list(trials.values())) if tested else []
    return with_holm(found), dict(zip(trials, drawn, strict=False))


def _matched(files: Sequence[Predictions], *, common: bool) -> tuple[list[pl.DataFrame], list[str]]:
    """The rows of all files over the same items."""
    rows, told = [file.rows for file in files], dict.fromkeys(note for file in files for note in file.notes)
    notes = []
    for note in told:
        names = [file.name for file in files if note in file.notes]
        notes.append(note if len(names) == len(files) else f"{', '.join(names)}: {note}")
    by_order = any(file.by_order for file in files)
    # tools write the same file with other folders and endings
    if not by_order and (short := by_last_part([table["item"] for table in rows])):
        rows = [table.with_columns(one) for table, one in zip(rows, short, strict=True)]
        notes.append("items are matched by the last part of their names, without the ending")
    rows, spelled = _same_spelling(rows, files)
    notes += spelled
    if by_order:
        pairs = list(zip(files, rows, strict=True))
        first, own = next((pair for pair in pairs if not pair[0].by_order), pairs[0])
        for file, table in pairs:
            if len(table) != len(own):
                raise ConfigError(
                    f"{file.name} has {len(table)} rows and {first.name} {len(own)}; without a column of items, rows "
                    "are paired by their order",
                    fix="name the column of the items with --item",
                )
            label = table["label"]
            if not label.equals(own["label"]) or label.null_count() or label.n_unique() < 2:
                other = next(one.name for one in files if one is not file) if file is first else first.name
                raise ConfigError(
                    f"{file.name} and {other} cannot be paired by the order of their rows: the labels differ, are "
                    "not known, or are all the same",
                    fix="name the column of the items with --item",
                )
        rows = [table.with_columns(own["item"]) for table in rows]
        unnamed = ", ".join(file.name for file in files if file.by_order)
        notes.append(f"rows are paired by their order, because items have no names in {unnamed}; their labels agree")
    sets = [set(table["item"].unique()) for table in rows]
    shared = set.intersection(*sets)
    for file, found in zip(files[1:], sets[1:], strict=True):
        if found == sets[0]:
            continue
        lacking, further = sorted(sets[0] - found), sorted(found - sets[0])
        text = (
            f"{files[0].name} and {file.name} have different items: {file.name} lacks {len(lacking)} of "
            f"{len(sets[0])} and has {len(further)} others, e.g. '{(lacking or further)[0]}'"
        )
        if not shared:
            raise ConfigError(f"{text}; no item is in all files", fix="name the column of the items with --item")
        if not common:
            raise ConfigError(text, fix=f"judge the {len(shared)} items that all files have: --common")
    if any(found != shared for found in sets):
        rows = [table.filter(pl.col("item").is_in(sorted(shared))) for table in rows]
        notes.append(f"only the {len(shared)} items that all files have are judged")
    return rows, notes


def _same_spelling(rows: Sequence[pl.DataFrame], files: Sequence[Predictions]) -> tuple[list[pl.DataFrame], list[str]]:
    """The rows with labels as the first file that has some writes them, and what other files write instead.

    One file may hold numbers and the other names. They mean the same if they repeat, fit one to one and share no label.
    """
    first = next((table for table in rows if table["label"].null_count() < len(table)), rows[0])
    ours = first.select("item", name="label").drop_nulls().unique()
    changed, notes = [], []
    for file, table in zip(files, rows, strict=True):
        pairs = table.select("item", "label").join(ours, on="item").select("label", "name").drop_nulls().unique()
        same = pairs.filter(pl.col("label").is_in(ours["name"].to_list()))
        alone = pairs["label"].n_unique() == pairs["name"].n_unique() == len(pairs) == table["label"].n_unique()
        if len(same) or not alone or not 2 <= len(pairs) <= table["item"].n_unique() // 2:
            changed.append(table)
            continue
        names = dict(pairs.sort("label").rows())
        if names[in_order(names)[-1]] != in_order(names.values())[-1]:  # the other of two classes is the second
            table = table.with_columns(-pl.col("score"))
        changed.append(table.with_columns(pl.col("label", "prediction").replace(names)))
        told = [f"{label} = {name}" for label, name in names.items()]
        notes.append(f"{file.name} writes labels in another way: {first_few(told)}")
    return changed, notes


def _one_value(tables: Sequence[tuple[str, pl.DataFrame]], column: str) -> pl.DataFrame:
    """Item and its value in the files that know it.

    Raises:
        ConfigError: two rows of an item disagree.
    """
    parts = [table.select("item", column, file=pl.lit(name)).drop_nulls(column) for name, table in tables]
    rows = pl.concat(parts)
    kinds = rows.group_by("item").agg(pl.col(column).n_unique().alias("kinds")).filter(pl.col("kinds") > 1)
    if len(kinds):
        item = kinds["item"].sort()[0]
        found = rows.filter(pl.col("item") == item).unique([column, "file"]).sort("file", column)
        told = ", ".join(f"'{value}' in {name}" for value, name in found.select(column, "file").rows())
        raise ConfigError(f"{len(kinds)} items have more than one {column}, e.g. '{item}': {told}")
    return rows.select("item", column).unique("item")


def _groups(rows: Sequence[pl.DataFrame], files: Sequence[Predictions]) -> tuple[pl.DataFrame, str | None]:
    """Item and group, and the word for a group; None if no file has groups, or every item has its own."""
    word = next((file.group for file in files if file.group), None)
    tables = [(file.name, table) for file, table in zip(files, rows, strict=True) if file.group == word]
    group, number = _one_value(tables, "group"), rows[0]["item"].n_unique()
    if word is None or len(group) == 0 or group["group"].n_unique() == number:
        return group, None
    if len(group) < number:
        absent = rows[0].join(group, on="item", how="anti")["item"].sort()[0]
        raise ConfigError(
            f"{number - len(group)} of {number} items have no {word}, e.g. '{absent}'",
            fix="complete the column, or remove it for a test of single items",
        )
    word = re.sub("_?id$", "", word.lower())
    if re.search("(?:[sxz]|[^aeiou]y|[cs]h|child|person)$", word):  # sentences add an s
        word = "group"
    return group, "speaker" if word in ("spk", "spkr") else word


def _labels(rows: Sequence[pl.DataFrame], files: Sequence[Predictions]) -> pl.DataFrame:
    """Item and label of all items; null where no file knows it."""
    known = _one_value([(file.name, table) for file, table in zip(files, rows, strict=True)], "label")
    return rows[0].select("item").unique().join(known, on="item", how="left")


def _items(
    tables: Mapping[str, pl.DataFrame], labels: pl.DataFrame, group: pl.DataFrame, word: str | None
) -> pl.DataFrame:
    found = labels.join(group if word else group.clear(), on="item", how="left").select("item", "group", "label")
    for name, table in tables.items():
        share = table.group_by("item").agg(pl.col("correct").mean().alias(name))
        found = found.join(share, on="item")
    return found.sort("item")


def _notes(files: Sequence[Predictions], notes: list[str]) -> list[str]:
    """Notes on the comparison."""
    repeats = {file.name: max(file.rows.group_by("item").len()["len"].to_list()) for file in files}
    if len(set(repeats.values())) > 1:
        told = ", ".join(f"{name} {number}" for name, number in repeats.items())
        notes = [*notes, f"models differ in their number of repeats: {told}"]
    return notes
