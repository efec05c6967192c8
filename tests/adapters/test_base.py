"""What every fine-tuning method must do, on every kind of encoder."""

from __future__ import annotations

import copy
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from daamctl.adapters import FINETUNES, FineTuned, build_finetune
from daamctl.adapters.base import seeded
from daamctl.adapters.module_lookup import recomputable_layers
from daamctl.errors import MethodError, UnknownNameError
from tests.fixtures.tiny_models import ARCHITECTURES, MAIN, batch, tiny

NAMES = tuple(FINETUNES)
PUBLISHED = tuple(name for name in NAMES if name.endswith("-published"))
CLASSES = 3
TARGETS = torch.tensor([0, 1, 2])
REFUSED = {("prompt-tuning", name) for name, (kind, _) in ARCHITECTURES.items() if kind == "speech"}
REFUSED |= {("bitfit", "llama")}
ONE_EACH = ("wavlm", "llama", "beit")  # one encoder per modality
# They change nothing within an encoder.
FUSED = tuple(name for name in NAMES if FINETUNES.module_of(name) == "daamctl.adapters.fusion")
# They train as lora-r4 or its published form does: in the same modules.
LIKE_OTHERS = ("lora-r8", "lora-plus-r4", "lora-plus-r8", "rslora-r8", "dora-r8")
LIKE_OTHERS += tuple(name for name in PUBLISHED if name != "lora-r4-published")
COMBINATIONS = [
    (name, kind)
    for kind in MAIN
    for name in NAMES
    if (name, kind) not in REFUSED and (kind in ONE_EACH or name not in (*FUSED, *LIKE_OTHERS))
]
SHORT = [(name, kind) for name, kind in COMBINATIONS if kind in ONE_EACH and name not in LIKE_OTHERS]


def make(
    name: str, architecture: str, *, seed: int = 1, **settings: Any
) -> tuple[FineTuned, dict[str, Tensor], Tensor]:
    """A fine-tuned tiny encoder in eval mode, and a batch."""
    encoder = tiny(architecture, **settings)
    inputs, mask = batch(encoder)
    return build_finetune(name, encoder, num_classes=CLASSES, seed=seed).eval(), inputs, mask


def loss_of(model: FineTuned, inputs: dict[str, Tensor], mask: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(inputs, mask), TARGETS)


def step(model: FineTuned, inputs: dict[str, Tensor], mask: Tensor, *, times: int = 2) -> None:
    """Train on one batch; twice, since LoRA's A only gets a gradient once B has left zero."""
    optimizer = torch.optim.AdamW(model.parameter_groups(1e-2, 0.01))
    for _ in range(times):
        optimizer.zero_grad()
        loss_of(model, inputs, mask).backward()
        optimizer.step()


def copies(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in model.named_parameters()}


def moved(before: dict[str, Tensor], model: nn.Module) -> set[str]:
    return {name for name, value in model.named_parameters() if not torch.equal(before[name], value)}


@pytest.mark.parametrize(("name", "architecture"), COMBINATIONS)
def test_starts_as_the_encoder_and_trains_what_it_says(name: str, architecture: str) -> None:
    plain = tiny(architecture)
    theirs = {id(value) for value in plain.model.parameters()}
    inputs, mask = batch(plain)
    reference = plain.hidden(inputs)
    model = build_finetune(name, plain, num_classes=CLASSES, seed=1).eval()
    with torch.no_grad():
        hidden, logits = plain.hidden(inputs), model(inputs, mask)
    assert logits.shape == (3, CLASSES)
    assert logits.dtype == torch.float32
    assert model.name == name
    assert model.published == (name in PUBLISHED)
    if name not in ("prompt-tuning", "prefix-tuning") and not (model.published and plain.modality == "text"):
        assert (hidden - reference).abs().max() <= 1e-5
        if not model.published and model.before_head is None:  # the same classifier for all, drawn from the seed
            assert torch.allclose(logits, make("linear-probe", architecture)[0](inputs, mask), atol=1e-5)
    elif not model.published:
        assert hidden.shape == reference.shape
        assert (hidden - reference).abs().max() > 1e-5

    # Every trained tensor stands in one group, once; nothing else does.
    groups = model.parameter_groups(1e-2, 0.01)
    listed = [id(value) for group in groups for value in group["params"]]
    trained = model.trained()
    assert sorted(listed) == sorted(id(value) for value in trained.values())
    assert {type(group["lr"]) for group in groups} == {float}
    assert set(model.added) == {key for key, value in model.named_parameters() if id(value) not in theirs}

    before = copies(model)
    step(model, inputs, mask)
    changed = moved(before, model)
    assert changed <= set(trained)
    if not (model.published and architecture == "wavlm"):  # those are in test_lora_published
        inert = {key for key in trained if key.endswith(("k_proj.bias", "key.bias"))}  # softmax is blind to them
        assert changed >= set(trained) - inert

    # What a file holds makes, over the encoder as it came, the same model again, whatever seed that is built with.
    state = model.trainable_state()
    drawn = {name for name, _ in model.named_buffers() if name.startswith("before_head.")}
    assert set(state) == {*trained, *model.added, *drawn}
    again, _, _ = make(name, architecture, seed=2)
    assert not torch.equal(again(inputs, mask), model(inputs, mask))
    again.load_trainable(state)
    assert torch.equal(again(inputs, mask), model(inputs, mask))


