"""Whether an encoder is here or on the hub, and its size, without reading or creating weights.

The size comes from its configuration on torch's meta device. torch and transformers are imported only when a size is
requested, so checking whether weights are present is fast.
"""

from __future__ import annotations

import json
import logging
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from daamctl.artifacts.utterances import Modality, encoder_input
from daamctl.config import ExtractConfig, nearest_root
from daamctl.encoders import ENCODERS, HUB_ID
from daamctl.errors import EncoderError, first_few, suggest
from daamctl.store.files import expanded

log = logging.getLogger(__name__)

HUB = "https://huggingface.co"
"""Address of the Hugging Face hub. HF_ENDPOINT may replace it; HF_HUB_OFFLINE disables it."""
CONNECT_S, WAIT_S = 1.5, 4.0
"""Time that a server has to accept a connection, and to answer, in seconds."""
WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
"""Weight files of Hugging Face models, or their index files."""
LAYERS = ("encoder_layers", "encoder_num_hidden_layers", "num_hidden_layers", "num_layers", "n_layer", "n_layers")
WIDTH = ("d_model", "hidden_size", "n_embd", "dim")
"""Names of depth and width in configurations; for encoder-decoders, the encoder's come first."""
MOST_LAYERS = 1000
"""Known encoders have up to 130 layers. One of 100,000 would take minutes to build, even without memory."""
NUMBER = re.compile("(layers?|depths?)$")
"""Names of numbers of layers in configurations; `layer_norm_eps` and `layer_rope_theta` are something else."""
PARTS = {"text": ("text_config",), "image": ("vision_config",), "speech": ("audio_config", "encoder_config")}
"""Keys of a modality's own configuration within that of a larger model, e.g. with a language model or a decoder."""


@dataclass(frozen=True)
class EncoderSize:
    """The size of an encoder.

    Args:
        here: whether its weights are on this machine, or random; else the shape comes from a preset.
    """

    num_parameters: int
    num_layers: int
    embed_dim: int
    here: bool


def folder_called(name: str) -> Path:
    """The folder that a name may be: relative to the project, as in a pipeline, else to the working directory."""
    folder, root = expanded(name), nearest_root()
    if folder.is_absolute() or root is None or not (root / folder).is_dir():
        return folder
    return root / folder


def check_name(name: str) -> None:
    """Check that a name can refer to an encoder.

    Raises:
        EncoderError: `name` is neither a preset, nor a folder with a config.json, nor formed like a hub id.
    """
    if name in ENCODERS:
        return
    folder = folder_called(name)
    fetch = f"hf download OWNER/NAME --local-dir {shlex.quote(str(folder))}"
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            inner = (*folder.glob("*/config.json"), *folder.glob("snapshots/*/config.json"))  # also of the hub's cache
            found = f", {first_few([str(path.parent) for path in inner])}" if inner else ""
            if (folder / "adapter_config.json").is_file():
                raise EncoderError(
                    f"folder {name} holds an adapter of PEFT, not a model",
                    fix="merge it: PeftModel.from_pretrained(MODEL, FOLDER).merge_and_unload().save_pretrained(OUT), "
                    "and save the tokenizer or feature extractor there, too",
                )
            raise EncoderError(
                f"folder {name} holds no config.json, so it is not a Hugging Face model",
                fix=f"pass the folder that holds it{found}, or, with network, put a model there: {fetch}",
            )
    elif name.startswith((".", "~")) or ("/" in name and not HUB_ID.match(name)):
        raise EncoderError(f"no folder {name}", fix=f"correct the path, or, with network, put a model there: {fetch}")
    elif not HUB_ID.match(name):
        raise EncoderError(
            f"unknown encoder '{name}'",
            fix=f"{suggest(name, ENCODERS)}; or a Hugging Face id with its owner, e.g. google-bert/bert-base-uncased, "
            "or a local folder",
        )


def shape_of(config: ExtractConfig, modality: Modality | None) -> tuple[int, int] | None:
    """Depth and width of the configured encoder, read without torch or transformers.

    Args:
        modality: what it is to read; None: unknown.

    Returns:
        L, the number of transformer layers (methods train on these), and D; None if this machine does not know them.
    """
    values: Mapping[str, Any]
    if config.encoder in ENCODERS:
        values = ENCODERS[config.encoder].shape
    else:
        path = _config_file(config)
        if path is None:
            return None
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None  # opening it will report the error
        if modality is None and any(key in values for keys in PARTS.values() for key in keys):
            return None
        keys = PARTS.get(encoder_input(modality), ()) if modality else ()
        values = next((values[key] for key in keys if key in values), values)
    depth, width = (next((values[name] for name in names if name in values), None) for names in (LAYERS, WIDTH))
    if not isinstance(depth, int) or not isinstance(width, int):
        return None
    return depth, width


def _config_file(config: ExtractConfig) -> Path | None:
    """The config.json of a local folder, or of a hub model in the local cache."""
    folder = folder_called(config.encoder)
    if folder.is_dir():
        return folder / "config.json"
    if not HUB_ID.match(config.encoder):
        return None
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(config.encoder, "config.json", revision=config.revision)
    return Path(found) if isinstance(found, str) else None


def encoder_size_of(config: ExtractConfig, modality: Modality) -> EncoderSize | None:
    """Size of the configured encoder; None if this machine does not know it."""
    found = configuration_of(config, modality)
    if found is None:
        return None
    part, here = found
    layers, width = getattr(part, "num_hidden_layers", None), getattr(part, "hidden_size", None)
    number = num_parameters(part)
    if number is None or not isinstance(layers, int) or not isinstance(width, int):
        return None
    return EncoderSize(number, layers, width, here)


