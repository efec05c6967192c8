"""Choose the device and the number format for computing; see how much memory is free."""

from __future__ import annotations

import contextlib
import gc
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from daamctl.compute.control_groups import free_bytes
from daamctl.compute.cpu_formats import cpu_formats
from daamctl.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

Work = Literal["encoder", "convolutions", "other"]
"""What is computed: a frozen encoder's forward pass, training steps with 2-D convolutions, or anything else."""
DRIVER = Path("/proc/driver/nvidia")
"""Where NVIDIA's driver tells its version and its GPUs, also those that a container or a job may not use."""
DEVICES = Path("/dev")
"""Where the GPUs are that may be used: `nvidia<N>`; `dxg` under Windows Subsystem for Linux (WSL)."""
WSL_DRIVER = Path("/usr/lib/wsl/lib/libcuda.so.1")
"""What WSL has if the GPU is NVIDIA's; it has no `DRIVER`."""
OUT_OF_MEMORY = (
    "ALLOC_FAILED",
    "CUDA error: out of memory",
    "CUDA driver error: out of memory",
    "CUDA out of memory",
    "HIP out of memory",
    "MPS backend out of memory",
    "unable to find an engine",  # cuDNN, if no algorithm fits into the memory that is left
    "can't allocate memory",
)
"""Phrases in RuntimeErrors of torch (any device), its libraries (cuBLAS, cuDNN), the driver and the main memory."""


def resolve_device(name: str) -> str:
    """Resolve `auto` to the best device of this machine; check that a named one exists.

    Raises:
        ConfigError: the name is unknown or the device is not on this machine; `auto`, and torch cannot use the GPU of
            this machine.
    """
    if not re.fullmatch(r"auto|cpu|mps|cuda(:\d+)?", name):
        raise ConfigError(f"unknown device '{name}'", fix="known: auto, cpu, mps, cuda, cuda:N")
    import torch

    if name == "auto":
        if torch.cuda.is_available():
            return "cuda"
        _check_no_gpu()
        return "mps" if torch.backends.mps.is_available() else "cpu"
    kind, _, index = name.partition(":")
    # The driver counts GPUs even where torch cannot use them.
    cuda = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if kind == "cuda" and not cuda:
        _check_no_gpu()
    count = {"cuda": cuda, "mps": int(torch.backends.mps.is_available())}.get(kind, 1)
    if int(index or 0) >= count:
        raise ConfigError(
            f"device '{name}' is not on this machine ({count} of kind '{kind}' found)", fix="use --device auto"
        )
    return name


def numbered(device: str) -> Any:
    """The torch device with its number: `cuda` is the current GPU of this thread, and that of another thread differs.

    Args:
        device: a resolved device, `cuda` or `cuda:N`.
    """
    import torch

    found = torch.device(device)
    return found if found.index is not None else torch.device(found.type, torch.cuda.current_device())


def _check_no_gpu() -> None:
    """Refuse to compute on the CPU if there is a GPU that this process may use and torch cannot.

    The usual reason is a torch for a newer CUDA than the driver knows. An empty CUDA_VISIBLE_DEVICES hides all GPUs. A
    container or a job without GPUs sees the driver of its host, but no device that it can open.

    Raises:
        ConfigError: there is one.
    """
    import torch

    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return
    usual = any(DRIVER.glob("gpus/*")) and any(map(_opens, DEVICES.glob("nvidia[0-9]*")))
    if not usual and not (WSL_DRIVER.exists() and _opens(DEVICES / "dxg")):
        return
    version = next((word for word in _driver_version().split() if word[:1].isdecimal()), "of an unknown version")
    raise ConfigError(
        f"this machine has an NVIDIA GPU, but torch {torch.__version__} (CUDA {torch.version.cuda or 'none'}) cannot "
        f"use it with driver {version}",
        fix="install torch for the driver's CUDA (pytorch.org tells how), update the driver, or use --device cpu",
    )


def _opens(device: Path) -> bool:
    """Whether a device can be opened; a job scheduler forbids it for devices of other jobs."""
    try:
        os.close(os.open(device, os.O_RDWR))
    except OSError:
        return False
    return True


