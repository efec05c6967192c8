"""`export`: write a trained method as a folder that stands alone, see `daamctl.models.folder`.

Reads the folds of `data/train/<run>/<method>/` and `data/evaluate/<run>/evaluation.json`. It is not a stage of the DAG.
"""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import polars as pl

from daamctl.adapters import stage_of
from daamctl.adapters.released import is_published
from daamctl.artifacts.clips import read_clips
from daamctl.artifacts.embeddings import METADATA_FILE
from daamctl.artifacts.evaluation import Evaluation, read_evaluation
from daamctl.artifacts.layer_sets import layers_name
from daamctl.artifacts.layout import Layout
from daamctl.artifacts.results import Fold
from daamctl.artifacts.runs import complete_folds, find_run, trained_methods
from daamctl.artifacts.scores import LEVEL, Scores, frame_of, recalls
from daamctl.artifacts.splits import split_of
from daamctl.artifacts.terms import counted
from daamctl.artifacts.utterances import Modality
from daamctl.config import Config, ExtractConfig
from daamctl.corpora import CORPORA
from daamctl.encoders import ENCODERS, HUB_ID
from daamctl.encoders.licence import licence_of
from daamctl.encoders.load import OpenedEncoder
from daamctl.encoders.save import save_cut_encoder
from daamctl.errors import ArtifactError, ConfigError, MethodError, UnknownNameError, first_few
from daamctl.evaluation.comparison import item_table, method_intervals, speakers_known
from daamctl.evaluation.conformal import smallest_probabilities
from daamctl.evaluation.consistency import check_method, differences, is_scored
from daamctl.evaluation.primary import primary_rows
from daamctl.evaluation.scores import method_rows
from daamctl.evaluation.scoring import UNITS, items_of
from daamctl.fit.features import load_features, open_features
from daamctl.fit.subsets import train_on_all, train_on_layers
from daamctl.fit.tracking import Tracker, register_model
from daamctl.methods import CLOSED_FORM, METHODS, load_weights, resolve_method
from daamctl.models.card import card_of
from daamctl.models.folder import (
    ENCODER_DIR,
    SCHEMA,
    CorpusFacts,
    Deviation,
    Figure,
    Kind,
    MeasuredScores,
    Member,
    ModelRecord,
    PredictionSets,
    check_free,
    write_model,
)
from daamctl.models.model import open_for
from daamctl.models.onnx import check_installed, write_onnx
from daamctl.models.pyfunc import FILE as MLMODEL
from daamctl.models.pyfunc import mlmodel_of
from daamctl.paper.deviations import AS_PUBLISHED, CORRECTED, deviations, verdict
from daamctl.reporting.terms import probe_rule, selection_rule
from daamctl.store.files import write_text
from daamctl.store.version import __version__

log = logging.getLogger(__name__)

MEAN, REFIT = "mean", "refit"


@dataclass(frozen=True)
class _Trained:
    """A trained method."""

    method: str
    layout: Layout
    config: Config
    folds: list[Fold]
    evaluation: Evaluation

    @property
    def tuned(self) -> bool:
        """Whether the method fine-tunes the encoder."""
        return stage_of(self.method) == "finetune"

    @property
    def first(self) -> Fold:
        """The first fold; what does not depend on the fold is taken from it."""
        return self.folds[0]


