"""Which models are refused, and why: the layers found must be the hidden states of the library."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from daamctl.encoders.discovery import begins_in_layer, by_position, find_layers, library_states
from daamctl.errors import EncoderError

INPUT = torch.arange(24.0).reshape(2, 3, 4) / 10


class Layer(nn.Module):
    def __init__(self, step: float) -> None:
        super().__init__()
        self.step = step

    def forward(self, hidden_states: Tensor) -> Any:
        return (hidden_states + self.step, "attention")


class Model(nn.Module):
    """Adds 1, then 2, then 3; every part that `find_layers` looks at can be bent."""

    def __init__(self, *, number: int | None = 3, norm: bool = True, by_name: bool = False) -> None:
        super().__init__()
        self.config = SimpleNamespace(num_hidden_layers=number)
        self.heads = nn.ModuleList([nn.Identity() for _ in range(3)])  # as long, but never run
        self.layers = nn.ModuleList([Layer(step) for step in (1.0, 2.0, 3.0)])
        self.first_norm, self.final_norm = nn.LayerNorm(4), nn.LayerNorm(4) if norm else None
        self.by_name = by_name

    def forward(self, bend: str = "") -> Any:
        state = self.first_norm(INPUT) if bend != "nan" else INPUT / 0
        states = [state]
        for layer in self.layers:
            state = (layer(hidden_states=state) if self.by_name else layer(state))[0]
            states.append(state)
        if bend == "twice":
            self.layers[0](state)
        normed = state if self.final_norm is None else self.final_norm(state)
        states = {
            "": [*states[:-1], normed],
            "raw": states,
            "none": None,
            "scaled-raw": states,
            "scaled-none": None,
            "shifted": [state + 1 for state in states],
            "other-end": [*states[:-1], normed + 1],
            "short": states[1:],
            "later": [*states[1:], normed],
        }.get(bend, [*states[:-1], normed])
        scaled = bend.startswith("scaled")
        return SimpleNamespace(last_hidden_state=2 * normed if scaled else normed, hidden_states=states)


@pytest.mark.parametrize("by_name", [True, False])
@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.parametrize("bend", ["", "raw", "none", "later"])
def test_layers_and_norm_are_found(bend: str, norm: bool, by_name: bool) -> None:
    model = Model(norm=norm, by_name=by_name)
    found = find_layers(model, lambda: model(bend), "it")
    assert found.layers == list(model.layers)
    assert found.final_norm is model.final_norm
    start = model.first_norm(INPUT)
    for state, added in zip(found.states, (0, 1, 3, 6), strict=True):
        torch.testing.assert_close(state, start + added)
    expected = start + 6 if model.final_norm is None else model.final_norm(start + 6)
    torch.testing.assert_close(found.normed, expected)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


@pytest.mark.parametrize(
    ("bend", "reason"),
    [
        ("shifted", "layer 0 of it as found is not the library's hidden state 0"),
        ("other-end", "layer 3 of it as found is not the library's hidden state 3"),
        ("short", "it has 3 layers, but the library gives 3 hidden states for them"),
        ("scaled", "it ends neither in its last layer nor in a norm after it, which is not supported"),
        ("scaled-none", "it ends neither in its last layer nor in a norm after it, which is not supported"),
        (
            "twice",
            "it has no list of 3 layers that run one after another",
        ),
        (
            "nan",
            "layer 0 of it gives values that are not finite\n"
            "  use --set extract.precision=float32 --set extract.weights_dtype=float32",
        ),
    ],
)
def test_what_does_not_fit_is_refused(bend: str, reason: str) -> None:
    model = Model()
    with pytest.raises(EncoderError) as caught:
        find_layers(model, lambda: model(bend), "it")
    assert str(caught.value) == reason
    assert not any(m._forward_hooks for m in model.modules())


def test_layers_behind_which_the_output_changes() -> None:
    """They are right if they are the library's hidden states, as of SEW, whose output is upsampled."""
    model = Model()
    found = find_layers(model, lambda: model("scaled-raw"), "it")
    assert found.layers == list(model.layers)
    assert not found.ends_in_layer
    assert find_layers(model, model, "it").ends_in_layer


@pytest.mark.parametrize(("number", "named"), [(5, "5"), (None, "transformer")])
def test_no_list_of_layers(number: int | None, named: str) -> None:
    model = Model(number=number)
    with pytest.raises(EncoderError, match=rf"^it has no list of {named} layers that run one after another$"):
        find_layers(model, model, "it")


def test_a_projection_behind_the_final_norm_is_skipped_from_then_on() -> None:
    model, projection = Model(), nn.Linear(4, 2)
    model.add_module("projection", projection)

    def forward() -> Any:
        output = model("raw")
        output.last_hidden_state = projection(output.last_hidden_state)
        return output

    found = find_layers(model, forward, "it")
    assert found.final_norm is model.final_norm
    torch.testing.assert_close(found.normed, model().last_hidden_state)
    torch.testing.assert_close(forward().last_hidden_state, found.normed)
    assert projection.weight.shape == (2, 4)  # it stays, for who saves the model


