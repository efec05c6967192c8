"""Masked language models: a text encoder with its own head, and a layer fusion between the two.

The head reads only the masked positions, so that no logits of other positions are computed. Runs no remote code.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from daamctl.encoders.base import layer_states
from daamctl.encoders.encoder_size import check_name, folder_called, read_configuration, use_cache_without_hub
from daamctl.encoders.load import explained
from daamctl.encoders.text import added_tokens, model_limit, padding_id, tokenizer_hash
from daamctl.errors import EncoderError, first_few

SPARE_ROWS = 128
"""Up to this many rows of the embedding may belong to no token: some models round their vocabulary up."""
ANOTHER = "take another encoder, e.g.: daamctl mlm --encoder FacebookAI/roberta-base"
Positions = tuple[Tensor, ...]
"""Rows and columns of the masked positions, (M,) each."""
Fuse = Callable[[Sequence[Tensor], Tensor, Positions], Tensor]
"""Layers, each (B, T, D), attention mask (B, T) and masked positions to vectors (M, D)."""


@dataclass(frozen=True)
class MaskedModel:
    """An open masked language model, on its device, in eval mode.

    Args:
        name: hub id, or name of the folder.
        before: ids that the tokenizer adds before a text.
        after: ids that it adds after one.
        max_tokens: longest block, added tokens included.
    """

    name: str
    model: Any
    tokenizer: Any
    before: list[int]
    after: list[int]
    pad: int
    max_tokens: int
    device: str

    @property
    def num_layers(self) -> int:
        """L, without the embedding output."""
        return int(self.model.config.num_hidden_layers)

    @property
    def embed_dim(self) -> int:
        """D."""
        return int(self.model.config.hidden_size)

    @property
    def num_heads(self) -> int:
        """Attention heads of a layer."""
        return int(self.model.config.num_attention_heads)

    @property
    def mask_id(self) -> int:
        """Id of the mask token."""
        return int(self.tokenizer.mask_token_id)

    @property
    def plain_ids(self) -> list[int]:
        """Ids of all tokens that are not special, sorted."""
        return sorted(set(self.tokenizer.get_vocab().values()) - set(self.tokenizer.all_special_ids))

    def facts(self) -> dict[str, Any]:
        """What identifies the model in a result."""
        return {
            "name": self.name,
            "type": self.model.config.model_type,
            "layers": self.num_layers,
            "features": self.embed_dim,
            "vocabulary": len(self.tokenizer),
            "max_tokens": self.max_tokens,
            "tokenizer_sha256": tokenizer_hash(self.tokenizer),
        }

    def blocks(self, text: str, *, unknown: str) -> list[Tensor]:
        """Cut a text into blocks of at most `max_tokens` tokens, added ones included.

        Args:
            unknown: what stands for a rare word in it; replaced by the tokenizer's own unknown token.

        Returns:
            Ids of each block, (T,). Only the last may be shorter than the others.
        """
        if self.tokenizer.unk_token is not None:
            # else the tokenizer would cut the mark itself into pieces
            text = text.replace(unknown, self.tokenizer.unk_token)
        ids = self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        room = self.max_tokens - len(self.before) - len(self.after)
        starts = range(0, len(ids), room)
        return [torch.tensor([*self.before, *ids[at : at + room], *self.after]) for at in starts]

    def logits(self, ids: Tensor, attention: Tensor, positions: Positions, fuse: Fuse) -> Tensor:
        """Predict the tokens at masked positions.

        Args:
            ids: (B, T).
            attention: (B, T), 0 at padding.
            fuse: makes the vector of every masked position from the layers.

        Returns:
            (M, vocabulary), in the order of the positions.
        """

        def to_head(_module: Any, _inputs: Any, output: Any) -> Any:
            # the head reads any number of positions, so only the masked ones are given to it: its vocabulary is the
            # most expensive part
            output.last_hidden_state = fuse(layer_states(output), attention, positions)[None]
            return output

        handle = self.model.base_model.register_forward_hook(to_head)
        try:
            found = self.model(input_ids=ids, attention_mask=attention, output_hidden_states=True).logits
        finally:
            handle.remove()
        return found.squeeze(0)  # type: ignore[no-any-return]


def last_layer(layers: Sequence[Tensor], attention: Tensor, positions: Positions) -> Tensor:
    """The released model: the head reads the last layer."""
    return layers[-1][positions]


def open_masked(source: str, *, device: str, max_tokens: int) -> MaskedModel:
    """Open a model with its tokenizer and head.

    Args:
        source: a Hugging Face id or a local folder.
        max_tokens: longest block; a lower limit of the model takes precedence.

    Raises:
        EncoderError: it cannot be loaded, has a decoder, no attention heads or no MLM head among its weights, its
            tokenizer has no mask token or another vocabulary, blocks would be empty, its layers differ in shape, or
            the head reads more than one position at a time.
    """
    import transformers
    from transformers import AutoModelForMaskedLM, AutoTokenizer
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING

    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    check_name(source)
    folder = folder_called(source)
    path, name = (str(folder), folder.name) if folder.is_dir() else (source, source)
    what = f"encoder '{name}'"
    if not folder.is_dir():
        use_cache_without_hub()
    try:
        config = read_configuration(path)
        if type(config) not in MODEL_FOR_MASKED_LM_MAPPING:
            raise EncoderError(f"{what} is of type '{config.model_type}', which has no masked language model")
        # such as BART, whose head reads a decoder, and FNet, which mixes padding into the text
        if config.is_encoder_decoder or not getattr(config, "num_attention_heads", None):
            why = "has a decoder" if config.is_encoder_decoder else "has no attention heads"
            raise EncoderError(f"{what} is of type '{config.model_type}', which {why}", fix=ANOTHER)
        tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=False)
        model, loading = AutoModelForMaskedLM.from_pretrained(
            path, dtype=torch.float32, output_loading_info=True, trust_remote_code=False
        )
    except EncoderError:
        raise
    except Exception as error:  # a library may refuse a file in any way
        raise explained(path, None, error) from error
    missing = sorted(loading["missing_keys"])
    # transformers draws missing weights at random and only warns
    own = [key for key in missing if not key.startswith(f"{model.base_model_prefix}.")]
    if own:
        raise EncoderError(
            f"{what} has no MLM head among its weights: {first_few(own, 3)} are missing",
            fix="use a checkpoint that was saved with its head, e.g. FacebookAI/roberta-base",
        )
    if missing:
        raise EncoderError(f"{what} lacks weights that its config.json asks for: {first_few(missing, 3)}")
    if tokenizer.mask_token_id is None:
        raise EncoderError(f"the tokenizer of {what} has no mask token, so nothing can be masked")
    rows = int(model.get_input_embeddings().weight.shape[0])
    # ids of another vocabulary would give plausible numbers
    if not len(tokenizer) <= rows < len(tokenizer) + SPARE_ROWS:
        raise EncoderError(
            f"the tokenizer of {what} has {len(tokenizer):,} tokens, the model {rows:,}: they do not belong together"
        )
    first, last = added_tokens(tokenizer)
    ids = tokenizer("a", verbose=False)["input_ids"]
    limit = min(max_tokens, model_limit(model.base_model, tokenizer))
    if limit <= first + last:
        raise EncoderError(
            f"blocks of {limit} tokens have no room for text beside the {first + last} that the tokenizer of {what} "
            "adds",
            fix="raise --max-tokens",
        )
    model.requires_grad_(False).eval().to(device)
    found = MaskedModel(
        name=name,
        model=model,
        tokenizer=tokenizer,
        before=ids[:first],
        after=ids[len(ids) - last :],
        pad=padding_id(tokenizer, config, rows),
        max_tokens=limit,
        device=device,
    )
    _check_head(found, what)
    return found


@torch.no_grad()
def _check_head(found: MaskedModel, what: str) -> None:
    """Compare the layers of a trial with what the model says of them, and its logits with those of the library."""
    ids = torch.tensor([[*found.before, found.mask_id, found.plain_ids[-1], found.mask_id, *found.after]])
    ids = ids[:, : found.max_tokens].to(found.device)
    positions = (ids == found.mask_id).nonzero(as_tuple=True)
    attention = torch.ones_like(ids)
    shapes: list[tuple[int, ...]] = []

    def fuse(layers: Sequence[Tensor], attention: Tensor, positions: Positions) -> Tensor:
        shapes.extend(tuple(layer.shape) for layer in layers)
        return last_layer(layers, attention, positions)

    try:
        whole = found.model(input_ids=ids, attention_mask=attention).logits[positions]
        logits = found.logits(ids, attention, positions, fuse)
    except Exception as error:  # a library may refuse to run in any way
        raise explained(found.name, None, error) from error
    wanted = (*ids.shape, found.embed_dim)
    if shapes != [wanted] * found.num_layers:
        raise EncoderError(
            f"the layers of {what} cannot be fused: {found.num_layers} of shape {wanted} are needed, but it has "
            f"{len(shapes)} of {first_few([*dict.fromkeys(map(str, shapes))])}",
            fix=ANOTHER,
        )
    if not torch.allclose(logits, whole, rtol=1e-3, atol=1e-3):
        raise EncoderError(f"the MLM head of {what} cannot be run on masked positions alone")
