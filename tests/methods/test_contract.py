"""Every check of the contract catches methods that are broken in its own way, and passes a sound one."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from daamctl.errors import MethodError
from daamctl.methods import FusionClassifier, MLPDecoder, Traits, contract
from daamctl.methods.contract import CHECKS, SPEECH, Case, Finding, run_checks
from daamctl.methods.probes import Layers, Solution, VectorProbe
from daamctl.methods.settings import Sizes
from daamctl.methods.single_layer import LastLayer

pytestmark = pytest.mark.usefixtures("unchecked_shapes")  # the contract must catch broken methods by itself
SIZES = (5, 6, 3)
ONE = torch.ones(())


class Apply(nn.Module):
    """A function of the layers as a fusion, beside a parameter or buffers of its own."""

    def __init__(self, function: Callable[..., Any], parameter: Tensor | None = None, **buffers: Tensor) -> None:
        super().__init__()
        self.function = function
        if parameter is not None:
            self.parameter = nn.Parameter(parameter.clone())
        for name, value in buffers.items():
            self.register_buffer(name, value.clone())

    def forward(self, x: Tensor, **options: bool) -> Any:
        return self.function(self, x, **options)


class Plant:
    """Builds a broken method under any name.

    Args:
        function: of the fusion, called with the fusion and x.
        traits: what the method says of itself.
        model: joins fusion, decoder and traits.
        before: called with the sizes and settings before anything is built.
        tensors: parameter and buffers of the fusion.
    """

    def __init__(
        self,
        function: Callable[..., Any] = lambda _, x: x,
        *,
        traits: Traits = Traits(),  # noqa: B008
        model: Callable[..., FusionClassifier] = FusionClassifier,
        before: Callable[..., Any] = lambda **_: None,
        **tensors: Tensor,
    ) -> None:
        self.function, self.traits, self.model, self.before, self.tensors = function, traits, model, before, tensors

    def __call__(self, method: str, **sizes: int) -> FusionClassifier:
        self.before(**sizes)
        fusion = Apply(self.function, **self.tensors)
        head = MLPDecoder(embed_dim=sizes["embed_dim"], num_classes=sizes["num_classes"], hidden_dim=8, sum_layers=True)
        return self.model(fusion, head, self.traits)


Check = Callable[..., Finding]


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch) -> Check:
    """Run a check on a planted method."""

    def run(name: str, plant: Plant, case: Case = Case("none", sizes=SIZES, counted=(SIZES,))) -> Finding:  # noqa: B008
        monkeypatch.setattr(contract, "build", plant)
        finding = CHECKS[name](case)
        assert finding.name == name
        return finding

    return run


@pytest.fixture
def caught(check: Check) -> Callable[..., None]:
    """Assert that a check catches a planted method, with a message."""

    def run(name: str, plant: Plant, message: str, **case: Any) -> None:
        finding = check(name, plant, **case)
        assert not finding.ok
        assert re.search(message, finding.text), finding.text

    return run


@pytest.mark.parametrize("name", CHECKS)
def test_sound_method_passes(check: Check, name: str) -> None:
    assert check(name, Plant(lambda m, x: x * m.parameter, parameter=ONE)).ok


def test_parameters(caught: Any) -> None:
    caught(
        "parameters", Plant(), r", not 336,412 \(fusion 16,384\) as defined", case=Case("daam-v1", counted=(SPEECH,))
    )
    frozen = Plant(model=lambda *parts: FusionClassifier(*parts).requires_grad_(False))
    caught("parameters", frozen, "0 trainable .*; nothing to train")


@pytest.mark.parametrize(
    ("plant", "message"),
    [
        (Plant(parameter=ONE), "^fusion.parameter gets no gradient$"),
        (Plant(lambda m, x: x * m.parameter.detach(), parameter=ONE), "^fusion.parameter gets no gradient$"),
        (Plant(lambda m, x: x + 1e-12 * m.parameter, parameter=ONE), "^fusion.parameter gets no gradient$"),
        (Plant(lambda m, x: x * (m.parameter / 0), parameter=ONE), "fusion.parameter gets no gradient"),
        (
            Plant(lambda m, x: x * m.parameter, parameter=ONE, traits=Traits(inert=("fusion.parameter",))),
            "^fusion.parameter is declared inert and gets a gradient$",
        ),
        (Plant(traits=Traits(inert=("fusion.key",))), "^fusion.key is declared inert and is no trainable tensor$"),
    ],
)
def test_gradient(caught: Any, plant: Plant, message: str) -> None:
    caught("gradient", plant, message)


def test_inert_tensor_without_gradient_is_what_was_declared(check: Check) -> None:
    finding = check("gradient", Plant(parameter=ONE, traits=Traits(inert=("fusion.parameter",))))
    assert finding == Finding("gradient", True, "reaches 4 of 5 trainable tensors; inert: fusion.parameter")


@pytest.mark.parametrize(
    ("plant", "message"),
    [
        (
            Plant(lambda _, x: x - x.mean(0)),
            r"^a prediction depends on its batch: alone, logits differ by up to [\d.]+$",
        ),
        (Plant(traits=Traits(batch_dependent=True)), "^declared to depend on its batch, and does not$"),
        (Plant(lambda _, x: x * 0), "^logits hardly differ between samples$"),
        (Plant(lambda _, x: x / 0, traits=Traits(batch_dependent=True)), "^logits are not finite"),
    ],
)
def test_batch(caught: Any, plant: Plant, message: str) -> None:
    caught("batch", plant, message)


def test_declared_dependence_on_the_batch_is_said(check: Check) -> None:
    finding = check("batch", Plant(lambda _, x: x - x.mean(0), traits=Traits(batch_dependent=True)))
    assert finding.ok
    assert finding.text.startswith("a prediction depends on its batch (D1): alone, logits differ by up to ")


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda m, x: x.cumsum(0) if m.training else x, "^in training, logits change by [^;]+$"),
        (lambda m, x: x if m.training else x.cumsum(0), "^in evaluation, logits change by [^;]+$"),
        (lambda m, x: nn.functional.dropout(x, training=m.training), "^in training, "),
    ],
)
def test_order(caught: Any, function: Any, message: str) -> None:
    caught("order", Plant(function), message)


@pytest.mark.parametrize(
    ("plant", "message"),
    [
        (Plant(lambda _, x: nn.functional.dropout(x)), "^two passes over the same input differ$"),
        (Plant(lambda m, x: x * m.seen.add_(1), seen=ONE), "; evaluation changes fusion.seen$"),
        (Plant(lambda _, x: x.mul_(1.5)), "; the input is overwritten$"),
        (Plant(model=lambda *parts: Halved(*parts)), "^logits of float32 input are torch.float16$"),
    ],
)
def test_evaluation(caught: Any, plant: Plant, message: str) -> None:
    caught("evaluation", plant, message)


class Halved(FusionClassifier):
    def forward(self, x: Tensor, **_: Any) -> Any:
        return super().forward(x).half()


def test_saving(caught: Any) -> None:
    caught("saving", Plant(model=lambda *parts: Forgetful(*parts)), "^logits differ after loading$")
    caught("saving", Plant(lambda _, x: x * 0, model=lambda *parts: Constant(*parts)), "so nothing is compared$")


class Forgetful(FusionClassifier):
    """Draws weights that are neither parameters nor buffers."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.drawn = torch.rand(())

    def forward(self, x: Tensor, **_: Any) -> Any:
        return super().forward(x) * self.drawn


