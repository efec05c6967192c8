"""Contract of all methods: one set of checks, run by the tests and by `daamctl doctor --method`.

A check builds a method at small sizes, moves every parameter away from its initial value, and reports one line. A
deviation that the method's `Traits` declare must be present; any other must be absent.
"""

from __future__ import annotations

import copy
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor, nn

from daamctl.errors import MethodError
from daamctl.methods import METHODS, build, resolve_method
from daamctl.methods.activity_check import gradient_sizes
from daamctl.methods.base import FusionClassifier
from daamctl.methods.mixture import LayerMixture
from daamctl.methods.probes import Layers, RidgeProbe
from daamctl.methods.settings import Sizes

log = logging.getLogger(__name__)

SPEECH, VISION, TEXT = Sizes(24, 1024, 4), Sizes(24, 1024, 100), Sizes(40, 5120, 4)
"""Sizes of the papers' three experiments: WavLM-Large on IEMOCAP, BEiT-Large on CIFAR-100, Llama2-13B on AG News."""


@dataclass(frozen=True)
class ParameterCount:
    """Trainable parameters of a published method at one size.

    Args:
        printed: the number that the papers or the released scripts print, and what it counts; empty: none.
    """

    fusion: int
    total: int
    printed: str = ""


PUBLISHED_PARAMETERS: dict[str, dict[Sizes, ParameterCount]] = {
    "none": {
        SPEECH: ParameterCount(0, 320_028),
        VISION: ParameterCount(0, 2_679_420),
        TEXT: ParameterCount(0, 1_188_396),
    },
    "daam-v1": {
        SPEECH: ParameterCount(16_384, 336_412, "336,412"),
        VISION: ParameterCount(16_384, 2_695_804, "238,104 without fc"),
        TEXT: ParameterCount(81_920, 1_270_316),
    },
    "daam-v2": {
        SPEECH: ParameterCount(2_048, 322_076, "322,076"),
        VISION: ParameterCount(2_048, 2_681_468, "221,720 for the convolutions alone"),
        TEXT: ParameterCount(10_240, 1_198_636, "451,112 without fc, with eight heads"),
    },
    "gqdaam-published": {
        SPEECH: ParameterCount(1_001_472, 1_272_348, "1,223,192 without fc"),
        VISION: ParameterCount(1_001_472, 2_452_092, "1,208,856 without fc, with one head"),
        TEXT: ParameterCount(3_164_160, 3_615_276, "3,533,352 without fc"),
    },
    "mixture-daam": {
        SPEECH: ParameterCount(64, 320_092, "64 for the attention alone"),
        VISION: ParameterCount(64, 2_679_484, "64 for the attention alone"),
        TEXT: ParameterCount(64, 1_188_460, "64 for the attention alone"),
    },
    "mha": {
        SPEECH: ParameterCount(4_198_400, 4_518_428),
        VISION: ParameterCount(4_198_400, 6_877_820, "6,877,820"),
        TEXT: ParameterCount(104_878_080, 106_066_476),
    },
    "mha-bn": {
        SPEECH: ParameterCount(4_198_448, 4_518_476, "4,420,168 without fc"),
        VISION: ParameterCount(4_198_448, 6_877_868, "6,877,868"),
        TEXT: ParameterCount(104_878_160, 106_066_556),
    },
    "gqa-published": {
        SPEECH: ParameterCount(985_088, 1_255_964),
        VISION: ParameterCount(985_088, 2_435_708),
        TEXT: ParameterCount(3_082_240, 3_533_356),
    },
}
"""Exact counts of the papers' methods, computed from their definitions, beside the printed numbers
(docs/sources.md#parameter-counts)."""

SMALL = Sizes(24, 16, 4)
FURTHER = (SMALL, Sizes(8, 8, 2), Sizes(8, 24, 7), Sizes(40, 40, 3), Sizes(7, 13, 3))
"""Sizes at which a method is built and run. In the last, number of layers and width are prime."""

SCALES = (1.0, 300.0)  # hidden states of large encoders reach hundreds
GRADIENT_FLOOR = 1e-9  # of the largest gradient of the model, in float64
ABSOLUTE, RELATIVE = 1e-5, 1e-4  # tolerance between two float32 results
ROUNDED_TO_ZERO = 0.1  # largest share of zeros in a density: float32 underflows in the tail of a narrow Gaussian
BATCH = 6
SOLVED_CLIPS = 20  # per class, half of them held out
ORDER = (4, 0, 5, 2, 1, 3)


