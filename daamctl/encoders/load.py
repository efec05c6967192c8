"""Open an encoder: a preset, a Hugging Face id or a local folder. Runs no remote code and unpickles no objects."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from daamctl.artifacts.utterances import Modality, encoder_input
from daamctl.compute.devices import choose_gpu_kernels, free_on, is_out_of_memory, numbered, seed_torch
from daamctl.compute.threads import one_thread
from daamctl.config import ExtractConfig
from daamctl.encoders import ENCODERS, FAMILIES, SPEECH_TYPES, presets_of
from daamctl.encoders.base import Encoder, weights_hash
from daamctl.encoders.cut import cut_config, cut_model, cut_of
from daamctl.encoders.encoder_size import (
    check_name,
    folder_called,
    num_parameters,
    part_of,
    read_configuration,
    use_cache_without_hub,
    weights_format,
)
from daamctl.encoders.presets import Preset
from daamctl.encoders.text import BYTE_TOKENS
from daamctl.errors import EncoderError, first_few

READS = {"speech": "speech", "text": "text", "image": "images", "tokens": "words"}
INPUTS: dict[str, Modality] = {
    "input_ids": "text", "pixel_values": "image", "input_values": "speech", "input_features": "speech",
}  # fmt: skip
"""Main input of a model class -> modality; speech models of `SPEECH_TYPES` may have another."""
MASK_VECTOR = "masked_spec_embed"
"""Embedding that replaces masked frames in the pretraining of speech models; the only weight a checkpoint may lack."""
PREFIXES = {
    "text": r"^(model\.)?(language_model|text_model)\.(model\.)?"
    r"(?=(layers|embed_tokens|norm|embeddings|encoder|decoder|pooler)\.)",
    "image": r"^(model\.)?(vision_tower|vision_model)\.(vision_model\.)?",
    "speech": r"^(model\.)?(audio_tower|audio_model|encoder)\.",
}
"""What names of weights of a larger model, e.g. Gemma 3, have before those of its part for a modality."""
READERS = {
    "instantiate the backend tokenizer": ("tokenizer", "AutoTokenizer"),
    "Can't load image processor": ("image processor", "AutoImageProcessor"),
    "Can't load feature extractor": ("feature extractor", "AutoFeatureExtractor"),
}
"""Words of an error of transformers -> what a folder lacks, and what loads that."""
HEADROOM = 2_000_000_000
"""Memory to leave free for batches on a GPU when placing weights, in bytes."""


@dataclass(frozen=True)
class OpenedEncoder:
    """An open encoder and the facts to record about it.

    Args:
        facts: id, revision, weights hash, library version and the options in force.
    """

    encoder: Encoder
    facts: dict[str, Any]


@dataclass(frozen=True)
class _Loaded:
    """A model on its device, with its input processor (feature extractor, tokenizer or image processor).

    The pooling layer is kept apart, because no transformer layer needs it.
    """

    model: Any
    reader: Any
    source: str
    revision: str | None
    pooler: Any = None


def open_encoder(
    config: ExtractConfig,
    *,
    modality: Modality,
    max_duration_s: float,
    device: str,
    precision: str,
    keep_pooler: bool = False,
    highest_layer: int | None = None,
    weights_sha256: str | None = None,
) -> OpenedEncoder:
    """Open the encoder named in the settings.

    Args:
        max_duration_s: longest clip, in seconds; the published pooling pads to it.
        keep_pooler: keep the pooling layer of a text or vision checkpoint, if it has one, as `pooler` in the model. The
            hash of the weights excludes it; its own hash is the fact `pooler_sha256`. A cut encoder has none.
        highest_layer: cut the encoder after this layer, from 1: those above are neither loaded nor run, and the vectors
            of the layers below are those of the whole encoder. The fact `cut` tells; the hash of the weights covers
            what is loaded. None: all layers.
        weights_sha256: hash of the weights, if known; None: compute it.

    Raises:
        EncoderError: it is unknown, not available offline, reads another modality, is too large for this machine, has
            no layers that can be pooled one by one, lacks the highest layer, or cannot be built with random weights.
    """
    import huggingface_hub
    import transformers

    if device.startswith("cuda"):
        choose_gpu_kernels()
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    huggingface_hub.utils.logging.set_verbosity_error()
    name = config.encoder
    preset = ENCODERS.get(name)
    if preset is not None and preset.modality != encoder_input(modality):
        raise _reads_something_else(name, preset.modality, modality)
    dtype: torch.dtype = getattr(torch, weights_format(config, modality, device, precision))
    if precision == "float32" and dtype != torch.float32:
        precision = str(dtype).removeprefix("torch.")  # the arithmetic cannot be more precise than the weights
    if config.weights == "random" or (preset is not None and preset.source is None):
        loaded = _random(name, preset, config.seed, dtype, device, highest_layer)
    else:
        check_name(name)
        folder = folder_called(name)
        source = str(folder) if preset is None and folder.is_dir() else (preset and preset.source) or name
        loaded = _pretrained(source, config.revision, modality, dtype, device, keep_pooler, highest_layer)
    model = loaded.model.eval().requires_grad_(False)
    encoder: Encoder = _family(model.config, modality)(
        name,
        model,
        loaded.reader,
        device=str(next(model.parameters()).device),  # with several GPUs, inputs go to the first
        precision=precision,
        options=config,
        pad_to_s=max_duration_s,
    )
    facts = {
        "name": name,
        "modality": modality,
        "source": loaded.source,
        "revision": loaded.revision,
        "weights_sha256": weights_sha256 or weights_hash(model),
        "weights_dtype": str(dtype).removeprefix("torch."),
        "model_type": model.config.model_type,
        "transformers": transformers.__version__,
        "num_layers": max(encoder.layers),
        "final_norm": config.final_norm if encoder.has_final_norm else None,
        "precision": precision,
        "storage": config.storage,
        **encoder.facts(),
    }
    if min(encoder.widths) < encoder.embed_dim:
        facts["widths"] = list(encoder.widths)
    if hasattr(encoder.model, "set_attention_type"):  # BigBird's, which the short texts of the trial have made full
        facts["attention_type"] = encoder.model.attention_type
    if encoder.was_padded:
        facts["equal_lengths"] = True
    if (cut := cut_of(model.config)) is not None:
        facts["cut"] = {"highest_layer": cut.highest_layer, "of_layers": cut.of_layers}
    if loaded.pooler is not None:
        model.pooler = loaded.pooler.eval().requires_grad_(False)
        facts["pooler_sha256"] = weights_hash(loaded.pooler)
    return OpenedEncoder(encoder, facts)


def _family(config: Any, modality: Modality) -> type[Encoder]:
    """Class of an encoder by its Hugging Face configuration; speech models differ by type, all others do not."""
    own = modality == "speech" and config.model_type in SPEECH_TYPES
    family: type[Encoder] = FAMILIES.load(config.model_type if own else modality)
    return family


def _random(
    name: str, preset: Preset | None, seed: int, dtype: torch.dtype, device: str, highest_layer: int | None
) -> _Loaded:
    from transformers import AutoConfig, AutoModel

    if preset is None:
        raise EncoderError(f"extract.weights=random works with presets only, got '{name}'", fix="daamctl ls encoders")
    tokens = BYTE_TOKENS if preset.modality == "text" else {}
    config = AutoConfig.for_model(preset.model_type, **preset.shape, **tokens)
    if preset.modality != "speech":
        _plan_memory(name, config, dtype, device, spread=False)
    state = torch.get_rng_state()
    seed_torch(seed)
    try:
        with one_thread():  # so that sums over random numbers are the same whatever the number of threads
            model = AutoModel.from_config(config, **_without_head(class_of(config)))
    finally:
        torch.set_rng_state(state)
    if preset.embedding_std is not None:
        with torch.no_grad():
            model.get_input_embeddings().weight.mul_(preset.embedding_std / config.initializer_range)
    reader = _family(config, preset.modality).random_reader(preset, config)
    if highest_layer is not None:
        model = cut_model(model, highest_layer, f"encoder '{name}'", **_without_head(class_of(config)))
    return _Loaded(model.to(device, dtype), reader, f"{name} (random weights, seed {seed})", None)


def _pretrained(
    source: str,
    revision: str | None,
    modality: Modality,
    dtype: torch.dtype,
    device: str,
    keep_pooler: bool,
    highest_layer: int | None = None,
) -> _Loaded:
    """Load the config and check that the encoder fits before loading the weights and the input processor."""
    from huggingface_hub import hf_hub_download

    options: dict[str, Any] = {} if revision is None else {"revision": revision}
    if not Path(source).is_dir():
        use_cache_without_hub()
    try:
        config = read_configuration(source, **options)
        options["trust_remote_code"] = False
        own = part_of(config, modality)
        _check_reads(source, own, modality)
        family = _family(own, modality)
        reader = family.load_reader(source, **options)
        # Load straight to a GPU: going through main memory would take as much of it, and one more copy.
        where: dict[str, Any] = {"config": own}
        if device.startswith("cuda"):
            where["device_map"] = {"": numbered(device)}
        if own is not config and (prefix := PREFIXES.get(encoder_input(modality))):
            where["key_mapping"] = {prefix: ""}
        if highest_layer is not None:
            where["config"] = own = cut_config(own, highest_layer, f"encoder '{source}'")
        headless = _without_head(class_of(own)) if modality != "speech" else {}
        keep_pooler = keep_pooler and bool(headless) and cut_of(own) is None
        if not keep_pooler:
            where |= headless
        if modality != "speech":
            where |= _plan_memory(source, own, dtype, device)
        # transformers reads safetensors, or .bin files with weights_only=True, never an arbitrary pickle.
        model, loading = family.load_model(source, dtype=dtype, output_loading_info=True, **where, **options)
    except EncoderError:
        raise
    except Exception as error:  # a library may refuse a file in any way
        if is_out_of_memory(error):
            raise EncoderError(
                f"the weights of encoder '{source}' do not fit in the free memory of {device}",
                fix="use a smaller encoder, --device cpu, or end what else runs there",
            ) from error
        raise explained(source, revision, error) from error
    if "device_map" not in where:
        model.to(device)
    whole = model
    if own.model_type not in SPEECH_TYPES and hasattr(whole, "encoder") and hasattr(whole, "decoder"):
        model = whole.get_encoder()
        model.config = getattr(model, "config", whole.config)
    pooler = _take_pooler(model, loading["missing_keys"]) if keep_pooler else None
    # transformers initialises weights that the checkpoint lacks at random; the model may be a part of the whole
    used = {id(value) for value in model.state_dict(keep_vars=True).values()}
    present = {name for name, value in whole.state_dict(keep_vars=True).items() if id(value) in used}
    masks = {name for name in loading["missing_keys"] if name.rpartition(".")[2] == MASK_VECTOR}
    missing = sorted(present & set(loading["missing_keys"]) - masks)
    if missing:
        raise EncoderError(f"encoder '{source}' lacks weights that its config.json asks for: {first_few(missing, 3)}")
    if masks and (mask_vector := getattr(model, MASK_VECTOR, None)) is not None:
        mask_vector.data.zero_()  # transformers draws it at random every time, which would change the hash
    if Path(source).is_dir():
        return _Loaded(model, reader, Path(source).name, None, pooler)  # identified by the hash, not by this path
    snapshot = Path(hf_hub_download(source, "config.json", revision=revision)).parent  # named after its commit
    return _Loaded(model, reader, source, snapshot.name, pooler)


def _take_pooler(model: Any, missing: Iterable[str]) -> Any:
    """Detach and return a model's pooling layer; None if there is none or the checkpoint lacks its weights."""
    pooler = getattr(model, "pooler", None)
    if pooler is None:
        return None
    model.pooler = None
    return None if any(name.startswith("pooler.") for name in missing) else pooler