class Constant(FusionClassifier):
    def forward(self, x: Tensor, **_: Any) -> Any:
        return super().forward(x) * 0


@pytest.mark.parametrize(
    ("plant", "message"),
    [
        (Plant(lambda _, x: x.exp()), "^bfloat16, inputs x 300: logits are not finite"),
        (Plant(lambda _, x: x @ (1000 * torch.eye(6))), "^float16, inputs x 300: logits are not finite"),
        (
            Plant(lambda m, x: x + (m.parameter - m.parameter.detach()).abs().sqrt(), parameter=ONE),
            "^bfloat16, inputs x 1: gradient of fusion.parameter is not finite;",
        ),
    ],
)
def test_autocast(caught: Any, plant: Plant, message: str) -> None:
    caught("autocast", plant, message)


def test_missing_float16_kernel_is_skipped_and_said(check: Check) -> None:
    def lacks(_: Any, x: Tensor) -> Tensor:
        if torch.get_autocast_dtype("cpu") is torch.float16 and torch.is_autocast_enabled("cpu"):
            raise RuntimeError("\"some_kernel\" not implemented for 'Half'")
        return x

    finding = check("autocast", Plant(lacks))
    assert finding.ok
    assert finding.text.count("skipped: \"some_kernel\" not implemented for 'Half'") == 2


