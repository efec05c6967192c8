"""Open an encoder: a preset, a Hugging Face id, or a local folder. No remote code, no pickle, clear words offline."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors import SafetensorError

from daamctl.config import ExtractConfig
from daamctl.encoders import ENCODERS, FAMILIES, HUB_ID
from daamctl.encoders.base import Encoder, PoolingOptions, Preset, weights_hash
from daamctl.errors import EncoderError, nearest


@dataclass(frozen=True)
class OpenedEncoder:
    """An encoder with what must be recorded of it.

    Args:
        encoder: ready to pool.
        facts: id, revision, weights hash, library version and the options in force.
    """

    encoder: Encoder
    facts: dict[str, Any]


def open_encoder(config: ExtractConfig, *, max_duration_s: float, device: str, precision: str) -> OpenedEncoder:
    """Open the encoder that the settings name.

    Args:
        config: the extract settings.
        max_duration_s: longest clip, in seconds; what the published pooling pads to.
        device: resolved device.
        precision: resolved precision.

    Raises:
        EncoderError: it is unknown, not available offline, not a speech encoder, or has no random form.
    """
    import huggingface_hub
    import transformers

    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    huggingface_hub.utils.logging.set_verbosity_error()
    name = config.encoder
    preset: Preset | None = ENCODERS.load(name) if name in ENCODERS else None
    if config.weights == "random" or (preset is not None and preset.hub_id is None):
        model, normalize, sampling_rate = _random(name, preset, config.seed)
        source, revision = f"{name} (random weights, seed {config.seed})", None
    else:
        source = _source(name, preset)
        model, normalize, sampling_rate = _pretrained(source, config.revision)
        revision = getattr(model.config, "_commit_hash", None)
        source = Path(source).name if Path(source).is_dir() else source  # the hash identifies it, not this path
    model = model.eval().requires_grad_(False).to(device)
    options = PoolingOptions(
        layer_00=config.layer_00,
        final_norm=config.final_norm,
        all_frames=config.pooling == "all-frames",
        pad_to_s=max_duration_s,
    )
    normalize = {"encoder": normalize, "always": True, "never": False}[config.normalize]
    encoder: Encoder = FAMILIES.load(model.config.model_type)(
        model, device=device, precision=precision, sampling_rate=sampling_rate, normalize=normalize, options=options
    )
    facts = {
        "name": name,
        "source": source,
        "revision": revision,
        "weights_sha256": weights_hash(model),
        "model_type": model.config.model_type,
        "transformers": transformers.__version__,
        "num_layers": max(encoder.layers),
        "final_norm": config.final_norm if encoder.has_final_norm else None,
        "pooling": config.pooling,
        "normalize": normalize,
        "precision": precision,
        "storage": config.storage,
        "sampling_rate": sampling_rate,
    }
    return OpenedEncoder(encoder, facts)


def _source(name: str, preset: Preset | None) -> str:
    """The hub id or folder to load.

    Raises:
        EncoderError: `name` is neither a preset, a folder with a config.json, nor a hub id.
    """
    if preset is not None:
        assert preset.hub_id is not None
        return preset.hub_id
    folder = Path(name).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise EncoderError(f"folder {name} holds no config.json, so it is not a Hugging Face model")
        return str(folder)
    if HUB_ID.match(name):
        return name
    close = nearest(name, ENCODERS)
    hint = f"did you mean '{close}'? " if close else ""
    raise EncoderError(
        f"unknown encoder '{name}'",
        fix=f"{hint}presets: {', '.join(ENCODERS)}; or a Hugging Face id (owner/name), or a local folder",
    )


def _random(name: str, preset: Preset | None, seed: int) -> tuple[Any, bool, int]:
    from transformers import AutoConfig, AutoModel

    if preset is None:
        raise EncoderError(f"extract.weights=random works with presets only, met '{name}'", fix="daamctl ls encoders")
    state = torch.get_rng_state()
    torch.manual_seed(seed)
    try:
        model = AutoModel.from_config(AutoConfig.for_model(preset.model_type, **preset.shape))
    finally:
        torch.set_rng_state(state)
    return model, preset.normalize, 16000


def _pretrained(source: str, revision: str | None) -> tuple[Any, bool, int]:
    """Load config, check the family before any weights, then weights and the facts of the feature extractor."""
    from transformers import AutoConfig, AutoFeatureExtractor, AutoModel

    options: dict[str, Any] = {"trust_remote_code": False}
    if revision is not None:
        options["revision"] = revision
    try:
        config = AutoConfig.from_pretrained(source, **options)
        if config.model_type not in FAMILIES:
            raise EncoderError(
                f"encoder '{source}' is of type '{config.model_type}', which is not a speech encoder known here",
                fix=f"known types: {', '.join(FAMILIES)}",
            )
        extractor = AutoFeatureExtractor.from_pretrained(source, **options)
        # transformers reads safetensors, or .bin files with weights_only=True; never a free pickle.
        model, loading = AutoModel.from_pretrained(source, dtype=torch.float32, output_loading_info=True, **options)
    except (OSError, ValueError, RuntimeError, UnpicklingError, SafetensorError) as error:
        raise _explain(source, revision, error) from error
    # transformers fills what is missing at random; only the mask vector of pretraining may be absent.
    missing = sorted(name for name in loading["missing_keys"] if not name.endswith("masked_spec_embed"))
    if missing:
        shown = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
        raise EncoderError(f"encoder '{source}' lacks weights that its config.json asks for: {shown}")
    return model, bool(getattr(extractor, "do_normalize", False)), int(extractor.sampling_rate)


def _explain(source: str, revision: str | None, error: Exception) -> EncoderError:
    reason = " ".join(str(error).split())[:300]
    if Path(source).is_dir():
        return EncoderError(f"encoder folder {source} cannot be loaded: {reason}")
    at = f" --revision {revision}" if revision else ""
    return EncoderError(
        f"encoder '{source}' is neither in the local cache nor reachable: {reason}",
        fix=f"with network: hf download {source}{at}; or copy a downloaded folder here and pass --encoder FOLDER",
    )