def class_of(config: Any) -> Any:
    """Base model class for a config, or None. If there are several, the first: they share the layers."""
    from transformers import MODEL_MAPPING

    found = MODEL_MAPPING.get(type(config), None)
    return found[0] if isinstance(found, (list, tuple)) else found


def _without_head(model_class: Any) -> dict[str, Any]:
    """Arguments that omit the pooling layer: no other layer needs it, and many checkpoints lack its weights."""
    import inspect

    parameters = inspect.signature(model_class.__init__).parameters
    return {"add_pooling_layer": False} if "add_pooling_layer" in parameters else {}


def _check_reads(source: str, config: Any, modality: Modality) -> None:
    """Refuse an encoder of another modality, or of an unknown model type, before loading its weights."""
    kind, reads = config.model_type, modality_read_by(config)
    if reads == encoder_input(modality):
        return
    if reads in READS:
        raise _reads_something_else(source, reads, modality)
    raise EncoderError(
        f"encoder '{source}' is of type '{kind}', which is not a speech, text or vision encoder known here",
        fix="any model works that reads waveforms, mel features, tokens or pixels and whose hidden states are returned",
    )


def modality_read_by(config: Any) -> Modality | None:
    """What models of a configuration read; None: nothing that is known here."""
    main_input = getattr(class_of(config), "main_input_name", "")
    return "speech" if config.model_type in SPEECH_TYPES else INPUTS.get(main_input)


