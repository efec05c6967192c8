"""How fast a density attention runs forward and backward, beside its published form and what memory allows.

Repeat it:

    python -m benchmarks.daam --out data/bench/daam.json    # --help for other sizes and devices

The fusions of daam-v1 (eight heads), daam-v2 (one head) and mixture-daam, without a decoder, in float32, with the
gradients of input and parameters, on drawn numbers. A channel map (B, C, H, W), given by four numbers, is weighted
along C as (B, C, H*W), a view of it. The ways, in turns:

- ours;
- published: the released modules, with a loop over heads and over Gaussians, restated from
  docs/sources.md#density-attention, #heads and #mixture;
- compiled: ours under torch.compile, without the time to compile, which stands in the JSON (`compile_s`);
- limit: plain copies and sums that read and write what no implementation can avoid: x and the output forward; x, the
  gradient of the output and that of x backward. Into memory already there, which a module has to ask for.

`gb_per_s` is those bytes by the time, so `limit / ours` is the fraction of the memory's speed that ours reaches. Before
anything is timed, outputs and gradients of all ways are compared.
"""

from __future__ import annotations

import copy
import math
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from torch import Tensor, nn

from benchmarks.harness import Ways, conclude, in_turns, ratio
from daamctl.compute.devices import resolve_device
from daamctl.methods import DensityBlock, MultiHeadDAAM

SHAPES = ["8x24x1024", "32x24x1024", "8x40x5120", "8x64x56x56", "8x256x32x32"]
HEADS = 8
LEAST_S = 0.1
"""How long the calls of one measurement should take together."""
SMALL_BATCH = 2
"""Rows on which ours and published are compared in float64, where both ways to take a variance agree."""

Step = Callable[[], tuple[Tensor, ...]]


def main(
    shapes: Annotated[list[str] | None, typer.Option(help="BxLxD or BxCxHxW; repeatable.")] = None,
    compiled: Annotated[bool, typer.Option(help="Also measure torch.compile, which takes a while to compile.")] = True,
    device: Annotated[str, typer.Option(help="auto, cpu, mps, cuda or cuda:N.")] = "auto",
    repeats: Annotated[int, typer.Option(min=1, help="Rounds.")] = 5,
    out: Annotated[Path | None, typer.Option(help="Also write the figures to this JSON file.")] = None,
) -> None:
    """Compare density attention with its published form, its compiled form and the memory's speed."""
    device, shapes = resolve_device(device), shapes or SHAPES
    ways: Ways = {}
    ratios: list[dict[str, Any]] = []
    compile_s: dict[str, float | str] = {}
    with tempfile.TemporaryDirectory(prefix="daamctl-bench-") as folder:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder  # else what was compiled before would take no time
        for shape in shapes:
            for name, module in modules(sizes_of(shape)[-1]).items():
                case = f"{name} {shape}"
                x, grad = drawn(shape, device)
                steps = {way: stepper(one, x, grad) for way, one in both(module.to(device), x, grad).items()}
                if compiled:
                    fast, compile_s[case] = try_compile(module, x, grad)
                    steps |= {"compiled": fast} if fast else {}
                found = measure(case, steps, x, grad, repeats)
                ways |= {f"{case}, {way}": figures for way, figures in found.items()}
                others = [way for way in found if way != "ours"]
                ratios += [
                    {**ratio(found, "seconds", "ours", way, inverse=True), "quantity": f"seconds, {case}"}
                    for way in others
                ]
    sizes = {"shapes": list(shapes), "heads": HEADS}
    conclude("daam", sizes, ways, ratios, device=device, out=out, compile_s=compile_s)


