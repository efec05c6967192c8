"""Process-wide defaults: no telemetry, no chatter, no long spinning; the environment can override every one of them."""

from __future__ import annotations

import logging
import os
import sys
import warnings

DEFAULTS = {
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "DISABLE_SAFETENSORS_CONVERSION": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DVC_NO_ANALYTICS": "1",
    "DO_NOT_TRACK": "1",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "GIT_PYTHON_REFRESH": "quiet",
    "TOKENIZERS_PARALLELISM": "false",
    # Threads that wait for others by spinning keep the processor from them as soon as anything else runs beside; so
    # many turns bridge the gap between two kernels, the usual 300,000 do no better (docs/performance.md).
    "GOMP_SPINCOUNT": "5000",
}


def prepare(*, verbose: bool = False) -> None:
    """Set the defaults and the log format: coloured on a terminal, plain lines elsewhere."""
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
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
    logging.getLogger("urllib3").setLevel(logging.ERROR)  # its retries are ours to report
    logging.getLogger("daamctl").setLevel(logging.DEBUG if verbose else logging.INFO)
    # transformers passes a bool padding mask beside a float bias, which torch announces on every WavLM call.
    warnings.filterwarnings("ignore", message="Support for mismatched key_padding_mask and attn_mask")
