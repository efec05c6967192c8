"""`daamctl plan`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextlib import nullcontext
from typing import Annotated, Any

import typer

from daamctl.cli.options import Run
from daamctl.cli.terminal import escaped, print_table, show_line
from daamctl.compute.progress import duration

PLAIN_WIDTH = 120
STYLES = {"done": "green", "partly": "yellow", "not possible": "red"}
NAMED_AT_MOST = 4


def command(
    run: Run,
    measure: Annotated[
        bool,
        typer.Option(
            "--measure",
            help="First run the slow stages on about 50 clips, to estimate times that no finished work tells.",
        ),
    ] = False,
    brief: Annotated[bool, typer.Option("--brief", help="Show one row per stage instead of one per method.")] = False,
) -> None:
    """Show what a pipeline has finished, and the disk, memory and time that the rest will need."""
    layout, config = run.settings()
    from daamctl.stages.check import refuse_problems

    refuse_problems(config, layout.run_name)
    from daamctl.stages import inventory
    from daamctl.stages import pipeline as whole_pipeline

    measure = measure and config.task == "classify"  # steps of a reconstruction are timed anyway
    if measure:  # before anything slow is imported
        inventory.require(layout.root, config, ["encoder"] if layout.clips.is_file() else ["corpus", "encoder"])
    from daamctl.stages import plan

    blockers = inventory.blockers(layout.root, config)
    trial = whole_pipeline.measured(layout, config) if measure else nullcontext()
    with trial as measured:
        result = plan.run(layout, config, blockers=blockers, measured=measured)
    if run.json:
        import json

        typer.echo(json.dumps(result, indent=2, ensure_ascii=False))
        return
    _show(result, brief=brief)


def _show(result: dict[str, Any], *, brief: bool) -> None:
    """Print the table, the totals beside what this machine has, and remarks on the numbers."""
    rows, lines, styles = result["stages"], list[tuple[str, ...]](), list[str | None]()
    stage = shared = None
    for row in _grouped(rows) if brief else rows:
        name, work = row["stage"], row["work"]
        if row["method"] is not None:
            if name != stage:
                lines.append((name, "", work))
                styles.append(None)
                shared = work
            name, work = f"  {row['method']}", "" if work == shared else work
        stage = row["stage"]
        lines.append((name, _state(row), work, *_figures(row)))
        styles.append("dim" if row["state"] == "done" else None)
    encoder = f" with encoder {escaped(result['encoder'])}" if result["encoder"] else ""
    show_line(f"[bold]{escaped(result['pipeline'])}[/]{encoder} on {escaped(result['machine']['device'])}")
    head = ("stage", "state", "work", "disk", "memory", "time", "basis")
    print_table(head, lines, width=PLAIN_WIDTH, right=(3, 4, 5), markup=True, styles=styles)
    show_line("")
    for text in _totals(result):
        show_line(text)
    for text in _remarks(rows):
        show_line(text)
    for text in result["notes"]:
        show_line(f"[dim]{escaped(text)}[/]")


def _grouped(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row per stage: sums over its methods, and their highest memory."""
    stages: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        stages.setdefault(row["stage"], []).append(row)
    return [_joined(own) for own in stages.values()]