def test_maps_of_the_library_become_positions() -> None:
    numbers = torch.arange(2 * 3 * 3 * 5.0)
    first, last = numbers.reshape(2, 5, 3, 3), numbers.reshape(2, 3, 3, 5)  # the features come first or last
    for maps, positions in ((first, first.flatten(2).mT), (last, last.reshape(2, 9, 5))):
        found = library_states(
            SimpleNamespace(hidden_states=[maps, maps + 1], last_hidden_state=maps + 1), embedded=True
        )
        assert found is not None
        assert found.channels_last == (maps is last)
        assert torch.equal(found.states[0], positions)
        assert torch.equal(found.states[1], positions + 1)


class OfTimm(nn.Module):
    """As transformers wraps a model of timm: a state for each block, as maps without the class token."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        self.config = SimpleNamespace()
        self.timm_model = nn.Module()
        self.timm_model.blocks = nn.Sequential(*(Layer(step) for step in (1.0, 2.0, 3.0)))
        self.timm_model.feature_info = [{"module": name} for name in names]

    def forward(self, wrong: float = 0.0) -> Any:
        states = [torch.arange(30.0).reshape(2, 5, 3)]  # 2 x 2 patches behind a class token
        for block in self.timm_model.blocks:
            states.append(block(states[-1])[0])
        maps = [state[:, 1:].transpose(1, 2).unflatten(2, (2, 2)) + wrong for state in states[1:]]
        return SimpleNamespace(last_hidden_state=states[-1], hidden_states=maps)


def test_blocks_of_timm_are_layers() -> None:
    model = OfTimm("blocks.0", "blocks.1", "blocks.2")
    found = find_layers(model, model, "this one")
    assert found.layers == list(model.timm_model.blocks)
    assert [float(state[0, 0, 0]) for state in found.states] == [0.0, 1.0, 3.0, 6.0]
    assert (found.final_norm, found.ends_in_layer) == (None, True)
    with pytest.raises(EncoderError, match="layer 1 of this one as found is not the library's hidden state 1"):
        find_layers(model, lambda: model(wrong=1.0), "this one")


class Stages(nn.Module):
    """Modules, one after another, whose maps are returned, or states; maps perhaps with the features last."""

    def __init__(self, *names: str, maps: str) -> None:
        super().__init__()
        self.names, self.maps = names, maps
        self.stages = nn.ModuleDict({name: nn.Sequential(Layer(1.0)) for name in names})

    def forward(self) -> Any:
        states = []
        for name in self.names:
            states.append(self.stages[name][0](states[-1] if states else torch.arange(36.0).reshape(1, 4, 3, 3))[0])
            self.stages[name][0](torch.zeros(1, 4, 9))  # another call of the same module, of another value
        if self.maps == "none":
            states = [by_position(state, channels_last=False) for state in states]
        if self.maps == "last":
            states = [state.permute(0, 2, 3, 1) for state in states]
        return SimpleNamespace(last_hidden_state=states[-1], hidden_states=states)


@pytest.mark.parametrize("maps", ["none", "first", "last"])
@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["blocks0", "blocks1", "blocks2"], True),
        (["stage1", "stage2"], True),
        (["act1", "layer1", "layer2"], False),
        (["stem", "stages0", "stages1"], False),
        (["stage1"], False),
    ],
)
def test_states_may_begin_with_a_stem(names: list[str], expected: bool, maps: str) -> None:
    model = Stages(*names, maps=maps)
    assert begins_in_layer(model, model, model()) == expected
    assert not any(module._forward_hooks for module in model.modules())
    output = model()
    output.hidden_states = [state + 0.5 for state in output.hidden_states]  # no module gives them
    assert not begins_in_layer(model, model, output)


def test_the_library_may_give_a_state_for_each_stage_and_a_norm() -> None:
    states = [INPUT, INPUT + 1]
    found = library_states(SimpleNamespace(hidden_states=states, last_hidden_state=2 * INPUT), embedded=False)
    assert found is not None
    assert [state.shape for state in found.states] == [(2, 0, 4), (2, 3, 4), (2, 3, 4)]
    assert torch.equal(found.normed, 2 * INPUT)
    found = library_states(
        SimpleNamespace(hidden_states=states, last_hidden_state=INPUT[:, 0]), embedded=True
    )  # pooled
    assert found is not None
    assert torch.equal(found.normed, INPUT + 1)
    assert (len(found.states), found.ends_in_layer) == (2, False)


@pytest.mark.parametrize(
    "states",
    [
        None,
        [INPUT],
        [INPUT, "no tensor"],
        [INPUT, INPUT[0]],
        [torch.zeros(2, 3, 4, 5)] * 2,  # which axis holds the features is not clear
        [torch.zeros(2, 3, 3, 5), torch.zeros(2, 5, 3, 3)],
        [INPUT, INPUT / 0],
    ],
)
def test_states_of_the_library_that_say_nothing_are_not_taken(states: Any) -> None:
    assert library_states(SimpleNamespace(hidden_states=states, last_hidden_state=INPUT), embedded=True) is None
    assert library_states(SimpleNamespace(hidden_states=[INPUT, INPUT]), embedded=True) is None