def test_compile_and_export(caught: Any) -> None:
    other = Plant(lambda _, x: 2 * x if torch.compiler.is_compiling() else x)
    caught("compile", other, "^logits of the compiled method differ by up to .*; input gradients of the compiled")
    caught("export", other, "^logits of the exported method differ by up to ")


@pytest.mark.parametrize("name", ["compile", "export"])
def test_branch_on_data_breaks_the_graph(check: Check, name: str) -> None:
    with pytest.raises(Exception, match=r"[dD]ata-dependent"):
        check(name, Plant(lambda _, x: x if x.sum() > 0 else -x))


def test_export_for_one_batch_size_only(check: Check) -> None:
    with pytest.raises(Exception, match="batch"):
        check("export", Plant(lambda _, x: x + torch.zeros(6, 1, 1)))


@pytest.mark.parametrize(
    ("function", "layers", "features"),
    [
        (lambda _, x: x, "equivariant", "equivariant"),
        (lambda _, x: x.cumsum(1), "not equivariant", "equivariant"),
        (lambda _, x: x * torch.arange(6), "equivariant", "not equivariant"),
    ],
)
def test_sensitivity_of_maps(check: Check, function: Any, layers: str, features: str) -> None:
    finding = check("sensitivity", Plant(function))
    moved = r"\d+%, the fusion is "
    pattern = f"shuffled layers move logits by {moved}{layers}; shuffled features move logits by {moved}{features}"
    assert finding.ok
    assert re.fullmatch(pattern, finding.text), finding.text


@pytest.mark.parametrize(
    ("method", "text"),
    [
        ("mean", r"layers move logits by 0%, the fusion is invariant; .* by [1-9]\d*%, the fusion is equivariant"),
        ("concat", r"the fusion is not invariant; .* the fusion is not equivariant"),
        ("daam-v2", r"layers move logits by [1-9]\d*%, the fusion is equivariant; .* is not equivariant"),
        ("daam-v1", r"the fusion is not equivariant; .* is not equivariant"),
        ("hconv", r"the fusion is not invariant; .* the fusion is not invariant"),
    ],
)
def test_sensitivity_of_known_methods(method: str, text: str) -> None:
    assert re.search(text, CHECKS["sensitivity"](Case(method)).text)


def dense(found: Callable[[Tensor], Tensor], factor: float = 1) -> Plant:
    """A density that the fusion does not use; asked for it, the fusion gives `factor` times its output."""

    def fuse(_: Any, x: Tensor, *, return_density: bool = False) -> Any:
        return (factor * x, found(x)) if return_density else x

    return Plant(fuse, traits=Traits(density=True))


def weighed(weights: Callable[[Tensor], Tensor]) -> Plant:
    """A method that tells weights of its layers."""

    class Weighed(FusionClassifier):
        weighs_layers = True

        def layer_weights(self, x: Tensor) -> Tensor:
            return weights(x)

    return Plant(model=Weighed)


@pytest.mark.parametrize(
    ("plant", "message"),
    [
        (dense(lambda x: 1.1 * x.sigmoid()), "^density goes from .*, outside"),
        (dense(lambda x: -x.sigmoid()), "^density goes from -.*, outside"),
        (dense(torch.ones_like), "^density goes from 1 to 1, .* constant$"),
        (dense(lambda x: x.clamp(0, 1)), r"^\d\d% of the density is 0$"),
        (dense(lambda x: x.sigmoid() / 0), "^density goes from inf"),
        (dense(lambda x: x.sigmoid().mean(2)), r"^density is torch.float32 \(6, 5\), not float32 \(6, 5, 6\)"),
        (dense(lambda x: x.sigmoid().double()), "^density is torch.float64"),
        (dense(torch.sigmoid, factor=2), "^logits differ when the density is asked for$"),
        (Plant(model=lambda *parts: Discloses(*parts)), "^a density is given that is not declared$"),
        (weighed(lambda x: x.mean((1, 2))), r"^layer weights are torch.float32 \(6,\)"),
        (weighed(lambda x: x.mean(2) / 0), "^layer weights .* not finite$"),
        (weighed(lambda x: x.mean(2).half()), "^layer weights are torch.float16"),
    ],
)
def test_density(caught: Any, plant: Plant, message: str) -> None:
    caught("density", plant, message)


