"""Typed settings: one section per stage, each field with its default and what it can change.

This module imports neither torch nor any higher-level package of daamctl.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_serializer, model_validator

from daamctl.config.marks import Affects, AppliesTo, DefaultSource

Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
Positive = Annotated[float, Field(gt=0.0)]
Count = Annotated[int, Field(ge=1)]
Side = Annotated[int, Field(ge=1, le=8192)]  # of an image, in pixels; a larger one takes more than 200 MB
Seed = Annotated[int, Field(ge=0, le=2**32 - 1)]  # what every random generator takes
TrainingStage = Literal["train", "finetune"]
Standardization = Literal["auto", "none", "layer", "feature", "whiten"]
EMBEDDINGS = "embeddings"
"""The corpus of embeddings that other software made."""


def _device(name: str) -> str:
    if not re.fullmatch(r"auto|cpu|mps|cuda(:\d+)?", name):
        raise ValueError(f"unknown device '{name}'; allowed: auto, cpu, mps, cuda, cuda:N")
    return name


Device = Annotated[str, AfterValidator(_device)]


class Section(BaseModel):
    """A group of settings. Immutable; unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)


def _folder_name(name: str) -> str:
    """The name of a folder in data/: without this check, `../..` would leave the project."""
    if not re.fullmatch(r"\w[\w.-]*", name):
        raise ValueError(f"a name consists of letters, digits, '.', '_' and '-', got '{name}'")
    return name


class DownloadConfig(Section):
    """Which recordings, texts or images to use, and which of their classes."""

    corpus: Annotated[str, AfterValidator(_folder_name)] = "demo"
    """Reader: a name from the table of corpora (`daamctl ls corpora`)."""
    source: Annotated[str | None, Affects.RUNS] = None
    """Table of items (CSV, Parquet or JSON) or folder; null: where `daamctl download CORPUS --from DIR` stored
    it."""
    text: Annotated[str | None, Affects.NOTHING] = None
    """Template of the columns that the texts of a manifest were made of, e.g. `{title}. {body}`, as `daamctl new`
    writes it: exported models read tables of these columns in the same way."""
    classes: tuple[str, ...] | None = None
    """Class names in label order; null: the corpus's default classes."""
    folds: Literal["corpus", "stratified"] = "corpus"
    """corpus: the corpus's own groups (sessions, speakers, or an official train and test part); stratified: pool the
    items and form `num_groups` new groups with equal class shares, speaker-disjoint if speakers are known."""
    disjoint: Literal["speaker", "sentence", "both"] = "speaker"
    """What training and test items of a fold never share. sentence: form `num_groups` groups of sentences. both: cross
    the groups of speakers with as many groups of sentences; a fold tests on one pair, and trains on the items that have
    neither its speakers nor its sentences."""
    num_groups: Count = 5
    """Number of groups (folds) to form, for manifests without a group column and for `folds: stratified`."""
    check_fingerprint: Annotated[bool, Affects.NOTHING] = True
    """Refuse a corpus whose counts differ from the known ones."""
    max_unreadable_fraction: Annotated[Fraction, Affects.NOTHING] = 0.0
    """Share of recordings, texts or images that may be unreadable (missing, damaged or empty); they are counted and
    named. Above it the stage fails."""


class SegmentConfig(Section):
    """How to cut recordings into clips."""

    max_duration_s: Positive = 5.0
    """Longest clip, in seconds."""
    tail: Literal["keep", "pad", "merge", "drop"] = "merge"
    """Rest piece shorter than `max_duration_s`: keep as is (published, D23), pad with zeros to full length, merge into
    the previous clip, or drop (a recording's only clip is never dropped)."""
    tail_below_s: Positive | None = 0.5
    """Apply `tail` only to rest pieces shorter than this, in seconds; longer ones are kept (D23). null: to all."""
    write_audio: Annotated[bool, Affects.RUNS] = False
    """Also export every clip as 16-bit FLAC at its original sampling rate; false: remove those of an earlier run."""


