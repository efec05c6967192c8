"""The typed settings: one section per stage, each field with its default and what it can change.

Neither torch nor any other package of daamctl above this layer is imported here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_serializer, model_validator

from daamctl.config.marks import Changes, Of

Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
Positive = Annotated[float, Field(gt=0.0)]
Count = Annotated[int, Field(ge=1)]
TrainingStage = Literal["train", "finetune"]
Device = Annotated[str, Field(pattern=r"^(auto|cpu|mps|cuda(:\d+)?)$")]


class Section(BaseModel):
    """A group of settings; frozen, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)


class DownloadConfig(Section):
    """Which recordings, texts or images, and which of their classes."""

    corpus: str = "demo"
    """Reader: a name from the table of corpora (`daamctl ls corpora`)."""
    source: Annotated[str | None, Changes.RUNS] = None
    """Table of items (CSV, Parquet or JSON lines) or folder; null: where `daamctl download CORPUS --from DIR` put
    it down."""
    classes: tuple[str, ...] | None = None
    """Class names in label order; null: the corpus's default classes."""
    folds: Literal["corpus", "stratified"] = "corpus"
    """corpus: the corpus's own groups (sessions, speakers, or an official train and test part); stratified: pool them
    and form `num_groups` groups anew, of equal class shares, speaker-disjoint where speakers are known."""
    num_groups: Count = 5
    """Number of groups (folds) to form, for manifests without a group column and for `folds: stratified`."""
    check_fingerprint: Annotated[bool, Changes.NOTHING] = True
    """Refuse a corpus whose counts differ from the known ones."""
    max_unreadable_fraction: Annotated[Fraction, Changes.NOTHING] = 0.0
    """Share of recordings, texts or images that may be unreadable (missing, damaged or empty); they are counted and
    named. Above it the stage fails."""


class SegmentConfig(Section):
    """How recordings are cut into clips."""

    max_duration_s: Positive = 5.0
    """Longest clip, in seconds."""
    tail: Literal["keep", "pad", "merge", "drop"] = "keep"
    """Rest piece shorter than `max_duration_s`: keep as is (published, D23), pad with zeros to full length, merge into
    the clip before it, or drop (a recording's only clip is never dropped)."""
    tail_below_s: Positive | None = None
    """`tail` concerns only rest pieces shorter than this, in seconds; longer ones are kept (D23). null: all."""
    write_audio: Annotated[bool, Changes.RUNS] = False
    """Also export every clip as 16-bit FLAC at its original sampling rate."""


