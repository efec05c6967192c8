"""What the columns of a table of predictions are: its items, labels, answers, groups, folds and seeds."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import polars as pl

from daamctl.artifacts.predictions import (
    COUNTED,
    ERRORS,
    LOSS,
    MEAN,
    NO_LABELS,
    ROWS,
    SCORED,
    SEPARATOR,
    SETS,
    Predictions,
    in_order,
)
from daamctl.data.task import FIGURES
from daamctl.errors import ConfigError, first_few, listing
from daamctl.evaluation.sample_logs import METRICS, MODEL, TASK
from daamctl.store.tables import written_name

COLUMNS: dict[str, tuple[str, ...]] = {
    "item": (
        "item", "id", "uid", "uttid", "key", "utterance_id", "utterance", "utt_id", "clip_id", "file", "filename",
        "file_name", "path", "wav", "name", "sample_id", "item_id", "task_id", "instance_id", "question_id",
        "doc_id", "row_id", "audio_filepath", "rowindex", "index", "idx", "unnamed:_0", "",
    ),
    "label": (
        "label", "true_label", "truth", "truths", "true", "y_true", "target", "actual", "gold", "reference",
        "ground_truth", "groundtruth", "true_value", "true_class", "expected", "observed", "obs", "label_ids", "labels",
        "emo", "emotion", "emoclass", "ref", "gt", "gt_label", "gold_label", "actual_label", "ground_truth_label",
        "y_test",
    ),
    "prediction": (
        "prediction", "predicted", "pred", "y_pred", "predicted_label", "pred_label", "prediction_label", "hypothesis",
        "hyp", "predict", "preds", "predictions", "predicted_class", "y_hat", "yhat", "guess", "output",
        "pred_text", "pred_str", "model_prediction", "y_score", "y_scores", "y_prob", "y_proba", "y_pred_proba",
    ),
    "correct": METRICS,
    "group": (
        "speaker", "speaker_id", "spk", "spk_id", "spkrid", "speakers", "talker", "actor", "participant",
        "participant_id", "client_id", "user", "user_id", "subject", "subject_id", "patient", "patient_id", "author",
        "document", "document_id", "dialogue", "dialogue_id", "conversation_id", "session_id", "video_id", "sentence",
        "sentence_id", "repo", "group", "cluster",
    ),
    "fold": ("fold", "split_number", "resample"),
    "seed": ("seed", "run", "repeat", "epoch"),
}  # fmt: skip
"""What a column is -> the names by which it is recognised, in any case; the first that a file has counts. pandas writes
its index without a name."""
OF_ONE = {
    "label": "true|actual|gold|gt|ground_truth|target|ref|reference",
    "prediction": "pred|preds|predicted|prediction|hyp|hypothesis",
}
"""Words before or behind what is told, in both columns, as in emotion_true and emotion_pred, or emotion and
predicted_emotion."""
COUNTS = {
    "label": ("length", "total", "num_words", "n_words", "words", "ref_words", "reference_length"),
    "prediction": ("errors", "num_errors", "n_errors"),
}
"""The same of files of counted errors; these names come first, but only with `--metric counted-accuracy`."""
SENTENCES = ("sentence_id", "sentence")
"""Columns of the sentences of tagged words, which may belong together by another column."""
TRANSCRIPTS = ("text", "sentence", "transcript", "transcription")
"""Columns that have what was said, beside `pred_text`, `pred_str`, `hyp` or `hypothesis`."""
VALUES = {
    MEAN: ("score", "value", "rating", "reward", "mos", "pesq", "stoi", "si_sdr", "sisdr", "bleu", "chrf", "comet"),
    LOSS: ("loss", "nll", "log_loss", "cross_entropy", "rmse", "mae", "mse", "seconds", "latency"),
}  # fmt: skip
"""Metric -> names of a column of scores, or losses, on any scale, which come first there."""
MEANS = r"(?i)^\W*(?:mean|average|avg|overall|total)\W*$"
"""Rows of a table of scores that are no items."""
INDEX = ("index", "Unnamed: 0", "")
"""Names of a column that numbers the rows, as pandas writes it."""
NAMED_ONCE = (
    "task", "task_name", "dataset", "dataset_name", "benchmark", "image_id", "file_path", "filepath", "image_path",
    "img_path", "audio_path", "wav_path", "audio_file", "image", "img", "image_name", "audio", "clip", "recording",
    "sample", "row",
)  # fmt: skip
"""Names of a column of items, if each of its values stands once and none but an index of rows is called as usual."""
MODELS = (MODEL, "model_name", "model_id", "system", "classifier", "method", "algorithm")
"""Names of a column that says whose a row is, in a file of several models."""
MOSTLY = 0.9
"""Share of labels from which on the values of a column are answers too, beside a column with nothing else."""
SURE = ("true_label", "truth", "y_true", "gold", "target", "reference", "ground_truth")
"""Names of columns that hold nothing but true labels."""
SCORES = ("logits", "scores", "probabilities", "probs", "predictions")
"""Names of a column, or array, of one score per class."""
SCORE_OF = re.compile(
    r"^(?:logits?|scores?|probs?|proba|probability|probabilities|p|pred|class)[_ ]|[_ ](?:logit|score|prob|proba)$",
    re.IGNORECASE,
)
"""What stands before or behind a class in the name of the column of its scores."""
NUMBER = r"(?:[-+]?(?:\d+\.?\d*(?:e[-+]?\d+)?|inf|nan)|True|False)"
NUMBERS = rf"^\s*\[\s*(?:{NUMBER}(?:[\s,]+{NUMBER})*)?\s*\]\s*$"
"""A list of numbers, or an array of NumPy, as pandas writes it into a cell of a CSV file."""
BOOLEANS = {"1": "true", "0": "false"}
"""Numbers that libraries predict for labels."""
RIGHT = {
    **dict.fromkeys(("true", "yes", "correct", "pass", "passed", "c"), 1.0),
    **dict.fromkeys(("false", "no", "incorrect", "wrong", "fail", "failed", "i", "n"), 0.0),
    "p": 0.5,
}
"""Words, and Inspect's grades (correct, incorrect, no answer, partial), that say whether an answer is right."""