class ExtractConfig(Section):
    """Which encoder to use, and how to pool its layers into one vector each.

    `normalize` and `max_batch_s` apply to speech, `*_tokens` to text, `pooling` to both, `subwords` to the words of
    sentences, `*_images` and `pool_class_token` to images. For the published features see
    docs/sources.md#feature-extraction.
    """

    encoder: str = "wavlm-micro"
    """Preset (`daamctl ls encoders`), Hugging Face id, or local folder (absolute, or relative to the project)."""
    name: Annotated[str | None, Field(min_length=1, max_length=80), Affects.NOTHING] = None
    """Name of the encoder in the report, in `plan` and in MLflow, e.g. for a local folder; null: that of the preset,
    the id or the folder."""
    revision: str | None = None
    """Branch, tag or commit on the hub; null: the default branch. The resolved commit is recorded."""
    weights: Literal["pretrained", "random"] = "pretrained"
    """random: seeded random weights in the encoder's shape (only for presets; needs no download)."""
    seed: Seed = 0
    """Seed of random weights."""
    layer_00: Annotated[bool, AppliesTo.STORED] = False
    """Also store the embedding output (Hugging Face's hidden state 0)."""
    final_norm: bool = True
    """Take the last hidden state after the encoder's final norm (as in transformers before 5 and in the published
    features, D48) or before it. Encoders without a final norm ignore this."""
    pooling: Annotated[
        Literal["valid-frames", "all-frames", "last-token", "first-token"], AppliesTo.SPEECH, AppliesTo.TEXT
    ] = "valid-frames"
    """valid-frames: mean over the frames of the clip, or the tokens of the text; all-frames: zero-pad to
    `segment.max_duration_s` without attention mask and average over every frame (speech; published, D13); last-token:
    the last token of the text alone, which in a decoder has seen all others (text); first-token: the token alone that
    the tokenizer puts before a text, e.g. [CLS] (text)."""
    normalize: Annotated[Literal["encoder", "always", "never"], AppliesTo.SPEECH] = "encoder"
    """Scale the waveform to zero mean and unit variance: as the encoder's own feature extractor does, always, or never
    (published, D14)."""
    window_s: Annotated[Count | None, Affects.IF_SET, AppliesTo.SPEECH] = None
    """Seconds that Whisper's encoder and others of its form read, of which a clip fills the first; null: all, 30 in the
    published ones. Fewer take less time, and change the vectors (docs/encoders.md#whispers-30-seconds)."""
    precision: Annotated[Literal["auto", "float32", "bfloat16", "float16"], AppliesTo.STORED] = "auto"
    """Arithmetic of the forward pass; auto: bfloat16 or float16 on GPU; on a CPU bfloat16 if a measurement shows that
    it is faster there, else float32. Embeddings that auto made elsewhere in another format are used as they are."""
    storage: Annotated[Literal["float16", "float32"], AppliesTo.STORED] = "float16"
    """Number format of the stored vectors."""
    device: Annotated[Device, Affects.NOTHING] = "auto"
    """auto, cpu, mps, cuda or cuda:N."""
    max_tokens: Annotated[Count, AppliesTo.TEXT, AppliesTo.STORED] = 4096
    """Longest text, in tokens; longer ones are truncated and counted. A lower limit of the encoder itself takes
    precedence."""
    pool_special_tokens: Annotated[bool, AppliesTo.TEXT] = False
    """Average over the tokens that a tokenizer adds, too (begin of sequence; [CLS] and [SEP]) (published: yes, D45);
    with `pooling: last-token`, one at the end may be the last."""
    subwords: Annotated[Literal["first", "mean"], AppliesTo.TOKENS] = "first"
    """Vector of a word in a token corpus: that of its first sub-word, or the mean over its sub-words."""
    pool_class_token: Annotated[bool | Literal["only"], AppliesTo.IMAGES] = False
    """Average over the class and register tokens of a vision encoder, too, besides its patches (D47); only: the class
    token alone."""
    weights_dtype: Annotated[Literal["auto", "float32", "bfloat16", "float16"], Affects.RUNS] = "auto"
    """Number format of the encoder's weights in memory; auto: for text encoders on a GPU that of the forward pass (13
    billion weights take 52 GB in float32), else float32."""
    min_gpu_memory_gb: Annotated[float, Field(ge=0.0), Affects.NOTHING] = 0.0
    """Total memory of all local GPUs below which `dvc repro` skips this pipeline, stating the reason; 0: no
    requirement."""
    pad_frames_to: Annotated[Count | None, Affects.IF_SET, AppliesTo.SPEECH] = None
    """Pad a batch of waveforms to a multiple of this many frames, if the encoder masks padding, e.g. 8: a GPU then
    prepares for fewer shapes. It changes vectors by rounding. null: as long as its longest clip."""
    image_bytes: Annotated[bool, Affects.NOTHING] = False
    """Send images to the device as bytes and normalise them there, if this gives exactly the values of the image
    processor."""
    writers: Annotated[Count, Affects.NOTHING] = 1
    """Threads that compress and write finished shards."""
    max_batch_s: Annotated[Positive, Affects.NOTHING] = 80.0
    """Most audio in one batch, in seconds, padding included."""
    max_batch_tokens: Annotated[Count, Affects.NOTHING] = 16384
    """Most tokens in one batch of texts, padding included."""
    max_batch_images: Annotated[Count, Affects.NOTHING] = 64
    """Most images in one batch."""
    shard_clips: Annotated[Count, Affects.NOTHING] = 512
    """Clips per Parquet file. An interrupted file resumes where it was about half a minute before. Where training reads
    from disk (`train.features: stream`), the files decide the order of clips, and so its results and content keys."""
    max_unreadable_fraction: Annotated[Fraction, Affects.NOTHING] = 0.0
    """Share of clips, texts or images that may be undecodable or without a token; they are counted and named. Above it
    the stage fails."""


