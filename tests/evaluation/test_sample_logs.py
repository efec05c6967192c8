"""Logs of tools that test language models are read as rows of answers that are right or wrong."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from daamctl.errors import ConfigError
from daamctl.evaluation.prediction_files import read_models
from tests.fixtures.predictions import rows, write_json, write_lines


def test_every_question_has_the_first_of_its_filters(tmp_path: Path) -> None:
    """As in a file of two tasks, one of which has no filter."""
    samples = [
        {"doc_id": index, "doc_hash": f"h{index}", "resps": [], "filter": name, "metrics": ["acc"], "acc": right}
        for index, filters in enumerate([{"strict": 1.0, "flexible": 0.0}, {"none": 0.0}])
        for name, right in filters.items()
    ]
    found = rows(write_lines(tmp_path / "both.jsonl", samples))
    assert found.rows.select("item", "correct").rows() == [("0", 1.0), ("1", 0.0)]
    assert found.notes[1:] == ("the score of an answer is acc", "filter strict, none, not flexible")


def test_filters_and_scorers_are_chosen(tmp_path: Path) -> None:
    samples = [
        {"doc_id": index, "filtered_resps": [], "filter": name, "metrics": ["exact_match", "f1"], "f1": 0.5}
        | {"exact_match": float(name == "strict")}
        for index in range(2)
        for name in ("strict", "flexible")
    ]
    path = write_lines(tmp_path / "s.jsonl", samples)
    found = rows(path)
    assert found.rows["correct"].to_list() == [1.0, 1.0]
    assert found.notes[1:] == ("the score of an answer is exact_match", "filter strict, not flexible")
    assert rows(path, columns={"correct": "f1"}).rows["correct"].to_list() == [0.5, 0.5]
    with pytest.raises(ConfigError, match="no score 'bleu'; they have exact_match, f1"):
        rows(path, columns={"correct": "bleu"})


def test_issues_of_a_repository_belong_together(tmp_path: Path) -> None:
    items = {"django__django-11099": "django__django", "scikit-learn__scikit-learn-10297": "scikit-learn__scikit-learn",
             "instance_a__b-0ea40e09d1b35bcb69ff4d9c-v30a9": "instance_a__b"}  # fmt: skip
    report = {"submitted_ids": list(items), "resolved_ids": ["django__django-11099"], "incomplete_ids": ["x__y-1"]}
    found = rows(write_json(tmp_path / "r.json", report))
    assert found.group == "repo"
    assert dict(found.rows.select("item", "group").iter_rows()) == items
    assert found.rows.filter(pl.col("correct") == 1)["item"].to_list() == ["django__django-11099"]
    assert found.notes[-1] == "left out, without a submission: 1 instance"
    other = write_json(tmp_path / "o.json", {"submitted_ids": ["lwc-001", "lwc-002"], "resolved_ids": []})
    assert rows(other).group is None


def test_trials_are_repeats_and_tasks_of_one_file_stay_apart(tmp_path: Path) -> None:
    helm_rows = [
        {"instance_id": "id1", "train_trial_index": trial, "stats": [{"name": {"name": "f1_score"}, "mean": trial / 2}]}
        for trial in range(2)
    ]
    found = rows(write_json(tmp_path / "h.json", helm_rows)).rows
    assert found.select("item", "seed", "correct").rows() == [("id1", "1", 0.0), ("id1", "2", 0.5)]
    samples = [
        {
            "sample_id": "1",
            "evaluation_name": name,
            "sample_hash": name,
            "evaluation": {"score": 0.2, "is_correct": True},
        }
        for name in ("gsm8k", "mmlu")
    ]
    path = write_lines(tmp_path / "e.jsonl", samples)
    assert rows(path).rows.select("item", "label").rows() == [("gsm8k/1", "gsm8k"), ("mmlu/1", "mmlu")]
    assert rows(path, columns={"correct": "score"}).rows["correct"].to_list() == [0.2, 0.2]


def test_logs_of_several_tasks_have_different_items(tmp_path: Path) -> None:
    for number, task in enumerate(("mmlu_law", "mmlu_math")):
        samples = [
            {"doc_id": item, "doc_hash": f"{task}{item}", "resps": [], "metrics": ["acc"], "acc": float(item == number)}
            for item in range(2)
        ]
        write_lines(tmp_path / f"samples_{task}_2026-11-0{number + 1}T10-00-00.5.jsonl", samples)
    found = rows(tmp_path / "samples_mmlu_*.jsonl")
    items = ["mmlu_law/0", "mmlu_law/1", "mmlu_math/0", "mmlu_math/1"]
    assert found.rows.select("item", "correct").rows() == list(zip(items, [1.0, 0.0, 0.0, 1.0], strict=True))
    assert rows(tmp_path / "samples_mmlu_law*.jsonl").rows["item"].to_list() == ["0", "1"]
    for task in ("law", "math"):
        samples = [{"id": 1, "epoch": 1, "scores": {"match": {"value": "C"}}}]
        write_json(tmp_path / f"inspect-{task}.json", {"eval": {"task": task}, "samples": samples})
        with zipfile.ZipFile(tmp_path / f"inspect-{task}.eval", "w") as archive:
            archive.writestr("header.json", json.dumps({"eval": {"task": task}}))
            archive.writestr("summaries.json", json.dumps(samples))
        folder = tmp_path / f"{task}:subject=a,model=mine,shots=5"
        folder.mkdir()
        stats = [{"name": {"name": "exact_match"}, "mean": 1.0}]
        write_json(folder / "per_instance_stats.json", [{"instance_id": "id1", "train_trial_index": 0, "stats": stats}])
    for suffix in (".json", ".eval"):
        assert rows(tmp_path / f"inspect-*{suffix}").rows["item"].to_list() == ["law/1", "math/1"]
    write_json(tmp_path / "inspect-art.json", {"eval": {"task": "art"}, "samples": [{"id": 1}, *samples]})
    notes = rows(tmp_path / "inspect-*.json").notes  # art is the first file
    assert "1 samples have no score and are left out" in notes
    assert len(set(notes)) == len(notes)
    found = rows(tmp_path / "*model=mine*" / "per_instance_stats.json")
    assert found.rows["item"].to_list() == ["law:subject=a,shots=5/id1", "math:subject=a,shots=5/id1"]


def test_samples_of_lmms_eval_name_no_metric(tmp_path: Path) -> None:
    (tmp_path / "tiny").mkdir()
    samples = [
        {"doc_id": item, "target": target, "filtered_resps": "A", "token_counts": [None], "doc_hash": "the same"}
        | {"my_acc": float(target == "A"), "parts": {"id": item}, "mme": {"id": item, "score": 0.5}, "input": "q"}
        for item, target in enumerate("AB")
    ]
    path = write_lines(tmp_path / "tiny/20261130_050844_samples_quiz.jsonl", samples)
    found = rows(path)
    assert (found.name, found.tool) == ("tiny", "lmms-eval")
    assert found.rows.select("item", "label", "correct").rows() == [("0", "A", 1.0), ("1", "B", 0.0)]
    assert rows(path, columns={"correct": "mme"}).rows["correct"].to_list() == [0.5, 0.5]
    with pytest.raises(ConfigError, match="no score 'parts'; they have my_acc, mme"):
        rows(path, columns={"correct": "parts"})


def test_reviews_of_eval_scope_may_repeat_a_question(tmp_path: Path) -> None:
    (tmp_path / "reviews/tiny").mkdir(parents=True)
    reviews = [
        {"index": 2 * item + again, "target": ["A"]}
        | {"sample_score": {"score": {"value": {"accuracy": right, "f1": 0.5}}, "group_id": item, "sample_id": item}}
        for item in range(2)
        for again, right in enumerate((1.0, float(item)))
    ]
    for again, one in enumerate(reviews):
        one["sample_score"]["generation_index"] = again % 2
    found = rows(write_lines(tmp_path / "reviews/tiny/quiz_all.jsonl", reviews))
    assert (found.name, found.tool) == ("tiny", "EvalScope")
    assert found.rows.select("item", "seed", "label", "correct").rows() == [
        ("0", "1", "A", 1.0), ("0", "2", "A", 0.0), ("1", "1", "A", 1.0), ("1", "2", "A", 1.0),
    ]  # fmt: skip


def test_details_of_open_compass(tmp_path: Path) -> None:
    for name in ("law", "math"):
        samples = {
            str(item): {"prompt": "p", "predictions": "A", "references": answer, "correct": answer == "A"}
            for item, answer in enumerate("AB")
        }
        write_json(tmp_path / f"{name}.json", {"accuracy": 50.0, "details": {"type": "GEN", **samples}})
    found = rows(tmp_path / "law.json")
    assert found.rows.select("item", "label", "correct").rows() == [("0", "A", 1.0), ("1", "B", 0.0)]
    assert rows(tmp_path / "*.json").rows["item"].to_list() == ["law/0", "law/1", "math/0", "math/1"]
    assert found.name == "law"


def test_generated_texts_of_open_compass_are_right_if_the_accuracy_says_so(tmp_path: Path) -> None:
    (tmp_path / "results/tiny_hf").mkdir(parents=True)
    path = tmp_path / "results/tiny_hf/qa.json"
    samples = {str(item): {"predictions": "A", "references": answer} for item, answer in enumerate("AAB")}
    write_json(path, {"accuracy": 66.67, "details": {"type": "GEN", **samples}})
    found = rows(path)
    assert found.name == "tiny_hf"
    assert found.rows.select("label", "correct").rows() == [("A", 1.0), ("A", 1.0), ("B", 0.0)]
    for other in ({"accuracy": 100.0}, {"rouge1": 66.67}):  # another evaluator
        write_json(path, {**other, "details": {"type": "GEN", **samples}})
        with pytest.raises(ConfigError, match="the samples have no score"):
            rows(path)


def test_reward_bench_says_which_answer_scores_higher(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    for model, results in (("a", (1, 0, 1)), ("b", (0, 0, 1))):
        samples = [
            {"results": right, "scores_chosen": 0.5, "scores_rejected": 1.0, "subset": "chat", "id": item}
            for item, right in enumerate(results)
        ]
        path = write_lines(tmp_path / f"one/{model}_outputs.jsonl", samples)
    found = read_models(tmp_path / "one/*_outputs.jsonl")
    assert [(one.name, one.rows["correct"].to_list()) for one in found] == [("a", [1, 0, 1]), ("b", [0, 0, 1])]
    assert rows(path, columns={"correct": "results"}).rows.equals(rows(path).rows)


def test_every_eval_ever_has_a_row_for_each_metric(tmp_path: Path) -> None:
    samples = [
        {"sample_id": str(item), "evaluation_name": "gsm8k", "evaluation_result_id": metric, "sample_hash": f"h{item}"}
        | {"evaluation": {"score": score, "is_correct": score == 1}}
        for item in range(2)
        for metric, score in (("f1", 0.5), ("acc", 1.0 - item))
    ]
    path = write_lines(tmp_path / "a_samples.jsonl", samples)
    assert rows(path).rows.select("item", "correct").rows() == [("0", 1.0), ("1", 0.0)]
    assert rows(path, columns={"correct": "f1"}).rows["correct"].to_list() == [0.5, 0.5]
    write_lines(tmp_path / "b_samples.jsonl", [one | {"evaluation_name": "mmlu"} for one in samples])
    assert rows(tmp_path / "*_samples.jsonl").rows["item"].to_list() == ["gsm8k/0", "gsm8k/1", "mmlu/0", "mmlu/1"]
    with pytest.raises(ConfigError, match="item '0' occurs more than once"):
        rows(write_lines(tmp_path / "twice.jsonl", samples + samples[:2]))


def test_events_of_openai_evals(tmp_path: Path) -> None:
    spec = {"completion_fns": ["gpt"], "eval_name": "letters.dev.v0", "split": "dev"}
    events: list[dict[str, Any]] = [{"spec": spec}, {"final_report": {"accuracy": 0.5}, "run_id": "r"}]
    for item, right in (("x.0", True), ("x.1", False), ("x.1", True)):
        told = [
            ("sampling", {"prompt": "q", "sampled": "a"}),
            ("match", {"correct": right, "expected": "a", "picked": None}),
            ("metrics", {"score": 0.25, "choice": "B"}),
        ]
        for kind, data in told:
            event = {"run_id": "r", "event_id": len(events), "sample_id": item, "type": kind, "data": data}
            events.append({**event, "created_by": "", "created_at": "2026-11-29 16:50:17"})
    path = write_lines(tmp_path / "a.jsonl", events)
    found = rows(path)
    assert found.tool == "OpenAI Evals"
    told = [("x.0", '"a"', "1", 1.0), ("x.1", '"a"', "1", 0.0), ("x.1", '"a"', "2", 1.0)]
    assert found.rows.select("item", "label", "seed", "correct").rows() == told
    assert rows(path, columns={"correct": "score"}).rows["correct"].to_list() == [0.25] * 3
    write_lines(tmp_path / "b.jsonl", [{"spec": spec | {"eval_name": "digits.dev.v0"}}, *events[1:]])
    both = {"letters.dev.v0/x.0", "letters.dev.v0/x.1", "digits.dev.v0/x.0", "digits.dev.v0/x.1"}
    assert set(rows(tmp_path / "*.jsonl").rows["item"]) == both
    with pytest.raises(ConfigError, match="the samples have no score"):
        rows(write_lines(tmp_path / "none.jsonl", events[:3]))


def promptfoo_results(*, labels: bool = True, prompts: int = 2) -> list[dict[str, Any]]:
    """Two prompts of two providers, three questions, each asked twice, as `--repeat 2` stores them."""
    return [
        {
            "id": f"{test}-{place}", "testIdx": test, "promptIdx": place, "promptId": f"p{place % prompts}",
            "prompt": {"raw": word, "label": "{{q}}!\nbriefly" if place % prompts else "{{q}}"},
            "provider": {"id": "echo", "label": "second" if labels and place >= prompts else ""},
            "vars": {"q": word}, "testCase": {"vars": {"q": word}, "assert": [{"type": "equals", "value": word}]},
            "success": place % prompts == 0 and word != "bird", "score": 0.5, "namedScores": {"exact": test % 2},
        }
        for test, word in enumerate(["cat", "cat", "dog", "dog", "bird", "bird"])
        for place in range(2 * prompts)
    ]  # fmt: skip


def test_results_of_promptfoo_have_several_models(tmp_path: Path) -> None:
    results = promptfoo_results()
    content = {"evalId": "e", "results": {"version": 3, "prompts": [], "results": results, "stats": {}}, "config": {}}
    path = write_json(tmp_path / "out.json", content)
    for file in (path, write_lines(tmp_path / "out.jsonl", results)):
        models = read_models(file)
        assert [one.name for one in models] == ["echo: {{q}}", "echo: {{q}}!", "second: {{q}}", "second: {{q}}!"]
        for one in models:
            right = 0.0 if "!" in one.name else 1.0
            assert one.rows["item"].to_list() == ["0", "0", "2", "2", "4", "4"]
            assert one.rows["seed"].to_list() == ["1", "2"] * 3
            assert one.rows["correct"].to_list() == [right] * 4 + [0.0] * 2
            assert one.rows["label"].n_unique() == 3
    assert read_models(path, {"correct": "score"})[0].rows["correct"].to_list() == [0.5] * 6
    assert read_models(path, {"correct": "exact"})[0].rows["correct"].to_list() == [0.0, 1.0] * 3
    same = write_lines(tmp_path / "same.jsonl", promptfoo_results(labels=False, prompts=1))
    assert [one.name for one in read_models(same)] == ["1 echo", "2 echo"]
    with pytest.raises(ConfigError, match=r"item '0' occurs more than once"):  # beside another file, it is of one model
        rows(path)


def figures(model: str, data_set: str, *, less: bool = False, **scores: float) -> dict[str, Any]:
    """A line of EuroEval's results."""
    return {
        "schema_version": "0.2.1",
        "evaluation_id": f"{data_set}/{model}/1790840893",
        "model_info": {"name": model, "id": model},
        "eval_library": {"name": "euroeval", "version": "18.2.0"},
        "evaluation_results": [
            {
                "evaluation_name": name,
                "source_data": {"dataset_name": data_set, "source_type": "hf_dataset"},
                "metric_config": {"lower_is_better": less, "score_type": "continuous"},
                "score_details": {"score": score},
            }
            for name, score in scores.items()
        ],
    }