def of_table(
    frame: pl.DataFrame, columns: Mapping[str, str], name: str, path: Path | None = None, *, metric: str = "accuracy"
) -> Predictions:
    """Predictions in a table.

    Args:
        columns: see `read_predictions`.
        path: its file, for messages.
        metric: see `read_predictions`.

    Raises:
        ConfigError: see `read_predictions`.
    """
    what = str(path or name)
    if frame.is_empty():
        raise ConfigError(f"{what}: no row")
    frame = by_task(frame, columns, what)
    if metric == COUNTED:  # sums of the same seconds differ in their last digits between models
        frame = frame.with_columns(pl.col(pl.Float64, pl.Float32).round(6))
    if metric in SETS:
        frame = _with_sets(frame, columns, what)
    columns = _for_metric(frame, columns, metric)
    found, taken, left_out = _roles(frame, columns, what)
    read = [
        f"{role} = {_told(found[role], is_there=role in taken)}" for role in COLUMNS if role in taken or role == "item"
    ]
    if metric == "entity_f1" and (sentences := named_columns(frame, SENTENCES)):
        taken["sentence"] = text_of(frame[sentences[0]])
        read += [f"sentence = {sentences[0]}"] if sentences[0] != found["group"] else []
    label, prediction = taken.get("label"), None if "correct" in columns else taken.get("prediction")
    if label is not None and prediction is not None and {*prediction.drop_nulls()} <= BOOLEANS.keys():
        spelled = {
            number: one for one in label.unique() for number, word in BOOLEANS.items() if str(one).lower() == word
        }
        if len(spelled) == label.n_unique():
            prediction = taken["prediction"] = prediction.replace(spelled)
    elif label is not None and prediction is not None and {*label.drop_nulls()} <= BOOLEANS.keys():
        numbers = {word: number for number, word in BOOLEANS.items()}
        said = prediction.str.to_lowercase()
        if {*said.drop_nulls()} <= numbers.keys():
            prediction = taken["prediction"] = said.replace(numbers)
    measured = metric in ERRORS and metric not in SCORED
    if metric in SCORED and label is not None and label.n_unique() == 1:
        raise ConfigError(f"{what}: there is no {FIGURES[metric]}: all labels are '{label[0]}'")
    if prediction is not None and (
        metric in VALUES or (label is not None and (measured or _are_numbers(label, prediction)))
    ):
        correct = pl.Series([None] * len(frame))
        absent = prediction.null_count()
        told = [f"{absent:,} of {len(frame):,} predictions are missing and count as empty"] if absent else []
    elif prediction is not None and label is not None:
        if found["correct"] is not None and not columns.keys() & {"label", "prediction"}:
            _check_verdict(frame[found["correct"]], label == prediction, found, what)
        correct, told = _agree(label, prediction, what)
    elif found["correct"] is not None:
        correct, told = _fractions(frame[found["correct"]], found["correct"], what), []
        read.append(f"correct = {found['correct']}")
        if correct.is_between(0, 1, closed="none").any():
            told = [f"accuracy is the mean of {found['correct']}, which also has values between 0 and 1"]
    else:
        fix = "name the column with --label, --prediction or --correct; labels of another file: --items FILE"
        ranked_by = {
            "counted errors: --metric counted-accuracy": len(_counts(frame)) == len(COUNTS),
            "scores on any scale: --metric mean": named_columns(frame, VALUES[MEAN]),
            "losses: --metric mean-loss": named_columns(frame, VALUES[LOSS]),
            "several labels of an item: --metric multilabel-f1": found["label"] and "label" not in taken,
        }
        fix += "".join(f"; to rank by {how}" for how, is_there in ranked_by.items() if is_there)
        raise ConfigError(f"{what}: {_lacking(frame, found, taken)}", fix=fix)
    taken["correct"] = correct
    rows = pl.DataFrame({role: taken.get(role, pl.Series([None] * len(frame))) for role in ROWS}, schema=ROWS)
    by_order = found["item"] is None
    if by_order:
        rows, repeats = _numbered(rows)
        told += repeats
    missing = rows.filter(pl.col("item").is_null())
    if len(missing):
        raise ConfigError(f"{what}: {len(missing)} of {len(rows)} rows have no {found['item']}")
    if metric in VALUES:
        is_mean = pl.col("item").str.contains(MEANS)
        if means := rows.filter(is_mean)["item"].unique().sort().to_list():
            rows = rows.filter(~is_mean)
            told.append(f"left out, being of all items: {first_few(means)}")
    again = rows.filter(pl.struct("item", "fold", "seed").is_duplicated())
    if len(again):
        raise ConfigError(
            f"{what}: item '{again['item'][0]}' occurs more than once ({len(again)} such rows)",
            fix="name the columns that tell them apart with --fold and --seed, or the one of the items with --item; "
            "repeats that nothing tells apart: number them in a column seed",
        )
    return Predictions(name, "table", rows, found["group"], by_order, (f"read: {', '.join(read)}", *left_out, *told))