@dataclass(frozen=True)
class Case:
    """A method to check.

    Args:
        sizes: sizes at which numbers are computed.
        counted: sizes at which parameters are counted, on the meta device.
    """

    method: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    sizes: Sizes = SMALL
    counted: tuple[Sizes, ...] = (SPEECH, VISION, TEXT)
    seed: int = 0

    def build(
        self, sizes: Sizes | None = None, settings: Mapping[str, Any] | None = None, seed: int | None = None
    ) -> FusionClassifier:
        """Build the method as it starts; the global random state does not change.

        Args:
            settings: in addition to the settings of the case.

        Raises:
            MethodError: it cannot be built for these sizes and settings.
        """
        num_layers, embed_dim, num_classes = sizes or self.sizes
        wanted = {**self.settings, **(settings or {})}
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(self.seed if seed is None else seed)
            return build(self.method, num_layers=num_layers, embed_dim=embed_dim, num_classes=num_classes, **wanted)

    def make(self, seed: int | None = None) -> FusionClassifier:
        """Build the method and move every trainable parameter away from its start, where many are zero."""
        seed = self.seed if seed is None else seed
        model = self.build(seed=seed)
        generator = torch.Generator().manual_seed(seed + 1)
        with torch.no_grad():
            for p in model.parameters():
                if p.requires_grad:
                    p.add_(0.05 * torch.randn(p.shape, generator=generator))
        return model

    def data(self, size: int = BATCH, seed: int = 1) -> tuple[Tensor, Tensor]:
        """Layers (size, L, D), standard normal, and labels (size,) that cycle through the classes."""
        num_layers, embed_dim, num_classes = self.sizes
        generator = torch.Generator().manual_seed(self.seed + seed)
        x = torch.randn(size, num_layers, embed_dim, generator=generator)
        return x, torch.arange(size) % num_classes


@dataclass(frozen=True)
class Finding:
    """Result of a check.

    Args:
        text: one line: the problems, or the observation.
    """

    name: str
    ok: bool
    text: str


def run_checks(case: Case, names: Iterable[str] | None = None) -> Iterator[Finding]:
    """Run checks one after another; an error inside a check is a finding too.

    Args:
        names: names from `CHECKS`; None: all.
    """
    for name in CHECKS if names is None else names:
        try:
            yield CHECKS[name](case)
        except Exception as error:  # a broken method may fail in any way, inside torch too
            log.debug("%s of %s", name, case.method, exc_info=True)
            first = next(iter(str(error).splitlines()), "")
            yield Finding(name, False, f"{type(error).__name__}: {first}")


def check_parameters(case: Case) -> Finding:
    """The number of trainable parameters is the published one, if there is one."""
    problems, seen = [], []
    name, preset = resolve_method(case.method)
    known = {} if case.settings or preset else PUBLISHED_PARAMETERS.get(name, {})
    for sizes in case.counted:
        with torch.device("meta"):
            model = case.build(sizes)
        fusion, total = trainable(model.fusion), trainable(model)
        last = getattr(model.decoder, "fc", None)
        of_which = f" of which fc {trainable(last):,}" if last is not None else ""
        text = (
            f"{sizes[0]} x {sizes[1]} to {sizes[2]} classes: {total:,} trainable "
            f"(fusion {fusion:,}, decoder {total - fusion:,}{of_which})"
        )
        count = known.get(sizes)
        if total == 0:
            problems.append(f"{text}; nothing to train")
        if count is not None:
            if (count.fusion, count.total) != (fusion, total):
                problems.append(f"{text}, not {count.total:,} (fusion {count.fusion:,}) as defined")
            text += f", as defined; printed: {count.printed or 'nothing'}"
        seen.append(text)
    return _finding("parameters", problems, "; ".join(seen))


