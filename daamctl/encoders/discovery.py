"""Find the transformer layers and the final norm of a model by running it once on a tiny input.

There is no list of model families. The layers are the module list whose modules run `num_hidden_layers` times
together: once each, or again and again, as the layers of ALBERT, which share their weights.
The final norm is a norm called after the last layer, on exactly that layer's output, whose own output is the model's.
A projection after that, as of OPT-350m, is skipped from then on, so that all vectors have the width of the layers.
The modules found must reproduce the library's hidden states on that input, because the vectors must match their layer
numbers. Otherwise the hidden states themselves are taken (`library_states`) if padding can be told from tokens in them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from daamctl.encoders.cut import depth_setting, skip
from daamctl.errors import EncoderError


@dataclass(frozen=True)
class ModelLayers:
    """Layers and final norm found in a model.

    Args:
        layers: the N transformer layers, in the order in which they run; a module that runs several times is repeated.
            Empty: the library's hidden states are taken, see `library_states`.
        final_norm: the norm after the last layer; None if there is none.
        states: N + 1 tensors (B, T, D) of the trial: embedding output and layers, all before the final norm.
        normed: (B, T, D) output of the final norm, or of the last layer if there is none.
        ends_in_layer: whether it is the model's output.
        channels_last: whether maps among the library's hidden states are (B, H, W, D), not (B, D, H, W).
    """

    layers: list[nn.Module]
    final_norm: nn.Module | None
    states: list[Tensor]
    normed: Tensor
    ends_in_layer: bool = True
    channels_last: bool = False


def find_layers(model: Any, forward: Callable[[], Any], what: str) -> ModelLayers:
    """Run a model once and find its layers and final norm.

    Args:
        forward: runs it on a tiny batch with `output_hidden_states=True`.

    Raises:
        EncoderError: it has no list of equally wide layers, or they do not reproduce the library's hidden states.
    """
    of_timm = timm_layers(model)
    number = getattr(model.config, depth_setting(model.config), len(of_timm))
    found = [list(module) for module in model.modules() if isinstance(module, nn.ModuleList) and len(module)]
    modules = dict(model.named_modules())
    if of_timm and modules.keys() >= set(of_timm):
        found = [[modules[name] for name in of_timm]]
    lists = [one for one in found if len(one) == number] or [one for one in found if len(one) < (number or 0)]
    inner = {module for layers in lists for layer in layers for module in layer.modules()}
    norms = {module for module in model.modules() if "norm" in type(module).__name__.lower()} - inner
    projections = {module for module in model.modules() if isinstance(module, nn.Linear)} - inner
    trace = _Trace({layer for layers in lists for layer in layers} | norms | projections)
    try:
        output = forward()
    finally:
        trace.remove()
    end = getattr(output, "last_hidden_state", None)
    if not isinstance(end, Tensor):
        raise EncoderError(f"{what} gives no last hidden state, by which its layers are found")
    runs = _choose(lists, trace, number or 0, what)
    layers = [layer for layer, _, _ in runs]
    states = [runs[0][1], *(out for _, _, out in runs)]
    states = [state[:, : end.shape[1]] for state in states]  # without what e.g. Longformer pads and removes at the end
    for number, state in enumerate(states):
        if not bool(state.isfinite().all()):
            raise EncoderError(
                f"layer {number} of {what} gives values that are not finite",
                fix="use --set extract.precision=float32 --set extract.weights_dtype=float32",
            )
    norm, normed = None, states[-1]
    calls = [call for call in trace.calls if isinstance(call[1], Tensor) and isinstance(call[2], Tensor)]
    for module, given, out in calls:
        if module in norms and out is not given and _same(given, states[-1]) and _same(out, end):
            norm, normed = module, out
    if not _same(normed, end):
        ends = [states[-1], *(out for module, given, out in calls if module in norms and _same(given, states[-1]))]
        for module, given, out in calls:
            if module in projections and _same(out, end) and any(_same(given, one) for one in ends):
                skip(module)
                return find_layers(model, forward, what)
    theirs = getattr(output, "hidden_states", None)
    # the output of SEW is an upsampled layer: then the library's hidden states must tell that the layers are right
    if not _same(normed, end) and not (theirs and _same(states[-1], theirs[-1])):
        raise EncoderError(f"{what} ends neither in its last layer nor in a norm after it, which is not supported")
    if theirs:  # the library may return none
        _check_states(states, normed, list(theirs), what, of_timm=bool(of_timm))
    return ModelLayers(layers, norm, states, normed, _same(normed, end))


def _check_states(states: list[Tensor], normed: Tensor, theirs: list[Tensor], what: str, *, of_timm: bool) -> None:
    """Refuse layers that do not reproduce the library's hidden states.

    Args:
        states, normed: see `ModelLayers`.
        of_timm: whether the library's are timm's: without the input of the first layer, and without class tokens.
    """
    positions = slice(None)
    if of_timm:
        theirs = [states[0], *(by_position(state, channels_last=False) for state in theirs)]
        positions = slice(-theirs[-1].shape[1], None)
    if len(theirs) != len(states):
        raise EncoderError(
            f"{what} has {len(states) - 1} layers, but the library gives {len(theirs)} hidden states for them"
        )
    if not _same(states[0], theirs[0]) and _same(states[1], theirs[0]) and _same(normed, theirs[-1]):
        theirs = [states[0], *theirs[:-1]]  # as of Mamba: without the input, but with the last layer and the norm
    for number, (ours, known) in enumerate(zip(states, theirs, strict=True)):
        last = number == len(states) - 1  # the library's may be before or after the norm
        if not (_same(ours[:, positions], known[:, positions]) or (last and _same(normed, known))):
            raise EncoderError(f"layer {number} of {what} as found is not the library's hidden state {number}")


def timm_layers(model: Any) -> list[str]:
    """Names of the modules whose outputs timm returns as hidden states; empty for a model of transformers."""
    features = getattr(getattr(model, "timm_model", None), "feature_info", ())
    return [f"timm_model.{feature['module']}" for feature in features]


def begins_in_layer(model: Any, forward: Callable[[], Any], output: Any) -> bool:
    """Whether the first hidden state of the library is that of a layer, not of an embedding or a stem.

    It is if the module that gives it is called as the one that gives the second, but for numbers: `layer.0`, `layer.1`.

    Args:
        output: what `forward` returns, again and again.
    """
    states = list(getattr(output, "hidden_states", None) or ())[:2]
    names: list[list[str]] = [[], []]

    def find(name: str, out: Any) -> None:
        same = [any(_same(one, other) for one in _arranged(out) for other in _arranged(state)) for state in states]
        if sum(same) == 1:  # random layers may give what they are given
            names[same.index(True)].append(name)

    handles = [
        module.register_forward_hook(lambda _m, _i, out, name=name: find(name, first_of(out)))
        for name, module in model.named_modules()
        if name
    ]
    try:
        if len(states) == 2:
            forward()
    finally:
        for handle in handles:
            handle.remove()
    # the outermost of the modules that give the same
    first, second = (re.sub(r"[\d.]", "", min(found, key=len, default="")) for found in names)
    return first == second != ""


def _arranged(value: Any) -> list[Tensor]:
    """A hidden state (B, T, D), or a map in both orders of its axes."""
    if not isinstance(value, Tensor) or value.ndim not in (3, 4):
        return []
    return [value] if value.ndim == 3 else [by_position(value, channels_last=last) for last in (False, True)]


def library_states(output: Any, *, embedded: bool) -> ModelLayers | None:
    """Hidden states as the library returns them, of a model whose layers cannot be found or differ in width.

    Args:
        embedded: whether the first is that of an embedding or a stem, see `begins_in_layer`.

    Returns:
        States (B, T, D), T and D their own, of which the first may have no positions; None if there are no such states.
    """
    states = list(getattr(output, "hidden_states", None) or ())
    end = getattr(output, "last_hidden_state", None)
    if (
        not isinstance(end, Tensor)
        or len(states) < 2
        or any(not isinstance(one, Tensor) or one.ndim not in (3, 4) for one in states)
    ):
        return None
    maps = [state.shape for state in states if state.ndim == 4]  # square, of square images
    last = any(shape[1] == shape[2] != shape[3] for shape in maps)
    if any(shape[1] != shape[2] if last else shape[2] != shape[3] for shape in maps):
        return None  # which axis is D is not clear
    last_map = states[-1].shape
    states = [by_position(state, channels_last=last) for state in states]
    if not all(bool(state.isfinite().all()) for state in states):
        return None
    if not embedded:
        states.insert(0, states[0][:, :0])
    in_layer = end.shape == states[-1].shape
    if end.ndim == 4 and end.shape == last_map:  # as of BiT, whose last map is normed; CLAP reorders its positions
        end = by_position(end, channels_last=last)
    normed = end if end.shape == states[-1].shape and not torch.equal(end, states[-1]) else states[-1]
    return ModelLayers([], None, states, normed, ends_in_layer=in_layer, channels_last=last)


def by_position(state: Tensor, *, channels_last: bool) -> Tensor:
    """A hidden state (B, T, D); a map (B, D, H, W), or (B, H, W, D), becomes one with a position for each pixel."""
    if state.ndim == 3:
        return state
    return state.flatten(1, 2) if channels_last else state.flatten(2).transpose(1, 2)


def layer_input(args: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
    """Find the hidden states among the arguments of a layer, passed by position or by keyword."""
    return args[0] if args else named.get("hidden_states")


def first_of(out: Any) -> Any:
    """The hidden states in the output of a layer, which may be followed by others, e.g. attention weights."""
    return out[0] if isinstance(out, (tuple, list)) else out


def hook_layers(
    layers: Sequence[nn.Module], then: Callable[[int, Any], None], *, with_input: bool = False
) -> list[RemovableHandle]:
    """Have `then(number, output)` called behind each layer, 1 to N. Layers may be one module that runs several times.

    Args:
        with_input: call `then(0, input)` before the first layer, too.

    Returns:
        Handles that remove the hooks.
    """
    turns_of = {one: [number for number, other in enumerate(layers, start=1) if other is one] for one in layers}
    handles = []
    for layer, numbers in turns_of.items():
        turns = cycle(numbers)
        handles.append(layer.register_forward_hook(lambda _m, _i, out, turns=turns: then(next(turns), out)))
    starts = cycle(turns_of[layers[0]])

    def before(_module: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        if next(starts) == 1:
            then(0, layer_input(args, named))

    if with_input:
        handles.append(layers[0].register_forward_pre_hook(before, with_kwargs=True))
    return handles


class _Trace:
    """Every call of the given modules, in order: the module, its input and its output, recorded by hooks."""

    def __init__(self, modules: set[nn.Module]) -> None:
        self.calls: list[tuple[nn.Module, Any, Any]] = []
        self.handles = [module.register_forward_hook(self._keep, with_kwargs=True) for module in modules]

    def _keep(self, module: nn.Module, args: tuple[Any, ...], named: dict[str, Any], out: Any) -> None:
        self.calls.append((module, layer_input(args, named), first_of(out)))

    def remove(self) -> None:
        for handle in self.handles:
            handle.remove()


def _choose(
    lists: list[list[nn.Module]], trace: _Trace, number: int, what: str
) -> list[tuple[nn.Module, Tensor, Tensor]]:
    """The calls of the module list that ran `number` times in all and mapped (B, T, D) to the same shape."""
    shapes: list[tuple[int, ...]] = []
    for layers in lists:
        runs = [call for call in trace.calls if call[0] in layers]
        if len(runs) != number or {layer for layer, _, _ in runs} != set(layers):
            continue
        states = [runs[0][1], *(out for _, _, out in runs)]
        shapes = [tuple(state.shape) for state in states if isinstance(state, Tensor)]
        if len(shapes) == len(states) and len(set(shapes)) == 1 and len(shapes[0]) == 3:
            return runs
    if len(set(shapes)) > 1:
        widths = ", ".join("x".join(map(str, shape[1:])) for shape in shapes)
        raise EncoderError(f"{what} is hierarchical: its layers have no common width, from layer 0 on {widths}")
    if not shapes:
        raise EncoderError(f"{what} has no list of {number or 'transformer'} layers that run one after another")
    raise EncoderError(f"the layers of {what} do not give one (batch, tokens, features) each: they give {shapes[0]}")


def _same(ours: Tensor, theirs: Tensor) -> bool:
    """Whether two tensors are exactly equal, as expected within one forward pass."""
    return ours.shape == theirs.shape and torch.equal(ours.to(theirs.device), theirs)