def _with_sets(frame: pl.DataFrame, columns: Mapping[str, str], what: str) -> pl.DataFrame:
    """The table with the labels of each item, and what is predicted, as one text each, see `labels_in`."""
    frame = frame.with_columns(_lists_in(one) for one in frame if one.dtype == pl.String)
    scores = next((one for one in frame.columns if one.lower() in SCORES and _is_list(frame[one])), None)
    label = column_of(frame, "label", columns.get("label"), what)
    said = column_of(frame, "prediction", columns.get("prediction"), what) or scores
    given = frame[label] if label is not None else pl.Series(dtype=pl.String)
    separator = SEPARATOR
    if given.dtype == pl.String:
        separator = next((one for one in ";|," if given.str.contains(one, literal=True).any()), SEPARATOR)
    sets = {name: _as_sets(frame[name], separator, what) for name in (label, said) if name is not None}
    return frame.with_columns(**{"prediction" if name == scores else name: one for name, one in sets.items()})


def _lists_in(cells: pl.Series) -> pl.Series:
    """The cells as lists of numbers, if all that are filled have such a text."""
    filled = cells.drop_nulls()
    if filled.is_empty() or not filled.str.contains(NUMBERS).all():
        return cells
    kind = pl.Float64 if filled.str.contains(r"[.n]|\de").any() else pl.Int64
    return cells.str.replace_all("True", "1").str.replace_all("False", "0").str.extract_all(NUMBER).cast(pl.List(kind))