def check_gradient(case: Case) -> Finding:
    """The gradient of the training loss reaches every trainable tensor except the inert ones."""
    if case.build().traits.closed_form:
        return Finding("gradient", True, "not applicable: solved in closed form, without gradients")
    model = case.make().double()
    x, y = case.data()
    size = gradient_sizes(model, x.double(), y)
    largest = max(size.values(), default=0.0)
    lacking = {name for name, value in size.items() if not value > GRADIENT_FLOOR * largest}
    inert = set(model.traits.inert)
    problems = [f"{name} gets no gradient" for name in sorted(lacking - inert)]
    problems += [f"{name} is declared inert and gets a gradient" for name in sorted((inert & size.keys()) - lacking)]
    problems += [f"{name} is declared inert and is no trainable tensor" for name in sorted(inert - size.keys())]
    text = f"reaches {len(size) - len(lacking)} of {len(size)} trainable tensors"
    return _finding("gradient", problems, text + (f"; inert: {', '.join(sorted(inert))}" if inert else ""))


def check_batch(case: Case) -> Finding:
    """A sample alone gives the same logits as in a batch, unless the method declares that it depends on its batch."""
    model = case.make().eval()
    x, _ = case.data()
    with torch.no_grad():
        whole = model(x)
        rows = torch.cat([model(row[None]) for row in x])
    problems = [] if whole.isfinite().all() and rows.isfinite().all() else ["logits are not finite"]
    if whole.std(0).min() < 1e-3:
        problems.append("logits hardly differ between samples")
    depends = not _close(rows, whole)
    moved = f"alone, logits differ by up to {_gap(rows, whole)}"
    if depends and not model.traits.batch_dependent:
        problems.append(f"a prediction depends on its batch: {moved}")
    if model.traits.batch_dependent and not depends:
        problems.append("declared to depend on its batch, and does not")
    text = f"a prediction depends on its batch (D1): {moved}" if depends else "a sample alone and in a batch: equal"
    return _finding("batch", problems, text)


def check_order(case: Case) -> Finding:
    """Permuted samples give permuted logits, in training and in evaluation."""
    problems = []
    x, _ = case.data()
    order = torch.tensor(ORDER)
    for mode in ("training", "evaluation"):
        model = case.make().train(mode == "training")
        with torch.no_grad():
            found, expected = model(x[order]), model(x)[order]
        if not _close(found, expected):
            problems.append(f"in {mode}, logits change by {_gap(found, expected)} with the order of the batch")
    return _finding("order", problems, "the order of the batch does not matter")


def check_evaluation(case: Case) -> Finding:
    """Evaluation is repeatable, gives float32 logits, and changes neither the module nor its input."""
    problems = []
    model = case.make().eval()
    x, _ = case.data()
    given, before = x.clone(), _copy_state(model)
    with torch.no_grad():
        first, second = model(x), model(x)
    if not torch.equal(first, second):
        problems.append("two passes over the same input differ")
    if first.dtype != torch.float32:
        problems.append(f"logits of float32 input are {first.dtype}")
    if not torch.equal(x, given):
        problems.append("the input is overwritten")
    changed = _changed(before, model)
    if changed:
        problems.append(f"evaluation changes {', '.join(changed)}")
    return _finding("evaluation", problems, "repeats exactly and leaves no state")


def check_saving(case: Case) -> Finding:
    """Weights saved after a training step give the same logits when loaded into a module with another start."""
    model, other = case.make().train(), case.make(case.seed + 7).eval()
    x, y = case.data()
    model.training_loss(x, y, nn.functional.cross_entropy)[0].backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    model.eval().choose(*case.data(seed=2))  # so that buffers change too
    with torch.no_grad():
        expected, different = model(x), other(x)
        state = load(save(model.state_dict()))
        other.load_state_dict(state)
        found = other(x)
    problems = ["logits differ after loading"] if not torch.equal(found, expected) else []
    if torch.equal(different, expected):
        problems.append("another start gives the same logits, so nothing is compared")
    return _finding("saving", problems, f"{len(state)} tensors, equal after loading")