def run(
    root: Path,
    trained: str,
    out: Path,
    *,
    folds: str = MEAN,
    layers: str | None = None,
    with_encoder: bool = False,
    encoder: Path | None = None,
    onnx: bool = False,
    register: str | None = None,
    force: bool = False,
) -> Path:
    """Export a trained method.

    Args:
        trained: `pipeline/method`, or the name of an ad-hoc run and a method.
        folds: `mean`: average the logits of all folds and seeds; a number: this fold; `refit`: train on
            all clips, with what the folds chose.
        layers: `1-K`: train the method on the layers 1 to K only, as `truncate` does, and export that.
        with_encoder: include the encoder, up to the highest layer that the method reads.
        encoder: folder of the encoder, if it is not where the settings say.
        onnx: also write encoder and members as one ONNX graph.
        register: name in MLflow's model registry, of which this becomes a new version; None: not registered.
        force: replace an exported model that is there.

    Returns:
        The folder.

    Raises:
        UnknownNameError: there is no such run or method.
        ConfigError: `trained` names no method, or there is no such fold.
        MethodError: the method cannot be exported.
        ArtifactError: a fold or the evaluation is missing or damaged, or `out` is not free.
        EncoderError: the encoder cannot be opened, or is another one than in training.
    """
    check_free(out, force=force)
    found = _find(root, trained)
    plain = found.first.modality in ("speech", "text", "image")
    if found.tuned and layers is not None:
        raise MethodError(f"{found.method} fine-tunes the whole encoder; leave out --layers")
    if found.tuned and onnx:
        raise MethodError(f"'{trained}' fine-tunes the encoder, which ONNX cannot take yet; leave out --onnx")
    if not plain and (onnx or register is not None):
        what = "tags words" if found.config.has_encoder else "reads given embeddings"
        raise MethodError(f"'{trained}' {what}, so ONNX and MLflow cannot take it; leave out --onnx and --register")
    if onnx:
        check_installed()
    if not found.config.has_encoder and (with_encoder or encoder is not None):
        raise MethodError(f"'{trained}' reads given embeddings and no encoder; leave out --with-encoder and --encoder")
    kind, chosen = _choose(found, folds)
    if (with_encoder or onnx) and (layers is not None or kind == REFIT):
        # these may train for hours, so what can be refused is refused before
        _open_encoder(found, _record(found, kind, chosen, _encoder_settings(found, encoder)), encoder)
    if layers is not None:
        found = _on_layers(found, layers)
        kind, chosen = _choose(found, folds)
    record = _record(found, kind, chosen, _encoder_settings(found, encoder))

    with write_model(out, record, force=force) as folder:
        for member, fold in zip(record.members, chosen, strict=True):
            weights = fold.weights()
            if kind == REFIT:
                own = [one for one in found.folds if one.seed == member.seed]
                features = load_features(found.layout, found.config, tuple(record.layers))
                weights = train_on_all(
                    found.method, own, features, found.layout, found.config, member.seed, folder / REFIT
                )
            if weights is None:
                raise ArtifactError(f"{fold.folder} has no weights", path=fold.folder)
            shutil.copyfile(weights, folder / member.file)
        shutil.rmtree(folder / REFIT, ignore_errors=True)  # where the trainings on all clips were
        if with_encoder:
            save_cut_encoder(_open_encoder(found, record, encoder), folder / ENCODER_DIR)
        if onnx:
            opened, storage = _open_encoder(found, record, encoder), str(record.encoder["storage"])
            members = [load_weights(folder / member.file) for member in record.members]
            write_onnx(folder, opened.encoder, members, record.layers, storage)
        if plain:
            write_text(folder / MLMODEL, mlmodel_of(record))
        write_text(folder / "README.md", card_of(record, out.absolute().name))
    for warning in record.warnings:
        log.warning("%s", warning)
    if register is not None:
        version = register_model(root, out, register)
        log.info("registered as version %s of %s in MLflow", version, register)
    return out


def _find(root: Path, trained: str) -> _Trained:
    name, _, method = trained.partition("/")
    layout, config = find_run(root, name)
    known = dict.fromkeys([*(config.trained if layout.pipeline else ()), *trained_methods(layout)])
    if not method:
        raise ConfigError(
            f"'{trained}' names no method", fix=f"name one: {', '.join(f'{name}/{one}' for one in known) or 'none'}"
        )
    if method not in known:
        raise UnknownNameError("method", method, known, of=name)
    stage = stage_of(method)
    if stage == "finetune" and is_published(method):
        raise MethodError(
            f"{method} repeats a released script and cannot be exported", fix="fine-tune with another form"
        )
    seeds = config.seeds_of(stage) if layout.pipeline else None
    folds = complete_folds(layout, method, seeds)
    check_method(method, folds)
    if changed := differences(folds[0], config):
        raise ArtifactError(
            f"'{trained}' was trained with other settings than now: {first_few(changed)}", path=layout.method(method)
        )
    if folds[0].result["run"]["eval_batches"] is not None:
        raise MethodError(f"{method} cannot be exported: its prediction depends on the other items of a batch (D1)")
    place = layout.stage("evaluate")
    evaluation = read_evaluation(place)
    scored = evaluation.methods.get(method)
    rows = {row.run: row for row in scored.runs} if scored else {}
    runs = {(fold.fold, fold.seed): fold for fold in folds}
    # a fine-tuning reads clips, so its data have another key
    made = stage == "finetune" or (evaluation.provenance.embeddings_key == folds[0].result["meta"]["embeddings_key"])
    if not made or rows.keys() != runs.keys() or not all(is_scored(runs[run], rows[run]) for run in rows):
        raise ArtifactError(f"the evaluation of '{name}' is not of these folds of {method}", path=place)
    return _Trained(method, layout, config, folds, evaluation)


