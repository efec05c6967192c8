"""Devices and number formats, on machines made up for the test."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from daamctl.compute import devices
from daamctl.compute.cpu_formats import CpuFormats
from daamctl.compute.devices import (
    Work,
    autocast,
    choose_gpu_kernels,
    free_memory,
    free_on,
    full_float32,
    is_out_of_memory,
    numbered,
    release_memory,
    resolve_device,
    resolve_precision,
    sent,
)
from daamctl.errors import ConfigError
from daamctl.stages import doctor
from tests.fixtures.gpu import needs_gpu


def machine(monkeypatch: pytest.MonkeyPatch, *, cuda: int = 0, mps: bool = False) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)


@pytest.mark.parametrize(("cuda", "mps", "best"), [(0, False, "cpu"), (0, True, "mps"), (2, False, "cuda")])
def test_auto_takes_the_best(monkeypatch: pytest.MonkeyPatch, cuda: int, mps: bool, best: str) -> None:
    machine(monkeypatch, cuda=cuda, mps=mps)
    assert resolve_device("auto") == best


@pytest.mark.parametrize("name", ["cpu", "cuda", "cuda:1"])
def test_named_device_that_is_there(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    machine(monkeypatch, cuda=2)
    assert resolve_device(name) == name


@pytest.mark.parametrize(("name", "found"), [("cuda", "0 of kind 'cuda'"), ("mps", "0 of kind 'mps'")])
def test_named_device_that_is_not_there(monkeypatch: pytest.MonkeyPatch, name: str, found: str) -> None:
    machine(monkeypatch)
    with pytest.raises(ConfigError) as caught:
        resolve_device(name)
    assert str(caught.value) == f"device '{name}' is not on this machine ({found} found)\n  use --device auto"


@pytest.mark.parametrize("name", ["gpu", "cuda:x", "cpu:0", ""])
def test_what_is_no_device(name: str) -> None:
    with pytest.raises(ConfigError, match=f"unknown device '{name}'\n  known: auto, cpu, mps, cuda, cuda:N"):
        resolve_device(name)


def test_number_beyond_the_last_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, cuda=2)
    with pytest.raises(ConfigError, match=r"'cuda:2' is not on this machine \(2 of kind 'cuda' found\)"):
        resolve_device("cuda:2")


@pytest.mark.parametrize(
    ("device", "work", "native", "expected"),
    [
        ("cpu", "encoder", True, "bfloat16"),
        ("cpu", "convolutions", True, "float32"),
        ("cpu", "encoder", False, "float32"),
        ("cpu", "other", True, "float32"),
        ("mps", "encoder", True, "float32"),
        ("cuda", "other", True, "bfloat16"),
        ("cuda:1", "other", False, "float16"),
    ],
)
def test_auto_precision(monkeypatch: Any, device: str, work: Work, native: bool, expected: str) -> None:
    found = CpuFormats(encoder="bfloat16") if native else CpuFormats()
    monkeypatch.setattr(devices, "cpu_formats", lambda: found)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: native)
    assert resolve_precision("auto", device, work=work) == expected


@pytest.mark.parametrize(
    ("device", "expected"), [("cuda", "float16"), ("cuda:1", "float16"), ("cpu", "float32"), ("mps", "float32")]
)
@pytest.mark.parametrize("native", [False, True])
def test_published_precision(monkeypatch: Any, device: str, expected: str, native: bool) -> None:
    """The released autocast is CUDA's, at its default of that time, whatever the hardware could do (D42)."""
    monkeypatch.setattr(devices, "cpu_formats", lambda: CpuFormats(encoder="bfloat16") if native else CpuFormats())
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: native)
    assert resolve_precision("published", device, work="encoder") == expected


def test_named_precision_is_taken_and_float16_needs_a_gpu() -> None:
    assert resolve_precision("bfloat16", "cpu", work="other") == "bfloat16"
    assert resolve_precision("float16", "cuda", work="other") == "float16"
    with pytest.raises(ConfigError, match=r"^precision 'float16' needs a GPU\n  use auto, float32 or bfloat16$"):
        resolve_precision("float16", "cpu", work="encoder")


