"""Logs of tools that test language models: how good each answer is, by one of the metrics of the log.

`correct` is everywhere the metric, or scorer, that `daamctl judge --correct` names; None: a usual one. docs/judge.md
has the tools, and the versions whose logs were read.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl

from daamctl.artifacts.terms import counted
from daamctl.errors import ConfigError, first_few

METRICS = ("correct", "is_correct", "acc", "exact_match", "passed", "success", "resolved", "is_resolved", "pass@1")
"""Names of a column, or metric, that says whether an answer is right."""
REPOSITORY = re.compile(r"(.+?__.+?)-(?:\d+|[0-9a-f]{20}.*)")
"""Repository and number of an issue, as SWE-bench names its instances, or a commit."""
TASK, MODEL = "task", "model"
"""Columns of the task and the model that an answer is of."""
Opened = tuple[str, pl.DataFrame, tuple[str, ...]]
"""Tool, table, notes."""


class _Sample(NamedTuple):
    """An answer of a language model, and how good it is by each of some metrics."""

    item: str
    scores: Mapping[str, Any]
    repeat: int = 1
    question: str | None = None
    model: str | None = None


def _scored(
    tool: str,
    samples: Sequence[_Sample],
    correct: str | None,
    path: Path,
    notes: Sequence[str] = (),
    task: str = "",
    model: str = "",
) -> Opened:
    """A table of samples by one metric. Their questions are its labels, so that no two tasks are taken for the same.

    Args:
        task, model: that all samples are of, if the log or its path tells them.
    """
    names = list(dict.fromkeys(name for one in samples for name in one.scores))
    metric = correct or next((name for name in (*METRICS, *names) if name in names), None)
    if metric is None or metric not in names:
        wanted = f" '{metric}'; they have {', '.join(names)}" if names else ""
        raise ConfigError(f"{path}: the samples have no score{wanted}")
    kept = [one for one in samples if metric in one.scores]
    rows: dict[str, list[Any]] = {
        "item": [one.item for one in kept],
        correct or "correct": [one.scores[metric] for one in kept],
    }
    if task:
        rows[TASK] = [task] * len(kept)
    if model or any(one.model for one in kept):
        rows[MODEL] = [one.model or model for one in kept]
    if any(one.repeat != 1 for one in kept):
        rows["repeat"] = [one.repeat for one in kept]
    if all(one.question for one in kept):
        rows["reference"] = [one.question for one in kept]
    notes = [f"the score of an answer is {metric}", *notes]
    if len(kept) < len(samples):
        notes.append(f"{len(samples) - len(kept)} samples have no score and are left out")
    return tool, pl.DataFrame(rows, strict=False), tuple(notes)


def lm_eval(records: list[dict[str, Any]], correct: str | None, path: Path) -> Opened:
    """Samples of lm-evaluation-harness, or of lmms-eval; of several filters of a question the first counts."""
    is_lmms = "input" in records[0]  # with one hash for all, and numbers, or objects with one, for metrics
    asked, samples = "target" if is_lmms else "doc_hash", []
    first: dict[tuple[str, str], str] = {}
    for one in records:
        kind = one.get("filter", "none")
        if first.setdefault((str(one["doc_id"]), str(one.get(asked))), kind) == kind:
            values = {name: value.get("score") if isinstance(value, dict) else value for name, value in one.items()}
            numbers = [name for name, value in values.items() if isinstance(value, int | float)]
            metrics = one.get("metrics", [name for name in numbers if name not in ("doc_id", "target")])
            scores = {name: values[name] for name in metrics if name in one}
            samples.append(_Sample(str(one["doc_id"]), scores, question=one.get(asked)))
    read = dict.fromkeys(first.values())
    left = dict.fromkeys(kind for one in records if (kind := one.get("filter", "none")) not in read)
    notes = [f"filter {', '.join(read)}, not {', '.join(left)}"] if left else []
    task = _task_of(path)
    # the tool writes into a folder named after the model
    model = path.absolute().parent.name if task else ""
    tool = "lmms-eval" if is_lmms else "lm-evaluation-harness"
    return _scored(tool, samples, correct, path, notes, task, model)


def inspect(log: Mapping[str, Any], correct: str | None, path: Path) -> Opened:
    """Samples of an Inspect log: an answer is as good as its scorer says; epochs are repeats."""
    samples = []
    for one in log["samples"]:
        scores = {name: score["value"] for name, score in (one.get("scores") or {}).items()}
        samples.append(_Sample(str(one["id"]), scores, int(one.get("epoch", 1))))
    task, model = (str((log.get("eval") or {}).get(name, "")) for name in ("task", "model"))
    return _scored("Inspect", samples, correct, path, task=task, model=model)


def lighteval(frame: pl.DataFrame, correct: str | None, path: Path) -> Opened:
    """Details of lighteval."""
    ids, queries = (frame["doc"].struct.field(name) for name in ("id", "query"))
    samples = [
        _Sample(item, scores, question=query) for item, query, scores in zip(ids, queries, frame["metric"], strict=True)
    ]
    task = _task_of(path)
    model = path.absolute().parents[1].name if task else ""  # MODEL/TIME/details_TASK_TIME.parquet
    return _scored("lighteval", samples, correct, path, task=task, model=model)


def _task_of(path: Path) -> str:
    """The task in the name of a log of lm-evaluation-harness, lighteval or lmms-eval; empty: it has another name."""
    found = re.match(r"(?:samples|details)_(.+)_\d{4}-\d\d-\d\dT|\d{8}_\d{6}_samples_(.+)\.jsonl", path.name)
    return (found[1] or found[2]) if found else ""


def helm(records: list[dict[str, Any]], correct: str | None, path: Path) -> Opened:
    """Statistics of HELM's instances, in one object for each metric; perturbed instances are left out.

    The folder is named after scenario and model.
    """
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for one in records:
        if not one.get("perturbation"):
            scores = {stat["name"]["name"]: stat["mean"] for stat in one["stats"] if "mean" in stat}
            found.setdefault((str(one["instance_id"]), int(one.get("train_trial_index", 0))), {}).update(scores)
    samples = [_Sample(item, scores, trial + 1) for (item, trial), scores in found.items()]
    parts = re.split(r"[,:]model=([^,]*)", path.absolute().parent.name, maxsplit=1)
    before, model, after = parts if len(parts) == 3 else (parts[0], "", "")
    return _scored("HELM", samples, correct, path, task=before + after, model=model)


def open_compass(results: Mapping[str, Any], correct: str | None, path: Path) -> Opened:
    """Details that OpenCompass adds to the results of a data set: results/MODEL/DATA SET.json.

    Of generated texts that must equal the reference, they have no scores; then the accuracy of the whole says so.
    """
    details = {item: one for item, one in results["details"].items() if isinstance(one, dict)}
    scores = {item: {name: one[name] for name in METRICS if name in one} for item, one in details.items()}
    if not any(scores.values()):
        exact = {item: str(one.get("predictions")) == str(one.get("references")) for item, one in details.items()}
        if abs(100 * sum(exact.values()) / max(1, len(exact)) - results.get("accuracy", -1)) < 0.01:
            scores = {item: {"correct": right} for item, right in exact.items()}
    samples = [_Sample(item, scores[item], question=str(one.get("references", ""))) for item, one in details.items()]
    folder = path.absolute().parent
    model = folder.name if folder.parent.name == "results" else ""
    return _scored("OpenCompass", samples, correct, path, task=path.stem, model=model)


def eval_scope(records: list[dict[str, Any]], correct: str | None, path: Path) -> Opened:
    """Reviews of EvalScope, reviews/MODEL/DATA SET_SUBSET.jsonl; several generations for a question are repeats."""
    samples = []
    for one in records:
        found, target = one["sample_score"], one.get("target")
        question = ", ".join(map(str, target)) if isinstance(target, list) else str(target)
        repeat = int(found.get("generation_index") or 0) + 1
        samples.append(_Sample(str(found["group_id"]), found["score"]["value"], repeat, question))
    return _scored("EvalScope", samples, correct, path, task=path.stem, model=path.absolute().parent.name)


def every_eval_ever(records: list[dict[str, Any]], correct: str | None, path: Path) -> Opened:
    """Samples in the schema of Every Eval Ever, whose file has a row for each metric of a sample.

    Those of several tasks in one file bear the name of theirs.
    """
    tasks = {str(one.get("evaluation_name", "")) for one in records}
    metrics = {one.get("evaluation_result_id") for one in records}
    found: dict[tuple[str, str | None, str, int], dict[str, Any]] = {}
    seen: Counter[tuple[str, str, str | None]] = Counter()
    for one in records:
        item = f"{one['evaluation_name']}/{one['sample_id']}" if len(tasks) > 1 else str(one["sample_id"])
        metric, model = one.get("evaluation_result_id"), str(one.get("model_id", ""))
        seen[item, model, metric] += 1  # a sample that is there twice is no second metric
        scores = {name: one["evaluation"][name] for name in ("is_correct", "score")}
        if len(metrics) > 1:
            scores = {str(metric): scores["score"]}
        found.setdefault((item, one.get("sample_hash"), model, seen[item, model, metric]), {}).update(scores)
    samples = [_Sample(item, scores, 1, question, model) for (item, question, model, _), scores in found.items()]
    task = "" if len(tasks) > 1 else tasks.pop()
    return _scored("Every Eval Ever", samples, correct, path, task=task)


def figures_of_data_sets(records: list[dict[str, Any]], correct: str | None) -> Opened:
    """Figures of models on data sets, in the schema of Every Eval Ever, as EuroEval writes them.

    Of each data set the first figure is read, or the one that `correct` names. Further runs of a model are repeats.
    """
    rows: list[tuple[str, str, int, float, bool]] = []
    names: dict[str, None] = {}
    seen: Counter[tuple[str, str]] = Counter()
    for one in records:
        figures: dict[str, dict[str, Any]] = {}
        for result in one["evaluation_results"]:
            names.setdefault(str(result["evaluation_name"]))
            if correct in (None, result["evaluation_name"]):
                figures.setdefault(str(result["source_data"]["dataset_name"]), result)
        for data_set, result in figures.items():
            model, less = str(one["model_info"]["name"]), bool(result["metric_config"].get("lower_is_better"))
            seen[model, data_set] += 1
            rows.append((model, data_set, seen[model, data_set], float(result["score_details"]["score"]), less))
    if not rows:
        raise ConfigError(f"there is no figure '{correct}'; there are {first_few(list(names), 12)}")
    table = pl.DataFrame(rows, [MODEL, "item", "seed", correct or "score", "less"], orient="row")
    if table["less"].n_unique() > 1:
        raise ConfigError(
            "of some data sets a higher figure is better, of others a lower one",
            fix=f"choose a figure with --correct: {first_few(list(names), 12)}",
        )
    notes = ["the figures are better the lower they are: --metric mean-loss"] if table["less"][0] else []
    return "Every Eval Ever", table.drop("less"), tuple(notes)


def openai_evals(records: list[dict[str, Any]], correct: str | None, path: Path) -> Opened:
    """Events of OpenAI's Evals that say whether an answer is right, or give it other figures."""
    found: dict[tuple[str, int], dict[str, Any]] = {}
    questions: dict[str, str] = {}
    seen: Counter[tuple[str, str]] = Counter()
    for one in records:
        if (kind := one.get("type")) in ("match", "metrics"):
            item, data = str(one["sample_id"]), one["data"]
            seen[item, kind] += 1  # an event of the same kind is another answer
            scores = {name: value for name, value in data.items() if isinstance(value, bool | int | float)}
            found.setdefault((item, seen[item, kind]), {}).update(scores)
            if "expected" in data:
                questions[item] = json.dumps(data["expected"])
    samples = [_Sample(item, scores, repeat, questions.get(item)) for (item, repeat), scores in found.items()]
    spec = records[0]["spec"]
    model = ", ".join(spec.get("completion_fns", ()))
    return _scored("OpenAI Evals", samples, correct, path, task=str(spec.get("eval_name", "")), model=model)