@pytest.mark.parametrize(("name", "architecture"), [*SHORT, ("houlsby", "wav2vec2"), ("prefix-tuning", "whisper")])
def test_recomputing_gives_the_same_gradients(name: str, architecture: str) -> None:
    model, inputs, mask = make(name, architecture)
    plain = copy.deepcopy(model)  # also: a copy has its own hooks and adapters
    model.enable_gradient_checkpointing()
    parts = list(recomputable_layers(model.model)[-1].children())
    norm = next(part for part in parts if type(part).__name__.endswith("Norm"))
    computed: list[int] = []
    norm.register_forward_hook(lambda *_: computed.append(0))
    for one in (model, plain):
        one.train_mode(encoder_dropout=False)
        loss_of(one, inputs, mask).backward()
    for key, value in model.trained().items():
        other = plain.trained()[key].grad
        assert (value.grad is None) == (other is None), key
        assert value.grad is None or torch.allclose(value.grad, other, atol=1e-6), key
    frozen = name in ("linear-probe", "base-plus-1", "base-plus-2")
    nothing_to_train = frozen or (model.published and architecture == "wavlm")
    assert len(computed) == (1 if nothing_to_train else 2)
    with torch.no_grad():
        assert torch.equal(model(inputs, mask), plain(inputs, mask))


def test_recomputing_goes_on_with_encoder_dropout() -> None:
    model, inputs, mask = make("lora-r8", "bert")
    model.enable_gradient_checkpointing()
    model.train_mode(encoder_dropout=True)
    loss_of(model, inputs, mask).backward()
    assert any(value.grad is not None and value.grad.any() for value in model.trained().values())


def test_encoder_without_layers_cannot_recompute() -> None:
    model, _, _ = make("linear-probe", "bert")
    model.model.encoder.layer = nn.ModuleList()
    with pytest.raises(MethodError, match="no layers to recompute in BertModel"):
        model.enable_gradient_checkpointing()


@pytest.mark.parametrize("architecture", ["wavlm", "wav2vec2"])
def test_clips_shorter_than_a_mask_train_with_encoder_dropout_too(architecture: str) -> None:
    model, inputs, mask = make("lora-r8", architecture)
    config = model.model.config
    config.apply_spec_augment, config.mask_time_prob, config.mask_time_length = True, 0.5, mask.shape[-1] + 1
    model.train_mode(encoder_dropout=True)
    loss_of(model, inputs, mask).backward()
    assert config.apply_spec_augment


def test_training_mode_leaves_the_encoder_as_in_extraction_unless_asked() -> None:
    model, inputs, mask = make("lora-r8", "bert")
    model.model.add_module("statistics", nn.BatchNorm1d(4))
    with torch.no_grad():
        expected = model(inputs, mask)
        model.train_mode(encoder_dropout=False)
        assert model.training
        assert model.head.training
        assert torch.equal(model(inputs, mask), expected)
        model.train_mode(encoder_dropout=True)
        assert not torch.equal(model(inputs, mask), expected)
        assert not model.model.statistics.training
        assert torch.equal(model.eval()(inputs, mask), expected)


def test_seed_decides_and_the_program_draws_on() -> None:
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    first, second, third = (make("lora-r8", "bert", seed=seed)[0].trainable_state() for seed in (1, 1, 2))
    assert torch.equal(torch.rand(3), expected)
    assert all(torch.equal(value, second[key]) for key, value in first.items())
    drawn = [key for key, value in first.items() if not torch.equal(value, third[key])]
    assert drawn == [key for key in first if "lora_A" in key or "classifier" in key]
    with seeded(1):
        inside = torch.rand(2)
    torch.manual_seed(1)
    assert torch.equal(inside, torch.rand(2))


