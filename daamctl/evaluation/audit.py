"""Test whether layer scores reflect how useful the layers are, as the papers claim.

Three questions, each also answered for the score of the untrained module:

- Do layers with a high score classify better alone? Rank correlation with the accuracy of a linear probe of each layer.
- The same question for layers that the ablation trained alone.
- Does the trained model rely on them? Layers are replaced by their mean over the training clips, in the order of the
  score and in random orders (deletion and insertion: Petsiuk, Das and Saenko, "RISE", BMVC 2018, there for pixels).

If embeddings are not held in memory (`train.features`), only what is needed is read.

The model was never trained on replaced layers, and random orders do not keep neighbouring layers together. The curves
therefore show how one trained model uses its layers, not how useful a layer is to another model.

Letters: B clips, L layers, D features, F folds (with their seeds), R random orders, S steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from daamctl.artifacts.audit import Audit, LayerTest, Verdict
from daamctl.artifacts.embeddings import METADATA_FILE, EmbeddingsMetadata, StoredVectors, open_embeddings
from daamctl.artifacts.inputs import embeddings_of
from daamctl.artifacts.layer_sets import Ablation, find_ablation
from daamctl.artifacts.layout import Layout
from daamctl.artifacts.results import WEIGHTS, Fold
from daamctl.artifacts.splits import split_of
from daamctl.compute.devices import choose_gpu_kernels, is_held, resolve_device
from daamctl.compute.progress import progress
from daamctl.compute.threads import use_free_cores
from daamctl.config import Config, TrainConfig
from daamctl.data.task import TASKS
from daamctl.errors import MethodError, first_few
from daamctl.evaluation.audit_comparison import NOTE, summary
from daamctl.evaluation.consistency import layers_otherwise
from daamctl.evaluation.importance import Map
from daamctl.evaluation.layer_scores import MethodLayerScores
from daamctl.evaluation.layer_sets import alone_tests
from daamctl.evaluation.probe import FoldRows, fit_probe
from daamctl.evaluation.rank_tests import LEVEL, Orders, Values, agreement, is_ranking, order_of, random_orders
from daamctl.methods.weights import load_weights

BATCH = 256
"""Clips per forward pass if predictions do not depend on the batch."""
SEED = 0
"""Seed of samples, random orders and permutations."""
Kind = Literal["deletion", "insertion"]
CURVES_SCHEMA = {
    "method": pl.String, "fold": pl.Int32, "seed": pl.Int32, "kind": pl.String, "order": pl.String, "draw": pl.Int32,
    "layers": pl.Int32, "accuracy": pl.Float64,
}  # fmt: skip
NO_RANKING = "at least one run does not rank the layers: all have the same weight, or all but one"
NO_GROUPS = (
    "Layer scores were not tested on layers trained alone, because the ablation has no two groups of the same size; "
    "see ablate.k, ablate.layers and ablate.presets"
)
AccuracyOf = Callable[[pl.DataFrame], float]
"""Accuracy in the unit of the evaluation, from test clips with targets and logits."""

Parts = tuple[str, str | None, int | None]
"""What tells the parts of one fold from those of another."""


def steps(num_layers: int) -> list[int]:
    """Numbers of replaced layers at which accuracy is measured: 0, 1, 2, 4, 8, … and L."""
    return [0, *(2**power for power in range(num_layers.bit_length()) if 2**power < num_layers), num_layers]


class ProbedFold(NamedTuple):
    """Linear probes of the L layers on the test clips of one fold.

    predictions: one table of the test clips per layer, with target and logits. accuracy: (L,), in the unit of the
    evaluation.
    """

    fold: Fold
    layers: list[int]
    predictions: list[pl.DataFrame]
    accuracy: Map


@dataclass
class AuditData:
    """Embeddings and probes of the audit, shared by all methods.

    Args:
        x: (N, L, D) in the stored number format; vectors on disk are read on demand.
        y: (N,) class ids of the clips, which have the order of the vectors.
        probes: (test group, dev group, seed if it draws the training sentences) -> linear probes of every layer.
        means: the same key -> mean over the training clips, (L, D).
    """

    head: EmbeddingsMetadata
    clips: pl.DataFrame
    accuracy_of: AccuracyOf
    x: torch.Tensor | StoredVectors
    y: NDArray[np.int64]
    layers: list[int]
    probes: dict[Parts, ProbedFold] = field(default_factory=dict)
    means: dict[Parts, torch.Tensor] = field(default_factory=dict)

    def rows(self, fold: Fold) -> FoldRows:
        """Row numbers of the parts of a fold."""
        return parts_of(self.clips, fold)

    def probe(self, fold: Fold) -> Map:
        """Accuracy (L,) on the test group of a probe of every layer, fitted as `ridge-last` is."""
        key = _split(fold)
        if key not in self.probes:
            rows, found = self.rows(fold), []
            refit = bool(fold.result["run"]["config"]["train"].get("refit"))
            clips = self.clips[rows.test].with_columns(target=pl.Series(self.y[rows.test]))
            for place in range(len(self.layers)):
                logits, _ = fit_probe(self.x, self.y, rows, [place], len(self.head.classes), refit=refit)
                found.append(clips.with_columns(logits=pl.Series(logits.tolist())))
            accuracy = np.array([self.accuracy_of(one) for one in found])
            self.probes[key] = ProbedFold(fold, self.layers, found, accuracy)
        return self.probes[key].accuracy

    def mean(self, fold: Fold) -> torch.Tensor:
        """Mean (L, D) float32 over the training clips."""
        key = _split(fold)
        if key not in self.means:
            train = self.rows(fold).train
            if isinstance(self.x, StoredVectors):
                total = sum(block.sum(0, dtype=np.float64) for _, block in self.x.blocks(train))
                self.means[key] = torch.as_tensor(total / len(train)).float()
            else:
                rows = torch.from_numpy(train)
                parts = [self.x[rows, layer].double().mean(0) for layer in range(len(self.layers))]
                self.means[key] = torch.stack(parts).float()
        return self.means[key]


def sample_rows(rows: NDArray[np.int64], most: int, fold: int) -> NDArray[np.int64]:
    """A seeded choice of at most `most` rows of a fold, ascending."""
    return np.sort(np.random.default_rng([SEED, fold]).permutation(rows)[:most])


def parts_of(clips: pl.DataFrame, fold: Fold) -> FoldRows:
    """Row numbers of the parts of a fold among all clips, from the settings it was trained with."""
    run = fold.result["run"]
    stored, changes = run["config"]["train"], {"selection": "last" if run["dev_group"] is None else "dev-group"}
    changes |= {name: stored[name] for name in ("dev_fraction", "shots", "test_part") if name in stored}
    split = split_of(clips, fold.fold, TrainConfig().model_copy(update=changes), fold.seed)
    return FoldRows(split.train, split.dev, split.test)


def _split(fold: Fold) -> Parts:
    run = fold.result["run"]
    return run["test_group"], run["dev_group"], fold.seed if fold.is_few_shot else None


def audit_scores(
    layout: Layout,
    config: Config,
    folds: Sequence[Fold],
    scores: Mapping[str, MethodLayerScores],
    accuracy_of: AccuracyOf,
) -> tuple[Audit, list[LayerTest], pl.DataFrame, list[ProbedFold]]:
    """Test the scores of the layers, as far as embeddings, weights and ablation runs exist.

    Args:
        folds: finished folds of any method; their layers are probed although no score may rank them.

    Returns:
        What was audited, the tests, the curves (columns of `CURVES_SCHEMA`), and the linear probes of every fold.
    """
    rankable = {method: scored for method, scored in scores.items() if all(map(is_ranking, scored.trained))}
    missing: list[str] = []
    data = None
    if not config.importance.audit:
        missing.append("The audit is switched off; switch it on: --set importance.audit=true")
    elif folds:
        use_free_cores()
        data = _open_data(layout, config, accuracy_of, missing)
    no_ablation, worth = None, None
    lacking: dict[str, list[str]] = {}
    tests: list[LayerTest] = []
    advantages: dict[str, dict[int, float]] = {}
    frames = [pl.DataFrame(schema=CURVES_SCHEMA)]
    if data is not None:
        ablation = find_ablation(layout.stage("ablate"))
        known = [*folds, *(fold for scored in scores.values() for fold in scored.folds)]
        remedy = f"train them: {layout.command('ablate')}, then {layout.command('importance')}"
        if ablation is None or ablation.embeddings_key != data.head.key:
            no_ablation = f"No layers trained alone on these embeddings; {remedy}"
        elif others := layers_otherwise(layout.stage("ablate"), ablation, config.evaluate.unit, known):
            no_ablation = f"Layers were trained alone with other settings: {first_few(others)}; {remedy}"
        ablation = None if no_ablation else ablation
        with progress(len(rankable), "auditing layer scores", "methods") as bar:
            for method, scored in rankable.items():
                again = layout.command("train", "--method", method)
                if scored.layers == data.layers:
                    curves, lacking[method] = _curves(config, method, scored, data, again)
                    frames.append(curves)
                    own, advantages[method] = _tests(method, scored, data, curves, ablation)
                    tests += own
                else:
                    other = f"{method} was trained on other layers than the present ones; train it again: {again}"
                    lacking[method] = [other]
                bar.advance()
        if ablation is not None and lacking:
            sizes = [len(layers) for layers in set(ablation.sets.values())]
            no_ablation = NO_GROUPS if len(sizes) == len(set(sizes)) else None
        for fold in folds:
            if fold.result["meta"]["embeddings_key"] == data.head.key:
                data.probe(fold)
        if data.probes:
            worth = np.mean([one.accuracy for one in data.probes.values()], axis=0)
    audited = {method: scores[method] for method in lacking}
    audit = Audit(
        missing=missing,
        no_ablation=no_ablation,
        not_audited={method: NO_RANKING for method in scores if method not in rankable},
        methods=lacking,
        clips=config.importance.audit_clips,
        orders=config.importance.audit_orders,
        level=LEVEL,
        sentence=summary(audited, tests, advantages, worth),
        note=NOTE.format(clip=(data.head.task if data else TASKS["speech"]).clip),
    )
    return audit, tests, pl.concat(frames), list(data.probes.values()) if data else []


def _open_data(layout: Layout, config: Config, accuracy_of: AccuracyOf, missing: list[str]) -> AuditData | None:
    """Read or open the embeddings; if they do not exist, None, with a line in `missing`."""
    if not (layout.embeddings / METADATA_FILE).exists():
        missing.append(
            f"No audit: no embeddings in {layout.embeddings}; make them: "
            f"{layout.command('extract')}, then {layout.command('importance')}"
        )
        return None
    head = embeddings_of(layout, config)
    clips, stored = open_embeddings(layout.embeddings)
    held = is_held(stored.nbytes, config.train.features)
    x = torch.from_numpy(stored.load()) if held else stored
    index = {name: number for number, name in enumerate(head.classes)}
    y = np.array([index[label] for label in clips["label"]])
    return AuditData(head, clips, accuracy_of, x, y, list(stored.layers))


def _curves(
    config: Config, method: str, scored: MethodLayerScores, data: AuditData, again: str
) -> tuple[pl.DataFrame, list[str]]:
    """Curves of every fold whose weights can be read, and why others have none."""
    frames, missing = [pl.DataFrame(schema=CURVES_SCHEMA)], []
    for fold, score, before in zip(scored.folds, scored.trained, scored.untrained, strict=True):
        try:
            model = load_weights(fold.weights() or fold.folder / WEIGHTS)
        except MethodError as error:
            missing.append(
                f"{method} fold {fold.fold} seed {fold.seed} has no curves: {error.message}; train it again: {again}"
            )
            continue
        frames += _fold_curves(config, method, fold, model, score, before, data)
    return pl.concat(frames), missing


def _tests(
    method: str, scored: MethodLayerScores, data: AuditData, curves: pl.DataFrame, ablation: Ablation | None
) -> tuple[list[LayerTest], dict[int, float]]:
    """The tests of a method, and fold -> its deletion advantage (mean over seeds; empty unless every run has one)."""
    tests: list[LayerTest] = []
    worth, number = np.mean([data.probe(fold) for fold in scored.folds], axis=0), len(data.layers)
    for which, values in (("trained", scored.mean), ("untrained", scored.mean_untrained)):
        if is_ranking(values) and (found := agreement(values, worth, seed=SEED)) is not None:
            beside, floor = (found.rho_beside_depth, found.p_beside_depth), 1 / (2 * number)
            tests += [
                LayerTest(method, which, "probe", found.rho, found.p, found.floor, found.verdict, number),
                LayerTest(method, which, "probe-turned", found.rho, found.p_turned, floor, number=number),
                LayerTest(method, which, "probe-depth", *beside, floor, number=number),
            ]
    by_fold: dict[int, list[float]] = {}
    counts = steps(number)
    for kind in ("deletion", "insertion") if len(curves) else ():
        random = curves_of(curves, kind, "random")
        for which, order in (("trained", "score"), ("untrained", "untrained")):
            own = curves_of(curves, kind, order)
            if len(own) != len(random):  # the untrained score of a fold is not a ranking, so it has no order
                continue
            one = advantage(own[:, 0], random, counts, deletion=kind == "deletion")
            value = float(one.per_fold.mean())
            tests.append(LayerTest(method, which, kind, value, one.p, one.floor, one.verdict, random.shape[1]))
            if (kind, which) == ("deletion", "trained") and len(one.per_fold) == len(scored.folds):
                for fold, gain in zip(scored.folds, one.per_fold.tolist(), strict=True):
                    by_fold.setdefault(fold.fold, []).append(gain)
    if ablation is not None:
        score_of = dict(zip(scored.layers, scored.mean.tolist(), strict=True))
        trained = {layers: ablation.runs(name) for name, layers in ablation.sets.items()}
        tests += alone_tests(method, score_of, trained)
    return tests, {fold: float(np.mean(gains)) for fold, gains in by_fold.items()}


def _fold_curves(
    config: Config, method: str, fold: Fold, model: nn.Module, score: Map, before: Map, data: AuditData
) -> list[pl.DataFrame]:
    """Deletion and insertion in order of the score, of the untrained score if it is a ranking, and at random."""
    orders = {"score": order_of(score)}
    if is_ranking(before):
        orders["untrained"] = order_of(before)
    draws = random_orders(len(data.layers), config.importance.audit_orders, seed=SEED)
    clips = sample_rows(data.rows(fold).test, config.importance.audit_clips, fold.fold)
    batches = fold.result["run"]["eval_batches"]
    device = resolve_device(config.train.device)
    model = model.to(device)
    if device.startswith("cuda"):
        choose_gpu_kernels()  # as in training, whose accuracy the first point repeats
    else:  # on a CPU, the convolutions of the decoder then take three quarters of the time
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    deletion, insertion = replacement_curves(
        model,
        torch.as_tensor(data.x[clips]),
        torch.from_numpy(data.y[clips]),
        data.mean(fold),
        np.concatenate([list(orders.values()), draws]),
        batch_size=BATCH if batches is None else int(batches["size"]),
    )
    names = [*orders, *["random"] * len(draws)]
    return [
        _curve_rows(method, fold, "deletion", names, deletion),
        _curve_rows(method, fold, "insertion", names, insertion),
    ]


def _curve_rows(method: str, fold: Fold, kind: Kind, names: list[str], values: Map) -> pl.DataFrame:
    """Rows of curves (orders, S)."""
    number, size = values.shape
    draws = np.cumsum([name == "random" for name in names])  # 0 before the first random one
    columns = {
        "method": [method] * values.size,
        "fold": np.full(values.size, fold.fold),
        "seed": np.full(values.size, fold.seed),
        "kind": [kind] * values.size,
        "order": np.repeat(names, size),
        "draw": np.repeat(draws, size),
        "layers": np.tile(steps(len(fold.result["run"]["layers"])), number),
        "accuracy": values.ravel(),
    }
    return pl.DataFrame(columns).cast(CURVES_SCHEMA)  # type: ignore[arg-type]


def curves_of(curves: pl.DataFrame, kind: str, order: str) -> Map:
    """Accuracies (F, orders, S) of one method's curves of one kind and order."""
    part = curves.filter((pl.col("kind") == kind) & (pl.col("order") == order)).sort("fold", "seed", "draw", "layers")
    runs, counts = part.select("fold", "seed").unique().height, part["layers"].n_unique()
    return part["accuracy"].to_numpy().reshape(runs, -1, counts) if runs else np.empty((0, 0, 0))


