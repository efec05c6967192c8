"""The model card: `README.md` in the format of the Hugging Face hub, filled from the record of the model."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from typing import Any

import yaml

from daamctl.artifacts.terms import counted, listed
from daamctl.data.task import task_of
from daamctl.encoders import HUB_ID
from daamctl.models.folder import Figure, ModelRecord

TASKS = {
    "speech": "audio-classification",
    "text": "text-classification",
    "image": "image-classification",
    "tokens": "token-classification",
    "embeddings": "tabular-classification",
}
INPUT = {
    "speech": "recordings",
    "text": "texts",
    "image": "images",
    "tokens": "the words of sentences",
    "embeddings": "embeddings",
}


def card_of(record: ModelRecord, name: str) -> str:
    """Write the card.

    Returns:
        Markdown with a YAML head.
    """
    like = f"{INPUT[record.modality]} like those of the corpus {record.corpus.name}"
    use = f"For {like}, with the same classes. Measure it on your own data before you rely on it."
    sections = [
        ("Intended use", use),
        ("How to use it", _how(record, name)),
        ("How it was trained", _training(record)),
        ("How well it works", _results(record)),
        ("Limits", _limits(record)),
        ("Licences", _licences(record)),
    ]
    body = [f"## {heading}\n\n{text}" for heading, text in sections if text]
    head = yaml.safe_dump(_head(record, name), sort_keys=False, allow_unicode=True)
    title = f"# {name}\n\n{_summary(record)}"
    return "\n".join(["---", f"{head}---", "", "\n\n".join([title, *body]), ""])


def _head(record: ModelRecord, name: str) -> dict[str, Any]:
    """The metadata that the hub reads."""
    source = str(record.encoder.get("source") or "")
    head: dict[str, Any] = {"library_name": "daamctl", "pipeline_tag": TASKS[record.modality]}
    head["tags"] = ["daamctl", "layer-fusion", record.method]
    # a folder of this machine would be a dead link
    if HUB_ID.match(source):
        head["base_model"] = source
    if record.measured is not None:
        task = {"type": TASKS[record.modality]}
        metrics = [
            {"type": one.name, "value": round(one.value, 4), "name": one.alias} for one in record.measured.figures
        ]
        dataset = {"name": record.corpus.name, "type": record.corpus.name}
        head["model-index"] = [{"name": name, "results": [{"task": task, "dataset": dataset, "metrics": metrics}]}]
    return head


def _summary(record: ModelRecord) -> str:
    made = f"the frozen encoder `{record.encoder.get('source')}`"
    if record.modality == "embeddings":
        made = f"vectors that other software made ({_made_by(record)})"
    does = f"It reads {_layers(record.layers)} of {made} and combines them with `{record.method}`."
    if record.fine_tuned:
        does = f"It is the encoder `{record.encoder.get('source')}`, fine-tuned with `{record.method}`."
    return f"It classifies {INPUT[record.modality]} as {_or(record.classes)}. {does}"


def _made_by(record: ModelRecord) -> str:
    """What is known of given embeddings: what made them, as their file says, and the file of the training."""
    made_by = f"`{found}`, " if (found := record.encoder.get("made_by")) else ""
    return f"{made_by}{record.encoder['name']}, SHA-256 `{record.encoder['sha256'][:16]}`"


def _how(record: ModelRecord, name: str) -> str:
    inputs = {
        "speech": "my-recordings/",
        "text": "my-texts.txt",
        "image": "my-images/",
        "tokens": "my-sentences.txt",
        "embeddings": "my-embeddings.parquet",
    }[record.modality]
    word, text = shlex.quote(name), json.dumps(name, ensure_ascii=False)
    code = f"from daamctl.models.model import ExportedModel\n\nmodel = ExportedModel.open({text})\n"
    argument = {"text": '"a text"', "tokens": '"words of a sentence"'}.get(record.modality, f'"{inputs}"')
    serve = "" if record.modality == "embeddings" else f"daamctl serve {word}\n"
    return (
        f"```sh\ndaamctl predict {word} {inputs} --out predictions.parquet\n{serve}```\n\n"
        f"```python\n{code}table = model.predict([{argument}])\n```"
    )


def _training(record: ModelRecord) -> str:
    kinds = {
        "mean": f"It averages the logits of {counted(len(record.members), 'training')}, each of its own fold or seed.",
        "fold": f"It is the training of fold {record.members[0].fold}, which did not see the group "
        f"`{record.members[0].test_group}`.",
        "refit": "It was trained on all data, with the settings that the folds chose.",
    }
    corpus = record.corpus
    counts = ", ".join(f"{name} {number}" for name, number in corpus.per_class.items())
    given = record.modality == "embeddings"
    encoder = f"{record.encoder.get('source')}, revision {record.encoder.get('revision') or 'unknown'}"
    if not given:
        encoder += f", weights SHA-256 `{record.encoder['weights_sha256'][:16]}`"
    facts = {
        "corpus": f"{corpus.name}: {corpus.items} {task_of(record.modality).item}s ({counts})",
        "encoder": "" if given else encoder,
        "embeddings": _made_by(record) if given else "",
        "layers": "" if record.fine_tuned else _layers(record.layers),
        "method": record.method + (f", decoder {record.decoder}" if record.decoder else ""),
        "texts": f"`{record.text}`, of the columns of a table" if record.text else "",
        "clips": f"at most {record.segment['max_duration_s']:g} s" if record.segment else "",
    }
    rows = [f"| {name} | {text} |" for name, text in facts.items() if text]
    return "\n".join([kinds[record.kind], "", "| | |", "| --- | --- |", *rows])


def _results(record: ModelRecord) -> str:
    measured = record.measured
    if measured is None:
        return "No figure was measured for this model: it was trained on all data."
    head = ["| metric | value | interval |", "| --- | --- | --- |"]
    rows = [f"| {one.alias} | {_value(one, one.value)} | {_interval(one)} |" for one in measured.figures]
    lines = [f"{measured.protocol} n = {measured.n} {measured.item}s.", "", *head, *rows]
    recalls = [
        f"| {name} | {'-' if value is None else f'{100 * value:.1f} %'} |" for name, value in measured.recalls.items()
    ]
    if recalls:
        lines += ["", "| class | recall |", "| --- | --- |", *recalls]
    if measured.clusters:
        lines += ["", f"The intervals are over {measured.clusters}."]
    return "\n".join(lines)


def _value(figure: Figure, value: float) -> str:
    return f"{100 * value:.1f} %" if figure.unit == "fraction" else f"{value:.3f} {figure.unit}"


def _interval(figure: Figure) -> str:
    if figure.low is None or figure.high is None or figure.level is None:
        return "-"
    return f"{_value(figure, figure.low)} to {_value(figure, figure.high)} ({100 * figure.level:.0f} %)"


def _limits(record: ModelRecord) -> str:
    lines = [
        f"It knows only the classes {_or(record.classes)} and gives one of them to every input.",
        *record.warnings,
        *(f"D{one.number}, as in the papers' code ({one.state}): {one.finding}" for one in record.deviations),
    ]
    return "\n".join(f"- {line}" for line in lines)


def _licences(record: ModelRecord) -> str:
    licence = record.encoder.get("licence") or "unknown; ask who published it"
    what = f"Encoder {record.encoder.get('source')}: {licence}. The model cannot be used without it."
    if record.modality == "embeddings":
        what = f"Embeddings {record.encoder['source']}: {licence}."
    return f"- Corpus {record.corpus.name}: {record.corpus.licence}\n- {what}\n- daamctl: Apache-2.0"


def _layers(layers: Sequence[int]) -> str:
    if len(layers) == 1:
        return f"layer {layers[0]}"
    # a range may leave none out
    whole = list(layers) == list(range(layers[0], layers[-1] + 1))
    return f"the layers {layers[0]} to {layers[-1]}" if whole else f"the layers {listed([str(one) for one in layers])}"


def _or(classes: Sequence[str]) -> str:
    shown = list(classes) if len(classes) <= 12 else [*classes[:10], f"{len(classes) - 10} others"]
    return listed([f"`{name}`" if name in classes else name for name in shown], "or")