def _as_sets(values: pl.Series, separator: str, what: str) -> pl.Series:
    """Sets of labels as text. They are lists of labels, text, or a number for each label: 0 and 1, scores or logits.

    Where they are numbers, an item without any is null; else it has no label.
    """
    parts: list[list[str] | None]
    if not _is_list(values):
        parts = [re.sub(r"[\[\]{}'\"]", "", text or "").split(separator) for text in text_of(values)]
    else:
        inner: Any = values.dtype
        if inner.inner == pl.Boolean:
            values = values.cast(pl.List(pl.Int64))
        lists, inner = values.to_list(), values.dtype
        sizes, whole = {len(one) for one in lists if one is not None}, [value for one in lists for value in one or ()]
        if inner.inner.is_numeric() and len(sizes) == 1 and (inner.inner.is_float() or set(whole) <= {0, 1}):
            if any(value is None or value != value for value in whole):
                raise ConfigError(f"{what}: '{values.name}' has scores that are no numbers")
            least = 0.5 if all(0 <= value <= 1 for value in whole) else 0.0  # as of probabilities, or logits
            parts = [one and [str(number) for number, value in enumerate(one) if value >= least] for one in lists]
        else:
            parts = [[str(value) for value in one or ()] for one in lists]
    # a name may have what stands between two
    sets = [own and sorted({name for one in own if (name := one.strip().replace(SEPARATOR, ","))}) for own in parts]
    return pl.Series([None if own is None else SEPARATOR.join(own) or NO_LABELS for own in sets], dtype=pl.String)


def _told(name: str | None, *, is_there: bool) -> str:
    """What a role was read from: a column, or what stands for one."""
    if name is None or not is_there:
        return "class of the largest score" if is_there else "row number"
    return name or "the column without a name"


def _for_metric(frame: pl.DataFrame, columns: Mapping[str, str], metric: str) -> Mapping[str, str]:
    """The columns that were named, and those that this metric reads."""
    if metric == COUNTED:
        return _counts(frame) | dict(columns)
    if metric not in VALUES:
        return columns
    named = [columns[role] for role in ("prediction", "correct") if role in columns]
    value = next(iter([*named, *named_columns(frame, VALUES[metric]), *_candidates(frame, "correct")]), None)
    others = {role: name for role, name in columns.items() if role != "correct"}
    return others if value is None else {**others, "prediction": value}


def _counts(frame: pl.DataFrame) -> dict[str, str]:
    return {role: there[0] for role, names in COUNTS.items() if (there := named_columns(frame, names))}


def _roles(
    frame: pl.DataFrame, columns: Mapping[str, str], what: str
) -> tuple[dict[str, str | None], dict[str, pl.Series], list[str]]:
    """Which column is what, None if there is none; the values of those that can be used, as text; and notes.

    Predictions may be those of the largest score; then there are differences of two scores, `score`, too.
    """
    said = columns.get("prediction")
    if (renamed := _renamed(frame, said)) is not None:
        columns = {**columns, "prediction": renamed}
    elif said is not None and said == columns.get("label"):
        raise ConfigError(
            f"{what}: the column '{said}' cannot be both label and prediction",
            fix="name another, or the file that has the labels: --items FILE",
        )
    found = {role: column_of(frame, role, columns.get(role), what) for role in COLUMNS}
    if found["label"] == found["prediction"] and "label" not in columns:
        found["label"] = next((one for one in _candidates(frame, "label") if one != found["prediction"]), None)
    if found["prediction"] is None:
        found["prediction"] = _renamed(frame, found["label"])
    if found["item"] in (None, *INDEX) and "item" not in columns:
        once = [frame[one] for one in named_columns(frame, NAMED_ONCE) if frame[one].is_unique().all()]
        names = (one.name for one in once if one.dtype == pl.String or one.dtype.is_integer())  # not the images
        found["item"] = next(names, found["item"])
    answer = str(found["prediction"]).lower()
    if found["label"] is None and answer in ("pred_text", "pred_str", "hyp", "hypothesis"):
        found["label"] = next(iter(named_columns(frame, TRANSCRIPTS)), None)
        found["group"] = None if found["group"] == found["label"] else found["group"]
    written = [written_name(column) for column in frame.columns]
    if twice := [name for name in found.values() if name and written.count(name) > 1]:
        raise ConfigError(f"{what} has several columns named {twice[0]}", fix="remove or rename all but one of them")
    taken = {
        role: text_of(frame[column])
        for role, column in found.items()
        if column is not None
        and role != "correct"
        and not (role in ("label", "prediction") and _is_list(frame[column]))
    }
    label = taken.get("label")
    if label is not None and "prediction" not in columns:  # Weka calls the confidence prediction
        answers = {one: text_of(frame[one]) for one in _candidates(frame, "prediction") if not _is_list(frame[one])}
        fits = next((one for one, values in answers.items() if values.is_in(label.unique().to_list()).any()), None)
        if fits is not None:
            found["prediction"], taken["prediction"] = fits, answers[fits]
    if label is not None and "label" not in columns and found["prediction"] is None:
        if found["label"] == "label" and "score" in frame.columns:
            raise ConfigError(
                f"{what}: is 'label' the true label or the answer of a pipeline, with its confidence in 'score'?",
                fix="name the columns with --label, --prediction or --correct",
            )
        rival = next((one for one in frame.columns if one.strip().lower() in SURE and one != found["label"]), None)
        if found["label"] not in SURE and rival is not None:
            raise ConfigError(
                f"{what}: is '{found['label']}' or '{rival}' the true label?",
                fix="name it with --label, and the other with --prediction",
            )
    if found["prediction"] is None and len(unnamed := answers_without_names(frame, columns)) == 1:
        found["prediction"], taken["prediction"] = unnamed[0], text_of(frame[unnamed[0]])
    scores, left_out = (None, []) if "prediction" in taken else _class_scores(frame, label, what)
    if scores is not None:
        classes = pl.Series(scores.columns)
        taken["prediction"] = text_of(scores["1"]) if len(classes) == 1 else classes[scores.to_numpy().argmax(axis=1)]
        if len(classes) == 2:
            first, second = in_order(classes)
            taken["score"] = scores[second] - scores[first]
    return found, taken, [f"left out beside the scores of the labels: {first_few(left_out)}"] if left_out else []


