"""What every benchmark shares: ways in turns, medians with their spread, ratios within a turn, JSON and a table."""

from __future__ import annotations

import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from daamctl import __version__
from daamctl.store.files import write_json
from daamctl.store.provenance import device_name, git_commit, versions

Figures = dict[str, Any]
"""`runs`, `median`, `min`, `max` of one measured quantity."""
Ways = dict[str, dict[str, Figures]]
"""way -> quantity -> figures."""
ELSEWHERE = {"DAAMCTL_ROOT", "MLFLOW_TRACKING_URI"}
RSS_UNIT = 1 if sys.platform == "darwin" else 1024  # of getrusage, in bytes


def apart(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call in a fresh process: no warm caches of another way, and a peak of memory of its own."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def command(words: Sequence[str], folder: Path) -> dict[str, float]:
    """Run a command from start to end in a folder, which is its project and keeps its runs.

    A child's peak is never below what its parent holds when it starts it, so import little before.

    Returns:
        `seconds` of wall time; `peak_bytes`, the highest resident memory of its process.

    Raises:
        RuntimeError: it failed; with the end of what it printed.
    """
    env = {name: value for name, value in os.environ.items() if name not in ELSEWHERE}
    with tempfile.TemporaryFile() as log:
        start = time.perf_counter()
        process = subprocess.Popen(words, cwd=folder, env=env, stdout=log, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(process.pid, 0)  # getrusage(RUSAGE_CHILDREN) has the peak of all children so far
        seconds = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            log.seek(0)
            raise RuntimeError(f"{' '.join(words)} failed:\n{log.read().decode(errors='replace')[-2000:]}")
    return {"seconds": seconds, "peak_bytes": usage.ru_maxrss * RSS_UNIT}


def peak_bytes() -> int:
    """Highest resident memory of this process so far."""
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * RSS_UNIT


def in_turns(ways: Mapping[str, Callable[[], Mapping[str, float]]], repeats: int, unit: str) -> Ways:
    """Measure every way once, then again, so that a change of the machine's speed hits all of them alike.

    Args:
        ways: name -> one measurement, which gives its quantities.
        repeats: rounds.
        unit: the quantity to tell while measuring.

    Returns:
        Figures of each quantity; run i of all ways belongs to round i.
    """
    console = Console(stderr=True)
    runs: dict[str, list[Mapping[str, float]]] = {way: [] for way in ways}
    for number in range(1, repeats + 1):
        for way, measure in ways.items():
            runs[way].append(measure())
            console.print(f"{number}/{repeats} {way}: {unit} {runs[way][-1][unit]:.4g}")
    return {way: {name: figures([run[name] for run in done]) for name in done[0]} for way, done in runs.items()}


def figures(values: Sequence[float]) -> Figures:
    """Every run, with median, lowest and highest."""
    return {"runs": list(values), "median": statistics.median(values), "min": min(values), "max": max(values)}


def ratio(
    ways: Ways, quantity: str, way: str, baseline: str, *, inverse: bool = False, goal: str | None = None
) -> dict[str, Any]:
    """Compare a way to a baseline, round by round.

    Args:
        ways: what `in_turns` gave.
        quantity: measured in both.
        way: the numerator.
        baseline: the denominator.
        inverse: baseline / way instead: how many times faster, where the quantity is a time.
        goal: what it should reach, e.g. `>= 5`.
    """
    pairs = zip(ways[way][quantity]["runs"], ways[baseline][quantity]["runs"], strict=True)
    values = [b / a if inverse else a / b for a, b in pairs]
    name = f"{baseline} / {way}" if inverse else f"{way} / {baseline}"
    return {"quantity": quantity, "ratio": name, "goal": goal, **figures(values)}


def conclude(
    benchmark: str,
    sizes: Mapping[str, Any],
    ways: Ways,
    ratios: Sequence[Mapping[str, Any]],
    *,
    device: str,
    out: Path | None,
    **more: Any,
) -> None:
    """Print the ratios and every figure; write all of it as JSON where a file is named.

    Args:
        benchmark: its module's name.
        sizes: what was measured on.
        ways: see `in_turns`.
        ratios: see `ratio`.
        device: resolved device.
        out: JSON file; None: none.
        more: further facts for the JSON.
    """
    import torch  # not before: what a benchmark starts would inherit its peak of memory

    result = {
        "benchmark": benchmark,
        "sizes": dict(sizes),
        "ways": ways,
        "ratios": list(ratios),
        **more,
        "machine": {"device": device_name(device), "cpus": os.cpu_count(), "threads": torch.get_num_threads()},
        "versions": {"daamctl": __version__, **versions()},
        "git_commit": git_commit(Path(__file__).parent),
    }
    title = ", ".join(f"{name} {value}" for name, value in sizes.items())
    console = Console()
    console.print(f"{benchmark}: {title}; {result['machine']['device']}")
    table = Table("way", "quantity", "runs", "median", "min - max")
    for way, quantities in ways.items():
        for quantity, one in quantities.items():
            table.add_row(way, quantity, str(len(one["runs"])), f"{one['median']:.4g}", _spread(one))
    console.print(table)
    console.print(ratio_table({benchmark: ratios}))
    if out is not None:
        write_json(out, result)


def ratio_table(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> Table:
    """The ratios of one or several benchmarks, beside their goals."""
    table = Table("benchmark", "quantity", "ratio", "median", "min - max", "goal")
    for benchmark, ratios in found.items():
        for one in ratios:
            median = f"{one['median']:.3g}"
            table.add_row(benchmark, one["quantity"], one["ratio"], median, _spread(one), one["goal"] or "")
    return table


def _spread(one: Mapping[str, Any]) -> str:
    return f"{one['min']:.4g} - {one['max']:.4g}"