def _reads_something_else(name: str, reads: str, modality: Modality) -> EncoderError:
    return EncoderError(
        f"encoder '{name}' reads {READS[reads]}, the corpus holds {READS[modality]}",
        fix=f"presets that fit: {', '.join(presets_of(encoder_input(modality)))}; daamctl ls encoders",
    )


def _plan_memory(source: str, config: Any, dtype: torch.dtype, device: str, *, spread: bool = True) -> dict[str, Any]:
    """Loading options that place the weights: empty if they fit the device, else a map over all local GPUs."""
    need, free = dtype.itemsize * (num_parameters(config) or 0), free_on(device)
    kept = HEADROOM if device.startswith("cuda") else 0
    if need + kept <= free[0]:
        return {}
    if spread and need + len(free) * kept <= sum(free):
        return {"device_map": "auto", "max_memory": {index: room - kept for index, room in enumerate(free)}}
    rooms = " + ".join(f"{room / 1e9:.1f}" for room in free)
    smaller = "--set extract.weights_dtype=bfloat16, " if dtype == torch.float32 else ""
    raise EncoderError(
        f"the weights of encoder '{source}' take {need / 1e9:.1f} GB, {rooms} GB are free on {device}",
        fix=f"use {smaller}a smaller encoder, or a machine with more memory",
    )