def check_autocast(case: Case) -> Finding:
    """Logits and gradients stay finite in half precision, also for large inputs."""
    problems, skipped = [], []
    x, y = case.data()
    for dtype in (torch.bfloat16, torch.float16):
        for scale in SCALES:
            what = f"{str(dtype).removeprefix('torch.')}, inputs x {scale:g}"
            model = case.make().train()
            try:
                with torch.autocast("cpu", dtype=dtype):
                    loss, logits = model.training_loss(
                        scale * x, y, lambda z, y: nn.functional.cross_entropy(z.float(), y)
                    )
                loss.backward()
            except RuntimeError as error:
                if dtype is torch.float16 and "not implemented for 'Half'" in str(error):
                    skipped.append(f"{what} skipped: {str(error).splitlines()[0]}")
                    continue
                raise
            if not (loss.isfinite() and logits.isfinite().all()):
                problems.append(f"{what}: logits are not finite")
            broken = [n for n, p in model.named_parameters() if p.grad is not None and not p.grad.isfinite().all()]
            if broken:
                problems.append(f"{what}: gradient of {', '.join(broken)} is not finite")
    scales = " and ".join(f"x {scale:g}" for scale in SCALES)
    text = (
        f"finite where tried; {'; '.join(skipped)}" if skipped else f"finite in bfloat16 and float16, inputs {scales}"
    )
    return _finding("autocast", problems, text)


def check_compile(case: Case) -> Finding:
    """Compiled as one graph, the method gives the logits and the input's gradient of its plain form."""
    torch.compiler.reset()  # else the code that all methods share reaches torch's limit of recompilations
    plain = case.make().train()
    compiled = copy.deepcopy(plain)
    results = []
    for call in (plain, torch.compile(compiled, fullgraph=True, backend="aot_eager")):
        x = case.data()[0].requires_grad_()
        logits = call(x)
        results.append((logits.detach(), *torch.autograd.grad(logits.square().sum(), x)))
    torch.compiler.reset()
    problems = [
        f"{what} of the compiled method differ by up to {_gap(found, expected)}"
        for what, expected, found in zip(("logits", "input gradients"), *results, strict=True)
        if not _close(found, expected)
    ]
    return _finding("compile", problems, "one graph; logits and gradients equal those of the plain method")


def check_export(case: Case) -> Finding:
    """Exported with a batch of any size, the method gives its own logits at a size not seen on export."""
    model = case.make().eval()
    x, _ = case.data()
    batch = torch.export.Dim("batch")
    with torch.no_grad():
        program = torch.export.export(model, (x,), dynamic_shapes=({0: batch},), strict=False)
        found, expected = program.module()(x[:3]), model(x[:3])
    problems = []
    if not _close(found, expected):
        problems.append(f"logits of the exported method differ by up to {_gap(found, expected)}")
    return _finding("export", problems, "exports with a batch of any size, logits equal")


def check_sensitivity(case: Case) -> Finding:
    """How much the method depends on the order of the layers and of the features; informative, never a failure."""
    model = case.make().eval()
    x, _ = case.data()
    texts = []
    generator = torch.Generator().manual_seed(case.seed)
    with torch.no_grad():
        logits, fused = model(x), model.fusion(x)
        for axis, what in ((1, "layers"), (2, "features")):
            order = torch.randperm(x.shape[axis], generator=generator)
            shuffled = x.index_select(axis, order)
            moved = ((model(shuffled) - logits).norm() / logits.norm()).item()
            # An output that still has the axis can be equivariant; any other can only be invariant.
            follows = fused.dim() == 3 if axis == 1 else fused.shape[-1] == x.shape[-1]
            expected = fused.index_select(axis - x.dim(), order) if follows else fused
            law = "equivariant" if follows else "invariant"
            law = law if _close(model.fusion(shuffled), expected) else f"not {law}"
            texts.append(f"shuffled {what} move logits by {moved:.0%}, the fusion is {law}")
    return Finding("sensitivity", True, "; ".join(texts))


