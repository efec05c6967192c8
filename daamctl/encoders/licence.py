"""The licence of an encoder's weights, as far as this machine knows it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from daamctl.config import ExtractConfig
from daamctl.encoders import ENCODERS
from daamctl.encoders.encoder_size import folder_called

CARD = "README.md"
"""The model card of a checkpoint, whose YAML head may name the licence."""
RANDOM = "none needed (random weights)"


def licence_of(config: ExtractConfig) -> str | None:
    """Licence of an encoder: what its preset says, or else the card of the checkpoint. Uses no network.

    Returns:
        The licence, usually an identifier of the Hugging Face hub such as `mit`; None if it is unknown.
    """
    name = config.encoder
    preset = ENCODERS.get(name)
    if config.weights == "random" or (preset is not None and preset.source is None):
        return RANDOM
    if preset is not None and preset.licence is not None:
        return preset.licence
    source = name if preset is None or preset.source is None else preset.source
    card = _card(source, config.revision)
    return None if card is None else _licence_in(card)


def _card(source: str, revision: str | None) -> Path | None:
    """The card in a local folder or in the cache of the hub."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    folder = folder_called(source)
    if folder.is_dir():
        return folder / CARD if (folder / CARD).is_file() else None
    try:
        found = try_to_load_from_cache(source, CARD, revision=revision)
    except HFValidationError:  # neither a folder nor a hub id
        return None
    return Path(found) if isinstance(found, str) else None


def _licence_in(card: Path) -> str | None:
    """`license` in the head of a card, or `license_name` where that says `other`."""
    import yaml
    from huggingface_hub.repocard import metadata_load

    try:
        head: Any = metadata_load(card)
    except (OSError, ValueError, yaml.YAMLError):  # a card without a usable head says nothing
        return None
    if not isinstance(head, dict):
        return None
    found = head.get("license")
    if found == "other":
        found = head.get("license_name") or found
    if isinstance(found, list):
        found = ", ".join(map(str, found))
    return str(found) if found else None