def promptfoo(records: list[dict[str, Any]], correct: str | None, path: Path) -> Opened:
    """Results of promptfoo: a test for each prompt of each provider, which are the models."""
    names = {}
    several = len({one["promptId"] for one in records}) > 1
    for one in records:
        names[one["promptIdx"]] = one["provider"].get("label") or one["provider"]["id"]
        if several:
            names[one["promptIdx"]] += f": {one['prompt']['label'].partition(chr(10))[0][:40]}"
    if len(set(names.values())) < len(names):
        names = {place: f"{place + 1} {name}" for place, name in names.items()}
    samples = []
    items: dict[str, str] = {}
    seen: Counter[tuple[str, str]] = Counter()
    for one in records:
        asked = json.dumps([one["vars"], one["testCase"].get("assert")], sort_keys=True)
        item, model = items.setdefault(asked, str(one["testIdx"])), names[one["promptIdx"]]
        seen[item, model] += 1  # the same test again, of --repeat
        scores = {"success": one["success"], "score": one["score"], **one["namedScores"]}
        samples.append(_Sample(item, scores, seen[item, model], asked, model))
    return _scored("promptfoo", samples, correct, path)


def swe_bench(report: Mapping[str, Any]) -> Opened:
    """Which of the submitted instances a run of SWE-bench has resolved; those of a repository belong together."""
    items, resolved = sorted(report["submitted_ids"]), set(report["resolved_ids"])
    columns: dict[str, list[Any]] = {"item": items, "resolved": [item in resolved for item in items]}
    found = [REPOSITORY.fullmatch(item) for item in items]
    if None not in found:
        columns["repo"] = [one[1] for one in found if one is not None]
    left = len(set(report.get("incomplete_ids", ())) - set(items))
    notes = [f"left out, without a submission: {counted(left, 'instance')}"] if left else []
    return "SWE-bench", pl.DataFrame(columns), tuple(notes)
