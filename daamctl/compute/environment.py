"""Process-wide defaults: no telemetry, no noisy logs, no long spinning, no memory that comes and goes.

Environment variables override each of them.
"""

from __future__ import annotations

import logging
import os
import pwd
import sys
import warnings

NO_TELEMETRY = {
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DVC_NO_ANALYTICS": "1",
    "DO_NOT_TRACK": "1",
}
DEFAULTS = {
    **NO_TELEMETRY,
    "DISABLE_SAFETENSORS_CONVERSION": "1",
    # If the hub cannot be reached, daamctl says so once; the library would print every retry twice.
    "HF_HUB_VERBOSITY": "error",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",  # with a server it would print links among our results
    "GIT_PYTHON_REFRESH": "quiet",
    "TOKENIZERS_PARALLELISM": "false",
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",  # cuBLAS reads it once; without it it refuses deterministic mode
    # Threads that spin while they wait keep the processor busy and slow down anything that runs beside them. This many
    # turns bridge the gap between two kernels; the usual 300,000 are no better (docs/performance.md).
    "GOMP_SPINCOUNT": "5000",
}
MMAP_THRESHOLD, TRIM_THRESHOLD = (-3, 256 << 20), (-1, 512 << 20)
"""Numbers of glibc's `M_MMAP_THRESHOLD` and `M_TRIM_THRESHOLD`, and the bytes that they are set to."""


def no_telemetry() -> None:
    """Tell libraries that are not imported yet to report nothing to their makers."""
    for name, value in NO_TELEMETRY.items():
        os.environ.setdefault(name, value)


def set_defaults() -> None:
    """Set the variables above, and name a user where the system knows none, as in containers that run under any number.

    torch asks for the user's name while it is imported, DVC for the home folder.
    """
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
    # pictures go to files; matplotlib stops at a backend of a notebook, which other environments lack
    os.environ["MPLBACKEND"] = "agg"
    missing = {name: value for name, value in (("USER", str(os.getuid())), ("HOME", "/")) if not os.environ.get(name)}
    if missing:
        try:
            pwd.getpwuid(os.getuid())
        except KeyError:
            os.environ.update(missing)


def prepare(*, verbose: bool = False) -> None:
    """Set the defaults and the log format: coloured on a terminal, plain lines elsewhere."""
    set_defaults()
    keep_freed_memory()
    handler: logging.Handler
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.logging import RichHandler

        handler = RichHandler(console=Console(stderr=True), show_path=False, show_level=False, log_time_format="%X")
        handler.setFormatter(logging.Formatter("%(message)s"))
    else:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("urllib3").setLevel(logging.ERROR)  # daamctl reports its retries
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # it warns of a home folder that cannot be written
    logging.getLogger("daamctl").setLevel(logging.DEBUG if verbose else logging.INFO)
    # transformers passes a bool padding mask with a float bias, for which torch warns on every WavLM call
    warnings.filterwarnings("ignore", message="Support for mismatched key_padding_mask and attn_mask")
    # of filelock, for every lock on a file system without locks; it uses the presence of a file instead
    warnings.filterwarnings("ignore", message="flock not supported on this filesystem")


def keep_freed_memory() -> None:
    """Let glibc keep up to half a gigabyte of freed memory for what is allocated next.

    By default it returns large blocks to the system, which gives the next ones page by page, each cleared first. That
    took a fifth (float32) to almost a half (bfloat16) of a step with 2-D convolutions (docs/performance.md).
    """
    if any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ) or sys.platform != "linux":
        return
    import ctypes  # here, because the client of `cli/stage_server.py` needs the names above alone

    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # other C libraries lack it
    if mallopt is not None:
        for parameter, size in (MMAP_THRESHOLD, TRIM_THRESHOLD):
            mallopt(parameter, size)