def check_density(case: Case) -> Finding:
    """A density, if any, has one weight in (0, 1] per layer and feature; layer weights, if any, are one per layer."""
    model = case.make().eval()
    x, _ = case.data()
    problems, seen = [], []
    with torch.no_grad():
        if model.has_density:
            logits, density = model(x, return_density=True)
            if not torch.equal(logits, model(x)):
                problems.append("logits differ when the density is asked for")
            if density.shape != x.shape or density.dtype != torch.float32:
                problems.append(f"density is {density.dtype} {tuple(density.shape)}, not float32 {tuple(x.shape)}")
            low, high = density.min().item(), density.max().item()
            blocks = len(model.fusion.block.layers) if isinstance(model.fusion, LayerMixture) else 1
            most = 2**blocks - 1  # the product of 1 + w over the blocks, minus 1
            if not 0 <= low < high <= most:
                problems.append(f"density goes from {low:.3g} to {high:.3g}, outside (0, {most}] or constant")
            if (density == 0).float().mean() > ROUNDED_TO_ZERO:
                problems.append(f"{(density == 0).float().mean():.0%} of the density is 0")
            seen.append(f"density from {low:.3g} to {high:.3g}")
        else:
            try:
                model(x, return_density=True)
                problems.append("a density is given that is not declared")
            except MethodError:
                seen.append("no density")
        if model.weighs_layers:
            weights = model.layer_weights(x)
            if weights.shape != x.shape[:2] or weights.dtype != torch.float32 or not weights.isfinite().all():
                problems.append(f"layer weights are {weights.dtype} {tuple(weights.shape)} or not finite")
            seen.append(f"layer weights from {weights.min():.3g} to {weights.max():.3g}")
    return _finding("density", problems, "; ".join(seen))


def check_training(case: Case) -> Finding:
    """The training loss is a finite number; a choice on a held-out group is made if declared, and repeatable.

    A closed-form method is solved instead.
    """
    if case.build().traits.closed_form:
        return _check_solution(case)
    problems = []
    model = case.make().train()
    x, y = case.data()
    loss, logits = model.training_loss(x, y, nn.functional.cross_entropy)
    if loss.shape != () or not loss.isfinite():
        problems.append(f"the loss is no finite number: {loss}")
    if logits.shape != (len(x), case.sizes[2]):
        problems.append(f"logits of training have shape {tuple(logits.shape)}")
    model.eval()
    before = _copy_state(model)
    moved: set[str] = set()
    wavers = False
    for seed in range(2, 10):  # different held-out groups
        group = case.data(seed=seed)
        model.choose(*group)
        moved.update(_changed(before, model))
        before = _copy_state(model)
        model.choose(*group)
        wavers |= bool(_changed(before, model))
    if wavers:
        problems.append("a second choice on the same held-out group differs from the first")
    if moved and not model.traits.needs_dev:
        problems.append("chooses on a held-out group without saying so")
    if model.traits.needs_dev and not moved:
        problems.append("needs a held-out group and chooses the same on every one")
    if lost := moved - dict(model.named_buffers()).keys():
        problems.append(f"a refit keeps only what is chosen in buffers, and {', '.join(sorted(lost))} is no buffer")
    with torch.no_grad():
        after = model(x)
    if after.shape != logits.shape or not after.isfinite().all():
        problems.append("unusable after the choice")
    text = f"loss {loss.item():.3g}; " + ("chooses on a held-out group" if moved else "nothing left to choose")
    return _finding("training", problems, text)


def check_summary(case: Case) -> Finding:
    """The line that `ls` shows is a sentence, and says if the method is reconstructed."""
    line = METHODS.summary(resolve_method(case.method)[0])
    reading = case.build().traits.reconstructed
    problems = []
    if not (20 < len(line) < 120 and line.endswith(".")):
        problems.append(f"not one sentence of 21 to 119 characters: '{line}'")
    if ("reconstructed" in line) != bool(reading):
        problems.append(f"reconstructed is '{reading}', the line says '{line}'")
    return _finding("summary", problems, f"reconstructed: {reading}" if reading else "one sentence")


def check_start(case: Case) -> Finding:
    """Equal seeds give equal starts, different seeds different ones."""
    if case.build().traits.closed_form:
        return Finding("start", True, "not applicable: solved in closed form, whatever the start")
    first, second, third = (case.build(seed=seed).state_dict() for seed in (3, 3, 4))
    problems = [f"{name} differs for one seed" for name, value in first.items() if not torch.equal(value, second[name])]
    if all(torch.equal(value, third[name]) for name, value in first.items()):
        problems.append("two seeds give the same start")
    return _finding("start", problems, "same seed, same start")