def _numbered(rows: pl.DataFrame) -> tuple[pl.DataFrame, list[str]]:
    """Rows without names of items, named by their number, and a note on repeats.

    Other seeds repeat the items, in the same order, if their labels agree; else they tested other items.
    """
    parts = rows.partition_by("fold", "seed")
    alike = not rows["label"].null_count() and len({tuple(part["label"]) for part in parts}) == 1
    number = pl.int_range(1, pl.len() + 1).cast(pl.String)
    if not alike or len(parts) == 1:
        return rows.with_columns(item=number), []
    told = f"{len(parts)} repeats of the same {len(parts[0]):,} rows: their labels agree in order"
    return rows.with_columns(item=number.over("fold", "seed")), [told]


def _lacking(frame: pl.DataFrame, found: Mapping[str, str | None], taken: Mapping[str, pl.Series]) -> str:
    """Why a table does not say which answers are right.

    Args:
        found: what a column is -> its name, None if there is none.
        taken: what a column is -> its values, of the columns that can be used.
    """
    label = taken.get("label")
    known = set() if label is None else set(label.drop_nulls().unique())
    scored = known & set(_numeric(frame))
    for role in ("prediction", "label"):
        if found[role] is not None and role not in taken:
            return f"'{found[role]}' has lists, not one {'answer' if role == 'prediction' else role} in each row"
    if len(scored) > 1:
        return (
            f"there are scores for {first_few(sorted(scored), 4)}, but none for {first_few(sorted(known - scored), 4)}"
        )
    role = "label" if "prediction" in taken else "prediction"
    have = "has" if len(frame.columns) == 1 else "have"
    return f"the {listing('column', frame.columns, 12)} {have} no {role}"


def by_last_part(columns: Sequence[pl.Series]) -> list[pl.Series] | None:
    """The items of several tables by as few last parts of their paths as tell them apart, without an ending as .wav.

    None where that is not needed, because they share an item as it is, or does not help: none would be shared.
    """
    if set.intersection(*map(set, columns)):
        return None
    parts = [one.str.replace(r"\.[A-Za-z]\w{1,4}$", "").str.replace_all(r"\\", "/").str.split("/") for one in columns]
    for number in range(1, max(int(str(one.list.len().max() or 1)) for one in parts) + 1):
        short = [one.list.tail(number).list.join("/") for one in parts]
        if all(new.n_unique() == old.n_unique() for new, old in zip(short, columns, strict=True)):
            return short if set.intersection(*map(set, short)) else None
    return None


def predicted_name(label: str) -> str:
    """Name of the predictions in a file that calls them as the file of the items calls the labels."""
    return f"{label} (predicted)"


def _renamed(frame: pl.DataFrame, label: str | None) -> str | None:
    """The column that was renamed like this; None if there is none."""
    return None if label is None or predicted_name(label) not in frame.columns else predicted_name(label)