def test_vectors_have_no_decay_but_in_the_published_forms() -> None:
    model, _, _ = make("dora-r8", "bert")
    names = {id(value): key for key, value in model.trained().items()}
    for group in model.parameter_groups(1e-3, 0.1):
        for value in group["params"]:
            vector = "magnitude" in names[id(value)] or names[id(value)].endswith("bias")
            assert group["weight_decay"] == (0.0 if vector else 0.1), names[id(value)]
    factors, _, _ = make("ia3", "bert")  # a decay would pull these to 0, where they start at 1
    head = factors.head.classifier.weight
    decayed = [
        value for group in factors.parameter_groups(1e-3, 0.1) if group["weight_decay"] for value in group["params"]
    ]
    assert len(decayed) == 1
    assert decayed[0] is head
    published, _, _ = make("lora-r4-published", "beit")
    assert {group["weight_decay"] for group in published.parameter_groups(1e-3, 0.1)} == {0.1}


@pytest.mark.parametrize("name", ["lora-r8", "dora-r8", "ia3", "houlsby", "prompt-tuning", "prefix-tuning"])
def test_adapters_of_a_half_precision_encoder_are_trained_in_full(name: str) -> None:
    model, inputs, mask = make(name, "llama", dtype=torch.bfloat16)
    assert {value.dtype for value in model.trained().values()} == {torch.float32}
    assert {value.dtype for value in model.model.parameters() if not value.requires_grad} == {torch.bfloat16}
    before = copies(model)
    step(model, inputs, mask)
    assert moved(before, model) == set(model.trained())
    with torch.autocast("cpu", torch.bfloat16):
        assert model(inputs, mask).dtype == torch.float32


def test_weights_of_something_else_are_refused() -> None:
    model, _, _ = make("lora-r4", "bert")
    before = copies(model)
    for state in (make("lora-r8", "bert")[0].trainable_state(), make("ia3", "bert")[0].trainable_state(), {}):
        with pytest.raises(
            MethodError, match=r"weights do not fit lora-r4: \d+ tensors missing, unknown or of another"
        ):
            model.load_trainable(state)
    assert moved(before, model) == set()


@pytest.mark.parametrize("name", ["lora-r8-published", "houlsby", "lora-r8", "prefix-tuning"])
def test_adapters_lie_where_their_layers_lie(name: str) -> None:
    encoder = tiny("llama")
    encoder.model.layers[1].to("meta")  # in place of a second GPU
    model = build_finetune(name, encoder, num_classes=CLASSES, seed=1)
    own = {name: value.device.type for name, value in model.named_parameters() if name in model.added}
    assert {kind for name, kind in own.items() if name.startswith("model.layers.0.")} == {"cpu"}
    assert {kind for name, kind in own.items() if name.startswith("model.layers.1.")} == {"meta"}
    assert {kind for name, kind in own.items() if name.startswith("head.")} == {"cpu"}


def test_refusals_are_one_line_with_the_name() -> None:
    with pytest.raises(UnknownNameError, match="unknown fine-tuning method 'lora'") as unknown:
        build_finetune("lora", tiny("bert"), num_classes=3, seed=0)
    assert "did you mean 'lora-r" in str(unknown.value)
    with pytest.raises(MethodError, match="linear-probe: num_classes must be at least 2, got 1"):
        build_finetune("linear-probe", tiny("bert"), num_classes=1, seed=0)
    for name, architecture in sorted({*REFUSED, ("prefix-tuning", "gpt2")}):
        with pytest.raises(MethodError, match=rf"^{name}: ") as refused:
            build_finetune(name, tiny(architecture), num_classes=3, seed=0)
        assert "\n" not in refused.value.message
        assert refused.value.fix


def test_every_line_of_the_table_is_a_sentence() -> None:
    for name in NAMES:
        line = FINETUNES.summary(name)
        assert 20 < len(line) < 120, name
        assert line.endswith("."), name
    assert len(NAMES) == 27


def test_listing_needs_no_torch() -> None:
    script = (
        "import sys; from daamctl.adapters import FINETUNES, released; assert all(map(FINETUNES.summary, FINETUNES)); "
        "print([name for name in ('torch', 'transformers', 'peft') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert done.stdout == "[]\n"