def explained(source: str, revision: str | None, error: Exception) -> EncoderError:
    """What a library's error says about loading an encoder, without its advice to run code, and what helps."""
    text = " ".join(str(error).split())
    if "requires the timm library" in text or "No module named 'torchvision'" in text:
        return EncoderError(
            f"encoder '{source}' is a model of timm, which is not installed", fix="pip install 'daamctl[timm]'"
        )
    code = re.search(r"GLOBAL (\S+)", text)
    if "trust_remote_code" in text:
        reason = "it needs code of its own, which daamctl does not run"
    elif "weights_only" in text and code:
        reason = f"its weights contain code ({code[1]}), which is not run"
    elif "weights_only" in text:
        reason = "its weights cannot be read safely"
    else:
        reason = text[:300] or type(error).__name__
    if Path(source).is_dir():
        for words, (reader, kind) in READERS.items():
            if words in text:
                return EncoderError(
                    f"encoder folder {source} cannot be loaded: it has no {reader}",
                    fix=f"save that of the original model in it: {kind}.from_pretrained(ID).save_pretrained(FOLDER)",
                )
        return EncoderError(f"encoder folder {source} cannot be loaded: {reason}")
    at = f" --revision {revision}" if revision else ""
    return EncoderError(
        f"encoder '{source}' is neither in the local cache nor reachable: {reason}",
        fix=f"with network: hf download {source}{at}; or copy a downloaded folder here and pass --encoder FOLDER",
    )