class ExtractConfig(Section):
    """Which encoder, and how its layers become one vector each.

    `normalize`, `pooling` and `max_batch_s` concern speech, `*_tokens` text, `*_images` and `pool_class_token` images.
    How the published features were made: docs/sources.md#feature-extraction.
    """

    encoder: str = "wavlm-micro"
    """Preset (`daamctl ls encoders`), Hugging Face id, or local folder."""
    revision: str | None = None
    """Branch, tag or commit on the hub; null: the default branch. The commit found is recorded."""
    weights: Literal["pretrained", "random"] = "pretrained"
    """random: seeded random weights in the encoder's shape (only for presets; needs no download)."""
    seed: int = 0
    """Seed of random weights."""
    layer_00: Annotated[bool, Of.STORED] = False
    """Also store the embedding output (Hugging Face's hidden state 0)."""
    final_norm: bool = True
    """Whether the last hidden state is taken after the encoder's final norm (as in transformers before 5 and in the
    published features, D48) or before it. Encoders without a final norm ignore this."""
    pooling: Annotated[Literal["valid-frames", "all-frames"], Of.SPEECH] = "valid-frames"
    """Mean over the frames of the clip itself, or (published, D13) zero-padded to `segment.max_duration_s` without
    attention mask and averaged over every frame."""
    normalize: Annotated[Literal["encoder", "always", "never"], Of.SPEECH] = "encoder"
    """Zero-mean unit-variance waveform: as the encoder's own feature extractor says, always, or never (published,
    D14)."""
    precision: Annotated[Literal["auto", "float32", "bfloat16", "float16"], Of.STORED] = "auto"
    """Arithmetic of the forward pass; auto: bfloat16 or float16 on GPU, bfloat16 on CPUs that have it, else
    float32."""
    storage: Annotated[Literal["float16", "float32"], Of.STORED] = "float16"
    """Number format of the stored vectors."""
    device: Annotated[Device, Changes.NOTHING] = "auto"
    """auto, cpu, mps, cuda or cuda:N."""
    max_tokens: Annotated[Count, Of.TEXT, Of.STORED] = 4096
    """Longest text, in tokens; longer ones are cut there and counted (the encoder's own limit, if lower, holds)."""
    pool_special_tokens: Annotated[bool, Of.TEXT] = False
    """Whether the tokens that a tokenizer adds (begin of sequence; [CLS] and [SEP]) count in the mean (published: yes,
    D45)."""
    pool_class_token: Annotated[bool, Of.IMAGES] = False
    """Whether the class and register tokens of a vision encoder count in the mean over patches (D47)."""
    weights_dtype: Annotated[Literal["auto", "float32", "bfloat16", "float16"], Changes.RUNS] = "auto"
    """Number format in which the encoder's weights are held; auto: for text encoders on a GPU that of the forward pass
    (13 billion weights are 52 GB in float32), else float32."""
    min_gpu_memory_gb: Annotated[float, Field(ge=0.0), Changes.NOTHING] = 0.0
    """GPU memory over all local GPUs below which `dvc repro` leaves this pipeline out, with that reason; 0: any machine
    will do."""
    max_batch_s: Annotated[Positive, Changes.NOTHING] = 80.0
    """Most audio in one batch, in seconds, padding included."""
    max_batch_tokens: Annotated[Count, Changes.NOTHING] = 16384
    """Most tokens in one batch of texts, padding included."""
    max_batch_images: Annotated[Count, Changes.NOTHING] = 64
    """Most images in one batch."""
    shard_clips: Annotated[Count, Changes.NOTHING] = 512
    """Clips per Parquet file: the most that is redone after an interruption."""
    max_unreadable_fraction: Annotated[Fraction, Changes.NOTHING] = 0.0
    """Share of clips, texts or images that may turn out undecodable, or without a token; they are counted and named.
    Above it the stage fails."""