def weights_format(config: ExtractConfig, modality: Modality, device: str, precision: str) -> str:
    """Number format that the weights are held in during extraction."""
    if config.weights_dtype != "auto":
        return config.weights_dtype
    return precision if encoder_input(modality) == "text" and not device.startswith("cpu") else "float32"


def weight_bytes(size: EncoderSize, config: ExtractConfig, modality: Modality, device: str, precision: str) -> int:
    """Memory that the weights occupy during extraction, in their number format there."""
    import torch

    itemsize: int = getattr(torch, weights_format(config, modality, device, precision)).itemsize
    return size.num_parameters * itemsize


def answers(url: str) -> bool:
    """Whether a server answers. Of HTTP errors, only refusals (by it or a proxy) and server errors count.

    Args:
        url: what to ask for. Below `HUB`, it must exist.
    """
    import requests
    from huggingface_hub import constants
    from huggingface_hub.utils._headers import build_hf_headers

    hub = url.startswith(HUB)
    if hub and constants.HF_HUB_OFFLINE:
        return False
    try:
        status = requests.head(
            constants.ENDPOINT + url.removeprefix(HUB) if hub else url,
            headers=build_hf_headers() if hub else None,
            timeout=(CONNECT_S, WAIT_S),
            allow_redirects=True,
        ).status_code
    except requests.RequestException:
        return False
    return status < 500 and status not in ((401, 403, 404, 407) if hub else (403, 407))


def use_cache_without_hub() -> None:
    """If the hub does not answer, let its library read the cache alone; else it would try for a minute."""
    from huggingface_hub import constants

    if not constants.HF_HUB_OFFLINE and not answers(HUB):
        log.info("the Hugging Face hub does not answer: only models in the local cache can be used")
        constants.HF_HUB_OFFLINE = True


def is_cached(hub_id: str, revision: str | None) -> bool:
    """Whether the configuration and all weight files are in the local cache."""
    from huggingface_hub import try_to_load_from_cache

    def find(name: str) -> Path | None:
        found = try_to_load_from_cache(hub_id, name, revision=revision)
        return Path(found) if isinstance(found, str) else None

    if find("config.json") is None:
        return False
    for path in filter(None, map(find, WEIGHTS)):
        try:
            index = json.loads(path.read_text(encoding="utf-8"))["weight_map"] if path.suffix == ".json" else {}
        except ValueError:  # cut off
            continue
        if all(map(find, set(index.values()))):
            return True
    return False


def configuration_of(config: ExtractConfig, modality: Modality) -> tuple[Any, bool] | None:
    """A modality's Hugging Face configuration (see `part_of`), and whether its weights are on this machine."""
    from transformers import AutoConfig

    name = config.encoder
    preset = ENCODERS.get(name)
    source = str(folder_called(name)) if preset is None else preset.source
    folder = source is not None and Path(source).is_dir()
    if config.weights != "random" and source is not None and (folder or is_cached(source, config.revision)):
        revision = {} if config.revision is None else {"revision": config.revision}
        try:
            return part_of(read_configuration(source, local_files_only=True, **revision), modality), True
        except Exception:  # a library may refuse a file in any way
            return None  # opening it will report the error
    if preset is None:
        return None
    made_here = config.weights == "random" or preset.source is None
    return AutoConfig.for_model(preset.model_type, **preset.shape), made_here


def part_of(configuration: Any, modality: Modality) -> Any:
    """A modality's own configuration within that of a larger model; the same one if it has none.

    transformers has towers that its `AutoModel` does not know, e.g. those of BLIP. They are registered there.
    """
    import transformers

    parts = (getattr(configuration, key, None) for key in PARTS.get(encoder_input(modality), ()))
    part = next((part for part in parts if part is not None), configuration)
    kind = type(part)
    tower = getattr(transformers, f"{kind.__name__.removesuffix('Config')}Model", None)
    if kind not in transformers.MODEL_MAPPING and getattr(tower, "config_class", None) is kind:
        transformers.AutoModel.register(kind, tower, exist_ok=True)
    return part


def read_configuration(source: str, **options: Any) -> Any:
    """Read the Hugging Face configuration of a folder or hub id. Runs no code that comes with it.

    Raises:
        EncoderError: it names more than `MOST_LAYERS` layers.
    """
    from transformers import AutoConfig, PreTrainedConfig

    parts = [PreTrainedConfig.get_config_dict(source, **options)[0]]  # AutoConfig may make a list as long
    while parts:
        for name, value in parts.pop().items():
            values = value if isinstance(value, list) else [value]
            parts += [one for one in values if isinstance(one, dict) and name != "label2id"]  # a label is "bricklayer"
            numbers = [one for one in values if isinstance(one, (int, float))]
            if NUMBER.search(name) and max(numbers, default=0) > MOST_LAYERS:
                said = f"{name} is {max(numbers):,}, supported are up to {MOST_LAYERS:,} layers"
                raise EncoderError(f"the config.json of encoder '{source}' is not usable: {said}")
    config = AutoConfig.from_pretrained(source, trust_remote_code=False, **options)
    (getattr(config, "model_args", None) or {}).pop("num_classes", None)  # transformers would give it to timm twice
    return config


def num_parameters(configuration: Any) -> int | None:
    """Number of parameters of a configuration's model, counted on the meta device; None if it cannot be built there."""
    import torch
    from transformers import AutoModel

    try:
        with torch.device("meta"):
            model = AutoModel.from_config(configuration)
    except Exception:  # a library may refuse a configuration in any way
        return None
    return int(sum(value.numel() for value in model.parameters()))