def column_of(frame: pl.DataFrame, role: str, given: str | None, what: str) -> str | None:
    """Name of the column of a role, or of the models; None if the file has none."""
    if given is not None:
        if given not in frame.columns:
            raise ConfigError(f"{what} has no column '{given}'; it has {first_few(frame.columns, 12)}")
        return given
    return next(iter(_candidates(frame, role)), None)


def scores_without_names(frame: pl.DataFrame, columns: Mapping[str, str], metric: str) -> dict[str, pl.Series]:
    """Columns of scores that are called after models or tasks, as numbers; none where a column has a usual name.

    Args:
        columns, metric: see `read_predictions`; item may be a pattern of such columns, as `* WER`.
    """
    item = columns.get("item")
    pattern = "*" if item is None or item in frame.columns else item
    if metric not in VALUES or (pattern == "*" and named_columns(frame, VALUES[metric])):
        return {}
    found = {name: _scores_of(frame[name]) for name in _without_role(frame, columns) if fnmatchcase(name, pattern)}
    return {name: one for name, one in found.items() if one is not None}


def _scores_of(values: pl.Series) -> pl.Series | None:
    """Scores in a column, which may be texts as `65.3 ± 1.2`; None: it has other values."""
    if values.dtype == pl.String:
        text = values.str.strip_chars().replace("", None)
        values = text.str.replace(r"\s*(?:±|\+/?-|\()[^/]*$", "").str.strip_suffix("%").cast(pl.Float64, strict=False)
        return None if values.null_count() > text.null_count() or text.null_count() == len(text) else values
    return values.cast(pl.Float64) if values.dtype.is_numeric() else None


def answers_without_names(frame: pl.DataFrame, columns: Mapping[str, str]) -> list[str]:
    """Columns that are called after models: most of their values are labels, which are names; none if one is as usual.

    Args:
        columns: see `read_predictions`.
    """
    label = columns.get("label", next(iter(_candidates(frame, "label")), None))
    if label not in frame.columns or _is_list(frame[label]):
        return []
    labels = text_of(frame[label]).drop_nulls().unique()
    if len(labels) < 2 or not labels.cast(pl.Float64, strict=False).is_null().all():  # numbers may be anything
        return []
    others = {name: text_of(frame[name]) for name in _without_role(frame, columns) if frame[name].dtype == pl.String}
    known = {name: one.drop_nulls().is_in(labels.to_list()) for name, one in others.items()}
    if not any(one.all() and others[name].n_unique() > 1 for name, one in known.items()):
        return []
    return [name for name, one in known.items() if one.sum() >= MOSTLY * max(1, len(one))]


def _without_role(frame: pl.DataFrame, columns: Mapping[str, str]) -> list[str]:
    """Columns whose names say nothing; none if an answer, or whether it is right, has a usual name or is named."""
    usual = {role: _candidates(frame, role) for role in COLUMNS}
    if columns.keys() & {"prediction", "correct"} or usual["prediction"] or usual["correct"]:
        return []
    known = {*columns.values(), *(name for names in usual.values() for name in names)}
    return [name for name in frame.columns if name not in known]


def _candidates(frame: pl.DataFrame, role: str) -> list[str]:
    """Columns with a usual name of a role, the most usual first, or that of the one pair such as X_true and X_pred."""
    usual = named_columns(frame, MODELS if role == "model" else COLUMNS[role])
    if usual or role not in OF_ONE:
        return usual
    about = {
        kind: {
            one[1] or one[2]: name
            for name in frame.columns
            if (one := re.fullmatch(rf"(?:{words})_(.+)|(.+)_(?:{words})", plain_name(name)))
        }
        for kind, words in OF_ONE.items()
    }
    about["label"] = {plain_name(name): name for name in named_columns(frame, COLUMNS["label"])} | about["label"]
    both = about["label"].keys() & about["prediction"].keys()
    return [about[role][one] for one in both] if len(both) == 1 else []


def plain_name(column: str) -> str:
    """Name of a column as those in `COLUMNS` are written."""
    return re.sub(r"[\s-]+", "_", column.strip().lower())


def named_columns(frame: pl.DataFrame, usual: Sequence[str]) -> list[str]:
    """Columns with these names, in their order; KNIME adds what is predicted: Prediction (emotion)."""
    names = {plain_name(column): column for column in reversed(frame.columns)}
    names = {re.sub(r"^prediction_?\(.*\)$", "prediction", name): column for name, column in names.items()} | names
    return [names[name] for name in usual if name in names]