def sizes_of(shape: str) -> tuple[int, int, int]:
    """(B, L, D) of `BxLxD`, (B, C, H*W) of `BxCxHxW`.

    Raises:
        BadParameter: it is neither, or the heads do not divide L.
    """
    numbers = [int(one) if one.isdecimal() else 0 for one in shape.split("x")]
    if len(numbers) not in (3, 4) or 0 in numbers or numbers[1] % HEADS or numbers[1] // HEADS < 2:
        raise typer.BadParameter(
            f"must be BxLxD or BxCxHxW with L or C a multiple of {HEADS}, at least {2 * HEADS}, got {shape}"
        )
    return numbers[0], numbers[1], math.prod(numbers[2:])


def drawn(shape: str, device: str) -> tuple[Tensor, Tensor]:
    """Input and gradient of the output, standard normal."""
    generator = torch.Generator().manual_seed(0)
    x, grad = (torch.randn(sizes_of(shape), generator=generator).to(device) for _ in range(2))
    return x.requires_grad_(), grad


def modules(dim: int) -> dict[str, nn.Module]:
    """The fusions, with parameters off their start."""
    generator = torch.Generator().manual_seed(1)
    found: dict[str, nn.Module] = {
        "v1": MultiHeadDAAM(num_heads=HEADS, embed_dim=dim),
        "v2": MultiHeadDAAM(num_heads=1, embed_dim=dim),
        "mixture": DensityBlock(num_heads=HEADS, init="constant"),
    }
    for module in found.values():
        for parameter in module.parameters():
            parameter.data += 0.1 * torch.randn(parameter.shape, generator=generator)
    return found


class PublishedDAAM(nn.Module):
    """The released DAAM: a module with its own tensors per head, chunks of the layers, joined again.

    Source: docs/sources.md#heads.

    Args:
        ours: whose parameters to take.
    """

    def __init__(self, ours: MultiHeadDAAM) -> None:
        super().__init__()
        self.offsets = nn.ParameterList([row[None].clone() for row in ours.offset.detach()])
        self.c = nn.ParameterList([row[None].clone() for row in ours.scaled_variance.detach()])

    def forward(self, x: Tensor) -> Tensor:
        """Weight (B, L, D)."""
        return torch.cat([self.head(i, part) for i, part in enumerate(x.chunk(len(self.c), dim=1))], dim=1)

    def head(self, i: int, x: Tensor) -> Tensor:
        """Weight the layers of one head."""
        mean = x.mean(dim=1, keepdim=True)
        var = torch.abs(torch.mean(x**2, dim=1, keepdim=True) - mean**2) + 1e-8
        y = (x - (mean + self.offsets[i])) / torch.sqrt(var + 1e-5)
        return x * torch.exp(-(y**2) / (2 * self.c[i]))


class PublishedMixture(nn.Module):
    """The released block of one layer: scalars per head and Gaussian, a product of densities, a residual.

    Source: docs/sources.md#mixture.

    Args:
        ours: whose parameters to take.
    """

    def __init__(self, ours: DensityBlock) -> None:
        super().__init__()
        (layer,) = ours.layers
        self.offsets = nn.ParameterList([row.clone() for row in layer.get_parameter("offsets").detach()])
        self.c = nn.ParameterList([row.clone() for row in layer.get_parameter("spreads").detach()])

    def forward(self, x: Tensor) -> Tensor:
        """Weight (B, L, D)."""
        return torch.cat([self.head(i, part) for i, part in enumerate(x.chunk(len(self.c), dim=1))], dim=1) + x

    def head(self, i: int, x: Tensor) -> Tensor:
        """Weight the layers of one head."""
        mean, var = x.mean(dim=1, keepdim=True), x.var(dim=1, keepdim=True) + 1e-8
        product = torch.ones_like(x)
        for offset, c in zip(self.offsets[i], self.c[i], strict=True):
            y = (x - mean - offset) ** 2 / var
            product = product * torch.exp(-y / (2 * c**2)) / torch.sqrt(2 * math.pi * c**2)
        return x * product / product.sum(dim=1, keepdim=True).clamp(min=1e-8)