class TrainConfig(Section):
    """How a method is trained.

    The defaults search the learning rate on the held-out group and train until that group no longer improves.
    `RECIPES["published"]` has the published code's values (docs/sources.md#training-set-up). Selection (D7), density
    maps (D19), clipping (D21) and precision (D42) are corrected in both.
    """

    recipe: Annotated[Literal["searched", "published"], Changes.NOTHING] = "searched"
    """Which defaults `train` and `finetune` have. searched: those of params.yaml; published: the one fixed recipe of
    the published code. What a pipeline or `--set` says itself stays."""
    epochs: Count = 100
    """Most passes over the training clips."""
    patience: Count | None = 10
    """Epochs in a row without a better held-out accuracy, or the same one at a loss lower by 0.01 nats, after
    which training stops; null: all `epochs` are trained (published). Without a held-out group (`selection`) they
    always are."""
    standardize: Literal["none", "layer", "feature"] = "feature"
    """What the pooled layers are standardised by before the fusion, with the mean and standard deviation of the fold's
    training part. layer: one mean and deviation per layer; feature: one per layer and feature; none (published)."""
    search: Literal["none", "halving", "full"] = "halving"
    """How learning rate and weight decay are chosen, per method and fold, by the cross-entropy on the held-out group.
    halving: every candidate is trained for `search_epochs`, the better half of them for twice as many, and so on until
    one is left, which is trained to its end; full: every candidate is trained to its end; none: `lr` and
    `weight_decay` are used as they are (published). Without a held-out group (`selection`) nothing is searched."""
    search_lr: tuple[Positive, ...] = (1e-3, 3e-3)
    """Learning rates to try. Where the best is the lowest or the highest of them, one more is tried beyond it, at the
    same ratio as between the outermost two, at most `search_widen` times."""
    search_weight_decay: tuple[Annotated[float, Field(ge=0.0)], ...] = (0.01, 10.0)
    """Weight decays to try with every rate; empty: `weight_decay` alone. AdamW multiplies a weight by 1 - rate * decay
    in every step: few training clips need large values."""
    search_standardize: tuple[Literal["none", "layer", "feature"], ...] = ()
    """Values of `standardize` to try with every rate; empty: `standardize` alone."""
    search_epochs: Count = 5
    """Epochs that every candidate is trained for under `search: halving`; the better half for twice as many."""
    search_widen: Annotated[int, Field(ge=0)] = 2
    """How many rates are tried beyond the grid at most."""
    batch_size: Count = 32
    """Clips per optimiser step (published: 8)."""
    loss: Annotated[Literal["focal", "cross-entropy"], Of.FINETUNING] = "cross-entropy"
    """focal: alpha * (1 - p + 1e-6)^gamma * cross-entropy (published)."""
    focal_gamma: Annotated[float, Field(ge=0.0), Of.FINETUNING] = 2.5
    """Exponent of the focal loss."""
    focal_alpha: Annotated[Positive, Of.FINETUNING] = 0.25
    """Constant factor of the focal loss (published code: 0.25 for every class, D39)."""
    optimizer: Literal["adamw", "adam"] = "adamw"
    """adamw: decoupled decay (published code); adam: decay added to the gradient (the papers' text; D11)."""
    lr: Positive = 1e-4
    """Initial learning rate where none is searched."""
    weight_decay: Annotated[float, Field(ge=0.0)] = 0.01
    """Weight decay (0.01 in the published code, 0.1 in the papers' text; D11)."""
    decay: Literal["weights", "all"] = "weights"
    """What is decayed. weights: the matrices of linear layers and the kernels of convolutions; all: every tensor, so
    also biases and the offsets, widths and weights of a fusion, which decay would pull to 0 (published)."""
    schedule: Literal["plateau", "constant"] = "plateau"
    """plateau: multiply the rate by `plateau_factor` after `plateau_patience` epochs without improvement of the
    selection accuracy (of the training loss when selection is `last`)."""
    plateau_factor: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.1
    """Factor of the plateau schedule."""
    plateau_patience: Annotated[int, Field(ge=0)] = 10
    """Epochs without improvement that the plateau schedule tolerates."""
    grad_clip_norm: Positive | None = None
    """Largest gradient norm (published: 1000); null: no clipping."""
    grad_clip: Literal["unscaled", "scaled"] = "unscaled"
    """Which gradients `grad_clip_norm` measures: unscaled: the true ones; scaled: those still multiplied by the loss
    scale of float16 (published, D21), which makes the true threshold smaller by that factor."""
    selection: Annotated[Literal["dev-group", "best-on-test", "last"], Of.FINETUNING, Of.PROBES] = "dev-group"
    """Which epoch is reported. dev-group: the best on one training group held out for that; best-on-test: the best on
    the test group itself, as published (optimistic, D7); last: the final epoch."""
    refit: Annotated[bool, Of.FINETUNING, Of.PROBES] = True
    """Train once more, from the start, on the training part and the held-out group together, with the settings, the
    number of epochs and the rates that the held-out group chose; predictions and weights are those of this training.
    Without it the held-out group, a quarter of what five folds leave for training, teaches nothing. Without a held-out
    group (`selection`) there is nothing to add. Fine-tuning goes by it too."""
    dev_fraction: Annotated[float, Field(gt=0.0, lt=1.0), Of.FINETUNING, Of.PROBES] = 0.1
    """Share of the training part held out for selection where a corpus has an official train and test part and no dev
    part: seeded, of equal class shares."""
    features: Annotated[Literal["auto", "memory", "stream"], Changes.RUNS] = "auto"
    """Where training takes the embeddings from. memory: all of them held; stream: read shard by shard, in a seeded
    shuffle of shards and of rows among the shards at hand; auto: memory when they and the copies made of them
    take at most half of what is free. What is not streamed is held on the GPU where it fits there."""
    density_maps: Annotated[Literal["final-model", "all-epochs"], Changes.MAPS] = "final-model"
    """Which maps the Importance Factor is made from. final-model: the mean over test clips under the selected weights,
    every clip counting alike; all-epochs: the mean over the test batches of every epoch up to the selected one
    (published, D19)."""
    precision: Literal["auto", "float32", "bfloat16", "float16", "published"] = "auto"
    """Mixed precision of the training step; auto: bfloat16 or float16 on GPU; on a CPU bfloat16 where it has that
    natively and the model has 2-D convolutions, as the conv decoder does, else float32; published: float16 with loss
    scaling on CUDA, float32 elsewhere (D42). Evaluation is always float32."""
    device: Annotated[Device, Changes.NOTHING] = "auto"
    """auto, cpu, mps, cuda or cuda:N."""
    together: Annotated[Literal["auto", "always", "never"], Changes.NOTHING] = "auto"
    """auto: on a CPU, folds and seeds of a method whose steps are so small that starting them is what takes the time
    are trained in one program, with the results of one by one up to rounding; always: wherever a method allows it, on a
    GPU too; never: one by one."""
    seeds: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Changes.RUNS] = (1,)
    """Seeds; every fold is trained once with each (published: 1 alone, D40)."""

    @model_validator(mode="after")
    def _check(self) -> TrainConfig:
        _check_seeds(self.seeds)
        for name in ("search_lr", "search_weight_decay", "search_standardize"):
            _check_grid(name, getattr(self, name))
        return self


