"""Save an open encoder as a folder that daamctl and transformers open."""

from __future__ import annotations

import copy
from pathlib import Path

from safetensors.torch import save_file

from daamctl.encoders.base import weights_hash
from daamctl.encoders.load import OpenedEncoder, class_of
from daamctl.errors import EncoderError
from daamctl.store.files import atomic_path


def save_cut_encoder(opened: OpenedEncoder, folder: Path) -> None:
    """Write an encoder, usually a cut one, as config.json, model.safetensors and the files of its input processor.

    Only layers that the encoder has are written, in the number format they have in memory. In config.json the number of
    layers is that of the cut encoder, and `daamctl_cut` says that the last layer is read before the final norm; daamctl
    does so when it opens the folder. In transformers read that layer with a forward hook, because `last_hidden_state`
    is the norm's output. Of an encoder-decoder the folder holds the encoder only; `AutoModel` opens it with a random
    decoder.

    Args:
        opened: as `open_encoder` returns it, not yet prepared for inference.

    Raises:
        EncoderError: the folder exists, or the encoder is not as it was opened.
        ArtifactError: the folder cannot be written.
    """
    model = opened.encoder.model
    if folder.exists():
        raise EncoderError(f"{folder} exists already", fix="choose another folder")
    if weights_hash(model) != opened.facts["weights_sha256"]:
        raise EncoderError(f"{opened.encoder.what} has changed since it was opened", fix="open it again, then save it")
    whole = class_of(model.config)
    prefix = "" if whole is None or isinstance(model, whole) else "encoder."  # of an encoder-decoder
    state = {f"{prefix}{name}": value.detach().cpu().contiguous() for name, value in model.state_dict().items()}
    with atomic_path(folder) as temporary:
        temporary.mkdir()
        save_file(state, temporary / "model.safetensors", metadata={"format": "pt"})
        config = copy.deepcopy(model.config)
        config.dtype = str(model.dtype).removeprefix("torch.")  # transformers loads weights in this format
        config.save_pretrained(temporary)
        opened.encoder.reader.save_pretrained(temporary)