@pytest.mark.parametrize(("precision", "dtype"), [("float32", torch.float32), ("bfloat16", torch.bfloat16)])
def test_autocast_sets_the_format_of_products(precision: str, dtype: torch.dtype) -> None:
    x = torch.ones(2, 2)
    with autocast("cpu", precision):
        assert (x @ x).dtype == dtype
    assert (x @ x).dtype == torch.float32


@pytest.fixture
def tensor_floats() -> Iterator[None]:
    """TF32 wherever a GPU has it; afterwards as it was."""
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = True
    yield
    torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before


@pytest.mark.usefixtures("tensor_floats")
def test_full_float32_is_no_tensor_float() -> None:
    full_float32()
    assert not torch.backends.cudnn.allow_tf32
    assert not torch.backends.cuda.matmul.allow_tf32


@pytest.mark.usefixtures("tensor_floats")
def test_kernels_for_a_gpu_do_not_depend_on_the_shape_of_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    monkeypatch.setattr(torch.backends.cuda, "enable_cudnn_sdp", asked.append)
    choose_gpu_kernels()
    assert asked == [False]
    assert not torch.backends.cuda.matmul.allow_tf32


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
        MemoryError(),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("GET was unable to find an engine to execute this computation"),
        RuntimeError("CUDA driver error: out of memory"),
        RuntimeError("HIP out of memory. Tried to allocate 2 GiB"),
        RuntimeError("MPS backend out of memory (MPS allocated: 9 GB)"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:118] DefaultCPUAllocator: can't allocate memory"),
    ],
)
def test_memory_that_has_run_out_is_recognised(error: Exception) -> None:
    assert is_out_of_memory(error)


def test_other_errors_are_not_taken_for_it() -> None:
    assert not is_out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    assert not is_out_of_memory(ValueError("CUDA out of memory"))


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine with a GPU whose driver is too old for torch."""
    machine(monkeypatch)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(devices, "DRIVER", tmp_path)
    monkeypatch.setattr(devices, "DEVICES", tmp_path / "dev")
    (tmp_path / "gpus/0000:3b:00.0").mkdir(parents=True)
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidia0").touch()
    (tmp_path / "version").write_text(
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.90.07  Fri May 31 09:35:42 UTC 2024\n"
        "GCC version:  gcc version 12.2.0 (Debian 12.2.0-14)\n"
    )
    return tmp_path


@pytest.mark.usefixtures("driver")
def test_a_gpu_that_torch_cannot_use_is_no_reason_to_compute_for_days() -> None:
    with pytest.raises(ConfigError) as caught:
        resolve_device("auto")
    assert "this machine has an NVIDIA GPU, but torch" in caught.value.message
    assert caught.value.message.endswith("cannot use it with driver 550.90.07")
    assert resolve_device("cpu") == "cpu"


@pytest.mark.usefixtures("driver")
@pytest.mark.parametrize("name", ["cuda", "cuda:0"])
def test_a_named_gpu_that_only_the_driver_counts_is_refused_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """torch asks the driver how many GPUs there are, also where CUDA cannot start."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ConfigError, match=r"cannot use it with driver 550\.90\.07"):
        resolve_device(name)


def test_a_container_without_gpus_computes_on_the_cpu(driver: Path) -> None:
    """It sees the driver of its host all the same."""
    (driver / "dev/nvidia0").unlink()
    (driver / "dev/nvidiactl").touch()
    assert resolve_device("auto") == "cpu"
    with pytest.raises(ConfigError, match=r"'cuda' is not on this machine \(0 of kind 'cuda' found\)"):
        resolve_device("cuda")