@torch.no_grad()
def replacement_curves(
    model: nn.Module, x: Tensor, y: Tensor, mean: Tensor, orders: Orders, *, batch_size: int = BATCH
) -> tuple[Values, Values]:
    """Accuracy of a trained model while layers are replaced by their mean, and while they are put back.

    Args:
        model: maps (B, L, D) to logits; in eval mode.
        x: (B, L, D) test clips in any floating format, of classes y (B,); computed on the device and in the format of
            the model.
        mean: (L, D) replacements of the layers.
        orders: (R, L) rows of layers, first one replaced (or put back) first.

    Returns:
        deletion (R, S): none replaced to all replaced; insertion (R, S): all replaced to none; at `steps`.
    """
    weight = next(model.parameters(), torch.empty(0))
    device, dtype = weight.device, torch.float32 if weight.dtype in (torch.float16, torch.bfloat16) else weight.dtype
    x, mean, targets = x.to(device), mean.to(device, dtype), y.to(device)  # once: every mask reads all clips
    known: dict[bytes, float] = {}

    def accuracy(replaced: NDArray[np.bool_]) -> float:
        key = replaced.tobytes()
        if key not in known:  # the ends are shared by all orders, and single layers by many
            mask = torch.from_numpy(replaced).to(device)[:, None]
            right = torch.zeros((), dtype=torch.int64, device=device)
            for clips, classes in zip(x.split(batch_size), targets.split(batch_size), strict=True):
                right += (model(torch.where(mask, mean, clips.to(dtype))).argmax(-1) == classes).sum()
            known[key] = right.item() / len(x)
        return known[key]

    counts = steps(orders.shape[1])
    deletion, insertion = np.empty((len(orders), len(counts))), np.empty((len(orders), len(counts)))
    for row, order in enumerate(orders):
        for column, count in enumerate(counts):
            touched = np.zeros(orders.shape[1], dtype=bool)
            touched[order[:count]] = True
            deletion[row, column] = accuracy(touched)
            insertion[row, column] = accuracy(~touched)
    return deletion, insertion