def _on_layers(found: _Trained, layers: str) -> _Trained:
    """The method on the layers 1 to K, trained now unless `truncate` has."""
    features = load_features(found.layout, found.config)
    highest = int(layers[2:]) if re.fullmatch(r"1-\d{1,6}", layers) else 0
    chosen = tuple(range(1, highest + 1))
    if not chosen or not set(chosen) <= set(features.layers):
        raise ConfigError(f"--layers must be 1-K with K from 1 to {max(features.layers)}, got '{layers}'")
    folder = found.layout.stage("truncate") / f"{layers_name(chosen)}-{found.method}"
    folds = train_on_layers(found.method, features, chosen, folder, found.layout, found.config, Tracker())
    return replace(found, folds=folds)


def _open_encoder(found: _Trained, record: ModelRecord, folder: Path | None) -> OpenedEncoder:
    """The encoder as it is written, in the number format that its weights had."""
    made = {"weights_dtype": record.encoder["weights_dtype"], "max_tokens": record.extract["max_tokens"]}
    config = _encoder_settings(found, folder).model_copy(update=made)
    return open_for(record, config, device="cpu", precision="float32")


def _encoder_settings(found: _Trained, folder: Path | None) -> ExtractConfig:
    """Settings that name the encoder of the training: its folder, if one is given, or else its commit."""
    facts = found.first.result["meta"]["encoder"]
    changes = {"revision": facts.get("revision")} if folder is None else {"encoder": str(folder), "revision": None}
    return found.config.extract.model_copy(update=changes)


def _choose(found: _Trained, folds: str) -> tuple[Kind, list[Fold]]:
    """The folds to export."""
    if found.tuned:
        chosen = [fold for fold in found.folds if str(fold.fold) == folds]
        if not chosen:
            raise ConfigError(
                f"{found.method} has fine-tuned an encoder of its own in every fold, so --folds must be one of them "
                f"(1 to {max(fold.fold for fold in found.folds)}), got '{folds}'"
            )
        return "fold", chosen[:1]  # the first seed
    if folds == MEAN:
        return "mean", found.folds
    if folds == REFIT:  # one training per seed; its fold stands for what does not depend on the fold
        return "refit", list({fold.seed: fold for fold in reversed(found.folds)}.values())
    numbers = sorted({fold.fold for fold in found.folds})
    if not folds.isdecimal() or int(folds) not in numbers:
        raise ConfigError(f"--folds must be mean, refit or a fold ({numbers[0]} to {numbers[-1]}), got '{folds}'")
    return "fold", [fold for fold in found.folds if fold.fold == int(folds)]