class TrainConfig(Section):
    """How to train a method.

    By default, every candidate of the search is trained for a fixed number of steps with a rate that falls to 0, and
    the held-out group chooses one. `RECIPES["published"]` has the published code's values
    (docs/sources.md#training-set-up). Both correct selection (D7), density maps (D19), clipping (D21) and precision
    (D42).
    """

    recipe: Annotated[Literal["searched", "published"], Affects.NOTHING] = "searched"
    """Defaults of `train` and `finetune`. searched: those of params.yaml; published: the fixed recipe of the published
    code. Settings in a pipeline file or in `--set` take precedence, but `--recipe published` counts epochs, whatever
    `steps` the pipeline sets for its own recipe."""
    steps: Count | None = 200
    """Least optimiser steps of every training, candidates and refit alike; its last weights are kept. null: `epochs`
    counts, and `selection` selects an epoch (published)."""
    passes: Annotated[int, Field(ge=0)] = 10
    """Least passes over the training clips: a large corpus takes so many instead of `steps`; 0: always `steps`."""
    epochs: Count = 35
    """Passes over the training clips, if `steps` is null."""
    standardize: Standardization = "auto"
    """Standardise the pooled layers before the fusion, with mean and standard deviation of the fold's training part.
    layer: one mean and deviation per layer; feature: one per layer and feature; whiten: then also shrink the 32 largest
    principal components of every layer, so that training sees the others; auto: whiten if these, or the first quarter
    of a layer with fewer than 128 features, hold over 95 % of its variance, else feature; none: off (published)."""
    search: Literal["none", "grid"] = "grid"
    """How to choose learning rate and weight decay, per method and fold. grid: train every candidate to the end; the
    lowest cross-entropy on the held-out group wins; none: use `lr` and `weight_decay` (published). Without a held-out
    group (`selection`) nothing is searched."""
    search_lr: tuple[Positive, ...] = (0.0015, 0.006)
    """Learning rates to try."""
    fusion_lr_factor: Positive = 0.25
    """Factor on the learning rate of the matrices and kernels in a fusion, e.g. those of attention; the decoder, the
    offsets, widths and biases of a fusion, and all of DWAtt have the full rate (published: 1). With AdamW their weight
    decay is divided by it, so that a step shrinks all matrices alike."""
    search_weight_decay: tuple[Annotated[float, Field(ge=0.0)], ...] = (1.0,)
    """Weight decays to try with every rate; empty: only `weight_decay`. AdamW multiplies a weight by 1 - rate * decay
    in every step, so few training clips need large values."""
    search_standardize: tuple[Standardization, ...] = ()
    """Values of `standardize` to try with every rate; empty: only `standardize`."""
    batch_size: Count = 32
    """Clips per optimiser step (published: 8). With `train.steps`, batches are cut from endless passes: if the training
    part has fewer clips than this, every batch repeats some."""
    loss: Annotated[Literal["focal", "cross-entropy", "square"], AppliesTo.FINETUNING] = "square"
    """square: squared distance from scaled one-hot targets, as in ridge regression; fine-tuning then uses
    cross-entropy, which is also what chooses settings; focal: alpha * (1 - p + 1e-6)^gamma * cross-entropy
    (published)."""
    focal_gamma: Annotated[float, Field(ge=0.0), AppliesTo.FINETUNING] = 2.5
    """Exponent of the focal loss."""
    focal_alpha: Annotated[Positive, AppliesTo.FINETUNING] = 0.25
    """Constant factor of the focal loss (published code: 0.25 for every class, D39)."""
    optimizer: Literal["adamw", "adam"] = "adamw"
    """adamw: decoupled decay (published code); adam: decay added to the gradient (the papers' text; D11)."""
    lr: Positive = 1e-4
    """Initial learning rate without a search."""
    weight_decay: Annotated[float, Field(ge=0.0)] = 0.01
    """Weight decay (0.01 in the published code, 0.1 in the papers' text; D11)."""
    decay: Literal["weights", "all"] = "weights"
    """Tensors with weight decay. weights: the matrices of linear layers and the kernels of convolutions; all: every
    tensor, also biases and the offsets, widths and weights of a fusion, which decay would pull to 0 (published)."""
    schedule: Literal["cosine", "linear", "plateau", "constant"] = "cosine"
    """How the learning rate falls. cosine, linear: to 0 at the end of `steps`, or epoch by epoch to 0 after the last of
    `epochs` (DWAtt); plateau: multiply it by `plateau_factor` after `plateau_patience` epochs without improvement of
    the selection accuracy (of the training loss when selection is `last`); needs `epochs`."""
    plateau_factor: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.1
    """Factor of the plateau schedule."""
    plateau_patience: Annotated[int, Field(ge=0)] = 10
    """Epochs without improvement that the plateau schedule tolerates."""
    grad_clip_norm: Positive | None = None
    """Largest gradient norm (published: 1000); null: no clipping."""
    grad_clip: Literal["unscaled", "scaled"] = "unscaled"
    """Gradients to which `grad_clip_norm` applies. unscaled: the true ones; scaled: those still multiplied by the loss
    scale of float16 (published, D21), which makes the effective threshold smaller by that factor."""
    selection: Annotated[Literal["dev-group", "best-on-test", "last"], AppliesTo.FINETUNING, AppliesTo.PROBES] = (
        "dev-group"
    )
    """What chooses settings, and with `epochs` the epoch to report. dev-group: one training group held out for that
    purpose; best-on-test: the test group itself, as published (optimistic, D7); last: nothing; the final epoch."""
    refit: Annotated[bool, AppliesTo.FINETUNING, AppliesTo.PROBES] = True
    """Train again from the start on the training part plus the held-out group, with the settings chosen on that group
    and as many steps; predictions and weights come from this training. It needs `steps`. Without it, the held-out group
    (a quarter of what five folds leave for training) is not trained on. Without a held-out group (`selection`) there is
    nothing to add. Fine-tuning uses it too."""
    dev_fraction: Annotated[float, Field(gt=0.0, lt=1.0), AppliesTo.FINETUNING, AppliesTo.PROBES] = 0.1
    """Share of the training part to hold out for selection if a corpus has an official train and test part but no dev
    part: seeded, with equal class shares."""
    shots: Annotated[Count | None, Affects.IF_SET, AppliesTo.FINETUNING, AppliesTo.PROBES] = None
    """Few-shot training on words of sentences: draw this many training sentences per entity type, uniformly and without
    replacement, anew for every seed; `dev_fraction` of them are held out for selection. null: all training sentences.
    """
    test_part: Annotated[Literal["dev"] | None, Affects.IF_SET, AppliesTo.FINETUNING, AppliesTo.PROBES] = None
    """dev: test on the dev part of an official split instead of its test part, as some papers report; null: on the test
    part."""
    features: Annotated[Literal["auto", "memory", "stream"], Affects.RUNS] = "auto"
    """Where training reads the embeddings from. memory: hold all of them; stream: read shard by shard, in a seeded
    shuffle of shards and of rows within a pool of shards; auto: memory if they and the copies made of them take at most
    half of what is free. Unless streamed, they are held on the GPU if they fit there."""
    density_maps: Annotated[Literal["final-model", "all-epochs"], Affects.MAPS] = "final-model"
    """Source of the maps for the Importance Factor. final-model: mean over the test clips under the selected weights,
    every clip with equal weight; all-epochs: mean over the test batches of every epoch up to the selected one
    (published, D19)."""
    precision: Literal["auto", "float32", "bfloat16", "float16", "published"] = "auto"
    """Mixed precision of the training step. auto: bfloat16 or float16 on GPU; on a CPU bfloat16 if a method of the
    pipeline has the conv decoder and a measurement shows that its convolutions are faster in it, else float32. The
    first training settles it for all methods and folds of the run, wherever they are trained. published: float16 with
    loss scaling on CUDA, float32 elsewhere (D42). Evaluation is always float32."""
    device: Annotated[Device, Affects.NOTHING] = "auto"
    """auto, cpu, mps, cuda or cuda:N."""
    stack: Annotated[Literal["auto", "always", "never"], Affects.NOTHING] = "auto"
    """Train candidates, folds and seeds of a method side by side, with stacked weights, if `steps` is set; results
    agree with separate training up to rounding. auto: on a CPU, for methods whose steps are small; on a GPU, and with
    always, for every method that allows it; never: one by one."""
    graphs: Annotated[Literal["auto", "never"], Affects.NOTHING] = "never"
    """auto: on an NVIDIA GPU, record the training step as a CUDA graph and replay it. It takes the same steps. Excluded
    are methods with dropout, batch normalisation or a loss of their own, and embeddings that the GPU does not hold.
    never: launch every kernel; the default until a GPU has been measured."""
    seeds: Annotated[tuple[Seed, ...], Affects.RUNS] = (1,)
    """Seeds; every fold is trained once with each (published: only 1, D40)."""

    @model_validator(mode="after")
    def _check(self) -> TrainConfig:
        _check_seeds(self.seeds)
        for name in ("search_lr", "search_weight_decay", "search_standardize"):
            _check_grid(name, getattr(self, name))
        if self.steps is not None:
            for name, value in (("schedule", "plateau"), ("density_maps", "all-epochs"), ("selection", "best-on-test")):
                if getattr(self, name) == value:
                    raise ValueError(f"{name}: {value} needs epochs; set steps to null")
        return self


