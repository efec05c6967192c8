"""Headline and test results in words: which method is best, what was tested, and what the design could not detect.

The functions take an evaluation after `labelled`. Comparisons are reversed, so that they read "method minus reference".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from daamctl.artifacts.entities import Entities
from daamctl.artifacts.evaluation import Evaluation, ReferenceComparison
from daamctl.artifacts.statistics import Comparison, Comparisons, Ranks
from daamctl.artifacts.terms import encoder_label, listed, with_article, without_path
from daamctl.reporting.document import (
    Block,
    Bullets,
    Facts,
    Section,
    Text,
    count,
    p_value,
    percent,
    plural,
    points,
    spread,
)
from daamctl.reporting.terms import is_official, selection_rule

CORRECTIONS = {"holm": "Holm"}
MAX_NAMED = 12
"""Above this number of classes, sentences do not name them all."""


@dataclass(frozen=True)
class Against:
    """One method compared with the reference in one metric. Differences are fractions, method minus reference.

    Args:
        low: lower end of the interval; None if there is no interval.
        p: p-value of the primary test; None, like the values below, if there is no test.
        p_holm: `p` after Holm's correction within the family.
        secondary_p: p-value of the corrected t-test.
        secondary_p_holm: `secondary_p` after Holm's correction within the family.
        floor: smallest p-value that these differences allow.
        detectable: smallest true difference that the design would have detected.
        wins: number of items that only the method got right.
        losses: number of items that only the reference got right.
        runs: number of runs (fold and seed) that both have.
        ahead: number of these runs in which the method has the higher accuracy.
    """

    method: str
    difference: float
    low: float | None
    high: float | None
    p: float | None
    p_holm: float | None
    secondary_p: float | None
    secondary_p_holm: float | None
    floor: float | None
    detectable: float | None
    wins: int
    losses: int
    runs: int
    ahead: int

    @classmethod
    def of(cls, pair: Comparison, metric: str) -> Against:
        """The second method of a pair compared with the first."""
        found = pair.metrics[metric]
        interval, primary, secondary = found.interval, found.primary, found.secondary
        detectable = found.minimal_detectable.points if found.minimal_detectable else None
        return cls(
            method=pair.second,
            difference=-found.difference,
            low=-interval.high if interval else None,
            high=-interval.low if interval else None,
            p=primary.p if primary else None,
            p_holm=primary.p_holm if primary else None,
            secondary_p=secondary.p if secondary else None,
            secondary_p_holm=secondary.p_holm if secondary else None,
            floor=primary.floor if primary else None,
            detectable=None if detectable is None else detectable / 100,
            wins=pair.losses,
            losses=pair.wins,
            runs=pair.runs,
            ahead=pair.behind,
        )


def labelled(evaluation: Evaluation) -> Evaluation:
    """Copy of the evaluation with methods renamed to their labels, e.g. `sga (reconstructed)`."""
    names = {name: entry.label for name, entry in evaluation.methods.items()}
    fairness, provenance = evaluation.fairness, evaluation.provenance
    trained = {
        names[name]: replace(one, counterpart=names.get(str(one.counterpart), one.counterpart))
        for name, one in fairness.methods.items()
    }
    identical = [replace(group, methods=[names[name] for name in group.methods]) for group in fairness.identical]
    return replace(
        evaluation,
        methods={names[name]: entry for name, entry in evaluation.methods.items()},
        comparison=_relabelled(evaluation.comparison, names),
        single_layer=_relabelled(evaluation.single_layer, names) if evaluation.single_layer else None,
        entities=_relabelled_entities(evaluation.entities, names) if evaluation.entities else None,
        fairness=replace(fairness, methods=trained, identical=identical),
        provenance=replace(
            provenance, train_s={names.get(name, name): value for name, value in provenance.train_s.items()}
        ),
    )


def with_encoder_name(evaluation: Evaluation, name: str | None) -> Evaluation:
    """Copy of the evaluation with the present `extract.name`, which may be younger than the folds."""
    config = evaluation.provenance.config
    renamed = {**config, "extract": {**config.get("extract", {}), "name": name}}
    return replace(evaluation, provenance=replace(evaluation.provenance, config=renamed))


def order(evaluation: Evaluation) -> list[str]:
    """Methods sorted by mean accuracy in the main unit, best first. Ties keep the order of the evaluation."""
    return sorted(evaluation.methods, key=lambda name: -evaluation.accuracy(name).mean)


def doubtful(evaluation: Evaluation, methods: Sequence[str]) -> list[str]:
    """Methods that were not trained well, so that training alone may explain their differences."""
    return [name for name in methods if evaluation.fairness.methods[name].mark]


def against(evaluation: Evaluation, metric: str) -> dict[str, Against]:
    """Compare every method with the reference; empty if nothing was compared."""
    result = evaluation.comparison.result
    return {pair.second: Against.of(pair, metric) for pair in result.comparisons} if result else {}


def warnings(evaluation: Evaluation, stale: Sequence[str]) -> list[str]:
    """What makes the results doubtful: badly trained methods, missing folds, other settings.

    Args:
        evaluation: output of `labelled`.
        stale: notes on folds that no longer match the evaluation.
    """
    changed = [sentence(note) for note in evaluation.notes if note.startswith("trained ")]
    texts = [*_missing_note(evaluation), *stale, *changed]
    doubts = doubtful(evaluation, order(evaluation))
    if not doubts:
        return texts
    names = listed(short_names(doubts))
    return [f"This comparison is not fair: training alone may explain the results of {names}.", *texts]


def short_names(labels: Sequence[str]) -> list[str]:
    """Labels without what stands in brackets: `mha (undertrained)` -> `mha`."""
    return [label.partition(" (")[0] for label in labels]


def headline(evaluation: Evaluation, *, declared: bool) -> Section:
    """Section "Best method": is the comparison fair, what was run, which method is best, is its lead significant.

    Args:
        evaluation: output of `labelled`.
        declared: whether the settings name the reference.
    """
    best = order(evaluation)[0]
    top, chance, fairness = evaluation.accuracy(best), evaluation.main_chance, evaluation.fairness
    interval = evaluation.methods[best].intervals.metrics["accuracy"]
    done = sum(len(part.per_fold) for part in evaluation.methods.values())
    wanted = done + sum(len(part.missing) for part in evaluation.methods.values())
    short, verdict = _verdict(evaluation, best, declared=declared)
    facts = [
        ("Is the comparison fair?", {"fair": "yes", "not fair": "no"}.get(fairness.verdict, fairness.verdict)),
        ("Best method", best),
        (f"Accuracy per {evaluation.item}, mean ± sample std (n = {top.n})", f"{spread(top)} %"),
    ]
    if interval:
        ends = f"{percent(interval.low)} to {percent(interval.high)} %"
        facts.append(("95 % confidence interval, pooled", ends))
    finished = "Finished runs (method × seed)" if is_official(evaluation) else "Finished runs (method × fold × seed)"
    facts += [
        ("Lead over the reference", short),
        (f"Accuracy of always answering “{chance.majority_class}”", f"{percent(chance.majority_fraction)} %"),
        (finished, f"{count(done)} of {count(wanted)}"),
    ]
    texts = [verdict, _what(evaluation), _guess(evaluation, best)]
    first = Text(fairness.text, caution=fairness.verdict == "not fair")
    cautions = [Text(text, caution=True) for text in _unfair(evaluation)]
    blocks: list[Block] = [first, Facts(facts), *cautions, *map(Text, texts), *_care(evaluation)]
    title = "Best method and its lead"
    return Section("headline", f"{title} in accuracy per word" if evaluation.entities else title, blocks)


def family_texts(evaluation: Evaluation, *, declared: bool) -> list[Text | Bullets]:
    """Describe the family of tests, its smallest possible p-values, the intervals and the detectable difference."""
    compared = evaluation.comparison
    result, reference = compared.result, compared.reference
    if result is None:
        why = "has missing folds" if reference in compared.left_out else "was not trained on this machine"
        return [Text(f"No methods were tested: the reference, {reference}, {why}.", caution=True)]
    family = result.family
    items = f"{count(result.design.n_items)} test {evaluation.item}s"
    if not family.size:
        return [Text(f"Only {reference} has all its folds, so nothing was tested ({items}).")]
    bullets = [
        f"Family: {plural(family.size, 'other method')} against {reference}, {_declared(declared)}, on the same "
        f"{items}. {CORRECTIONS[family.correction]} correction within each metric; two-sided tests at level "
        f"{family.alpha:g}.",
        *_test_bullets(result),
        *_detectable(evaluation, result),
    ]
    if doubts := doubtful(evaluation, family.methods):
        bullets.append(f"Training alone may explain a difference from {listed(doubts)}, whatever the p-value.")
    if compared.left_out:
        bullets.append(f"Excluded because folds are missing: {listed(compared.left_out)}.")
    bullets += map(sentence, result.notes)
    return [
        Text("How the methods were tested. The p-values are valid only if this was fixed before seeing the results:"),
        Bullets(bullets),
    ]


def _relabelled(compared: ReferenceComparison, names: dict[str, str]) -> ReferenceComparison:
    """Rename the methods in a comparison."""
    reference = names.get(compared.reference, compared.reference)
    left_out = [names[name] for name in compared.left_out]
    result = compared.result
    if result is not None:
        family = replace(result.family, methods=[names[name] for name in result.family.methods], reference=reference)
        pairs = [replace(one, first=names[one.first], second=names[one.second]) for one in result.comparisons]
        ranks = {metric: _relabelled_ranks(found, names) for metric, found in result.ranks.items()}
        result = replace(result, family=family, comparisons=pairs, ranks=ranks)
    return ReferenceComparison(reference, left_out, result)


def _relabelled_entities(found: Entities, names: dict[str, str]) -> Entities:
    return replace(
        found,
        reference=names.get(str(found.reference)),
        methods={names[name]: one for name, one in found.methods.items()},
        comparisons={names[name]: one for name, one in found.comparisons.items()},
    )


def _relabelled_ranks(ranks: Ranks | None, names: dict[str, str]) -> Ranks | None:
    if ranks is None:
        return None
    average = {names[name]: rank for name, rank in ranks.average_ranks.items()}
    return replace(ranks, average_ranks=average, groups=[[names[name] for name in group] for group in ranks.groups])


def _verdict(evaluation: Evaluation, best: str, *, declared: bool) -> tuple[str, str]:
    """Whether the lead of the best method is significant: as a few words, and as a text."""
    unit, top = evaluation.item, evaluation.accuracy(best)
    text = f"{best} has the highest mean accuracy per {unit}, {spread(top)} % (n = {top.n})"
    if len(evaluation.methods) == 1:
        return "no other method", f"{text}. No other method was run."
    compared = evaluation.comparison
    result, reference = compared.result, compared.reference
    if result is None or best in compared.left_out:
        return "not tested", f"{text}. It was not tested against {reference} because folds are missing."
    others = against(evaluation, "accuracy")
    family, alpha = result.family, result.family.alpha
    if best == reference:
        below = [one.method for one in others.values() if one.p_holm is not None and one.p_holm <= alpha]
        doubts = below if doubtful(evaluation, [best]) else doubtful(evaluation, below)
        doubt = f" Training alone may explain the lead over {listed(doubts)}." if doubts else ""
        named = f": {listed(below)}" if below else ""
        return "it is the reference", (
            f"{text}. It is the reference, {_declared(declared)}, so no method beats the reference. Of "
            f"{plural(len(others), 'other method')}, {len(below)} {'is' if len(below) == 1 else 'are'} significantly "
            f"worse at level {alpha:g} after correction{named}.{doubt}"
        )
    one = others[best]
    lead = f"{text}. Its lead over the reference {reference}, {_declared(declared)}, is {points(one.difference)} points"
    if one.low is not None and one.high is not None:
        lead += f" (95 % interval {points(one.low)} to {points(one.high)}, not corrected, over all test {unit}s)"
    if one.p is None or one.p_holm is None:
        return "not tested", f"{lead}. {sentence(result.design.reason)}"
    lead += (
        f"; sign-flip test over {_units(result)}: {p_value(one.p)}, {p_value(one.p_holm)} after correction over "
        f"{plural(family.size, 'comparison')}"
    )
    if doubts := doubtful(evaluation, [best, reference]):
        return "training may explain it", (
            f"{lead}. Whatever the p-value, training alone may explain this lead because of {listed(doubts)}; see “Is "
            "this comparison fair?”."
        )
    chosen = (
        " The best method was picked after seeing the results, so its accuracy is optimistic. The correction covers "
        "only the test."
    )
    if one.p_holm <= alpha and one.difference > 0:
        return "significant", f"{lead}. The lead is significant at level {alpha:g}.{chosen}"
    if family.floor_holm is not None and family.floor_holm > alpha:
        return "too few data to test", (
            f"{lead}. The lead is not significant, and no lead could be: with {_units(result)} and this many "
            f"comparisons, no corrected p-value below {family.floor_holm:.3g} is possible.{chosen}"
        )
    return "not significant", f"{lead}. The lead is not significant at level {alpha:g}.{chosen}"


def _what(evaluation: Evaluation) -> str:
    """What was run: corpus, encoder, items, classes, folds and seeds."""
    counts, said = evaluation.counts, evaluation.task
    clips = "" if said.item == said.clip else f" ({count(counts.clip)} {said.clip}s)"
    seeds = plural(len(evaluation.seeds), "seed")
    if is_official(evaluation):
        sizes = evaluation.provenance.clips_per_fold[0]
        select = f", {count(sizes.dev)} held out for choosing" if sizes.dev else ""
        folds = f"the official split ({count(sizes.train)} {said.clip}s for training{select}), with {seeds}"
    else:
        folds = f"{evaluation.num_folds} folds with {seeds} each; a fold tests one group that it does not train on"
    tuned = [name for name, entry in evaluation.methods.items() if entry.effect and entry.effect.with_gradient]
    figure = f"The main figure is accuracy per {evaluation.item}"
    if evaluation.entities:
        figure = f"The main figure is entity F1, in its own section; here it is accuracy per {evaluation.item}"
    trained = f" The encoder, or adapters in it, is also trained in {listed(tuned)}." if tuned else ""
    pieces = ""
    if counts.weighted and evaluation.main_unit == "utterance":
        pieces = f" The clips of {plural(counts.weighted, said.item)} differ in length; longer ones count for more."
    if counts.merged:
        pieces += f" {plural(counts.merged, said.clip)} of the test include a short rest piece of the recording."
    return (
        f"{source(evaluation)}: {count(counts.utterance)} test {said.item}s{clips} of "
        f"{_classes(evaluation.classes)}, in {folds}.{pieces} {figure}; "
        f"{selection_rule(evaluation)}.{trained}"
    )


def source(evaluation: Evaluation) -> str:
    """The corpus and what made its embeddings."""
    made, facts = evaluation.provenance, evaluation.provenance.encoder
    if evaluation.given:
        told = [f"SHA-256 {facts['sha256'][:12]}", *(facts[name] for name in ("made_by", "licence") if name in facts)]
        return f"{sentence(str(facts['name']))[:-1]} ({', '.join(told)})"
    label = encoder_label(facts, made.config.get("extract", {}))
    return f"Corpus {evaluation.corpus_name}, frozen encoder {label}"


def _classes(found: Sequence[str]) -> str:
    """The number of classes and their names, abbreviated if there are many."""
    shown = found if len(found) <= MAX_NAMED else [*found[:3], "…", found[-1]]
    return f"{len(found)} classes ({', '.join(shown)})"


def _guess(evaluation: Evaluation, best: str) -> str:
    chance = evaluation.main_chance
    lost = "" if chance.majority_fraction < evaluation.accuracy(best).mean else " No method is better than that."
    return (
        f"Always answering “{chance.majority_class}”, the most frequent class, gives "
        f"{percent(chance.majority_fraction)} % accuracy and {percent(chance.uniform_fraction)} % balanced "
        f"accuracy.{lost}"
    )


def _unfair(evaluation: Evaluation) -> list[str]:
    """Warnings about a reference that was not trained well, and identical predictions."""
    fairness, reference = evaluation.fairness, evaluation.comparison.reference
    texts = []
    if reference in evaluation.methods and doubtful(evaluation, [reference]) and len(evaluation.methods) > 1:
        texts.append(f"The reference is {reference}, so training alone may explain every difference from it.")
    return texts + [sentence(group.text) for group in fairness.identical]


def _missing_note(evaluation: Evaluation) -> list[str]:
    lacking = [name for name, entry in evaluation.methods.items() if entry.missing]
    if not lacking:
        return []
    return [
        f"Folds are missing for {listed(lacking)}. Their means are not fully comparable, and they are excluded from "
        "the tests (see Missing folds)."
    ]


def _care(evaluation: Evaluation) -> list[Text]:
    """Notes on methods whose name can mislead: reconstructions, batch-dependent predictions, inactive adapters."""
    methods = evaluation.methods
    texts = []
    if rebuilt := [name for name, entry in methods.items() if entry.reconstructed]:
        texts.append(
            f"Reconstructions rather than replications, because the original definition was not available: "
            f"{listed(rebuilt)}. Provenance lists the interpretations chosen."
        )
    if batched := [name for name, entry in methods.items() if entry.eval_batches]:
        clips = f"{evaluation.task.clip}s"
        texts.append(
            f"Predictions of {listed(batched)} depend on the other {clips} in their batch (D1). Provenance lists the "
            "batch sizes and the order."
        )
    return [*map(Text, texts), *_without_effect(evaluation)]


def _without_effect(evaluation: Evaluation) -> list[Text]:
    """Warnings about fine-tuned encoders with inactive trained tensors."""
    texts = []
    for name, entry in evaluation.methods.items():
        effect = entry.effect
        if effect is None or not effect.tensors:
            continue
        of = f"{effect.with_gradient} of {effect.tensors} tensors receive a gradient"
        if not effect.is_active:
            text = f"{name}: the adapters have no effect ({of}), so the encoder is not changed (D2)."
            texts.append(Text(text, caution=True))
        elif effect.silent:
            texts.append(Text(f"{name}: {of}; the others have no effect."))
    return texts


def _test_bullets(result: Comparisons) -> list[str]:
    """Describe the two tests and the intervals."""
    family, design = result.family, result.design
    folds = plural(design.n_folds, "fold")
    secondary = f"Secondary test: Nadeau and Bengio’s corrected t-test over {folds}, a heuristic."
    if design.n_folds == 1:
        secondary = "Secondary test: none, because there is only one fold."
    parts = [pair.metrics["accuracy"] for pair in result.comparisons]
    tests = [part.primary for part in parts if part.primary]
    intervals = [part.interval for part in parts if part.interval]
    if not tests:
        return [sentence(design.reason), secondary]
    intervals_text = "Confidence intervals of differences: none, because the test can reject no value."
    if intervals:
        one = intervals[0]
        made = {
            "bootstrap": f"percentile bootstrap over {design.unit_word}s, {count(one.resamples)} resamples",
            "jackknife": f"Student's t with the jackknife over {design.unit_word}s",
            "sign-flip": "all values that the primary test does not reject",
        }[one.method]
        intervals_text = f"Confidence intervals of differences: {100 * one.level:g} %, {made}, not corrected."
    exact = all(test.exact for test in tests)
    flips = "all sign flips" if exact else f"{count(tests[0].flips)} random sign flips"
    return [
        f"Primary test: sign-flip test over {_units(result)} ({flips}), after averaging over seeds. {secondary}",
        f"Smallest possible p-value with {_units(result)}: {family.floor:.3g}, or {family.floor_holm:.3g} after "
        f"correction. It is higher for a method that does not differ from the reference on "
        f"{with_article(design.unit_word)}.",
        intervals_text,
    ]


def _detectable(evaluation: Evaluation, result: Comparisons) -> list[str]:
    """The smallest differences that the design could have detected."""
    found = [one.detectable for one in against(evaluation, "accuracy").values() if one.detectable is not None]
    if not found:
        return []
    spans = f"; {100 * min(found):.1f} to {100 * max(found):.1f} across methods" if len(found) > 1 else ""
    return [
        f"Smallest detectable difference: {100 * median(found):.1f} points of accuracy (median{spans}). A paired test "
        f"over {_units(result)} detects a true difference of this size with 80 % power at level "
        f"{result.family.alpha:g} without correction, given the observed spread. With correction it is larger. "
        "A smaller difference may exist although no test found it."
    ]


def _units(result: Comparisons) -> str:
    return plural(result.design.n_units or 0, result.design.unit_word)


def _declared(declared: bool) -> str:
    return "set by evaluate.reference" if declared else "the default of evaluate.reference"


def names(evaluation: Evaluation) -> tuple[str, str]:
    """Names of the corpus and the encoder in the settings or the embeddings."""
    made = evaluation.provenance
    encoder = made.config.get("extract", {}).get("encoder") or made.encoder.get("name", "unknown")
    return made.corpus or evaluation.run, str(without_path(encoder))


def sentence(text: str) -> str:
    """A note as a sentence: `the folds differ` becomes `The folds differ.`."""
    return f"{text[:1].upper()}{text[1:]}."