def _record(found: _Trained, kind: Kind, chosen: Sequence[Fold], encoder: ExtractConfig) -> ModelRecord:
    run, meta = found.first.result["run"], found.first.result["meta"]
    config, extract = run["config"], run["config"].get("extract", {})  # given embeddings have none
    revision = meta["encoder"].get("revision") or extract.get("revision")  # the commit that a branch or tag stood for
    settings = {name: value for name, value in config["method"].items() if name != "name"}
    decoder = None
    if not found.tuned:
        base, preset = resolve_method(found.method)
        decoder = {**METHODS.defaults(base), **preset, **settings}.get("decoder")
    modality = cast(Modality, found.first.modality)
    corpus = CorpusFacts(
        name=found.evaluation.corpus_name,
        licence=CORPORA.load(config["download"]["corpus"]).licence,
        items=found.evaluation.counts.utterance,
        clips=found.evaluation.counts.clip,
        per_class=found.evaluation.chance["utterance"].per_class,
        embeddings_key=meta["embeddings_key"],
        vectors_key=meta.get("vectors_key"),
    )
    # Where these folds follow the released code. Other methods of the run do not count, unless the run corrects it.
    named = (found.method,)
    # fine-tuning may keep its last weights whatever `train` says
    chosen_by = found.config.train.model_copy(update={"selection": found.first.rule.selection})
    own = found.config.model_copy(
        update={"methods": () if found.tuned else named, "finetunes": named if found.tuned else (), "train": chosen_by}
    )
    rows = [(row, found.config if row.is_of_comparison else own) for row in deviations()]
    followed = [row for row, about in rows if verdict(row, about) == AS_PUBLISHED]
    followed = [row for row in followed if verdict(row, found.config) != CORRECTED]
    facts = meta["encoder"]
    if found.tuned:  # what it reads, and how it was evaluated
        facts = {**facts, "precision": meta["evaluation_precision"], "storage": "float32"}
        if "max_tokens" in facts:
            facts["max_tokens"] = min(facts["max_tokens"], config["finetune"]["max_tokens"])
        extract = {**extract, **{name: facts[name] for name in ("max_tokens", "weights_dtype") if name in facts}}
    members = []
    for fold in chosen:
        name = REFIT if kind == "refit" else f"fold-{fold.fold}"
        file = f"{name}-seed-{fold.seed}" if len({one.seed for one in found.folds}) > 1 else name
        number, group = (None, None) if kind == "refit" else (fold.fold, fold.result["run"]["test_group"])
        members.append(Member(file=f"{file}.safetensors", fold=number, seed=fold.seed, test_group=group))
    return ModelRecord(
        schema=SCHEMA,
        run=found.layout.run_name,
        method=found.method,
        decoder=decoder,
        settings=settings,
        modality=modality,
        classes=run["classes"],
        layers=run["layers"],
        embed_dim=run["embed_dim"],
        encoder={"licence": licence_of(encoder), **_without_paths(facts)} if extract else facts,
        extract=_without_paths({**extract, "revision": revision, "device": "auto"}, "encoder") if extract else {},
        segment=config["segment"] if modality == "speech" else {},
        kind=kind,
        members=members,
        corpus=corpus,
        measured=None if kind == "refit" else _measured(found, kind, chosen),
        deviations=[Deviation(number=row.number, finding=row.finding, state=AS_PUBLISHED) for row in followed],
        warnings=_warnings(found, kind),
        versions=meta["versions"],
        daamctl=__version__,
        text=found.config.download.text,
        fine_tuned=found.tuned,
        sets=_sets(found, found.folds if kind == REFIT else chosen),
    )


def _sets(found: _Trained, folds: Sequence[Fold]) -> PredictionSets | None:
    """Calibrate prediction sets on items whose speaker their fold was not trained on: they are to hold for new ones."""
    task = found.evaluation.task
    if not task.by_accuracy or found.first.rule.selection == "best-on-test":
        return None
    parts = [items_of(fold.predictions(), "utterance") for fold in folds]
    of_true = [part.probabilities[np.arange(len(part)), part.targets] for part in parts]
    table = item_table(folds, parts).with_columns(p=np.concatenate(of_true))
    known = speakers_known(table) and not table["speaker"].null_count()
    unit, column = ("speaker", "speaker") if known else ("item", "utterance_id")
    # those that the folds are compared with whenever they are read, so their groups are those of the training
    layout, there = found.layout, found.layout.clips if found.tuned else found.layout.embeddings / METADATA_FILE
    if not there.exists():
        log.warning("no prediction sets: who was trained on is not known without %s", there)
        return None
    clips = read_clips(layout.clips).rows if found.tuned else open_features(layout, found.config).clips
    for fold in folds:
        split = split_of(clips, fold.fold, found.config.train, fold.seed)
        trained = clips[column][np.concatenate([split.train, split.dev])]
        of_fold = (pl.col("fold") == fold.fold) & (pl.col("seed") == fold.seed)
        table = table.remove(of_fold & pl.col(unit).is_in(trained.unique().implode()))
    rows = table.group_by("item").agg(pl.col("speaker").first(), pl.col("p").mean()).sort("item")
    units = rows[unit]
    smallest = smallest_probabilities(rows["p"], units)
    named = {f"{level:.2f}": value for level, value in smallest.items()}
    return PredictionSets(unit=task.source if known else task.item, units=units.n_unique(), smallest=named)