def by_task(frame: pl.DataFrame, columns: Mapping[str, str], what: str) -> pl.DataFrame:
    """The table with the task in the names of items, if items of several tasks have one name, as in logs: a number."""
    item = column_of(frame, "item", None, what) if columns.get("item") not in frame.columns else columns["item"]
    if item in (None, TASK) or TASK not in frame.columns:
        return frame
    if frame.select(item, TASK).n_unique() == frame[item].n_unique():
        return frame
    return frame.with_columns(pl.concat_str(TASK, pl.lit("/"), item).alias(item))


def text_of(values: pl.Series) -> pl.Series:
    """Values as text without spaces around; whole numbers without a fraction; empty values are null."""
    if values.dtype.is_float():
        values = values.fill_nan(None)
        if (values.is_finite() & (values == values.round(0)) & (values.abs() < 2.0**53)).all():
            values = values.cast(pl.Int64)
    if values.dtype.is_nested() or values.dtype in (pl.Object, pl.Binary, pl.Duration):
        return pl.Series([None if one is None else str(one) for one in values.to_list()], dtype=pl.String)
    text = values.cast(pl.String).str.strip_chars()
    return text.replace("", None)


def _numeric(frame: pl.DataFrame) -> list[str]:
    """Columns of numbers."""
    return [one for one in frame.columns if frame[one].dtype.is_numeric()]


def _is_list(values: pl.Series) -> bool:
    return isinstance(values.dtype, pl.List | pl.Array)


def _are_numbers(label: pl.Series, prediction: pl.Series | None) -> bool:
    """Whether labels and predictions are measured, not classes: most are numbers, with fractions, and few agree.

    With two labels, whatever they are, such predictions are scores of one of them, unless all are from 0.5 to 1:
    probabilities of the class that was predicted.
    """
    number = label.drop_nulls().n_unique()
    if prediction is None or number < 2:
        return False
    labels, said = (one.cast(pl.Float64, strict=False).drop_nulls() for one in (label, prediction))
    may_be_whole = False
    if number == 2:
        may_be_whole = labels.is_empty() and said.n_unique() > 2  # ratings; codes of two names would be two
        labels = said.clear() if said.is_between(0.5, 1).all() else said
    if 2 * min(len(labels), len(said)) <= len(label) or (not may_be_whole and (said == said.round(0)).all()):
        return False
    return 2 * prediction.is_in(label.unique().to_list()).sum() < len(label)


def _agree(label: pl.Series, prediction: pl.Series, what: str) -> tuple[pl.Series, list[str]]:
    """1 where the prediction is the label, else 0, also for an item without a prediction; and what is noteworthy."""
    unknown, absent = label.null_count(), prediction.null_count()
    if unknown:
        raise ConfigError(f"{what}: {unknown} of {len(label)} items have no label")
    # names of classes may have several words too, but repeat
    are_texts = 2 * min(label.str.contains(r"\S\s+\S").sum(), label.n_unique()) > len(label)
    known, said = set(label.unique()), set(prediction.drop_nulls().unique())
    if not known & said and not are_texts:
        raise ConfigError(
            f"{what}: no prediction ({first_few(sorted(said), 5)}) is among the labels ({first_few(sorted(known), 5)})",
            fix="write both in the same way, as names or as numbers; what is measured, not classified, is ranked by "
            "agreement: --metric ccc",
        )
    told = [f"{absent:,} of {len(label):,} predictions are missing and count as wrong"] if absent else []
    if are_texts:
        told.append("labels are texts, and only equal ones are right; for the word error rate: --metric word-accuracy")
    elif others := said - known:
        number = prediction.is_in(sorted(others)).sum()
        told.append(
            f"{number:,} of {len(label):,} predictions are no label of any item ({first_few(sorted(others), 3)})"
        )
    if prediction.n_unique() == 1 < label.n_unique():
        told.append(f"the prediction is '{prediction[0]}' for every item")
    return (label == prediction).fill_null(value=False).cast(pl.Float64), told


