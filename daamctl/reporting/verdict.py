"""Headline and test results in words: which method is best, what was tested, and what the design could not detect.

The functions take an evaluation after `labelled`. Comparisons are reversed, so that they read "method minus reference".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from daamctl.artifacts.evaluation import Evaluation
from daamctl.artifacts.scores import Compared
from daamctl.artifacts.statistics import Family
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

MAX_NAMED = 12
"""Above this number of classes, sentences do not name them all."""


def labelled(evaluation: Evaluation) -> Evaluation:
    """Copy of the evaluation with methods renamed to their labels, e.g. `sga (reconstructed)`."""
    names = {name: entry.label for name, entry in evaluation.methods.items()}
    fairness, provenance = evaluation.fairness, evaluation.provenance
    trained = {
        names[name]: replace(one, counterpart=names.get(str(one.counterpart), one.counterpart))
        for name, one in fairness.methods.items()
    }
    identical = [replace(group, methods=[names[name] for name in group.methods]) for group in fairness.identical]
    compared = evaluation.comparison
    return replace(
        evaluation,
        methods={names[name]: entry for name, entry in evaluation.methods.items()},
        scores=evaluation.scores.renamed(names),
        comparison=replace(
            compared,
            reference=names.get(compared.reference, compared.reference),
            left_out=[names[name] for name in compared.left_out],
            family=_relabelled(compared.family, names),
        ),
        single_layer=_relabelled(evaluation.single_layer, names),
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


def against(evaluation: Evaluation, metric: str = "accuracy", family: Family | None = None) -> dict[str, Compared]:
    """Every method minus the reference, by method; empty if nothing was compared.

    Args:
        family: None: the comparison with the reference of the run.
    """
    family = family or evaluation.comparison.family
    if family is None:
        return {}
    kind = "single layer" if family is evaluation.single_layer else "reference"
    rows = evaluation.scores.comparisons(metric, kind)
    found = [one.turned() if one.first == family.reference else one for one in rows]
    return {one.first: one for one in found}


def warnings(evaluation: Evaluation, stale: Sequence[str]) -> list[str]:
    """What makes the results doubtful: badly trained methods, missing folds, other settings.

    Args:
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
        declared: whether the settings name the reference.
    """
    best = order(evaluation)[0]
    top, chance, fairness = evaluation.accuracy(best), evaluation.main_chance, evaluation.fairness
    done = sum(len(part.runs) for part in evaluation.methods.values())
    wanted = done + sum(len(part.missing) for part in evaluation.methods.values())
    short, verdict = _verdict(evaluation, best, declared=declared)
    facts = [
        ("Is the comparison fair?", {"fair": "yes", "not fair": "no"}.get(fairness.verdict, fairness.verdict)),
        ("Best method", best),
        (f"Accuracy per {evaluation.item}, mean ± sample std (n = {top.runs})", f"{spread(top)} %"),
    ]
    if top.low is not None:
        ends = f"{percent(top.low)} to {percent(top.high)} %"
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
    return Section("headline", title if evaluation.by_accuracy else f"{title} in accuracy per word", blocks)


def family_texts(evaluation: Evaluation, *, declared: bool) -> list[Text | Bullets]:
    """Describe the family of tests, its smallest possible p-values, the intervals and the detectable difference."""
    compared = evaluation.comparison
    family, reference = compared.family, compared.reference
    if family is None:
        why = "has missing folds" if reference in compared.left_out else "was not trained on this machine"
        return [Text(f"No methods were tested: the reference, {reference}, {why}.", caution=True)]
    items = f"{count(family.design.n_items)} test {evaluation.item}s"
    if not family.size:
        return [Text(f"Only {reference} has all its folds, so nothing was tested ({items}).")]
    bullets = [
        f"Family: {plural(family.size, 'other method')} against {reference}, {_declared(declared)}, on the same "
        f"{items}. Holm correction within each metric; two-sided tests at level "
        f"{family.alpha:g}.",
        *_test_bullets(evaluation, family),
        *_detectable(evaluation, family),
    ]
    if doubts := doubtful(evaluation, family.methods):
        bullets.append(f"Training alone may explain a difference from {listed(doubts)}, whatever the p-value.")
    if compared.left_out:
        bullets.append(f"Excluded because folds are missing: {listed(compared.left_out)}.")
    bullets += map(sentence, family.notes)
    return [
        Text("How the methods were tested. The p-values are valid only if this was fixed before seeing the results:"),
        Bullets(bullets),
    ]


def _relabelled(family: Family | None, names: dict[str, str]) -> Family | None:
    """Rename the methods of a family."""
    if family is None:
        return None
    methods = [names[name] for name in family.methods]
    return replace(family, methods=methods, reference=names[str(family.reference)])


def _verdict(evaluation: Evaluation, best: str, *, declared: bool) -> tuple[str, str]:
    """Whether the lead of the best method is significant: as a few words, and as a text."""
    unit, top = evaluation.item, evaluation.accuracy(best)
    text = f"{best} has the highest mean accuracy per {unit}, {spread(top)} % (n = {top.runs})"
    if len(evaluation.methods) == 1:
        return "no other method", f"{text}. No other method was run."
    compared = evaluation.comparison
    family, reference = compared.family, compared.reference
    if family is None or best in compared.left_out:
        return "not tested", f"{text}. It was not tested against {reference} because folds are missing."
    others, alpha = against(evaluation), family.alpha
    if best == reference:
        below = [name for name, one in others.items() if one.p_holm is not None and one.p_holm <= alpha]
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
        return "not tested", f"{lead}. {sentence(family.design.reason)}"
    lead += (
        f"; sign-flip test over {_units(family)}: {p_value(one.p)}, {p_value(one.p_holm)} after correction over "
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
            f"{lead}. The lead is not significant, and no lead could be: with {_units(family)} and this many "
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
    if not evaluation.by_accuracy:
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


def _test_bullets(evaluation: Evaluation, family: Family) -> list[str]:
    """Describe the two tests and the intervals."""
    design, rows = family.design, list(against(evaluation).values())
    folds = plural(design.n_folds, "fold")
    secondary = f"Secondary test: Nadeau and Bengio’s corrected t-test over {folds}, a heuristic."
    if design.n_folds == 1:
        secondary = "Secondary test: none, because there is only one fold."
    tests = [one for one in rows if one.test]
    if not tests:
        return [sentence(design.reason), secondary]
    intervals_text = "Confidence intervals of differences: none, because the test can reject no value."
    if one := next((one for one in rows if one.interval), None):
        made = {
            "bootstrap": f"percentile bootstrap over {design.unit_word}s, {count(one.resamples or 0)} resamples",
            "jackknife": f"Student's t with the jackknife over {design.unit_word}s",
            "sign-flip": "all values that the primary test does not reject",
        }[str(one.interval)]
        intervals_text = f"Confidence intervals of differences: {100 * (1 - family.alpha):g} %, {made}, not corrected."
    exact = all(test.exact for test in tests)
    flips = "all sign flips" if exact else f"{count(tests[0].flips or 0)} random sign flips"
    return [
        f"Primary test: sign-flip test over {_units(family)} ({flips}), after averaging over seeds. {secondary}",
        f"Smallest possible p-value with {_units(family)}: {family.floor:.3g}, or {family.floor_holm:.3g} after "
        f"correction. It is higher for a method that does not differ from the reference on "
        f"{with_article(design.unit_word)}.",
        intervals_text,
    ]


def _detectable(evaluation: Evaluation, family: Family) -> list[str]:
    """The smallest differences that the design could have detected."""
    found = [one.detectable for one in against(evaluation).values() if one.detectable is not None]
    if not found:
        return []
    spans = f"; {100 * min(found):.1f} to {100 * max(found):.1f} across methods" if len(found) > 1 else ""
    return [
        f"Smallest detectable difference: {100 * median(found):.1f} points of accuracy (median{spans}). A paired test "
        f"over {_units(family)} detects a true difference of this size with 80 % power at level "
        f"{family.alpha:g} without correction, given the observed spread. With correction it is larger. "
        "A smaller difference may exist although no test found it."
    ]


def _units(family: Family) -> str:
    return plural(family.design.n_units or 0, family.design.unit_word)


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
