"""Whether bfloat16 is faster than float32 on this processor: measured once, then kept in the user's cache folder.

The processor's flags do not tell: with the same flag (`avx512_bf16`) some processors multiply bfloat16 matrices twice
as fast as float32, others at half the speed. So the operations that take most of the time are timed in both formats, in
one thread and by its processor time, which other programs hardly disturb. The decision is kept for as long as processor
and torch stay the same, so it does not change from run to run.
"""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from daamctl.compute.threads import one_thread
from daamctl.store.files import content_key, expanded, keep_json, kept_json

log = logging.getLogger(__name__)

ROUNDS = 5
GAIN = 1.1
"""Least speed-up that justifies a format that is less exact, or another memory layout."""


@dataclass(frozen=True)
class CpuFormats:
    """What is faster on this processor.

    Args:
        encoder: number format of a frozen encoder's forward pass: `float32` or `bfloat16`.
        convolutions: number format of training steps with 2-D convolutions.
        channels_last: whether such a step is faster in the channels-last memory layout, by number format.
        milliseconds: the measurement, operation -> time; empty if there was none.
    """

    encoder: str = "float32"
    convolutions: str = "float32"
    channels_last: dict[str, bool] = field(default_factory=dict)
    milliseconds: dict[str, float] = field(default_factory=dict)

    @property
    def speeds(self) -> dict[str, float]:
        """How many times faster bfloat16 is than float32, by operation; empty without a measurement."""
        times = self.milliseconds
        names = [name.removesuffix(", bfloat16") for name in times if name.endswith(", bfloat16")]
        return {name: round(times[f"{name}, float32"] / times[f"{name}, bfloat16"], 2) for name in names}


@lru_cache
def cpu_has_bfloat16() -> bool:
    """Whether this processor has instructions for bfloat16; without them bfloat16 is always slower than float32."""
    names = {"bf16"} if platform.machine() in ("arm64", "aarch64") else {"avx512_bf16", "amx_bf16"}
    return any(not names.isdisjoint(line.split()) for line in _cpuinfo() if line.startswith(("flags", "Features")))


@lru_cache
def cpu_formats() -> CpuFormats:
    """The formats to use on this processor: those kept in the cache, else measured now (about 0.1 s)."""
    if not cpu_has_bfloat16():
        return CpuFormats()
    import torch

    key = f"{_processor()}, torch {torch.__version__}"
    with suppress(TypeError):  # nothing is kept, or the fields of another version
        return CpuFormats(**kept_json(cache_file(), key))
    found = decide(measure())
    log.info("measured on this processor: %s", in_words(found))
    keep_json(cache_file(), key, asdict(found))
    return found


def decide(times: Mapping[str, float]) -> CpuFormats:
    """Choose by a measurement (`measure`). Formats of a training step are compared each in its better memory layout."""
    formats = ("float32", "bfloat16")
    encoder = [times[f"matrix product, {name}"] + times[f"convolution, {name}"] for name in formats]
    step = {
        name: [times[f"convolution step, {name}{layout}"] for layout in ("", ", channels last")] for name in formats
    }
    last = {name: other * GAIN <= usual for name, (usual, other) in step.items()}
    best = [step[name][last[name]] for name in formats]
    return CpuFormats(
        formats[encoder[1] * GAIN <= encoder[0]],
        formats[best[1] * GAIN <= best[0]],
        last,
        {name: round(value, 4) for name, value in times.items()},
    )


def in_words(found: CpuFormats) -> str:
    """One line: how fast bfloat16 is, and what is used."""
    if not found.milliseconds:
        return "bfloat16 is not native, float32 is used"
    speeds = ", ".join(f"{name} {speed:g} x" for name, speed in found.speeds.items())
    used = f"encoders use {found.encoder}, training steps with convolutions {found.convolutions}"
    return f"speed of bfloat16 against float32: {speeds}; {used}"


def measure() -> dict[str, float]:
    """Median processor time of each operation in milliseconds, in turns, in a thread of its own.

    They take most of the time: of an encoder, a projection and a convolution; of the decoder, a training step.
    """
    import torch
    from torch import nn
    from torch.nn import functional

    operations: dict[str, Callable[[], Any]] = {}

    def step(half: bool, order: torch.memory_format) -> Callable[[], None]:
        module = nn.Conv2d(12, 128, 3, padding=1)
        module.to(memory_format=order)  # type: ignore[call-overload]  # torch's annotations lack it
        x = torch.ones(2, 12, 16, 24).to(memory_format=order).requires_grad_()

        def run() -> None:
            with torch.autocast("cpu", torch.bfloat16, enabled=half):
                y = module(x)
            y.float().sum().backward()

        return run

    for name in ("float32", "bfloat16"):
        ones = partial(torch.ones, dtype=getattr(torch, name))
        no_gradients = torch.inference_mode()
        matrices, signals = (ones(128, 768), ones(768, 768)), (ones(1, 256, 400), ones(256, 256, 3))
        operations[f"matrix product, {name}"] = no_gradients(partial(functional.linear, *matrices))
        operations[f"convolution, {name}"] = no_gradients(partial(functional.conv1d, *signals, stride=2))
        operations[f"convolution step, {name}"] = step(name == "bfloat16", torch.contiguous_format)
        operations[f"convolution step, {name}, channels last"] = step(name == "bfloat16", torch.channels_last)

    def timed() -> dict[str, float]:
        seconds: dict[str, list[float]] = {name: [] for name in operations}
        with one_thread():
            for _ in range(1 + ROUNDS):
                for name, run in operations.items():
                    started = time.thread_time()
                    run()
                    seconds[name].append(time.thread_time() - started)
        return {name: 1000 * statistics.median(values[1:]) for name, values in seconds.items()}  # the first prepares

    with ThreadPoolExecutor(1, "measure") as thread:
        return thread.submit(timed).result()


def cache_file() -> Path:
    """File of the decision for this processor, in `$DAAMCTL_CACHE`, else in `daamctl` of the user's cache folder."""
    usual = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "daamctl"
    folder = expanded(os.environ.get("DAAMCTL_CACHE") or usual)
    return folder / f"cpu-formats-{hashlib.sha256(_processor().encode()).hexdigest()[:12]}.json"


@lru_cache
def _processor() -> str:
    """Model and instructions of the processor; virtual machines of different processors may share the model's name."""
    wanted = ("model name", "cpu family", "model", "stepping", "flags", "Features", "CPU implementer", "CPU part")
    lines = [line.split(":", 1) for line in _cpuinfo() if ":" in line]
    found = {name.strip(): value.strip() for name, value in reversed(lines) if name.strip() in wanted}
    name = found.get("model name") or platform.processor() or platform.machine()
    limit = os.environ.get("ONEDNN_MAX_CPU_ISA", "")  # how users restrict the instructions of torch's kernels
    return f"{name} {content_key([found, limit])[:8]}"


def _cpuinfo() -> list[str]:
    try:
        return Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
