"""Energy of a GPU, from the counter of its driver.

The counter is of the whole GPU: if several processes share it, each of them counts the energy of all.
"""

from __future__ import annotations

import time


def joules(device: str) -> float | None:
    """Energy in joules that a GPU has used since its driver was loaded.

    None if the driver does not count it, or the package nvidia-ml-py, which asks the driver, is missing.
    """
    if not device.startswith("cuda"):
        return None
    try:
        import pynvml
    except ImportError:
        return None
    import torch

    uuid = f"GPU-{str(torch.cuda.get_device_properties(device).uuid).removeprefix('GPU-')}"
    try:
        pynvml.nvmlInit()
        millijoules: int = pynvml.nvmlDeviceGetTotalEnergyConsumption(pynvml.nvmlDeviceGetHandleByUUID(uuid))
    except pynvml.NVMLError:
        return None
    return millijoules / 1000


class Meter:
    """Energy of a piece of work, as its seconds at the mean power of the GPU since the last start.

    Trainings that run side by side thus share the energy as they share the time.

    Args:
        devices: resolved devices that do the work; none if they are not of this machine.
    """

    def __init__(self, *devices: str) -> None:
        self.devices = devices
        self.start()

    def start(self) -> None:
        """Begin a new piece of work."""
        self._at, self._joules = time.monotonic(), self._read()

    def used(self, seconds: float) -> float | None:
        """Energy in joules of `seconds` of work since the last start; None where the driver does not tell."""
        now, since = self._read(), time.monotonic() - self._at
        if now is None or self._joules is None:
            return None
        return (now - self._joules) * seconds / since if since > 0 else 0.0

    def _read(self) -> float | None:
        return total(*map(joules, self.devices)) if self.devices else None


def total(*parts: float | None) -> float | None:
    """Sum of energies; None if one of them is not known."""
    known = [part for part in parts if part is not None]
    return sum(known) if len(known) == len(parts) else None