def test_figures_of_models_on_data_sets(tmp_path: Path) -> None:
    records = [
        figures("org/a", "sst2", test_mcc=61.5, test_accuracy=80.0),
        figures("org/a", "conll", test_micro_f1=70.0),
        figures("org/b", "sst2", test_mcc=60.0, test_accuracy=81.0),
        figures("org/b", "conll", test_micro_f1=71.0),
        figures("org/b", "conll", test_micro_f1=72.0),
    ]
    path = write_lines(tmp_path / "euroeval_benchmark_results.jsonl", records)
    first, second = read_models(path, metric="mean")
    assert (first.name, first.tool) == ("org/a", "Every Eval Ever")
    assert first.rows.select("item", "prediction").rows() == [("sst2", "61.5"), ("conll", "70.0")]
    assert second.rows.select("item", "prediction", "seed").rows() == [
        ("sst2", "60", "1"), ("conll", "71", "1"), ("conll", "72", "2")
    ]  # fmt: skip
    chosen = read_models(path, {"correct": "test_accuracy"}, metric="mean")
    assert [one.rows.select("item", "prediction").rows() for one in chosen] == [[("sst2", "80")], [("sst2", "81")]]
    with pytest.raises(ConfigError, match="no figure 'bleu'; there are test_mcc, test_accuracy, test_micro_f1"):
        read_models(path, {"correct": "bleu"}, metric="mean")


def test_figures_of_which_less_is_better(tmp_path: Path) -> None:
    records = [figures(model, "asr", less=True, wer=rate) for model, rate in (("a", 0.1), ("b", 0.2))]
    path = write_lines(tmp_path / "x.jsonl", records)
    found = read_models(path, {"correct": "wer"}, metric="mean_loss")
    assert "the figures are better the lower they are: --metric mean-loss" in found[0].notes
    path = write_lines(tmp_path / "y.jsonl", [*records, figures("a", "sst2", mcc=0.5)])
    with pytest.raises(ConfigError, match="of some data sets a higher figure is better") as error:
        read_models(path, metric="mean")
    assert error.value.fix == "choose a figure with --correct: wer, mcc"