class Discloses(FusionClassifier):
    def forward(self, x: Tensor, *, return_density: bool = False) -> Any:
        logits = super().forward(x)
        return (logits, x) if return_density else logits


def test_density_and_layer_weights_are_told(check: Check) -> None:
    assert re.fullmatch(r"density from 0\.\d+ to 0\.9\d*", check("density", dense(torch.sigmoid)).text)
    assert check("density", weighed(lambda x: x.mean(2) * 0)).text == "no density; layer weights from 0 to 0"


def test_the_density_of_several_blocks_may_exceed_one() -> None:
    assert CHECKS["density"](Case("mixture-daam", {"num_blocks": 3})).ok


class Chooser(FusionClassifier):
    """Keeps a number of the held-out group; `how` says what else it does."""

    def __init__(self, *parts: Any, how: str = "") -> None:
        super().__init__(*parts)
        self.how = how
        if how == "is trained":
            self.kept = nn.Parameter(torch.ones(()))
        else:
            self.register_buffer("kept", torch.ones(()))

    def forward(self, x: Tensor, **_: Any) -> Any:
        return super().forward(x) * (self.kept if self.how == "breaks" else 1)

    def choose(self, x: Tensor, y: Tensor) -> None:
        self.kept.data.copy_(x[0, 0, 0])
        if self.how == "wavers":
            self.kept.add_(torch.rand(()))
        if self.how == "breaks":
            self.kept.fill_(float("inf"))


class Odd(FusionClassifier):
    def training_loss(self, x: Tensor, y: Tensor, criterion: Any) -> tuple[Tensor, Tensor]:
        return criterion(self(x), y) / 0, self(x)[:, :2]


@pytest.mark.parametrize(
    ("plant", "message"),
    [
        (Plant(model=Odd), r"^the loss is no finite number: .*; logits of training have shape \(6, 2\)"),
        (Plant(model=Chooser), "^chooses on a held-out group without saying so$"),
        (Plant(traits=Traits(needs_dev=True)), "^needs a held-out group and chooses the same on every one$"),
        (
            Plant(model=lambda *parts: Chooser(*parts, how="wavers"), traits=Traits(needs_dev=True)),
            "^a second choice on the same held-out group differs from the first$",
        ),
        (
            Plant(model=lambda *parts: Chooser(*parts, how="breaks"), traits=Traits(needs_dev=True)),
            "^unusable after the choice$",
        ),
        (
            Plant(model=lambda *parts: Chooser(*parts, how="is trained"), traits=Traits(needs_dev=True)),
            "^a refit keeps only what is chosen in buffers, and kept is no buffer$",
        ),
    ],
)
def test_training(caught: Any, plant: Plant, message: str) -> None:
    caught("training", plant, message)


def test_declared_choice_is_said(check: Check) -> None:
    finding = check("training", Plant(model=Chooser, traits=Traits(needs_dev=True)))
    assert finding.ok
    assert finding.text.endswith("; chooses on a held-out group")


class Solved(VectorProbe):
    """A probe of the last layer that keeps something of its start, or finds nothing."""

    def __init__(self, how: str) -> None:
        sizes = Sizes(*SIZES)
        super().__init__(LastLayer(), [lambda clips, fit: clips.layer(sizes.num_layers - 1)], sizes)
        self.how = how

    def _solve(self, train: Layers, dev: Layers | None) -> Solution:
        before = self.decoder.bias.clone()
        solution = super()._solve(train, dev)
        if self.how == "keeps":
            self.decoder.bias.copy_(before)
        elif self.how == "finds nothing":
            self.decoder.weight.zero_()
        elif self.how == "breaks":
            self.decoder.scale.fill_(torch.nan)
        return solution


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("keeps", "^another start gives another solution: decoder.bias"),
        ("finds nothing", "% of the held-out clips are right$"),
        ("breaks", "logits are not finite"),
    ],
)
def test_solution(caught: Any, how: str, message: str) -> None:
    caught("training", Plant(model=lambda *_: Solved(how)), message)