def both(ours: nn.Module, x: Tensor, grad: Tensor) -> dict[str, nn.Module]:
    """Ours and the published form of the same parameters, which have been found to agree.

    Raises:
        RuntimeError: outputs or gradients differ.
    """
    published = PublishedDAAM(ours) if isinstance(ours, MultiHeadDAAM) else PublishedMixture(ours)  # type: ignore[arg-type]
    few, few_grad = (value.detach()[:SMALL_BATCH].cpu().double() for value in (x, grad))
    found = [
        stepper(copy.deepcopy(module).cpu().double(), few.clone().requires_grad_(), few_grad)()
        for module in (ours, published)
    ]
    (output, grad_x, *parameters), (their_output, their_grad_x, *heads) = found
    size = len(heads) // len(parameters)
    theirs = [torch.cat([*heads[i * size : (i + 1) * size]]).view_as(value) for i, value in enumerate(parameters)]
    agree("published", [output, grad_x, *parameters], [their_output, their_grad_x, *theirs], 1e-5)
    return {"ours": ours, "published": published.to(x.device)}


def agree(what: str, found: list[Tensor], expected: list[Tensor], tolerance: float) -> None:
    """Check that two forms give the same.

    Raises:
        RuntimeError: they differ by more than a share of the largest value.
    """
    for place, (one, other) in enumerate(zip(found, expected, strict=True)):
        gap = ((one - other).abs().max() / other.abs().max()).item()
        if not gap <= tolerance:
            raise RuntimeError(f"{what}: tensor {place} of output and gradients is off by {gap:.2g} of its largest")


def stepper(module: nn.Module, x: Tensor, grad: Tensor) -> Step:
    """Forward and backward pass; gives the output and the gradients of x and of the parameters."""
    wanted = [x, *module.parameters()]

    def step() -> tuple[Tensor, ...]:
        output = module(x)
        return output.detach(), *torch.autograd.grad(output, wanted, grad)

    return step


def try_compile(module: nn.Module, x: Tensor, grad: Tensor) -> tuple[Step | None, float | str]:
    """The compiled module and the seconds that it took to compile; or why there is none."""
    torch.compiler.reset()
    step = stepper(torch.compile(module), x, grad)  # type: ignore[arg-type]
    start = time.perf_counter()
    try:
        found = step()
    except RuntimeError as error:  # no compiler on this machine, or none for this device
        reason = str(error).splitlines()[0]
        Console(stderr=True).print(f"compiled: left out, {reason}")
        return None, reason
    seconds = time.perf_counter() - start
    agree("compiled", list(found), list(stepper(module, x, grad)()), 1e-3)
    return step, seconds


def measure(case: str, steps: dict[str, Step], x: Tensor, grad: Tensor, repeats: int) -> Ways:
    """Time every way, and the limit, in turns."""
    kept, written = x.detach(), torch.empty_like(grad)

    def limit() -> tuple[Tensor, ...]:
        return written.copy_(kept), torch.add(kept, grad, out=written)

    num_bytes = 5 * x.numel() * x.element_size()

    def timed(step: Step) -> Callable[[], dict[str, float]]:
        calls = math.ceil(LEAST_S / seconds_of(step, x.device, 1))

        def one() -> dict[str, float]:
            seconds = seconds_of(step, x.device, calls)
            return {"seconds": seconds, "gb_per_s": num_bytes / seconds / 1e9}

        return one

    Console(stderr=True).print(case)
    return in_turns({way: timed(step) for way, step in {**steps, "limit": limit}.items()}, repeats, "seconds")


def seconds_of(step: Step, device: torch.device, calls: int) -> float:
    """Mean time of some calls, after one that does not count."""
    step()
    wait(device)
    start = time.perf_counter()
    for _ in range(calls):
        step()
    wait(device)
    return (time.perf_counter() - start) / calls


def wait(device: torch.device) -> None:
    """Until the device has done what it was given."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


if __name__ == "__main__":
    typer.run(main)