def _without_paths(values: dict[str, Any], name: str = "name") -> dict[str, Any]:
    """Keep of a local folder its name only: the model may go to others, and the folder may not exist there."""
    encoder = values.get(name)
    if not isinstance(encoder, str) or encoder in ENCODERS:
        return values
    if HUB_ID.match(encoder) and not Path(encoder).is_dir():
        return values
    return {**values, name: Path(encoder).name}


def _measured(found: _Trained, kind: Kind, chosen: Sequence[Fold]) -> MeasuredScores:
    evaluation, method = found.evaluation, found.method
    unit, item = evaluation.main_unit, evaluation.item
    items = {one: [items_of(fold.predictions(), one, fold.task) for fold in chosen] for one in UNITS}
    intervals = method_intervals({method: item_table(chosen, items[unit])}, task=evaluation.task)[method]
    rows = method_rows(method, chosen, items, unit, intervals)
    rows["figures"] += primary_rows({method: chosen}, [method], "").get("figures", [])
    scores = Scores(unit, {table: frame_of(table, part) for table, part in rows.items()})
    figures = []
    for name in dict.fromkeys((evaluation.task.primary, *evaluation.metrics)):
        info, one = evaluation.metrics.get(name), scores.figure(method, name)
        named = {"name": name, "alias": info.alias} if info else {"name": "f1", "alias": "Entity F1"}
        named["unit"] = info.unit if info else "fraction"
        ends = {"low": one.low, "high": one.high, "level": LEVEL} if one.low is not None else {}
        shown = {"value": one.mean} if kind == "fold" else {"value": one.pooled, **ends}
        figures.append(Figure(**named, **shown))  # type: ignore[arg-type]
    rule = probe_rule(evaluation) if method in CLOSED_FORM else selection_rule(evaluation, found.first.rule)
    if kind == "fold":
        group = chosen[0].result["run"]["test_group"]
        seeds = f"mean of {counted(len(chosen), 'seed')}" if len(chosen) > 1 else "one seed"
        return MeasuredScores(
            figures=figures,
            n=len(items[unit][0]),
            item=item,
            protocol=f"On the test group `{group}`, which this model was not trained on, {seeds}; {rule}.",
        )
    number = len({fold.seed for fold in chosen})
    tested, over = item, f", over {evaluation.num_folds} folds"
    of = f" Figures are of the {item}s of all folds together; the report gives means over folds."
    if evaluation.num_folds == 1:
        tested, over, of = f"{item} of the official test part", "", ""
    times = f"once per seed ({number} seeds)" if number > 1 else "once"
    clusters = max((one.n_clusters for one in intervals.metrics.values()), default=0)
    return MeasuredScores(
        figures=figures,
        n=sum(map(len, items[unit])) // number,
        item=item,
        protocol=f"Every {tested} was classified {times}, by a model that was not trained on it{over}; {rule}.{of} "
        "The mean of several models itself was not measured.",
        clusters=counted(clusters, intervals.word) if clusters else None,
        recalls=dict(zip(evaluation.classes, recalls(scores.confusion(method)), strict=True)),
    )


def _warnings(found: _Trained, kind: Kind) -> list[str]:
    run, evaluation = found.first.result["run"], found.evaluation
    warnings = [*evaluation.leaks]
    if found.first.rule.selection == "best-on-test":
        warnings.append("The epochs were selected on the test groups (D7), so the figures are too high.")
    fairness = evaluation.fairness.methods.get(found.method)
    if fairness is not None and fairness.mark:
        warnings.append(f"{found.method} is marked as {fairness.mark}: {'; '.join(fairness.reasons)}.")
    if run["reconstructed"]:
        warnings.append(
            f"{found.method} is a reconstruction ({run['reconstructed']}): the definition is this project's."
        )
    if kind == "refit":
        warnings.append("It was trained on all data, so no figure was measured for it.")
    if kind == "mean" and evaluation.num_folds > 1:
        warnings.append("Every item of the corpus was trained on in some fold: do not test it on this corpus.")
    return warnings
