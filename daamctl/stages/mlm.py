"""`mlm`: perplexity of masked tokens, with layer fusions between an encoder and its own head.

Reads a folder of text (`daamctl.corpora.wikitext2`). Writes `data/mlm/<name>/`: tokens.parquet, one folder per way and
seed, mlm.json (`daamctl.artifacts.masked`), and `data/report/mlm-<name>/`. Finished trainings are kept. It is not a
stage of the DAG.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from daamctl.artifacts.masked import NLL, TOKENS, TRAINING, MaskedRun, MaskedTraining, MaskedWay, masked_run
from daamctl.compute.devices import resolve_device
from daamctl.corpora.sources import register, source_of
from daamctl.corpora.wikitext2 import GET_IT, UNKNOWN, Article, Texts, read
from daamctl.encoders.base import weights_hash
from daamctl.encoders.masked import MaskedModel, open_masked
from daamctl.errors import ConfigError, CorpusError, UnknownNameError
from daamctl.evaluation.perplexity import perplexities, ratios
from daamctl.fit.loop import Finished
from daamctl.fit.masked import FUSIONS, MaskedSettings, MaskedTrial, Masking
from daamctl.fit.runner import fit_and_save, load_state
from daamctl.paper.numbers import printed, read_claims, rows_of
from daamctl.reporting.perplexity import document
from daamctl.reporting.write import write_report
from daamctl.store.artifact import Artifact
from daamctl.store.files import expanded
from daamctl.store.provenance import device_name
from daamctl.store.tables import read_parquet, write_parquet

log = logging.getLogger(__name__)

CORPUS = "wikitext2"
LAST = "last-layer"
Runs = dict[tuple[str, bool], list[tuple[MaskedTraining, NDArray[np.float64]]]]
"""Fusion, and whether the encoder is trained too -> the training of each seed, and its losses (N,) of all tokens."""
VERSION = 1
"""Part of the key of a training; raised when its computation changes."""
DEV, TEST = 1, 2
"""Numbers of the parts in the draws of masks; 0 is the training part."""


def run(
    root: Path,
    encoder: str,
    *,
    source: Path | None = None,
    fusions: Sequence[str] = ("weighted-sum", "concat", "dwatt"),
    finetune: bool = False,
    rate: float = 0.15,
    mask_seed: int = 1,
    seeds: Sequence[int] = (1,),
    max_tokens: int = 512,
    settings: MaskedSettings | None = None,
    device: str = "auto",
    name: str | None = None,
    force: bool = False,
) -> Path:
    """Train and score all ways.

    Args:
        encoder: a Hugging Face id or a local folder.
        source: folder of text, which is registered; None: the registered one.
        fusions: names in `FUSIONS`; the last layer is always there.
        finetune: also train encoder and head, with each of them.
        rate: share of tokens to mask.
        max_tokens: longest block.
        settings: of the trainings; None: the defaults.
        device: auto, cpu, cuda or mps.
        name: of the folder; None: that of the encoder.
        force: train again even what is finished.

    Returns:
        Path of mlm.json.

    Raises:
        CorpusError: no folder is registered, or it cannot be read.
        EncoderError: the model cannot be used, see `open_masked`.
        ConfigError: a setting is wrong.
        DivergedError: a training failed.
    """
    for fusion in fusions:
        if fusion not in FUSIONS:
            raise UnknownNameError("layer fusion", fusion, FUSIONS)
    if not 0 < rate < 1:
        raise ConfigError(f"the masking rate must be between 0 and 1, got {rate}")
    settings = settings or MaskedSettings()
    label = _label(encoder, name)
    texts = _texts(root, source)
    where = resolve_device(device)
    model = open_masked(encoder, device=where, max_tokens=max_tokens)
    train, _ = _blocks(model, texts.train)
    dev, _ = _blocks(model, texts.dev)
    test, articles = _blocks(model, texts.test)
    masking = Masking(rate, mask_seed, model.mask_id, torch.tensor(model.plain_ids))
    hidden, scored = masking.apply(dev, DEV), masking.apply(test, TEST)
    # short texts of unknown words alone leave nothing to predict
    if not (hidden and scored):
        raise CorpusError("the text has no token that can be masked", fix=GET_IT)
    facts = {**model.facts(), "weights_sha256": weights_hash(model.model)}
    recorded: dict[str, Any] = {"masking": {"rate": rate, "seed": mask_seed}, "training": asdict(settings)}
    files = {part: asdict(one) for part, one in texts.files.items()}
    common = {
        "version": VERSION,
        "encoder": {key: value for key, value in facts.items() if key != "name"},
        "texts": {part: one["sha256"] for part, one in files.items()},
        **recorded,
    }
    tokens = [(articles[one.block], one.block, int(position)) for one in scored for position in one.where]
    trial_of = partial(MaskedTrial, model, train, hidden, scored, masking, settings, common)
    folder, unfinished = root / "data" / "mlm" / label, root / "data" / ".work" / "mlm" / label
    # the last layer is what all others are divided by
    chosen = list(dict.fromkeys([LAST, *fusions]))
    results = masked_run(folder, work=unfinished)
    with results.lock():
        runs: Runs = {}
        for tuned in (False, True) if finetune else (False,):
            for fusion in chosen:
                released = fusion == LAST and not tuned  # nothing is drawn or trained
                for seed in seeds[:1] if released else seeds:
                    trial = trial_of(fusion, tuned, seed)
                    name = f"{fusion}-finetuned" if tuned else fusion
                    place, work = folder / name / f"seed{seed}", unfinished / f"{name}-seed{seed}"
                    training = _trained(trial, place, work, force=force)
                    nll = read_parquet(place / NLL)["nll"].to_numpy().astype(np.float64)
                    runs.setdefault((fusion, tuned), []).append((training, nll))
        names, numbers, positions = map(list, zip(*tokens, strict=True))
        write_parquet(folder / TOKENS, pa.table({"article": names, "block": numbers, "position": positions}))
        summary = MaskedRun(
            name=label,
            encoder=facts,
            texts=files,
            split=texts.split,
            notes=[*texts.notes, "Unknown words of the text are never masked; blocks do not cross articles."],
            settings=recorded,
            seeds=list(seeds),
            articles=len(set(names)),
            blocks=len(scored),
            tokens=len(tokens),
            ways=_ways(runs, names),
            device=device_name(where),
        )
        results.seal(folder, summary, [folder / TOKENS])
    rows = {name: part for name, part in rows_of("dwatt").items() if part[0].corpus == CORPUS}
    quoted = [(name, printed(part), read_claims().dwatt[name][0]) for name, part in rows.items()]
    write_report(root / "data" / "report" / f"mlm-{label}", document(summary, quoted))
    return results.path


def _trained(trial: MaskedTrial, place: Path, work: Path, *, force: bool) -> MaskedTraining:
    """The training in the folder `place`, which is made if it is not there, or with `force`."""
    artifact = Artifact(place / TRAINING, MaskedTraining, keys=[trial.key], work=work, what=trial.what)
    if not force and (done := artifact.keep()) is not None:
        return done
    log.info("%s, %s: seed %d", trial.name, "fine-tuned" if trial.finetune else "frozen", trial.seed)
    with artifact.lock():
        events = fit_and_save([trial], work, trial.key, load_state(work, trial.key))
        (result,) = [event.trained for event in events if isinstance(event, Finished)]
        done = MaskedTraining(
            key=trial.key,
            dev=[float(entry["dev_loss"] or 0.0) for entry in result.history],
            epoch=int(result.last["epoch"] or 0),
            added=result.facts["added"],
            trained=result.facts["trained"],
        )
        with artifact.make() as new:
            write_parquet(new / NLL, pa.table({"nll": result.facts["nll"]}))
            artifact.seal(new, done)
    return done


def _label(encoder: str, name: str | None) -> str:
    """Name of the folder: the given one, or that of the encoder; a ConfigError if it cannot name a folder."""
    label = name or re.sub(r"[^\w.-]+", "--", Path(encoder).name if expanded(encoder).is_dir() else encoder)
    if not re.fullmatch(r"\w[\w.-]*", label):
        raise ConfigError(f"'{label}' cannot name a folder; use letters, digits, '.', '_' and '-'")
    return label


def _texts(root: Path, source: Path | None) -> Texts:
    """Read the folder given, and register it; or the registered one."""
    folder = source or source_of(root, CORPUS)
    if folder is None:
        raise CorpusError("WikiText-2 is not registered on this machine", fix=GET_IT)
    texts = read(folder)
    if source is not None:
        register(root, CORPUS, source)
    for note in texts.notes:
        log.warning("%s", note)
    return texts


def _blocks(model: MaskedModel, articles: Sequence[Article]) -> tuple[list[torch.Tensor], list[str]]:
    """Blocks of all articles, and the article of each."""
    cut = [(one.name, block) for one in articles for block in model.blocks(one.text, unknown=UNKNOWN)]
    return [block for _, block in cut], [name for name, _ in cut]


def _ways(runs: Runs, articles: Sequence[str]) -> list[MaskedWay]:
    """Perplexities, and ratios to the last layer with the encoder in the same state."""
    ways = []
    for tuned in sorted({tuned for _, tuned in runs}):
        means = {
            fusion: np.mean([nll for _, nll in own], axis=0) for (fusion, state), own in runs.items() if state == tuned
        }
        whole, beside = perplexities(means, articles), ratios(means, LAST, articles)
        # ratios are taken within a state: fine-tuning helps every fusion, the last layer too
        for fusion, figure in whole.items():
            trainings, losses = zip(*runs[fusion, tuned], strict=True)
            named: dict[str, float | None] = {}
            if (ratio := beside.get(fusion)) is not None:
                named = {"ratio": ratio.value, "ratio_low": ratio.low, "ratio_high": ratio.high}
            ways.append(
                MaskedWay(
                    fusion=fusion,
                    finetuned=tuned,
                    added=trainings[0].added,
                    trained=trainings[0].trained,
                    epochs=[one.epoch for one in trainings],
                    by_seed=[float(np.exp(nll.mean())) for nll in losses],
                    perplexity=figure.value,
                    low=figure.low,
                    high=figure.high,
                    **named,
                )
            )
    return ways
