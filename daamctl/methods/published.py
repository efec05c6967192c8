"""Read checkpoints of the code published with the papers as the methods that compute the same.

The keys and shapes of a checkpoint tell which published module it is, and its sizes. Key names of the published
modules, and the corresponding methods:

| module | attention keys | method |
|---|---|---|
| DAAM v1, v2 | `daam.gcts.<head>.c`, `.mean_offset` | daam-v1, daam-v2 |
| GQDAAM | the same, `embed_transform.*`, `gqa.{q_proj,k_proj,v_proj,out_proj,norm}.*` | gqdaam-published |
| GQA | those of GQDAAM without DAAM | gqa-published |
| MHA | `mha.{in_proj_weight,in_proj_bias}`, `mha.out_proj.*` | mha-published |
| MHA->BN | the same, `batch_norm.*` | mha-bn over the batch |
| Mixture | `daam.layers.<block>.attention_heads.<head>.c`, `.mean_offsets` | mixture-daam |
| DensityBlock | the same without `daam.` and without a decoder | density-block: a bare `DensityBlock` |

All but the last have the decoder's `conv1.*`, `conv2.*` and `fc.*`. The text scripts use `gct` for `daam` and `mha`,
some scripts use `daams` for `gcts`, and training with data parallelism adds the prefix `module.`.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from daamctl.errors import MethodError, first_few
from daamctl.methods import rebuild
from daamctl.methods.base import FusionClassifier
from daamctl.methods.mixture import DensityBlock
from daamctl.methods.weights import fill, read_safetensors

WRAPPERS = ("state_dict", "model_state_dict", "model")
ALIASES = (
    (r"^module\.", ""),
    (r"^gct\.(?=(in|out)_proj)", "mha."),  # the text scripts call every attention `gct`
    (r"^gct\.", "daam."),
    (r"^daam\.daams\.", "daam.gcts."),
)
PARAMETERS = "param/"  # prefix of weights in files that also contain inputs and outputs
DENSITY_KEY = re.compile(r"daam\.gcts\.(\d+)\.(?:c|mean_offset)")
MIXTURE_KEY = re.compile(r"(daam\.)?layers\.(\d+)\.attention_heads\.(\d+)\.(?:c|mean_offsets)")
MOST_HEADS = 4096  # limits the missing keys that a message lists if a key contains a huge number
PAIR = ("weight", "bias")
DENSITY_BLOCK = "density-block"

# Our names -> published names.
DECODER = {f"decoder.{layer}.{part}": f"{layer}.{part}" for layer in ("conv1", "conv2", "fc") for part in PAIR}
ATTENTION = {
    f"fusion.attention.{name}": f"mha.{name}"
    for name in ("in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias")
}
BATCH_NORM = {
    f"fusion.norm.{name}": f"batch_norm.{name}"
    for name in (*PAIR, "running_mean", "running_var", "num_batches_tracked")
}
GROUPED = {
    f"fusion.{ours}.{part}": f"{theirs}.{part}"
    for ours, theirs in {
        "projection": "embed_transform",
        "attention.query": "gqa.q_proj",
        "attention.key": "gqa.k_proj",
        "attention.value": "gqa.v_proj",
        "attention.norm": "gqa.norm",
        "attention.output": "gqa.out_proj",
    }.items()
    for part in PAIR
}
RENAMED: dict[str, dict[str, str]] = {
    "daam-v1": DECODER,
    "daam-v2": DECODER,
    "gqdaam-published": {**GROUPED, **DECODER},
    "gqa-published": {**GROUPED, **DECODER},
    "mha-published": {**ATTENTION, **DECODER},
    "mha-bn": {**ATTENTION, **BATCH_NORM, **DECODER},
    "mixture-daam": DECODER,
    DENSITY_BLOCK: {},
}
DENSITY = {"daam-v1": "fusion", "daam-v2": "fusion", "gqdaam-published": "fusion.daam"}
MIXTURE = {"mixture-daam": ("fusion.block.", "daam."), DENSITY_BLOCK: ("", "")}
"""Methods with heads of which we stack each parameter, and the beginnings of its names."""


@dataclass(frozen=True)
class RecognisedCheckpoint:
    """What a checkpoint of the published code is.

    Args:
        method: a name of `METHODS`, or `density-block` for the appendix module without a decoder.
        sizes: num_layers, embed_dim and num_classes; empty for a density block.
        settings: the method's (or `DensityBlock`'s) own arguments, from the shapes.
        note: what is assumed because the file does not contain it, and where our method differs.
    """

    method: str
    sizes: dict[str, int]
    settings: dict[str, Any]
    note: str


def load_published(
    source: Path | str | Mapping[str, Tensor], *, norm_axis: int | Sequence[int] = 1, query_heads: int = 8
) -> FusionClassifier | DensityBlock:
    """Load a checkpoint trained with the published code, as the method that computes the same.

    The shapes determine the sizes, and `feature_grid` determines how a row of features becomes an image. The one-layer
    MHA of the published ablation takes (B, 1, D): its script picks one of the 24 layers (index 22) itself (D6).

    Args:
        source: a state dict, or a file with one: `.safetensors`, or a file written by `torch.save`, plain or under
            `state_dict`, `model_state_dict` or `model`. Files are read without running code of the pickle.
        norm_axis: axis of the Mixture, which its checkpoint does not store; for a bare block one axis for all its
            layers or one each, with a decoder 1 or -2 (layers), 2 or -1 (features).
        query_heads: heads of a dot-product attention, which its checkpoint does not store; 8 in all published scripts.

    Returns:
        Our module in eval mode, on CPU, in float32; it gives the logits and densities of the published one. A
        `DensityBlock` if there is no decoder.

    Raises:
        MethodError: the file cannot be read, the keys or shapes are not those of a published module, or they are those
            of a module that cannot run (D9).
    """
    state = read_published(source) if isinstance(source, (str, Path)) else _plain(source, "the state dict")
    seen = recognise(state, norm_axis=norm_axis, query_heads=query_heads)
    model: FusionClassifier | DensityBlock
    if seen.method == DENSITY_BLOCK:
        model = DensityBlock(**seen.settings)
    else:
        model = rebuild(seen.method, **seen.sizes, **seen.settings)
    tensors, names = {}, {}
    for ours, theirs in _sources(seen.method, state).items():
        if isinstance(theirs, str):
            tensors[ours], names[ours] = state[theirs], theirs
            continue
        shapes = {key: tuple(state[key].shape) for key in theirs}
        other = next((key for key in theirs if shapes[key] != shapes[theirs[0]]), None)
        if other is not None:
            raise MethodError(f"weights do not fit: {other} is {shapes[other]} where {shapes[theirs[0]]} is needed")
        tensors[ours] = torch.stack([state[key].flatten() for key in theirs])
        names[ours] = re.sub(r"\.0(\.\w+)$", r".*\1", theirs[0])
    fill(model, tensors, names=names)
    return model.eval()


def read_published(path: Path | str) -> dict[str, Tensor]:
    """Read the state dict of a file, with the key names of the table above.

    Raises:
        MethodError: the file is missing or damaged, contains code, or contains no state dict.
    """
    path = Path(path)
    if path.suffix == ".safetensors":
        return _plain(read_safetensors(path)[0], str(path))
    if not path.is_file():
        raise MethodError(f"no file {path}")
    try:
        with warnings.catch_warnings(action="ignore"):  # torch warns about pickles that it then refuses
            value = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds of error for a damaged file
        code = re.search(r"GLOBAL (\S+)", str(error))
        reason = f"it contains code ({code[1]}), which is not run" if code else "it is damaged or of another format"
        if isinstance(error, PermissionError):
            reason = str(error.strerror)
        raise MethodError(f"{path} cannot be read as weights: {reason}") from error
    for name in WRAPPERS:
        if isinstance(value, dict) and isinstance(value.get(name), dict):
            value = value[name]
    return _plain(value, str(path))


def recognise(
    state: Mapping[str, Tensor], *, norm_axis: int | Sequence[int] = 1, query_heads: int = 8
) -> RecognisedCheckpoint:
    """Determine which published module a state dict belongs to, and its sizes; arguments as in `load_published`.

    Raises:
        MethodError: it belongs to none, or to a module that cannot run (D9).
    """
    state = _plain(state, "the state dict")
    method = _method(state)
    _check_keys(method, state)
    settings: dict[str, Any] = {}
    if method in MIXTURE:
        heads, start = _mixture_heads(state), MIXTURE[method][1]
        settings["num_blocks"] = len(heads)
        settings["num_heads"] = [len(numbers) for numbers in heads.values()]
        settings["num_densities"] = [
            _shape(state, f"{start}layers.{block}.attention_heads.0.c", 1)[0] for block in heads
        ]
    if method == DENSITY_BLOCK:
        settings["norm_axis"] = norm_axis
        return RecognisedCheckpoint(method, {}, settings, f"no decoder; norm axis {norm_axis} is assumed")
    hidden_channels, num_layers, *_ = _shape(state, "conv1.weight", 4)
    num_classes, inputs = _shape(state, "fc.weight", 2)
    notes = []
    if method in DENSITY:
        embed_dim = _shape(state, "daam.gcts.0.c", 2)[1]
        settings["variance"] = "moments"
        if method != "daam-v2":
            settings["num_heads"] = len(_heads(state))
        notes.append("variance as a difference of moments (D25)")
    if method in ("gqdaam-published", "gqa-published"):
        width, embed_dim = _shape(state, "embed_transform.weight", 2)
        if inputs == num_layers * embed_dim != num_layers * width:
            raise MethodError(
                "this is the published vision GQDAAM, which cannot run (D9): "
                f"its fc takes {num_layers}*{embed_dim} inputs, its attention gives {num_layers}*{width}"
            )
        rows = _shape(state, "gqa.k_proj.weight", 2)[0]
        if rows * query_heads % width:
            raise MethodError(f"gqa.k_proj has {rows} rows, not a multiple of the head width {width}/{query_heads}")
        settings |= {"width": width, "query_heads": query_heads, "kv_heads": rows * query_heads // width}
        notes.append(f"queries of a group summed before the softmax (D5); {query_heads} query heads are assumed")
    if method in ("mha-published", "mha-bn"):
        embed_dim = _shape(state, "mha.in_proj_weight", 2)[1]
        settings["num_heads"] = query_heads
        notes.append(f"attends over the samples of the batch (D1); {query_heads} heads are assumed")
        if method == "mha-bn":
            settings["attend_over"] = "batch"
            notes.append("batch normalisation after the reshape, before which the published one stops (D10)")
        if num_layers == 1:
            notes.append("one layer, which the published script picks itself (D6), so the input is (B, 1, D)")
    if method == "mixture-daam":
        axes = {norm_axis} if isinstance(norm_axis, int) else set(norm_axis)
        names = {{1: "layers", -2: "layers", 2: "features", -1: "features"}.get(axis) for axis in axes}
        if len(names) != 1 or None in names:
            raise MethodError(f"norm_axis with a decoder must be 1 or -2 (layers), 2 or -1 (features), got {norm_axis}")
        if inputs % num_layers:
            raise MethodError(f"fc.weight has {inputs} inputs, not a multiple of the {num_layers} layers")
        for name in ("num_heads", "num_densities"):
            if len(set(settings[name])) > 1:
                raise MethodError(f"{name} must be the same in all blocks with a decoder, got {settings[name]}")
            settings[name] = settings[name][0]
        embed_dim, settings["norm_axis"] = inputs // num_layers, names.pop()
        notes.append(f"norm axis '{settings['norm_axis']}' is assumed")
    sizes = {"num_layers": num_layers, "embed_dim": embed_dim, "num_classes": num_classes}
    return RecognisedCheckpoint(method, sizes, {**settings, "hidden_channels": hidden_channels}, "; ".join(notes))


def _plain(state: Any, what: str) -> dict[str, Tensor]:
    """A published state dict with the key names of the table above."""
    if not isinstance(state, Mapping) or not all(
        isinstance(key, str) and isinstance(value, Tensor) for key, value in state.items()
    ):
        raise MethodError(f"{what} does not map names to tensors")
    if any(key.startswith(PARAMETERS) for key in state):
        state = {key.removeprefix(PARAMETERS): value for key, value in state.items() if key.startswith(PARAMETERS)}
    plain = {}
    for key, value in state.items():
        for pattern, name in ALIASES:
            key = re.sub(pattern, name, key)
        plain[key] = value
    return plain


def _method(state: Mapping[str, Tensor]) -> str:
    """The method whose keys a state dict has, or the closest one."""

    def has(*starts: str) -> bool:
        return any(key.startswith(starts) for key in state)

    if any(MIXTURE_KEY.fullmatch(key) for key in state):
        return "mixture-daam" if has("daam.", "conv1.", "conv2.", "fc.") else DENSITY_BLOCK
    if has("mha."):
        return "mha-bn" if has("batch_norm.") else "mha-published"
    heads = _heads(state)
    if has("gqa.", "embed_transform."):
        return "gqdaam-published" if heads else "gqa-published"
    if heads:
        return "daam-v1" if len(heads) > 1 else "daam-v2"
    raise MethodError(f"no published module has these keys: {first_few(sorted(state))}")


def _check_keys(method: str, state: Mapping[str, Tensor]) -> None:
    """Check that the state dict has exactly the keys of the method, and floating-point numbers."""
    wanted: set[str] = set()
    for theirs in _sources(method, state).values():
        wanted.update([theirs] if isinstance(theirs, str) else theirs)
    missing, unknown = wanted - state.keys(), state.keys() - wanted
    if missing or unknown:
        raise MethodError(
            f"not a published checkpoint, but closest to {method}: missing {first_few(sorted(missing))}; "
            f"unknown {first_few(sorted(unknown))}"
        )
    for key, value in state.items():
        if not value.is_floating_point() and key != "batch_norm.num_batches_tracked":
            raise MethodError(f"{key} is {value.dtype}, not floating-point numbers")


def _sources(method: str, state: Mapping[str, Tensor]) -> dict[str, str | list[str]]:
    """Our name of every tensor -> its published name, or those of the heads whose parameters it stacks."""
    found: dict[str, str | list[str]] = {**RENAMED[method]}
    if method in DENSITY:
        for ours, theirs in (("scaled_variance", "c"), ("offset", "mean_offset")):
            found[f"{DENSITY[method]}.{ours}"] = [f"daam.gcts.{head}.{theirs}" for head in _run(_heads(state))]
    if method in MIXTURE:
        own, published = MIXTURE[method]
        for block, heads in _mixture_heads(state).items():
            start = f"{published}layers.{block}.attention_heads"
            for ours, theirs in (("spreads", "c"), ("offsets", "mean_offsets")):
                found[f"{own}layers.{block}.{ours}"] = [f"{start}.{head}.{theirs}" for head in _run(heads)]
    return found


def _heads(state: Mapping[str, Tensor]) -> set[int]:
    """Numbers of the DAAM heads in the keys."""
    return {int(match[1]) for match in map(DENSITY_KEY.fullmatch, state) if match}


def _mixture_heads(state: Mapping[str, Tensor]) -> dict[int, set[int]]:
    """Numbers of the heads in the keys, for every block up to the last."""
    found: dict[int, set[int]] = {}
    for match in map(MIXTURE_KEY.fullmatch, state):
        if match:
            found.setdefault(int(match[2]), set()).add(int(match[3]))
    return {block: found.get(block, {0}) for block in _run(set(found))}


def _run(numbers: set[int]) -> range:
    """All numbers from 0 to the largest."""
    return range(min(max(numbers, default=-1) + 1, MOST_HEADS))


def _shape(state: Mapping[str, Tensor], key: str, num_axes: int) -> tuple[int, ...]:
    """Shape of a tensor."""
    shape = tuple(state[key].shape)
    if len(shape) != num_axes or 0 in shape:
        raise MethodError(f"weights do not fit: {key} is {shape} where {num_axes} non-empty axes are needed")
    return shape
