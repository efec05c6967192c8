"""Headline and test results in words: which method is best, what was tested, and what the design could not detect.

The functions take an evaluation after `labelled`. Comparisons are reversed, so that they read "method minus reference".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from daamctl.artifacts.evaluation import Evaluation
from daamctl.artifacts.scores import Compared, Figure
from daamctl.artifacts.statistics import Family
from daamctl.artifacts.terms import encoder_label, listed, without_path
from daamctl.reporting.document import ZERO, Block, Bullets, Facts, Section, Text, count, percent, spread
from daamctl.reporting.sentences import outside, say, say_each, sentence
from daamctl.reporting.terms import is_official

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
    """Methods that were not trained well, so that training alone may explain their differences.

    See `MethodFairness.doubtful`: not all that are marked are.
    """
    return [name for name in methods if evaluation.fairness.methods[name].doubtful]


def against(evaluation: Evaluation, metric: str = "accuracy", family: Family | None = None) -> dict[str, Compared]:
    """Every method minus the reference, by method; empty if nothing was compared.

    Args:
        family: None: the comparison with the reference of the run.
    """
    family = family or evaluation.comparison.family
    if family is None:
        return {}
    kind = "single layer" if family is evaluation.single_layer else "reference"
    rows = [one for one in evaluation.scores.comparisons(metric, kind) if family.reference in (one.first, one.second)]
    found = [one.turned() if one.first == family.reference else one for one in rows]
    return {one.first: one for one in found}


def warnings(evaluation: Evaluation, stale: Sequence[str]) -> list[str]:
    """What makes the results doubtful: badly trained methods, missing folds, other settings.

    Args:
        stale: notes on folds that no longer match the evaluation.
    """
    changed = [sentence(note) for note in evaluation.notes if note.startswith("trained ")]
    lacking = [name for name, entry in evaluation.methods.items() if entry.missing]
    texts = [*([say("lacking", lacking)] if lacking else []), *stale, *changed]
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
    reference, chance, fairness = evaluation.comparison.reference, evaluation.main_chance, evaluation.fairness
    equal = sorted(evaluation.best("accuracy"), key=lambda name: name != reference)  # then nothing beats the reference
    top = evaluation.accuracy(equal[0])
    if len(equal) > 1:  # which share no more than the mean
        top = replace(top, std=None, low=None, high=None)
    done = sum(len(part.runs) for part in evaluation.methods.values())
    wanted = done + sum(len(part.missing) for part in evaluation.methods.values())
    short, verdict = _verdict(evaluation, equal, top, declared=declared)
    facts = [
        ("Is the comparison fair?", {"fair": "yes", "not fair": "no"}.get(fairness.verdict, fairness.verdict)),
        ("Best method" if len(equal) == 1 else "Best methods", listed(equal)),
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
    texts = [verdict, outside([top], evaluation.item), what(evaluation), say("guess", evaluation, top)]
    first = Text(fairness.text, caution=fairness.verdict == "not fair")
    unfair = [sentence(group.text) for group in fairness.identical]
    if reference in evaluation.methods and doubtful(evaluation, [reference]) and len(evaluation.methods) > 1:
        unfair.insert(0, f"The reference is {reference}, so training alone may explain every difference from it.")
    cautions = [Text(text, caution=True) for text in unfair]
    blocks: list[Block] = [first, Facts(facts), *cautions, *map(Text, filter(None, texts)), *_care(evaluation)]
    title = "Best method and its lead"
    return Section("headline", title if evaluation.by_accuracy else f"{title} in accuracy per word", blocks)


def family_texts(evaluation: Evaluation, *, declared: bool) -> list[Text | Bullets]:
    """Describe the family of tests, its smallest possible p-values, the intervals and the detectable difference."""
    compared = evaluation.comparison
    family, reference = compared.family, compared.reference
    if family is None:
        why = "has missing folds" if reference in compared.left_out else "was not trained on this machine"
        return [Text(f"No methods were tested: the reference, {reference}, {why}.", caution=True)]
    if not family.size:
        items = f"{count(family.design.n_items)} test {evaluation.item}s"
        return [Text(f"Only {reference} has all its folds, so nothing was tested ({items}).")]
    rows, doubts = list(against(evaluation).values()), doubtful(evaluation, family.methods)
    bullets = say_each("family", evaluation, rows, declared, doubts)
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


def _verdict(evaluation: Evaluation, equal: Sequence[str], top: Figure, *, declared: bool) -> tuple[str, str]:
    """Whether the lead of the first of the best methods is significant: as a few words, and as a text."""
    best, compared, others = equal[0], evaluation.comparison, against(evaluation)
    family, reference, one = compared.family, compared.reference, others.get(best)
    below: list[str] = []
    doubts: list[str] = []
    result = ""
    # the highest mean over folds that differ in size is no lead if it is behind over all items, which the test is of
    behind = one is not None and one.difference < -ZERO
    if len(evaluation.methods) == 1:
        short = "no other method"
    elif family is None or best in compared.left_out:
        short, one = "not tested", None
    # then the question is whether the others are worse
    elif best == reference:
        short = "it is the reference"
        below = [name for name, pair in others.items() if pair.p_holm is not None and pair.p_holm <= family.alpha]
        # of a doubtful reference every difference is in doubt, else those of the doubtful methods
        doubts = below if doubtful(evaluation, [best]) else doubtful(evaluation, below)
    elif one is None or one.p is None or one.p_holm is None:
        short = "not tested"
    else:
        doubts = doubtful(evaluation, [best, reference])
        # no result could have been significant, so "not significant" would say too much
        too_few = family.floor_holm is not None and family.floor_holm > family.alpha
        result = "too few data to test" if too_few else "not significant"
        result = "significant" if one.p_holm <= family.alpha else result
        short = "training may explain it" if doubts else result
        short = f"none over all test {evaluation.item}s" if behind else short
    facts = one, len(others), declared, below, doubts, behind, result
    return short, say("verdict", evaluation, equal, top, short, *facts)


def what(evaluation: Evaluation) -> str:
    """What was run: corpus, encoder, items, classes, folds and seeds."""
    classes = evaluation.classes
    shown = classes if len(classes) <= MAX_NAMED else [*classes[:3], "…", classes[-1]]
    tuned = [name for name, entry in evaluation.methods.items() if entry.effect and entry.effect.with_gradient]
    return say("what", evaluation, source(evaluation), ", ".join(shown), tuned)


def source(evaluation: Evaluation) -> str:
    """The corpus and what made its embeddings."""
    made, facts = evaluation.provenance, evaluation.provenance.encoder
    if evaluation.given:
        told = [f"SHA-256 {facts['sha256'][:12]}", *(facts[name] for name in ("made_by", "licence") if name in facts)]
        return f"{sentence(str(facts['name']))[:-1]} ({', '.join(told)})"
    label = encoder_label(facts, made.config.get("extract", {}))
    return f"Corpus {evaluation.corpus_name}, frozen encoder {label}"


def _care(evaluation: Evaluation) -> list[Text]:
    """Notes on methods whose name can mislead: reconstructions, batch-dependent predictions, inactive adapters."""
    methods = evaluation.methods
    texts = []
    if rebuilt := [name for name, entry in methods.items() if entry.reconstructed]:
        texts.append(Text(say("rebuilt", rebuilt)))
    if batched := [name for name, entry in methods.items() if entry.eval_batches]:
        texts.append(Text(say("batched", batched, evaluation.task.clip)))
    for name, entry in methods.items():
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


def names(evaluation: Evaluation) -> tuple[str, str]:
    """Names of the corpus and the encoder in the settings or the embeddings."""
    made = evaluation.provenance
    encoder = made.config.get("extract", {}).get("encoder") or made.encoder.get("name", "unknown")
    return made.corpus or evaluation.run, str(without_path(encoder))