def _driver_version() -> str:
    """First line of the driver's version file from the version on; empty if it cannot be read."""
    try:
        return (DRIVER / "version").read_text(encoding="utf-8").split("Module")[-1]
    except OSError:
        return ""


def resolve_precision(name: str, device: str, *, work: Work) -> str:
    """Resolve `auto` and `published` to float32, bfloat16 or float16.

    Args:
        name: the setting. `published` is the released code's autocast: float16 on CUDA, none elsewhere (D42).
        work: what is computed. On a CPU, `auto` takes the format that was measured to be faster for it
            (`daamctl.compute.cpu_formats`); for `other` it is float32, since autocast costs small products more than it
            gains.

    Raises:
        ConfigError: float16 on a CPU, where torch lacks most of its kernels.
    """
    import torch

    if name == "float16" and device == "cpu":
        raise ConfigError("precision 'float16' needs a GPU", fix="use auto, float32 or bfloat16")
    if name == "published":
        return "float16" if device.startswith("cuda") else "float32"
    if name != "auto":
        return name
    if device.startswith("cuda"):
        return "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float16"
    if device != "cpu" or work == "other":
        return "float32"
    return cpu_formats().encoder if work == "encoder" else cpu_formats().convolutions


def full_float32() -> None:
    """Make GPUs compute float32 matrix products and convolutions in full float32.

    By default, cuDNN rounds the factors of convolutions to TF32 (10 bits instead of 23), so 'float32' would mean two
    things in one model. Half precision is not affected.
    """
    import torch

    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False


def seed_torch(number: int) -> None:
    """Seed the generators of the CPU and of a GPU that is there.

    `torch.manual_seed` also keeps a stack trace for every kind of device that is not, which takes longer than a small
    model does.
    """
    import torch

    if torch.cuda.is_available() or torch.backends.mps.is_available():
        torch.manual_seed(number)
    else:
        torch.default_generator.manual_seed(number)


def choose_gpu_kernels() -> None:
    """Full float32, and no attention of cuDNN, which plans anew for every shape of a batch and is not deterministic."""
    import torch

    full_float32()
    torch.backends.cuda.enable_cudnn_sdp(False)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that the memory of the device, pinned memory or main memory has run out."""
    import torch

    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(phrase in str(error) for phrase in OUT_OF_MEMORY)


def autocast(device: str, precision: str) -> contextlib.AbstractContextManager[Any]:
    """Autocast to `precision` on `device`; a no-op for float32."""
    import torch

    if precision == "float32":
        return contextlib.nullcontext()
    return torch.autocast(device.split(":")[0], dtype=getattr(torch, precision))


def exact_dtype(device: str) -> Any:
    """Number format of sums over many steps: float64, or float32 on mps, which has no float64."""
    import torch

    return torch.float32 if device.split(":")[0] == "mps" else torch.float64


def sent(value: Tensor, device: str) -> Tensor:
    """A tensor on a device; a GPU gets it from pinned memory, so that the copy does not wait for earlier work."""
    if not device.startswith("cuda"):
        return value.to(device)
    return value.pin_memory().to(device, non_blocking=True)


def free_memory() -> int:
    """Bytes that this machine can still give without swapping, or the container or job in which this process runs."""
    import psutil  # type: ignore[import-untyped]

    return min([int(psutil.virtual_memory().available), *free_bytes()])


def is_held(nbytes: int, wanted: Literal["auto", "memory", "stream"]) -> bool:
    """Whether vectors of this size should be read into memory.

    Args:
        nbytes: size of the stored vectors, in bytes.
        wanted: `train.features`; `auto` counts the size twice, since a fold copies its parts, and leaves half of the
            free memory.
    """
    return wanted == "memory" or (wanted == "auto" and 2 * nbytes <= free_memory() / 2)


def free_on(device: str) -> list[int]:
    """Free bytes of a device; of `cuda` (any of them) those of every local GPU; of others those of this machine."""
    import torch

    if device == "cuda":
        return [int(torch.cuda.mem_get_info(index)[0]) for index in range(torch.cuda.device_count())]
    if device.startswith("cuda"):
        return [int(torch.cuda.mem_get_info(device)[0])]
    return [free_memory()]


def release_memory() -> None:
    """Give back what deleted models held, on GPUs too."""
    import torch

    gc.collect()
    torch.cuda.empty_cache()