def area(curves: Values, counts: Sequence[int]) -> Values:
    """Area under curves (..., S) over the share of layers, by trapezoids; in the units of the curves."""
    return np.asarray(np.trapezoid(curves, np.asarray(counts) / counts[-1], axis=-1))


class Advantage(NamedTuple):
    """Area between the curve of an order and the mean curve of random orders; positive is better than random.

    per_fold: (F,). p: (1 + number of random orders at least as good) / (1 + R). The random orders are the same in all
    folds, so a score that is stable over folds counts as one draw. verdict: as in `LayerTest`.
    """

    per_fold: Values
    p: float
    floor: float
    verdict: Verdict


def advantage(own: Values, others: Values, counts: Sequence[int], *, deletion: bool) -> Advantage:
    """Compare an order with random ones, which are the same in every fold.

    Args:
        own: (F, S) accuracies at S numbers of layers.
        others: (F, R, S) accuracies of the random orders.
        deletion: a lower accuracy is better.
    """
    sign = -1.0 if deletion else 1.0
    areas, random_areas = area(own, counts), area(others, counts)  # (F,), (F, R)
    as_good = int((sign * (random_areas.mean(axis=0) - areas.mean()) >= -1e-12).sum())  # equal areas differ by rounding
    p, floor = (1 + as_good) / (1 + random_areas.shape[1]), 1 / (1 + random_areas.shape[1])
    verdict: Verdict = "yes" if p <= LEVEL else "not shown" if as_good else "cannot be told"
    return Advantage(sign * (areas - random_areas.mean(axis=1)), p, floor, verdict)