def _check_verdict(verdict: pl.Series, same: pl.Series, found: Mapping[str, str | None], what: str) -> None:
    """Refuse a file that says of some answers itself that they are right, or wrong, and their texts say otherwise."""
    name = str(verdict.name)
    try:
        right = _fractions(verdict, name, what)
    except ConfigError:  # no verdict
        return
    other = ((right > 0) != same.fill_null(value=False)).sum()
    if other:
        raise ConfigError(
            f"{what}: '{name}' and a comparison of '{found['label']}' with '{found['prediction']}' disagree on {other} "
            f"of {len(right)} rows",
            fix=f"choose: --correct {name}, or --prediction '{found['prediction']}'",
        )


def _fractions(values: pl.Series, name: str, what: str) -> pl.Series:
    """Scores of items between 0 and 1."""
    if values.dtype == pl.String:
        text = values.str.strip_chars().str.to_lowercase()
        numbers = text.replace_strict(RIGHT, default=None, return_dtype=pl.Float64)
        numbers = numbers.fill_null(text.cast(pl.Float64, strict=False))
    elif values.dtype.is_numeric() or values.dtype == pl.Boolean:
        numbers = values.cast(pl.Float64, strict=False)
    else:
        raise ConfigError(f"{what}: '{name}' has no single value per item")
    wrong = numbers.is_null() | ~numbers.is_between(0, 1)
    if wrong.any():
        raise ConfigError(
            f"{what}: '{name}' must be true, false or a number from 0 to 1, got '{text_of(values).filter(wrong)[0]}' "
            f"({int(wrong.sum())} of {len(values)} rows)",
            fix="of scores on any scale: --metric mean" if numbers.is_finite().all(ignore_nulls=False) else None,
        )
    return numbers


def _class_scores(frame: pl.DataFrame, label: pl.Series | None, what: str) -> tuple[pl.DataFrame | None, list[str]]:
    """A column of scores for each class: from one column per class, or a column of lists, whose classes are numbers.

    Of numbers, or scores of one class, there is one column. None: no scores were found. And the columns that are left
    out, such as `prob_entropy`: the columns of the labels are probabilities, which these are not, or already add up
    to 1.
    """
    for name in SCORES:
        column = next((one for one in frame.columns if one.lower() == name and _is_list(frame[one])), None)
        if column is None:
            continue
        kind: Any = frame[column].dtype
        if not kind.inner.is_numeric() and kind.inner != pl.Null:
            raise ConfigError(f"{what}: '{column}' has scores that are no numbers")
        lists = frame[column].cast(pl.List(pl.Float64))
        if label is not None and (lists.list.len() == 1).all() and _are_numbers(label, text_of(lists.list.first())):
            return pl.DataFrame({"1": lists.list.first()}), []
        if lists.null_count() or lists.list.len().n_unique() > 1 or lists.list.len()[0] < 2:
            raise ConfigError(f"{what}: '{column}' must have two or more scores per row, the same number in all rows")
        if not _ordered(lists.explode()):
            raise ConfigError(f"{what}: '{column}' has scores that are no numbers")
        return lists.list.to_struct(fields=[str(number) for number in range(lists.list.len()[0])]).struct.unnest(), []
    if label is None:
        return None, []
    numeric = _numeric(frame)
    known = set(label.drop_nulls().unique())
    called: dict[str, dict[str, str]] = {}
    for one in numeric:
        if affix := SCORE_OF.search(one):
            called.setdefault(affix[0].lower(), {})[SCORE_OF.sub("", one, count=1)] = one
    together = {name: one for family in called.values() for name, one in family.items()}  # joy_prob beside prob_sad
    families = [*called.values(), together, {one: one for one in numeric if one in known}]
    named = next((family for family in families if known <= family.keys()), {})
    if len(named) < 2:
        return None, []
    table = frame.select(named.values()).cast(pl.Float64)
    own, left_out = table.select(named[one] for one in known), []
    if len(known) > 1 and all(one.is_between(0, 1).all() for one in own):
        is_whole = own.sum_horizontal().is_between(0.98, 1.02).all()
        further = [one for one in table if one.name not in own.columns]
        left_out = [one.name for one in further if is_whole or not one.is_between(0, 1).all()]
    table = table.drop(left_out)
    if not all(_ordered(one) for one in table):
        raise ConfigError(f"{what}: the scores of the classes ({first_few(table.columns, 4)}) have gaps")
    return table.rename({column: name for name, column in named.items() if column not in left_out}), left_out


def _ordered(scores: pl.Series) -> bool:
    """Whether all are numbers; minus infinity is the logarithm of a probability of 0."""
    return bool((scores.is_not_null() & scores.is_not_nan() & (scores != float("inf"))).all())