def test_closed_form_is_said_and_must_be_there(caught: Any, check: Check) -> None:
    caught("training", Plant(traits=Traits(closed_form=True)), "^declared to be solved .* and is no RidgeProbe$")
    sound = Plant(model=lambda *_: Solved("whole"))
    assert check("training", sound).text.startswith("solved with penalty ")
    for name in ("gradient", "start"):
        assert check(name, sound).text.startswith("not applicable: solved in closed form")


def test_summary(caught: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    silent = Plant(traits=Traits(reconstructed="reading A"))
    caught("summary", silent, "^reconstructed is 'reading A', the line says 'Control: ")
    caught("summary", Plant(), "^reconstructed is '', the line says '.*reconstructed", case=Case("sga"))
    monkeypatch.setattr(type(contract.METHODS), "summary", lambda *_: "too short")
    caught("summary", Plant(), "^not one sentence of 21 to 119 characters: 'too short'$")


def test_start(caught: Any) -> None:
    caught("start", Plant(before=lambda **_: torch.seed()), "^decoder.projector.weight differs for one seed;")
    caught("start", Plant(before=lambda **_: torch.manual_seed(5)), "^two seeds give the same start$")


def refuse_seven(message: str) -> Callable[..., None]:
    """Refuse seven layers, as long as heads are not set."""

    def before(*, num_layers: int, num_heads: int = 2, **_: int) -> None:
        if num_layers % num_heads:
            raise MethodError(message)

    return before


def test_sizes(caught: Any, check: Check) -> None:
    caught("sizes", Plant(lambda _, x: x[:2]), r"^\(24, 16, 4\): logits of 3 samples have shape \(2, 4\)")
    caught("sizes", Plant(lambda _, x: x / (len(x) - 1)), "of 1 samples have shape .* are not finite")
    refusal = "num_heads (2) must divide the number of layers (7)"
    caught("sizes", Plant(before=refuse_seven(refusal)), "should end in '; possible: 1'$")
    caught("sizes", Plant(before=refuse_seven(f"{refusal}; possible: 1, 7")), "should end in '; possible: 1'$")
    named = check("sizes", Plant(before=refuse_seven(f"{refusal}; possible: 1")))
    assert named == Finding("sizes", True, "runs at 5 sizes, with num_heads=1 at 7 x 13")
    with pytest.raises(MethodError, match=r"^no$"):
        check("sizes", Plant(before=refuse_seven("no")))


def test_refusal_that_the_setting_does_not_cure(check: Check) -> None:
    def refuse(**_: int) -> None:
        raise MethodError("num_heads (2) leaves nothing")

    with pytest.raises(MethodError, match="leaves nothing"):
        check("sizes", Plant(before=refuse))


def test_error_inside_a_check_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Any, x: Tensor) -> Tensor:
        raise RuntimeError("first line\nsecond line")

    monkeypatch.setattr(contract, "build", Plant(fail))
    findings = list(run_checks(Case("none", sizes=SIZES), ["start", "batch"]))
    assert [finding.ok for finding in findings] == [True, False]
    assert findings[1] == Finding("batch", False, "RuntimeError: first line")


def test_checks_leave_the_random_numbers_of_others_alone(check: Check) -> None:
    torch.manual_seed(3)
    expected = torch.rand(())
    torch.manual_seed(3)
    for name in CHECKS:
        check(name, Plant())
    assert torch.equal(torch.rand(()), expected)


def test_case_moves_trainable_parameters_only(monkeypatch: pytest.MonkeyPatch) -> None:
    frozen = Plant(parameter=torch.zeros(1000), model=lambda *parts: FusionClassifier(*parts))
    monkeypatch.setattr(contract, "build", frozen)
    moved: Any = Case("none", sizes=SIZES).make()
    assert 0.04 < moved.fusion.parameter.std() < 0.06
    frozen.model = lambda *parts: FusionClassifier(*parts).requires_grad_(False)
    assert not Case("none", sizes=SIZES).make().fusion.parameter.any()  # type: ignore[union-attr]