def check_sizes(case: Case) -> Finding:
    """Builds and runs at any size; a refusal names a setting that is too large and, for heads, all divisors."""
    problems, seen = [], []
    for sizes in FURTHER:
        settings: dict[str, int] = {}
        model = None
        while model is None:
            try:
                model = case.build(sizes, settings)
            except MethodError as error:
                refused = re.match(r"(\w+) \(\d+\) ", error.message)
                if refused is None or refused[1] in settings:
                    raise
                settings[refused[1]] = 1
                problems += _wrong_divisors(error.message)
        seen += [f"{key}=1 at {sizes[0]} x {sizes[1]}" for key in settings]
        for size in (1, 3):
            with torch.no_grad():
                logits = model.eval()(replace(case, sizes=sizes).data(size)[0])
            if logits.shape != (size, sizes[2]) or not logits.isfinite().all():
                problems.append(f"{sizes}: logits of {size} samples have shape {tuple(logits.shape)} or are not finite")
    text = f"runs at {len(FURTHER)} sizes" + (f", with {', '.join(seen)}" if seen else "")
    return _finding("sizes", problems, text)


def _check_solution(case: Case) -> Finding:
    """The solution separates separable classes, is repeatable, and does not depend on the start."""
    model, other = case.make(), case.make(case.seed + 7)
    if not isinstance(model, RidgeProbe) or not isinstance(other, RidgeProbe):
        return _finding("training", ["declared to be solved in closed form, and is no RidgeProbe"], "")
    num_classes = case.sizes[2]
    x, y = case.data(SOLVED_CLIPS * num_classes)
    x += torch.randn(num_classes, *x.shape[1:], generator=torch.Generator().manual_seed(case.seed))[y]
    half = len(y) // 2
    parts = [Layers(y[rows], lambda index, rows=rows: x[rows, index]) for rows in (slice(half), slice(half, None))]  # type: ignore[misc]
    solution = model.eval().solve(*parts)
    other.solve(*parts)
    problems = []
    if differing := _changed(_copy_state(model), other):
        problems.append(f"another start gives another solution: {', '.join(differing)}")
    with torch.no_grad():
        logits = model(x)
    if not logits.isfinite().all():
        problems.append("logits are not finite")
    right = (logits.argmax(-1) == y)[half:].double().mean().item()
    if right < 1.5 / num_classes:
        problems.append(f"only {right:.0%} of the held-out clips are right")
    return _finding(
        "training", problems, f"solved with penalty {solution.penalty:g}; {right:.0%} of held-out clips right"
    )


CHECKS: dict[str, Callable[[Case], Finding]] = {
    "parameters": check_parameters,
    "gradient": check_gradient,
    "batch": check_batch,
    "order": check_order,
    "evaluation": check_evaluation,
    "saving": check_saving,
    "autocast": check_autocast,
    "compile": check_compile,
    "export": check_export,
    "sensitivity": check_sensitivity,
    "density": check_density,
    "training": check_training,
    "summary": check_summary,
    "start": check_start,
    "sizes": check_sizes,
}
"""All checks in reading order."""


def trainable(module: nn.Module) -> int:
    """Number of trainable parameters."""
    return sum(p.numel() for p in module.parameters() if p.requires_grad)


def _finding(name: str, problems: list[str], text: str) -> Finding:
    return Finding(name, not problems, "; ".join(problems) or text)


def _close(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a, b, atol=ABSOLUTE, rtol=RELATIVE)


def _gap(a: Tensor, b: Tensor) -> str:
    return f"{(a - b).abs().max():.2g}"


def _wrong_divisors(message: str) -> list[str]:
    """Problems with the divisors that a refusal lists; heads over the layers need two layers each."""
    match = re.search(r" must divide (.*) \((\d+)\)(.*)$", message)
    if match is None:
        return []
    whole = int(match[2])
    most = max(1, whole // 2) if match[1] == "the number of layers" else whole
    right = f"; possible: {', '.join(str(n) for n in range(1, most + 1) if whole % n == 0)}"
    return [] if match[3] == right else [f"the refusal '{message}' should end in '{right}'"]


def _copy_state(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def _changed(before: Mapping[str, Tensor], model: nn.Module) -> list[str]:
    """Names of tensors that differ from an earlier copy of the state, or exist in only one of the two."""
    now = model.state_dict()
    same = {name for name in before.keys() & now.keys() if torch.equal(before[name], now[name])}
    return sorted((before.keys() | now.keys()) - same)