def _check_grid(name: str, values: Sequence[Any]) -> None:
    least = 1 if name == "search_lr" else 0
    if len(values) < least or len(set(values)) != len(values):
        raise ValueError(f"{name} must be {'one or more ' if least else ''}different values, met {list(values)}")


def _check_seeds(seeds: Sequence[int]) -> None:
    if not seeds or len(set(seeds)) != len(seeds):
        raise ValueError(f"seeds must be one or more different integers, met {list(seeds)}")


class AdapterConfig(Section):
    """How one way of fine-tuning is trained: what `finetune` says for all of them, and `finetune_settings` for one."""

    epochs: Count = 35
    """Passes over the training items."""
    batch_size: Count = 8
    """Items per optimiser step."""
    accumulate: Count = 1
    """Forward passes that one optimiser step is split into; each takes `batch_size / accumulate` items, rounded up."""
    lr: Positive = 1e-4
    """Initial learning rate; of LoRA+ that of A."""
    weight_decay: Annotated[float, Field(ge=0.0)] = 0.01
    """Decoupled weight decay (AdamW), not on biases, norms and other 1-D tensors."""
    schedule: Literal["linear", "constant"] = "linear"
    """linear: warm up over the first tenth of the steps, then fall to 0; constant: none (published)."""
    search: Literal["none", "halving", "full"] = "halving"
    """How `lr` is chosen, per fold, by the cross-entropy on the held-out group; see `train.search` (published:
    none)."""
    search_lr: tuple[Positive, ...] = (3e-5, 1e-4, 3e-4)
    """Learning rates to try; see `train.search_lr`."""
    search_epochs: Count = 2
    """Epochs that every candidate is trained for under `search: halving`."""
    search_widen: Annotated[int, Field(ge=0)] = 2
    """How many rates are tried beyond the grid at most."""
    patience: Count | None = 5
    """Epochs without improvement after which training stops: see `train.patience` (published: null)."""
    grad_clip_norm: Positive | None = 1.0
    """Largest gradient norm; null: no clipping (published)."""
    gradient_checkpointing: Annotated[bool, Changes.NOTHING] = False
    """Recompute activations in the backward pass: less memory for about a third more time."""
    encoder_dropout: bool = False
    """Train with the encoder's own dropout, layer drop and time masking on (published, D49); off, the encoder computes
    as in feature extraction."""
    precision: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Mixed precision of training; auto: bfloat16 or float16 on GPU, float32 on CPU. Evaluation is in the format that
    the encoder is held in: `extract.weights_dtype`, where that is auto float32."""

    @property
    def own(self) -> dict[str, Any]:
        """The settings that were given, defaults left out."""
        return {name: getattr(self, name) for name in type(self).model_fields if name in self.model_fields_set}


class FinetuneConfig(AdapterConfig):
    """How an adapter in the encoder, or the whole encoder, is trained.

    Loss and selection are those of `train`, and so are the seeds unless it has its own, so that a fine-tuned encoder
    and a method over frozen layers differ in nothing else.
    """

    device: Annotated[Device, Changes.NOTHING] = "auto"
    """auto, cpu, mps, cuda or cuda:N."""
    max_tokens: Count = 512
    """Longest text, in tokens (published: 128)."""
    seeds: Annotated[tuple[Annotated[int, Field(ge=0)], ...] | None, Changes.RUNS] = None
    """Seeds of fine-tuning; null: those of `train` (published: 42 alone for speech, none otherwise, D40)."""

    @model_validator(mode="after")
    def _check(self) -> FinetuneConfig:
        if self.seeds is not None:
            _check_seeds(self.seeds)
        return self


RECIPES: dict[str, dict[str, dict[str, Any]]] = {
    "published": {
        "train": {
            "epochs": 35,
            "patience": None,
            "standardize": "none",
            "search": "none",
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
            "patience": None,
            "search": "none",
            "batch_size": 8,
            "lr": 1e-4,
            "weight_decay": 0.01,
            "schedule": "constant",
            "grad_clip_norm": None,
        },
    }
}
"""Settings that a recipe stands for, by section: the fixed one of the published code
(docs/sources.md#training-set-up), and the defaults."""
RECIPES["searched"] = {
    section: {name: kind.model_fields[name].default for name in RECIPES["published"][section]}
    for section, kind in (("train", TrainConfig), ("finetune", FinetuneConfig))
}


class EvaluateConfig(Section):
    """What is scored."""

    unit: Literal["utterance", "clip"] = "utterance"
    """The main figure: clip logits averaged per utterance, or every clip by itself (published, D22). Both are always
    written."""
    reference: str | None = None
    """Method that every other is tested against, as one family; null: `none` where it is trained, else the first
    method, passing over those that are undertrained or learned nothing. Declare it before looking."""
    margin: Fraction = 0.02
    """How far a trained method may stay below its closed-form counterpart (a ridge probe of the same input), as a
    fraction of accuracy; one that stays further below counts as undertrained."""


class AblateConfig(Section):
    """Retraining on few layers."""

    rank_by: str | None = None
    """Method whose Importance Factor ranks the layers, one of `methods`; null: `daam-v1` where it is listed, else the
    first listed one with a density, passing over those that learned nothing. Without any, only `layers` and `presets`
    are ablated."""
    method: str | None = None
    """Method retrained on the chosen layers, one of `methods`; null: `none` where it is listed, else the first listed
    one without a density that fits few layers, passing over those that learned nothing. `none` (decoder only) measures
    the layers themselves: a DAAM over one layer is the identity at start; `mha-published` is what the released ablation
    trains (D6)."""
    k: tuple[Count, ...] = (1, 3)
    """Numbers of highest and lowest layers to train on; none (and no `layers`) switches the ablation off."""
    layers: tuple[tuple[int, ...], ...] = ()
    """Further layer groups to train on, e.g. [[9], [22, 23, 24]]."""
    presets: tuple[Literal["speech-9-23", "vision-10-12-22-24", "text-19-21-37-39"], ...] = ()
    """The papers' pairs of a high and a low group (docs/sources.md#layer-ablation): layer 9 against 23; 10-12 against
    22-24; 19-21 against 37-39."""


class ImportanceConfig(Section):
    """Importance Factor maps, and whether they and layer weights say what the layers are worth."""

    dpi: Count = 150
    """Resolution of the pictures, in dots per inch."""
    audit: bool = True
    """Test the scores of the layers against linear probes, and by replacing layers under the trained models; the latter
    takes about a tenth of the time of a method's training."""
    audit_clips: Count = 400
    """Most test clips per fold on which layers are replaced; a seeded choice."""
    audit_orders: Count = 19
    """Random orders of the layers beside the score's own; 19 are the fewest with which p can reach 0.05."""


class ReportConfig(Section):
    """What stands beside our figures."""

    published: str | None = None
    """Table of the papers to set beside our figures, e.g. `T2-iemocap`; null: no published counterpart."""
    title: str | None = None
    """Title of the report; null: made from the pipeline's name."""
    interactive: bool = True
    """Embed plotly.js (5 MB) in the page, so that figures can be explored; without it, and on paper, pictures stand in
    their place."""


class Config(Section):
    """Every setting of one pipeline.

    `download … report` hold one stage each. `pipelines` is what a plain `dvc repro` makes.
    """

    pipelines: tuple[str, ...] = ()
    """Pipelines that `dvc repro` makes; only read from params.yaml."""
    methods: tuple[str, ...] = (
        *("none", "weighted-sum", "mha", "daam-v1", "daam-v2"),
        *("ridge-last", "ridge-best-layer", "ridge-mean", "ridge-concat", "ridge-average"),
    )
    """Methods to train, in report order; `-mlp` behind a name gives it the MLP decoder, e.g. daam-v1-mlp."""
    finetunes: tuple[str, ...] = ()
    """Ways of fine-tuning to train too (`daamctl ls finetunes`), e.g. lora-r8; they follow in the report."""
    method_settings: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Per method: arguments of its builder other than the defaults, e.g. {daam-v1: {num_heads: 4}}; they also hold for
    the method with another decoder."""
    finetune_settings: dict[str, AdapterConfig] = Field(default_factory=dict)
    """Per way of fine-tuning: settings of `finetune` that are its own, e.g. {full-finetune: {lr: 1.0e-5}}; device,
    seeds and longest text are the same for all."""
    download: DownloadConfig = DownloadConfig()
    segment: SegmentConfig = SegmentConfig()
    extract: ExtractConfig = ExtractConfig()
    train: TrainConfig = TrainConfig()
    finetune: FinetuneConfig = FinetuneConfig()
    evaluate: EvaluateConfig = EvaluateConfig()
    ablate: AblateConfig = AblateConfig()
    importance: ImportanceConfig = ImportanceConfig()
    report: ReportConfig = ReportConfig()

    @model_validator(mode="after")
    def _check(self) -> Config:
        if self.extract.pooling == "all-frames" and self.segment.tail == "merge":
            raise ValueError(
                "extract.pooling=all-frames pads clips to segment.max_duration_s, which segment.tail=merge exceeds"
            )
        return self

    @field_serializer("finetune_settings")
    def _given(self, ways: dict[str, AdapterConfig]) -> dict[str, dict[str, Any]]:
        return {way: settings.own for way, settings in ways.items()}  # with defaults they would read as given

    @property
    def trained(self) -> tuple[str, ...]:
        """Everything that is trained, evaluated and reported: methods, then ways of fine-tuning."""
        return (*self.methods, *self.finetunes)

    def unlisted(self) -> dict[str, str]:
        """Settings of `ablate` that name a method which `methods` does not list, each with a line on what to do."""
        named = {"ablate.rank_by": self.ablate.rank_by, "ablate.method": self.ablate.method}
        return {
            where: f"{where}: '{name}' is not among the methods of this pipeline ({', '.join(self.methods)}); add it "
            f"to `methods`, or leave {where} null"
            for where, name in named.items()
            if name is not None and name not in self.methods
        }

    def for_adapter(self, way: str) -> Config:
        """These settings as one way of fine-tuning has them: its own over those of `finetune`."""
        if way not in self.finetune_settings:
            return self
        own = self.finetune_settings[way].own
        return self.model_copy(update={"finetune": self.finetune.model_copy(update=own)})

    def seeds_of(self, stage: TrainingStage) -> tuple[int, ...]:
        """The seeds that a stage trains every fold with."""
        return self.finetune.seeds or self.train.seeds if stage == "finetune" else self.train.seeds

    def section(self, stage: str) -> dict[str, Any]:
        """The JSON-able settings of one stage."""
        section: Section = getattr(self, stage)
        return section.model_dump(mode="json")