def _check_grid(name: str, values: Sequence[Any]) -> None:
    least = 1 if name == "search_lr" else 0
    if len(values) < least or len(set(values)) != len(values):
        raise ValueError(f"{name} must be {'one or more ' if least else ''}different values, got {list(values)}")


def _check_seeds(seeds: Sequence[int]) -> None:
    if not seeds or len(set(seeds)) != len(seeds):
        raise ValueError(f"seeds must be one or more different integers, got {list(seeds)}")


class AdapterConfig(Section):
    """How to train one fine-tuning method: `finetune` holds for all of them, `finetune_settings` for one."""

    epochs: Count = 10
    """Passes over the training items (published: 35). Every candidate of the search and the refit (`train.refit`) take
    all of them, so a fold costs (candidates + 1) * epochs passes: 40 by default."""
    batch_size: Count = 8
    """Items per optimiser step; whole sentences where words are tagged."""
    accumulate: Count = 1
    """Forward passes per optimiser step; each takes `batch_size / accumulate` items, rounded up."""
    lr: Positive = 1e-4
    """Initial learning rate; for LoRA+, that of A."""
    weight_decay: Annotated[float, Field(ge=0.0)] = 0.01
    """Decoupled weight decay (AdamW), not on biases, norms and other 1-D tensors."""
    schedule: Literal["linear", "constant"] = "linear"
    """linear: warm up over the first tenth of the steps, then decay to 0; the last weights are kept, as with
    `train.steps`. constant: no schedule; `train.selection` selects the epoch whose weights are kept, as with
    `train.epochs`, and nothing is refitted (published)."""
    search: Literal["none", "grid"] = "grid"
    """How to choose `lr`, per fold. grid: train every candidate to the end; the lowest cross-entropy on the held-out
    group wins; none: use `lr` (published). Without a held-out group (`train.selection`) nothing is searched."""
    search_lr: tuple[Positive, ...] = (3e-5, 1e-4, 3e-4)
    """Learning rates to try."""
    grad_clip_norm: Positive | None = 1.0
    """Largest gradient norm; null: no clipping (published)."""
    gradient_checkpointing: Annotated[bool, Affects.NOTHING] = False
    """Recompute activations in the backward pass: saves memory, takes about a third more time."""
    encoder_dropout: bool = False
    """Enable the encoder's own dropout, layer drop and time masking in training (published, D49), but no layer drop
    under a fusion of layers; off: the encoder computes as in feature extraction."""
    precision: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Mixed precision of training; auto: bfloat16 or float16 on GPU, float32 on CPU, as the first training of the run
    settles it for all. Evaluation has a setting of its own."""
    eval_precision: Annotated[Literal["same"] | None, Affects.IF_SET] = None
    """Precision of evaluation and of the recorded predictions. null: the number format of the encoder's weights
    (`extract.weights_dtype`, where auto means float32), without autocast; same: autocast as in training, which changes
    logits by rounding."""

    @model_validator(mode="after")
    def _check_search(self) -> AdapterConfig:
        _check_grid("search_lr", self.search_lr)
        return self

    @property
    def own(self) -> dict[str, Any]:
        """The settings that were given explicitly, without defaults."""
        return {name: getattr(self, name) for name in type(self).model_fields if name in self.model_fields_set}


class FinetuneConfig(AdapterConfig):
    """How to train an adapter in the encoder, or the whole encoder.

    Loss and selection are those of `train`; so are the seeds, unless set here. So a fine-tuned encoder and a method
    over frozen layers differ in nothing else.
    """

    device: Annotated[Device, Affects.NOTHING] = "auto"
    """auto, cpu, mps, cuda or cuda:N."""
    max_tokens: Count = 512
    """Longest text, in tokens (published: 128); a longer sentence of tagged words is cut between words. A lower limit
    of the encoder takes precedence, which the vectors of prompt-tuning lower."""
    seeds: Annotated[tuple[Seed, ...] | None, Affects.RUNS] = None
    """Seeds of fine-tuning; null: those of `train` (published: only 42 for speech, none otherwise, D40)."""

    @model_validator(mode="after")
    def _check(self) -> FinetuneConfig:
        if self.seeds is not None:
            _check_seeds(self.seeds)
        return self


RECIPES: dict[str, dict[str, dict[str, Any]]] = {
    "published": {
        "train": {
            "steps": None,
            "epochs": 35,
            "standardize": "none",
            "search": "none",
            "fusion_lr_factor": 1.0,
            "batch_size": 8,
            "loss": "focal",
            "focal_gamma": 2.5,
            "focal_alpha": 0.25,
            "optimizer": "adamw",
            "lr": 1e-4,
            "weight_decay": 0.01,
            "decay": "all",
            "schedule": "plateau",
            "plateau_factor": 0.1,
            "plateau_patience": 10,
            "refit": False,
        },
        "finetune": {
            "epochs": 35,
            "search": "none",
            "batch_size": 8,
            "lr": 1e-4,
            "weight_decay": 0.01,
            "schedule": "constant",
            "grad_clip_norm": None,
        },
    }
}
"""Settings that each recipe sets, by section: the fixed recipe of the published code (docs/sources.md#training-set-up),
and the defaults."""
RECIPES["searched"] = {
    section: {name: kind.model_fields[name].default for name in RECIPES["published"][section]}
    for section, kind in (("train", TrainConfig), ("finetune", FinetuneConfig))
}


class EvaluateConfig(Section):
    """What to score."""

    unit: Literal["utterance", "clip"] = "utterance"
    """Unit of the main figure: clip logits averaged per utterance, or each clip by itself (published, D22). Both are
    always written."""
    reference: str | None = None
    """Method that all others are tested against, as one family; null: `none` if listed, else the first of `methods`,
    then of `finetunes`, whatever the results. Declare it before looking at results."""
    margin: Fraction = 0.02
    """Largest allowed shortfall of a trained method against its closed-form counterpart (a ridge probe of the same
    input), as a fraction of accuracy, or of entity F1; a larger one marks it as undertrained, overfitted or
    collapsed."""


class AblateConfig(Section):
    """Retrain on few layers."""

    rank_by: str | None = None
    """Method whose Importance Factor ranks the layers, one of `methods`; null: `daam-v1` if listed, else the first
    listed one with a density, skipping methods that learned nothing. If there is none, only `layers` and `presets`
    are ablated."""
    method: str | None = None
    """Method to retrain on the chosen layers, one of `methods`; null: `none` if listed, else the first listed one
    without a density that supports few layers, skipping methods that learned nothing. `none` (decoder only) measures
    the layers
    themselves: a DAAM over one layer is the identity at start; `mha-published` is what the released ablation trains
    (D6)."""
    k: tuple[Count, ...] = (1, 3)
    """Numbers of highest- and lowest-ranked layers to train on; numbers above half the layers are left out. Empty (and
    no `layers`): no ablation."""
    layers: tuple[tuple[int, ...], ...] = ()
    """Further groups of layers to train on, e.g. [[9], [22, 23, 24]]."""
    presets: tuple[Literal["speech-9-23", "vision-10-12-22-24", "text-19-21-37-39"], ...] = ()
    """The papers' pairs of a high and a low group (docs/sources.md#layer-ablation): layer 9 against 23; 10-12 against
    22-24; 19-21 against 37-39."""


class ImportanceConfig(Section):
    """Importance Factor maps, and an audit of whether they and layer weights reflect the value of the layers."""

    dpi: Annotated[int, Field(ge=20, le=1200)] = 150
    """Resolution of the images, in dots per inch."""
    audit: bool = True
    """Test the layers' scores against linear probes and by replacing layers under the trained models; the latter takes
    about a tenth of a method's training time."""
    audit_clips: Count = 400
    """Most test clips per fold for replacing layers; a seeded choice."""
    audit_orders: Count = 19
    """Random layer orders to compare the score's own order with; at least 19 are needed to reach p = 0.05."""


class ReportConfig(Section):
    """What to show beside the figures."""

    published: str | None = None
    """Table of the papers to show beside the results, e.g. `T2-iemocap`; null: no published counterpart."""
    title: str | None = None
    """Title of the report; null: made from the pipeline's name."""
    interactive: bool = True
    """Embed plotly.js (5 MB) in the page for interactive figures; without it, and on paper, static images are shown."""


class CropConfig(Section):
    """How to cut images into squares for `reconstruct`."""

    size: Annotated[Side, DefaultSource.RECONSTRUCTED] = 256
    """Side of a crop, in pixels."""
    resize: Annotated[Side | None, DefaultSource.RECONSTRUCTED] = 256
    """Shorter side to which an image is scaled before cropping, in pixels; null: images stay as they are."""
    per_image: Annotated[Count, DefaultSource.RECONSTRUCTED] = 1
    """Crops per image, at seeded places; one in the middle if it is 1. Equal places count once."""
    seed: Seed = 0
    """Seed of the places."""


class ReconstructConfig(Section):
    """How to train a VQ-VAE whose blocks differ (docs/sources.md#vq-vae). The defaults are those of the source."""

    widths: Annotated[tuple[Count, ...], Field(min_length=1)] = (128, 256, 512)
    """Channels after every halving of the image; the decoder mirrors them."""
    codes: Annotated[int, Field(ge=2)] = 1024
    """Number of codes."""
    code_size: Count = 256
    """Size of a code."""
    num_heads: Count = 4
    """Heads of a DAAM block; groups of channels of a squeeze-excite block."""
    num_densities: Count = 3
    """Gaussians per head; hidden units of a squeeze-excite block."""
    norm_groups: Annotated[Count, DefaultSource.RECONSTRUCTED] = 32
    """Groups of GroupNorm."""
    code_decay: Annotated[float, Field(gt=0.0, lt=1.0), DefaultSource.RECONSTRUCTED] = 0.99
    """Decay of the moving averages that move the codes."""
    code_restart: Annotated[float, Field(ge=0.0), DefaultSource.RECONSTRUCTED] = 1.0
    """Average number of latents per step below which a code is replaced by a latent of the batch; 0: never."""
    commitment: Annotated[float, Field(ge=0.0), DefaultSource.RECONSTRUCTED] = 0.25
    """Weight of the distance of the latents from their codes in the loss."""
    loss: Annotated[Literal["l2", "l1"], DefaultSource.RECONSTRUCTED] = "l2"
    """Difference of a reconstruction from its original in the loss: mean square or mean absolute value."""
    batch_size: Count = 32
    """Crops per step."""
    epochs: Count = 176
    """Passes over the training crops."""
    lr: Positive = 3e-4
    """Learning rate of Adam; constant."""
    precision: Annotated[Literal["auto", "float32", "bfloat16", "float16"], DefaultSource.RECONSTRUCTED] = "auto"
    """Mixed precision; auto: bfloat16 or float16 on GPU, on a CPU bfloat16 if a measurement shows that it is faster
    there, else float32. Codes, blocks' weights and scores are float32."""
    device: Annotated[Device, Affects.NOTHING] = "auto"
    """auto, cpu, mps, cuda or cuda:N."""
    examples: Count = 8
    """Test crops whose reconstructions are kept for the report, evenly spaced in the table of crops. They are made in
    training, so another number trains all arms again."""
    seeds: Annotated[tuple[Seed, ...], Affects.RUNS] = (1, 2, 3)
    """Every arm is trained once per seed. A seed gives all arms the same start and order of crops."""

    @model_validator(mode="after")
    def _check(self) -> ReconstructConfig:
        _check_seeds(self.seeds)
        for name in ("num_heads", "norm_groups"):
            number = getattr(self, name)
            if wrong := [width for width in self.widths if width % number]:
                raise ValueError(f"{name} ({number}) must divide every width, got {wrong[0]}")
        return self


class ScoreConfig(Section):
    """How to compare the arms of `reconstruct`."""

    reference: str = "identity"
    """Arm that the others are compared with."""


class Config(Section):
    """All settings of one pipeline.

    `download … report` and `crop … score` hold one stage each. `pipelines` lists what a plain `dvc repro` runs.
    """

    pipelines: tuple[str, ...] = ()
    """Pipelines that `dvc repro` runs; read only from params.yaml."""
    methods: tuple[str, ...] = (
        *("none", "weighted-sum", "mha", "daam-v1", "daam-v2"),
        *("ridge-last", "ridge-best-layer", "ridge-mean", "ridge-concat", "ridge-average"),
    )
    """Methods to train, in report order; the suffix `-mlp` selects the MLP decoder, e.g. daam-v1-mlp."""
    finetunes: tuple[str, ...] = ()
    """Fine-tuning methods to train as well (`daamctl ls finetunes`), e.g. lora-r8; the report lists them after the
    methods."""
    reconstructions: tuple[str, ...] = ()
    """Blocks of a VQ-VAE to train, e.g. [identity, daam]. A pipeline that lists some reconstructs images: it has the
    stages `crop`, `reconstruct` and `score`, and classifies nothing."""
    method_settings: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Per method: arguments of its builder that differ from the defaults, e.g. {daam-v1: {num_heads: 4}}; they also
    apply to the method with another decoder."""
    finetune_settings: dict[str, AdapterConfig] = Field(default_factory=dict)
    """Per fine-tuning method: its own settings of `finetune`, e.g. {full-finetune: {lr: 1.0e-5}}; device, seeds and
    longest text are shared by all."""
    download: DownloadConfig = DownloadConfig()
    segment: SegmentConfig = SegmentConfig()
    extract: ExtractConfig = ExtractConfig()
    train: TrainConfig = TrainConfig()
    finetune: FinetuneConfig = FinetuneConfig()
    evaluate: EvaluateConfig = EvaluateConfig()
    ablate: AblateConfig = AblateConfig()
    importance: ImportanceConfig = ImportanceConfig()
    report: ReportConfig = ReportConfig()
    crop: CropConfig = CropConfig()
    reconstruct: ReconstructConfig = ReconstructConfig()
    score: ScoreConfig = ScoreConfig()

    @model_validator(mode="after")
    def _check(self) -> Config:
        if self.extract.pooling == "all-frames" and self.segment.tail == "merge":
            raise ValueError(
                "extract.pooling=all-frames pads clips to segment.max_duration_s, which segment.tail=merge exceeds; "
                "set segment.tail to keep, pad or drop"
            )
        halvings = 2 ** len(self.reconstruct.widths)
        if self.reconstructions and self.crop.size % halvings:
            raise ValueError(
                f"crop.size ({self.crop.size}) must be a multiple of {halvings}: reconstruct.widths halve it "
                f"{len(self.reconstruct.widths)} times"
            )
        if self.reconstructions and self.score.reference not in self.reconstructions:
            raise ValueError(
                f"score.reference: '{self.score.reference}' is not among reconstructions "
                f"({', '.join(self.reconstructions)})"
            )
        return self

    @field_serializer("finetune_settings")
    def _given(self, ways: dict[str, AdapterConfig]) -> dict[str, dict[str, Any]]:
        return {way: settings.own for way, settings in ways.items()}  # defaults would look explicitly given

    @property
    def has_encoder(self) -> bool:
        """Whether an encoder makes embeddings; if they are given, or images are reconstructed, none does."""
        return self.download.corpus != EMBEDDINGS and self.task == "classify"

    @property
    def task(self) -> Literal["classify", "reconstruct"]:
        """What the pipeline does."""
        return "reconstruct" if self.reconstructions else "classify"

    @property
    def trained(self) -> tuple[str, ...]:
        """Everything that is trained, evaluated and reported: methods, then fine-tuning methods."""
        return (*self.methods, *self.finetunes)

    @property
    def reference(self) -> str:
        """Method that all others are tested against: fixed by the settings, so that no result can change it."""
        return self.evaluate.reference or self.default_reference

    @property
    def default_reference(self) -> str:
        """The reference if no setting names one."""
        return "none" if "none" in self.methods else self.trained[0]

    def names_reference(self, reference: str) -> bool:
        """Whether a setting named the reference of an evaluation, which may be older than these settings."""
        return reference == self.evaluate.reference or reference != self.default_reference

    def unlisted(self) -> dict[str, str]:
        """Settings of `ablate` that name a method missing from `methods`, each with advice."""
        named = {"ablate.rank_by": self.ablate.rank_by, "ablate.method": self.ablate.method}
        return {
            where: f"{where}: '{name}' is not among the methods of this pipeline ({', '.join(self.methods)}); add it "
            f"to `methods`, or leave {where} null"
            for where, name in named.items()
            if name is not None and name not in self.methods
        }

    def for_adapter(self, way: str) -> Config:
        """These settings for one fine-tuning method: its own override those of `finetune`."""
        if way not in self.finetune_settings:
            return self
        own = self.finetune_settings[way].own
        return self.model_copy(update={"finetune": self.finetune.model_copy(update=own)})

    def seeds_of(self, stage: TrainingStage) -> tuple[int, ...]:
        """Seeds with which a stage trains every fold."""
        return self.finetune.seeds or self.train.seeds if stage == "finetune" else self.train.seeds

    def section(self, stage: str) -> dict[str, Any]:
        """Settings of one stage, as JSON-able values."""
        section: Section = getattr(self, stage)
        return section.model_dump(mode="json")