def test_gpus_of_other_jobs_are_not_missed(driver: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(path: Path, flags: int) -> int:
        raise PermissionError(1, "Operation not permitted", str(path))

    with monkeypatch.context() as patched:  # pytest opens folders, too
        patched.setattr(devices.os, "open", forbidden)
        assert resolve_device("auto") == "cpu"


@pytest.mark.parametrize("nvidia", [True, False])
def test_a_gpu_under_wsl_is_found_by_its_device(driver: Path, monkeypatch: pytest.MonkeyPatch, nvidia: bool) -> None:
    monkeypatch.setattr(devices, "DRIVER", driver / "nothing")
    monkeypatch.setattr(devices, "WSL_DRIVER", driver / ("version" if nvidia else "nothing"))
    (driver / "dev/nvidia0").rename(driver / "dev/dxg")
    if not nvidia:
        assert resolve_device("auto") == "cpu"
        return
    with pytest.raises(ConfigError, match=r"cannot use it with driver of an unknown version"):
        resolve_device("auto")


@pytest.mark.usefixtures("driver")
def test_doctor_names_a_gpu_that_torch_cannot_use(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(index: int) -> None:
        raise RuntimeError("The NVIDIA driver on your system is too old")

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", fails)
    found = dict(doctor._devices())
    assert found["gpu"] == "none that PyTorch can use"
    assert found["auto means"].startswith("nothing: this machine has an NVIDIA GPU, but torch")


def test_a_number_is_given_to_the_current_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 2)
    assert (numbered("cuda"), numbered("cuda:1")) == (torch.device("cuda", 2), torch.device("cuda", 1))


@pytest.mark.usefixtures("driver")
@pytest.mark.parametrize("hidden", ["", "-1"])
def test_a_gpu_that_is_hidden_is_not_missed(monkeypatch: pytest.MonkeyPatch, hidden: str) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    assert resolve_device("auto") == "cpu"


def test_a_driver_without_a_gpu_is_no_gpu(driver: Path) -> None:
    (driver / "gpus/0000:3b:00.0").rmdir()
    assert resolve_device("auto") == "cpu"


@needs_gpu
@pytest.mark.usefixtures("tensor_floats")
def test_float32_on_a_gpu_is_that_of_the_cpu() -> None:
    """TF32 keeps 10 bits of each factor: errors of about 4e-4 of a sum of products."""
    full_float32()
    generator = torch.Generator().manual_seed(0)
    x, weight = torch.randn(2, 256, 8, 8, generator=generator), torch.randn(16, 256, 3, 3, generator=generator)
    expected = torch.nn.functional.conv2d(x.double(), weight.double())
    found = torch.nn.functional.conv2d(x.cuda(), weight.cuda()).cpu().double()
    assert (found - expected).norm() < 1e-4 * expected.norm()
    flat = weight.flatten(1)
    product = (flat.cuda() @ flat.cuda().T).cpu().double()
    assert (product - flat.double() @ flat.double().T).norm() < 1e-4 * product.norm()


def test_device_name_of_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    from daamctl.store import provenance

    class Info:
        def __init__(self, _: str) -> None: ...

        def read_text(self, encoding: str) -> str:
            assert encoding == "utf-8"
            return io.StringIO("processor : 0\nmodel name\t: A CPU @ 2 GHz\n").getvalue()

    monkeypatch.setattr(provenance, "Path", Info)
    assert provenance.device_name("cpu") == "cpu (A CPU @ 2 GHz)"


def test_free_memory_is_between_nothing_and_all(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 0 < free_memory() < psutil.virtual_memory().total
    monkeypatch.setattr(devices, "free_memory", lambda: 7)
    machine(monkeypatch, cuda=2)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: ({0: 10, 1: 20, "cuda:1": 20}[device], 99))
    assert [free_on(name) for name in ("cpu", "mps", "cuda", "cuda:1")] == [[7], [7], [10, 20], [20]]


def test_tensors_are_sent_to_a_gpu_without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    value, seen = torch.ones(2), list[tuple[Any, ...]]()
    assert sent(value, "cpu") is value
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: (seen.append(("pinned",)), self)[1])
    monkeypatch.setattr(torch.Tensor, "to", lambda self, *place, **options: (seen.append((place, options)), self)[1])
    sent(value, "cuda:1")
    assert seen == [("pinned",), (("cuda:1",), {"non_blocking": True})]


def test_memory_is_released_without_a_gpu() -> None:
    release_memory()


def test_memory_that_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Auto: the vectors and a copy of them take at most half of what is free."""
    monkeypatch.setattr(devices, "free_memory", lambda: 400)
    assert [devices.is_held(nbytes, "auto") for nbytes in (100, 101)] == [True, False]
    assert devices.is_held(10**15, "memory")
    assert not devices.is_held(1, "stream")
