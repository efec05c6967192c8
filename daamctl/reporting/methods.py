"""A text for the methods section of a paper, from the settings and the evaluation of a run."""

from __future__ import annotations

from daamctl.artifacts.evaluation import Evaluation
from daamctl.artifacts.terms import listed
from daamctl.config import Config
from daamctl.reporting.document import Bullets, count, layers_text
from daamctl.reporting.terms import is_closed_form
from daamctl.reporting.verdict import family_texts, labelled, what, with_encoder_name

SOURCES = {
    "units": "Intervals: Korn and Graubard 1998, *Survey Methodology* 24; jackknife: Efron and Tibshirani 1993, *An "
    "Introduction to the Bootstrap*, chapter 11.",
    "sign-flip": "Sign-flip test: Fisher 1935, *The Design of Experiments*; Noreen 1989, *Computer-Intensive Methods "
    "for Testing Hypotheses*; intervals that agree with it: Hartigan 1969, *Using subsample values as typical values*.",
    "p_holm": "Correction: Holm 1979, *A simple sequentially rejective multiple test procedure*.",
    "p_folds": "Corrected t-test: Nadeau and Bengio 2003, *Inference for the generalization error*.",
}
INPUTS = {
    "none": "not standardised",
    "layer": "standardised by layer",
    "feature": "standardised by feature",
    "whiten": "standardised by feature and partially whitened",
    "auto": "standardised by feature, and partially whitened where features are nearly collinear",
}


def methods_text(raw: Evaluation, config: Config, *, corpus: str) -> str:
    """Data, vectors, training and statistics of a run, with sources, as Markdown.

    Args:
        corpus: its title.
    """
    evaluation = with_encoder_name(labelled(raw), config.extract.name)
    frames = evaluation.scores.frames
    speakers = frames["speakers"].drop_nulls("speaker")["speaker"].n_unique()
    known = f"of {count(speakers)} {evaluation.task.source}s" if speakers else "of unknown sources"
    classes = ", ".join(f"{name} {count(number)}" for name, number in evaluation.main_chance.per_class.items())
    declared = config.names_reference(raw.comparison.reference)
    tests = [line for part in family_texts(evaluation, declared=declared)
             for line in (part.lines if isinstance(part, Bullets) else [part.text])]  # fmt: skip
    if units := frames["figures"].select("units", "resampled").drop_nulls().unique().sort("units").rows():
        over = listed([f"{count(number)} {word}s" for number, word in units])
        tests.append(f"95 % intervals of figures are those of Korn and Graubard, over {over}.")
    paragraphs = {
        "Data": f"{corpus[:1].upper()}{corpus[1:]}. {what(evaluation)} Tested {evaluation.item}s, {known}: {classes}.",
        "Vectors": "" if evaluation.given else _vectors(evaluation, config),
        "Training": _training(evaluation, config),
        "Statistics": " ".join(tests),
    }
    cited = {
        *frames["comparisons"]["test"],
        *(name for frame in frames.values() for name in frame.columns if frame[name].count()),
    }
    lines = [f"**{name}.** {text}" for name, text in paragraphs.items() if text]
    return "\n\n".join([*lines, *(text for name, text in SOURCES.items() if name in cited)]) + "\n"


def _vectors(evaluation: Evaluation, config: Config) -> str:
    """Which layers of which encoder were stored, and how they were pooled."""
    extract, facts, first = config.extract, evaluation.provenance.encoder, next(iter(evaluation.methods.values()))
    longest = f"{config.segment.max_duration_s:g} s"
    frames = "its own frames" if extract.pooling == "valid-frames" else f"all frames, zeros up to {longest} included"
    special, also = ("with" if on else "without" for on in (extract.pool_special_tokens, extract.pool_class_token))
    tokens = {
        "last-token": f"its last token, {special} special tokens",
        "first-token": "the token that its tokenizer puts first",
    }
    pooled = {
        "speech": f"the mean over {frames}; recordings are cut into clips of {longest}",
        "text": tokens.get(extract.pooling, f"the mean over its tokens, {special} special tokens"),
        "image": "its class token"
        if extract.pool_class_token == "only"
        else f"the mean over its patches, {also} class and register tokens",
        "tokens": "that of its first sub-word" if extract.subwords == "first" else "the mean over its sub-words",
    }[evaluation.modality]
    made = f"revision {facts.get('revision') or 'unknown'}, weights SHA-256 {str(facts.get('weights_sha256'))[:16]}"
    return (
        f"Layers {layers_text(first.layers)} of {facts.get('source') or facts['name']} ({made}) give one vector of "
        f"{first.embed_dim} numbers per {evaluation.task.clip}: {pooled}."
    )


def _training(evaluation: Evaluation, config: Config) -> str:
    """How the methods were trained, by kind."""
    train, named = config.train, dict[str, list[str]]()
    for name, entry in evaluation.methods.items():
        kind = "closed form" if is_closed_form(name) else "trained"
        named.setdefault("fine-tuned" if entry.finetune else kind, []).append(name)
    steps = f"at least {train.steps} steps and {train.passes} passes" if train.steps else f"{train.epochs} epochs"
    rates, decays = train.search_lr, train.search_weight_decay or (train.weight_decay,)
    kinds = train.search_standardize or (train.standardize,)
    if train.search == "none" or train.selection != "dev-group":
        rates, decays, kinds = (train.lr,), (train.weight_decay,), (train.standardize,)
    tried = [" or ".join(f"{one:g}" for one in values) for values in (rates, decays)]
    inputs = " or ".join(INPUTS[kind] for kind in kinds)
    factor = train.fusion_lr_factor
    matrices = "" if factor == 1 else f" (times {factor:g} for the matrices of a fusion)"
    texts = {
        "trained": f"{steps} of {train.optimizer}, batches of {train.batch_size}, schedule {train.schedule}, loss "
        f"{train.loss}, inputs {inputs}; learning rate {tried[0]}{matrices}, weight decay {tried[1]}; "
        "of several, the lowest cross-entropy on held-out items chooses.",
        "closed form": "ridge classifiers, solved in closed form; no test item chooses their penalty.",
        "fine-tuned": "the encoder or adapters in it are trained as the section finetune of the settings says.",
    }
    return " ".join(f"{listed(named[kind])}: {text}" for kind, text in texts.items() if kind in named)
