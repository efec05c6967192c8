"""Test whether layer scores reflect how useful the layers are, as the papers claim.

Three questions, each also answered for the score of the untrained module:

- Do layers with a high score classify better alone? Rank correlation with the accuracy of a linear probe of each layer.
- The same question for layers that the ablation trained alone.
- Does the trained model rely on them? Layers are replaced by their mean over the training clips, in the order of the
  score and in random orders (deletion and insertion: Petsiuk, Das and Saenko, "RISE", BMVC 2018, there for pixels).

If embeddings are not held in memory (`train.features`), only the clips needed are read: probes then use a seeded sample
of at most `PROBE_CLIPS` training clips and as many test clips per fold.

The model was never trained on replaced layers, and random orders do not keep neighbouring layers together. The curves
therefore show how one trained model uses its layers, not how useful a layer is to another model.

Letters: B clips, L layers, D features, F folds (with their seeds), R random orders, S steps.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.stats import rankdata
from torch import Tensor, nn

from daamctl.analysis.ablation import alone_tests
from daamctl.analysis.importance import Map
from daamctl.analysis.probe import ridge_probe
from daamctl.analysis.rank_tests import (
    LEVEL,
    Orders,
    Values,
    Verdict,
    agreement,
    is_ranking,
    order_of,
    random_orders,
    standardized,
)
from daamctl.analysis.scores import Scored
from daamctl.artifacts.ablation import Ablation, find_ablation
from daamctl.artifacts.embeddings import EmbeddingsMetadata, StoredVectors, is_held, open_embeddings, read_head
from daamctl.artifacts.results import WEIGHTS, Fold
from daamctl.artifacts.terms import terms_of
from daamctl.config import Config
from daamctl.devices import resolve_device
from daamctl.errors import ArtifactError, MethodError
from daamctl.layout import Layout
from daamctl.methods.weights import load_weights
from daamctl.progress import progress
from daamctl.sign_flip import paired_sign_flip

BATCH = 256
"""Clips per forward pass if predictions do not depend on the batch."""
PROBE_CLIPS = 12_000
"""Maximum number of training clips, and of test clips, per fold for probes of embeddings on disk."""
SEED = 0
"""Seed of samples, random orders and permutations."""
KINDS = ("deletion", "insertion")
CURVES_SCHEMA = {
    "method": pl.String,
    "fold": pl.Int32,
    "seed": pl.Int32,
    "kind": pl.String,
    "order": pl.String,
    "draw": pl.Int32,
    "layers": pl.Int32,
    "accuracy": pl.Float64,
}
NO_RANKING = "it does not rank the layers: all have the same weight, or all but one"
NOTE = (
    "Unclear: more similar than by chance, but not more than other profiles that are equally smooth. p-values are "
    "one-sided, per method, and not corrected for the number of methods. Scores are computed on test {clip}s without "
    "labels, as in the papers. Accuracies are per {clip}."
)

Rows = tuple[NDArray[np.int64], NDArray[np.int64]]
SplitRows = Callable[[pl.DataFrame, Fold], Rows]
"""From the clips of a set and a fold to the row numbers of the clips that trained it, and of those that test it."""


@dataclass(frozen=True)
class Advantage:
    """Area between the curve of an order and the mean curve of random orders; positive is better than random.

    Args:
        area: under the accuracy curve over the share of layers, mean over folds, in [0, 1].
        random_area: mean over folds and random orders.
        advantage: their difference, deletion: random minus own, insertion: own minus random.
        per_fold: (F,) advantages.
        p: (1 + number of random orders at least as good) / (1 + R). The random orders are the same in all folds, so a
            score that is stable over folds counts as one draw.
        floor: 1 / (1 + R).
        verdict: yes: p is at most `LEVEL`; cannot be told: no random order is as good, but R is too small; else not
            shown.
    """

    area: float
    random_area: float
    advantage: float
    per_fold: list[float]
    p: float
    floor: float
    verdict: Verdict


def steps(num_layers: int) -> list[int]:
    """Numbers of replaced layers at which accuracy is measured: 0, 1, 2, 4, 8, … and L."""
    return [0, *(2**power for power in range(num_layers.bit_length()) if 2**power < num_layers), num_layers]


@dataclass
class AuditData:
    """Embeddings and probes of the audit, shared by all methods.

    Args:
        head: metadata of the embeddings.
        rows: fold -> clips that trained it, and clips that test it.
        x: (N, L, D) in the stored number format; vectors on disk are read on demand.
        y: (N,) class ids.
        layers: the L layer numbers.
        probes: (test group, dev group) -> accuracy of the linear probe of every layer on the test group, (L,).
        means: the same key -> mean over the training clips, (L, D).
        seconds: time spent on probes.
    """

    head: EmbeddingsMetadata
    rows: Callable[[Fold], Rows]
    x: torch.Tensor | StoredVectors
    y: NDArray[np.int64]
    layers: list[int]
    probes: dict[tuple[str, str | None], Map] = field(default_factory=dict)
    means: dict[tuple[str, str | None], torch.Tensor] = field(default_factory=dict)
    seconds: float = 0.0

    def train_rows(self, fold: Fold) -> NDArray[np.int64]:
        """Clips that trained a fold."""
        return self.rows(fold)[0]

    def test_rows(self, fold: Fold) -> NDArray[np.int64]:
        """Clips that test a fold."""
        return self.rows(fold)[1]

    def probe(self, fold: Fold) -> Map:
        """Accuracy (L,) on the test group of a probe of every layer, fitted on the training clips."""
        key = _split(fold)
        if key not in self.probes:
            started = time.monotonic()
            train, test = self.train_rows(fold), self.test_rows(fold)
            if isinstance(self.x, StoredVectors):
                train, test = (few(rows, PROBE_CLIPS, fold.fold) for rows in (train, test))
            classes = len(self.head.classes)
            accuracies = []
            for layer in range(len(self.layers)):
                x_train, x_test = (torch.as_tensor(self.x[rows, layer]) for rows in (train, test))
                scores = ridge_probe(x_train, self.y[train], x_test, classes)
                accuracies.append(float((scores.argmax(-1).numpy() == self.y[test]).mean()))
            self.probes[key] = np.array(accuracies)
            self.seconds += time.monotonic() - started
        return self.probes[key]

    def mean(self, fold: Fold) -> torch.Tensor:
        """Mean (L, D) float32 over the training clips."""
        key = _split(fold)
        if key not in self.means:
            train = self.train_rows(fold)
            if isinstance(self.x, StoredVectors):
                total = sum(block.sum(0, dtype=np.float64) for _, block in self.x.blocks(train))
                self.means[key] = torch.as_tensor(total / len(train)).float()
            else:
                rows = torch.from_numpy(train)
                parts = [self.x[rows, layer].double().mean(0) for layer in range(len(self.layers))]
                self.means[key] = torch.stack(parts).float()
        return self.means[key]


def few(rows: NDArray[np.int64], most: int, fold: int) -> NDArray[np.int64]:
    """A seeded choice of at most `most` rows of a fold, ascending."""
    return np.sort(np.random.default_rng([SEED, fold]).permutation(rows)[:most])


def _split(fold: Fold) -> tuple[str, str | None]:
    run = fold.result["run"]
    return run["test_group"], run["dev_group"]


def audit_scores(
    layout: Layout, config: Config, scores: Mapping[str, Scored], split_rows: SplitRows
) -> tuple[dict[str, Any], pl.DataFrame]:
    """Test the scores of the layers, as far as embeddings, weights and ablation runs exist.

    Args:
        layout: locations of artifacts.
        config: all settings.
        scores: method -> scores of its layers.
        split_rows: returns the clips of a fold's parts.

    Returns:
        The result, and the curves (columns of `CURVES_SCHEMA`). Keys of the result:
        missing: why there is no audit, with the command that makes it;
        no_ablation: why no method has a test on layers trained alone, with the commands, or None;
        not_audited: method -> reason;
        settings: clips, orders, unit, level; steps: numbers of layers replaced or put back;
        probe: layers (layer -> accuracy of its linear probe out of fold, mean over folds), folds, most_clips (training
        clips, and test clips, of a fold; None: all); None if not made;
        methods: method -> agreement (see `rank_tests.Agreement`) and agreement_untrained, alone (see
        `ablation.alone_tests`), deletion and insertion, each with score and untrained (see `Advantage`), accuracy with
        all_layers and with no_layer, missing, seconds;
        comparison: table (a row per method), contrast (see `contrast`), sentence, note;
        seconds: probe, replacement.
    """
    settings = config.importance
    rankable = {method: scored for method, scored in scores.items() if all(map(is_ranking, scored.trained))}
    result: dict[str, Any] = {
        "missing": [],
        "no_ablation": None,
        "not_audited": {method: NO_RANKING for method in scores if method not in rankable},
        "settings": {"clips": settings.audit_clips, "orders": settings.audit_orders, "unit": "clip", "level": LEVEL},
        "steps": [],
        "probe": None,
        "methods": {},
    }
    data = None
    if not settings.audit:
        result["missing"].append("The audit is switched off; switch it on: --set importance.audit=true")
    elif rankable:
        data = _open_data(layout, config, split_rows, result["missing"])
    frames = [pl.DataFrame(schema=CURVES_SCHEMA)]
    if data is not None:
        ablation = _ablation(layout, data.head.key)
        if ablation is None:
            result["no_ablation"] = (
                f"No layers trained alone on these embeddings; train them: {layout.command('ablate')}, "
                f"then {layout.command('importance')}"
            )
        result["steps"] = steps(len(data.layers))
        with progress(len(rankable), "auditing layer scores", "methods") as bar:
            for method, scored in rankable.items():
                again = layout.command("train", "--method", method)
                entry, curves = _audit_method(config, method, scored, data, ablation, again)
                result["methods"][method] = entry
                frames += curves
                bar.advance()
        if data.probes:
            mean = np.mean(list(data.probes.values()), axis=0).tolist()
            result["probe"] = {
                "layers": {str(layer): value for layer, value in zip(data.layers, mean, strict=True)},
                "folds": len(data.probes),
                "most_clips": PROBE_CLIPS if isinstance(data.x, StoredVectors) else None,
            }
    replacing = sum(entry["seconds"] for entry in result["methods"].values())
    result["seconds"] = {
        "probe": round(data.seconds, 1) if data else 0.0,
        "replacement": round(replacing, 1),
    }
    clip = terms_of(data.head.modality if data else "speech").clip
    result["settings"]["unit"] = clip
    result["comparison"] = {**_comparison(result, rankable), "note": NOTE.format(clip=clip)}
    return result, pl.concat(frames)


def _open_data(layout: Layout, config: Config, split_rows: SplitRows, missing: list[str]) -> AuditData | None:
    """Read or open the embeddings; if they do not exist, None, with a line in `missing`."""
    command = f"make them: {layout.command('extract')}, then {layout.command('importance')}"
    try:
        head = read_head(layout.embeddings, fix=command)
        clips, stored = open_embeddings(layout.embeddings, fix=command)
        held = is_held(stored.nbytes, config.train.features)
        x = torch.from_numpy(stored.load()) if held else stored
    except ArtifactError as error:
        missing.append(f"No audit: {error.message}; {error.fix or command}")
        return None
    index = {name: number for number, name in enumerate(head.classes)}
    y = np.array([index[label] for label in clips["label"]])
    return AuditData(head, partial(split_rows, clips), x, y, list(stored.layers))


def _ablation(layout: Layout, key: str) -> Ablation | None:
    """The ablation on these embeddings, if there is one."""
    found = find_ablation(layout.stage("ablate"), again=layout.command("ablate"))
    return found if found is not None and found.embeddings_key == key else None


def _audit_method(
    config: Config, method: str, scored: Scored, data: AuditData, ablation: Ablation | None, again: str
) -> tuple[dict[str, Any], list[pl.DataFrame]]:
    entry: dict[str, Any] = {
        "agreement": None,
        "agreement_untrained": None,
        "alone": [],
        "deletion": None,
        "insertion": None,
        "accuracy": None,
        "missing": [],
        "seconds": 0.0,
    }
    keys = {fold.result["meta"]["embeddings_key"] for fold in scored.folds}
    if keys != {data.head.key} or scored.layers != data.layers:
        entry["missing"].append(
            f"{method} was trained on other embeddings or layers than the present ones; train it again: {again}"
        )
        return entry, []
    worth = np.mean([data.probe(fold) for fold in scored.folds], axis=0)
    for name, score in (("agreement", scored.mean), ("agreement_untrained", scored.mean_untrained)):
        found = agreement(score, worth, seed=SEED) if is_ranking(score) else None
        entry[name] = asdict(found) if found else None
    if ablation is not None:
        tests = alone_tests(ablation.groups, dict(zip(scored.layers, scored.mean.tolist(), strict=True)))
        entry["alone"] = [{"method": ablation.method, "unit": ablation.unit, **asdict(test)} for test in tests]
    started = time.monotonic()
    frames = []
    for fold, score, before in zip(scored.folds, scored.trained, scored.untrained, strict=True):
        try:
            model = load_weights(fold.weights() or fold.folder / WEIGHTS)
        except MethodError as error:
            entry["missing"].append(
                f"{method} fold {fold.fold} seed {fold.seed} has no curves: {error.message}; train it again: {again}"
            )
            continue
        frames += _fold_curves(config, method, fold, model, score, before, data)
    entry["seconds"] = round(time.monotonic() - started, 1)
    if frames:
        entry |= _advantages(pl.concat(frames), steps(len(data.layers)))
    return entry, frames


def _fold_curves(
    config: Config, method: str, fold: Fold, model: nn.Module, score: Map, before: Map, data: AuditData
) -> list[pl.DataFrame]:
    """Deletion and insertion in order of the score, of the untrained score if it is a ranking, and at random."""
    settings = config.importance
    own = {"score": score} | ({"untrained": before} if is_ranking(before) else {})
    draws = random_orders(len(data.layers), settings.audit_orders, seed=SEED)
    clips = few(data.test_rows(fold), settings.audit_clips, fold.fold)
    batches = fold.result["run"]["eval_batches"]
    # With channels last, the convolutions of the decoder take three quarters of the time on a CPU.
    model = model.to(resolve_device(config.train.device)).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    curves = replacement_curves(
        model,
        torch.as_tensor(data.x[clips]),
        torch.from_numpy(data.y[clips]),
        data.mean(fold),
        np.concatenate([[order_of(part) for part in own.values()], draws]),
        batch_size=BATCH if batches is None else int(batches["size"]),
    )
    names = [*own, *["random"] * len(draws)]
    return [_curve_rows(method, fold, kind, names, values) for kind, values in zip(KINDS, curves, strict=True)]


def _curve_rows(method: str, fold: Fold, kind: str, names: list[str], values: Map) -> pl.DataFrame:
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


def _advantages(curves: pl.DataFrame, counts: list[int]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for kind in KINDS:
        others = curves_of(curves, kind, "random")
        found[kind] = {}
        for order in ("score", "untrained"):
            own = curves_of(curves, kind, order)
            # If the untrained score of a fold is not a ranking, there is no untrained order to compare with.
            whole = len(own) == len(others)
            found[kind][order] = (
                asdict(advantage(own[:, 0], others, counts, deletion=kind == "deletion")) if whole else None
            )
    ends = curves_of(curves, "deletion", "score")[:, 0].mean(axis=0)
    found["accuracy"] = {"all_layers": float(ends[0]), "no_layer": float(ends[-1])}
    return found


@torch.no_grad()
def replacement_curves(
    model: nn.Module, x: Tensor, y: Tensor, mean: Tensor, orders: Orders, *, batch_size: int = BATCH
) -> tuple[Values, Values]:
    """Accuracy of a trained model while layers are replaced by their mean, and while they are put back.

    Args:
        model: maps (B, L, D) to logits; in eval mode.
        x: (B, L, D) test clips in any floating format; computed on the device and in the format of the model.
        y: (B,) class ids.
        mean: (L, D) replacements of the layers.
        orders: (R, L) rows of layers, first one replaced (or put back) first.
        batch_size: clips per forward pass.

    Returns:
        deletion (R, S): none replaced to all replaced; insertion (R, S): all replaced to none; at `steps`.
    """
    weight = next(model.parameters(), torch.empty(0))
    device, dtype = weight.device, torch.float32 if weight.dtype in (torch.float16, torch.bfloat16) else weight.dtype
    mean, targets = mean.to(device, dtype), y.to(device)
    known: dict[bytes, float] = {}

    def accuracy(replaced: NDArray[np.bool_]) -> float:
        key = replaced.tobytes()
        if key not in known:  # the ends are shared by all orders, and single layers by many
            mask = torch.from_numpy(replaced).to(device)[:, None]
            right = torch.zeros((), dtype=torch.int64, device=device)
            for rows in torch.arange(len(x)).split(batch_size):
                batch = torch.where(mask, mean, x[rows].to(device, dtype))
                right += (model(batch).argmax(-1) == targets[rows.to(device)]).sum()
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


def advantage(own: Values, others: Values, counts: Sequence[int], *, deletion: bool) -> Advantage:
    """Compare an order with random ones.

    Args:
        own: (F, S) accuracies.
        others: (F, R, S) accuracies of the random orders, the same orders in every fold.
        counts: (S,) numbers of layers.
        deletion: a lower accuracy is better.
    """
    sign = -1.0 if deletion else 1.0
    areas, random_areas = area(own, counts), area(others, counts)  # (F,), (F, R)
    mean, means = float(areas.mean()), random_areas.mean(axis=0)
    per_fold = sign * (areas - random_areas.mean(axis=1))
    as_good = int((sign * (means - mean) >= -1e-12).sum())
    p, floor = (1 + as_good) / (1 + len(means)), 1 / (1 + len(means))
    verdict: Verdict = "yes" if p <= LEVEL else ("cannot be told" if p == floor else "not shown")
    return Advantage(mean, float(means.mean()), float(per_fold.mean()), per_fold.tolist(), p, floor, verdict)


@dataclass(frozen=True)
class Audited:
    """Results of one method, for the contrast of two kinds of score.

    Args:
        score: (L,).
        deletion: fold -> advantage of its order, averaged over seeds; empty if not measured.
    """

    score: Values
    deletion: Mapping[int, float]


def contrast(importance: Sequence[Audited], weights: Sequence[Audited], worth: ArrayLike) -> dict[str, Any]:
    """Test whether Importance Factors predict the usefulness of layers better than layer weights.

    tracking: difference of the mean rho with `worth`; p by swapping the mean ranks of the two kinds layer by layer.
    deletion: difference of the mean advantage; p by swapping the kinds fold by fold (averaged over seeds). A swap is a
    sign flip of the difference. Neighbouring layers are similar and folds share training clips, so both p-values are
    too small rather than too large; the verdict requires both.

    Args:
        importance: methods with an Importance Factor.
        weights: methods with layer weights.
        worth: (L,) usefulness of the layers.

    Returns:
        tracking and deletion, each with importance and weights (means), p_better, p_worse and floor, or None if it
        was not measured; verdict: better or worse if both p-values are at most `LEVEL`; else undecided.
    """
    tracking = deletion = None
    others = standardized(rankdata(worth))
    left, right = _mean_ranks(importance), _mean_ranks(weights)
    if others is not None and left is not None and right is not None:
        tracking = _swapped((left - right) * others, float(left @ others), float(right @ others))
    shared = sorted(_common_folds(importance) & _common_folds(weights))
    if shared:
        gains = [_mean_deletion(kind, shared) for kind in (importance, weights)]
        deletion = _swapped(gains[0] - gains[1], float(gains[0].mean()), float(gains[1].mean()))
    parts = [tracking, deletion]
    verdict = "undecided"
    for word, key in (("better", "p_better"), ("worse", "p_worse")):
        if all(part is not None and part[key] <= LEVEL for part in parts):
            verdict = word
    return {"tracking": tracking, "deletion": deletion, "verdict": verdict}


def _mean_ranks(methods: Sequence[Audited]) -> Values | None:
    """Mean of the standardised ranks of the scores, (L,); None if every score is constant."""
    ranks = [standardized(rankdata(one.score)) for one in methods]
    profiles = [rank for rank in ranks if rank is not None]
    return np.mean(profiles, axis=0) if profiles else None


def _common_folds(methods: Sequence[Audited]) -> set[int]:
    """Folds in which the deletion advantage of every method was measured."""
    return set.intersection(*(set(one.deletion) for one in methods)) if methods else set()


def _mean_deletion(methods: Sequence[Audited], folds: Sequence[int]) -> Values:
    """Deletion advantage per fold, averaged over methods."""
    return np.array([np.mean([one.deletion[fold] for one in methods]) for fold in folds])


def _swapped(differences: Values, importance: float, weights: float) -> dict[str, float]:
    better, worse = (paired_sign_flip(sign * differences, one_sided=True) for sign in (1, -1))
    return {"importance": importance, "weights": weights, "p_better": better["p"], "p_worse": worse["p"],
            "floor": better["floor"]}  # fmt: skip


def _comparison(result: Mapping[str, Any], scores: Mapping[str, Scored]) -> dict[str, Any]:
    """One row per audited method, and the contrast of the two kinds of score."""
    table = [_row(method, scores[method], entry) for method, entry in result["methods"].items()]
    kinds: dict[str, list[Audited]] = {"importance": [], "weight": []}
    for row in table:
        if row["learned"]:
            scored = scores[row["method"]]
            kinds[scored.kind].append(Audited(scored.mean, _by_fold(scored, result["methods"][row["method"]])))
    compared = None
    if result["probe"] is not None and all(kinds.values()):
        compared = contrast(kinds["importance"], kinds["weight"], list(result["probe"]["layers"].values()))
    return {"table": table, "contrast": compared, "sentence": _sentence(table, compared)}


def _row(method: str, scored: Scored, entry: Mapping[str, Any]) -> dict[str, Any]:
    after, before = entry["agreement"], entry["agreement_untrained"]
    row: dict[str, Any] = {
        "method": method,
        "label": scored.label,
        "kind": scored.kind,
        "learned": not np.allclose(scored.trained, scored.untrained, rtol=0, atol=1e-6),
        "tracks_probe": after["verdict"] if after else None,
        "spearman_rho": after["spearman_rho"] if after else None,
        "p": after["p_one_sided"] if after else None,
        "spearman_rho_untrained": before["spearman_rho"] if before else None,
    }
    for kind in KINDS:
        own, untrained = ((entry[kind] or {}).get(order) for order in ("score", "untrained"))
        row |= {
            f"{kind}_beats_random": own["verdict"] if own else None,
            f"{kind}_advantage": own["advantage"] if own else None,
            f"{kind}_p": own["p"] if own else None,
            f"{kind}_advantage_untrained": untrained["advantage"] if untrained else None,
        }
    return row


def _by_fold(scored: Scored, entry: Mapping[str, Any]) -> dict[int, float]:
    """Fold -> deletion advantage, averaged over seeds; empty unless every run has it."""
    found = entry["deletion"]["score"]["per_fold"] if entry["deletion"] else []
    if len(found) != len(scored.folds):
        return {}
    folds = [fold.fold for fold in scored.folds]
    return {
        number: float(np.mean([value for fold, value in zip(folds, found, strict=True) if fold == number]))
        for number in dict.fromkeys(folds)
    }


def _sentence(table: Sequence[Mapping[str, Any]], compared: Mapping[str, Any] | None) -> str:
    """Summary of the audit in one or two sentences."""
    if not table:
        return "The layer scores were not tested against the usefulness of the layers."
    kinds = [[row for row in table if row["kind"] == kind] for kind in ("importance", "weight")]
    counts = ". ".join(_counts(rows) for rows in kinds if rows)
    if compared is None:
        return f"{counts}. The two kinds of score can only be compared if methods of both kinds are trained."
    verdict = {
        "better": "Importance Factors predict the usefulness of layers better than layer weights here",
        "worse": "Importance Factors predict the usefulness of layers worse than layer weights here",
        "undecided": "There is no evidence that Importance Factors predict the usefulness of layers better than layer "
        "weights here",
    }[compared["verdict"]]
    details, p = [], "p_worse" if compared["verdict"] == "worse" else "p_better"
    if tracking := compared["tracking"]:
        details.append(
            f"mean rank correlation with the probe {tracking['importance']:+.2f} against {tracking['weights']:+.2f} "
            f"(p = {tracking[p]:.3f})"
        )
    if deletion := compared["deletion"]:
        details.append(
            f"deletion advantage {100 * deletion['importance']:+.1f} against {100 * deletion['weights']:+.1f} points "
            f"(p = {deletion[p]:.3f})"
        )
    return f"{verdict}: {', '.join(details)}. {counts}."


def _counts(rows: Sequence[Mapping[str, Any]]) -> str:
    what = {"importance": "Importance Factors", "weight": "Layer weights"}[rows[0]["kind"]]
    tracks = sum(row["tracks_probe"] == "yes" for row in rows)
    beats = sum(row["deletion_beats_random"] == "yes" for row in rows)
    return f"{what} track the probe in {tracks} and beat random deletion in {beats} of {len(rows)}"