def _joined(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """One row for all methods of a stage."""
    first = rows[0]
    todo = [row for row in rows if row["state"] != "done"]
    states = {row["state"] for row in rows}
    mixed = "not possible" if "not possible" in states else "partly"
    work = first["work"]
    if first["method"] is not None:
        work = ", ".join(f"{number} × {work}" for work, number in Counter(row["work"] for row in rows).items())
    return {
        **first,
        **{key: _sum(row[key] for row in rows) for key in ("total", "disk_bytes", "time_s", "took_s")},
        "method": None,
        "state": first["state"] if len(states) == 1 else mixed,
        "done": sum(row["done"] for row in rows),
        "work": work,
        "memory_bytes": max(row["memory_bytes"] or 0 for row in rows),
        "memory_at_least": any(row["memory_at_least"] for row in rows),
        "basis": ", ".join(dict.fromkeys(row["basis"] for row in todo)) or "recorded",
        "at_least": any(row["at_least"] for row in rows),
        "time_at_least": any(row["basis"] == "not known" for row in todo),
    }


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _state(row: dict[str, Any]) -> str:
    text = str(row["state"])
    if text != "done" and row["done"]:
        text = f"{text}: {row['done']} of {row['total']} {row['unit']}" + (" done" if text == "not possible" else "")
    return f"[{STYLES[row['state']]}]{text}[/]" if row["state"] in STYLES else text


def _figures(row: dict[str, Any]) -> tuple[str, str, str, str]:
    """Disk, memory, time, and the basis of the time estimate."""
    if row["state"] == "done":
        return _bytes(row["disk_bytes"]), "", "" if row["took_s"] is None else f"took {duration(row['took_s'])}", ""
    sign = "≥ " if row["at_least"] else "≈ " if row["about"] else ""
    memory = _bytes(row["memory_bytes"], "≥ " if row["memory_at_least"] else sign)
    if memory and row["memory_on"] != "cpu":
        memory += " GPU"
    disk = _bytes(row["disk_bytes"], sign)
    if row["basis"] == "quick":
        return disk, memory, "seconds", ""
    if row["time_s"] is None:
        return disk, memory, "?", str(row["basis"])
    sign = "≥ " if row.get("time_at_least") or row["at_least"] else "≈ "
    return disk, memory, sign + duration(row["time_s"]), str(row["basis"])


def _totals(result: dict[str, Any]) -> list[str]:
    """Disk, memory and time still needed, and what is available."""
    from daamctl.errors import two_sizes

    totals, machine = result["totals"], result["machine"]
    todo = [row for row in result["stages"] if row["state"] != "done"]
    if not todo:
        return ["Nothing left to do."]

    def sign(figure: str) -> str:
        if totals["at_least"] or figure in totals["at_least_of"]:
            return "at least "
        return "about " if totals["about"] or figure in ("time_s", "joules") else ""

    pairs = [
        ("disk", "disk_bytes", machine["disk_free_bytes"], "free"),
        ("memory", "memory_bytes", machine["memory_available_bytes"], "available"),
        ("GPU memory", "gpu_memory_bytes", machine["gpu_free_bytes"] or 0, "free"),
    ]
    lines = []
    for name, figure, there, word in pairs:
        if need := totals[figure]:
            short = "  [bold red]not enough[/]" if need > there else ""
            asked, found = two_sizes(need, there) if short else (_bytes(need), _bytes(there))
            lines.append(f"[bold]{name:<11}[/]{sign(figure)}{asked} needed, {found or 'none'} {word}{short}")
    unknown = [row for row in todo if row["basis"] == "not known"]
    if totals["time_s"]:
        time = sign("time_s") + duration(totals["time_s"])
    else:
        time = "not known yet" if unknown else "seconds"
    lines.append(f"[bold]{'time left':<11}[/]{time}" + (f"; unknown for: {_names(unknown)}" if unknown else ""))
    if not totals["possible"]:
        lines[-1] += "; this includes stages that cannot run here"
    if totals["joules"]:
        lines.append(f"[bold]energy left[/] {sign('joules')}{_joules(totals['joules'])} on the GPU")
    return lines


def _remarks(rows: list[dict[str, Any]]) -> list[str]:
    """Reasons and notes, each once, with the stages that share it and the repair."""
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for row in rows:
        if row["reason"]:
            word = "not possible here" if row["state"] == "not possible" else ""
            groups.setdefault((word, row["reason"], row["fix"] or ""), []).append(row)
        for note in row["notes"]:
            groups.setdefault(("", note, ""), []).append(row)
    lines = []
    for (word, text, fix), own in groups.items():
        style = "red" if word else "yellow"
        named = f"[{style}]{escaped(_names(own))}[/]: " + (f"{word}: " if word else "")
        lines.append(named + escaped(text) + (f"\n  {escaped(fix)}" if fix else ""))
    return lines


def _names(rows: list[dict[str, Any]]) -> str:
    """Names of stages, with their methods if there are few."""
    counts: dict[str, list[str]] = {}
    for row in rows:
        counts.setdefault(row["stage"], []).append(row["method"] or "")
    words = []
    for stage, methods in counts.items():
        few = len(methods) <= NAMED_AT_MOST and any(methods)
        words.append(f"{stage} {', '.join(methods)}" if few else stage)
    return ", ".join(words)


def _bytes(number: int | None, more: str = "") -> str:
    if not number:
        return ""
    for unit, size in (("GB", 1e9), ("MB", 1e6)):
        if number >= size:
            return f"{more}{number / size:.{0 if number >= 100 * size else 1}f} {unit}"
    return f"{more}{max(1, round(number / 1e3))} kB"


def _joules(joules: float) -> str:
    for unit, size in (("kWh", 3.6e6), ("Wh", 3.6e3)):
        if joules >= size:
            return f"{joules / size:.1f} {unit}"
    return f"{max(1, round(joules))} J"
