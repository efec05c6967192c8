"""`daamctl preflight`."""

from __future__ import annotations

from typing import Any

from daamctl.cli.options import Run
from daamctl.cli.terminal import escaped, is_terminal, print_table, show_line, show_path

BAR_WIDTH = 12
PLAIN_WIDTH = 120
FUSIONS = {
    "best_layer": "best layer",
    "last_layer": "last layer",
    "mean": "mean of layers",
    "average": "average of scores",
    "concatenation": "all concatenated",
    "best_fusion": "best fusion",
}
STYLES = {"ok": "green", "note": "yellow", "warning": "bold red"}


def command(run: Run) -> None:
    """Before training: probe every layer linearly, estimate what layer fusion can gain, and check the data."""
    layout, config = run.settings()
    from daamctl.stages.check import refuse_problems

    refuse_problems(config, layout.run_name)
    from daamctl.stages import preflight
    from daamctl.store.files import read_json

    path = preflight.run(layout, config)
    _show(read_json(path))
    show_path(path)


def _show(result: dict[str, Any]) -> None:
    """Print the tables and the verdict. Without a terminal, print no colours and do not wrap lines."""
    if result["probe"] is not None:
        _show_probe(result)
    show_line("\n[bold]Data[/]")
    for finding in result["checks"]:
        show_line(f"[{STYLES[finding['severity']]}]{finding['severity']:<8}[/]{escaped(finding['text'])}")
        if finding["severity"] != "ok" and finding["examples"]:
            show_line(f"{'':8}[dim]{escaped('for example: ' + '; '.join(finding['examples']))}[/]")
    verdict = result["verdict"]
    show_line(f"\n[bold]Verdict: {verdict['case']}[/]")
    show_line(escaped(verdict["text"]))
    show_line(f"[dim]Rule. {escaped(verdict['rule'])}[/]")


def _show_probe(result: dict[str, Any]) -> None:
    from daamctl.artifacts.terms import percent
    from daamctl.data.task import FIGURES

    probe, headroom, metric = result["probe"], result["headroom"], result["metric"]
    chance, what = probe["chance"], FIGURES[metric]
    low = chance[metric]["mean"]
    shown = [*probe["layers"].values(), *(probe[name] for name in FUSIONS if probe[name] is not None)]
    high = max(one[metric]["mean"] for one in shown)
    lines: list[tuple[str, Any, str, str | None]] = [(layer, one, "", None) for layer, one in probe["layers"].items()]
    for key, name in FUSIONS.items():
        if probe[key] is not None:
            lines.append((name, probe[key], _gain(headroom[key]) if key in headroom else "", "bold"))
    lines.append(("chance", chance, "", "dim"))
    rows, block = [], "█" if is_terminal() else "#"
    for name, one, gain, _ in lines:
        share = (one[metric]["mean"] - low) / (high - low) if high > low else 0.0
        bar = block * max(0, round(BAR_WIDTH * share))
        rows.append((name, _spread(one[metric]), bar, _spread(one["balanced_accuracy"]), gain))
    folds = result["folds"]
    show_line(
        f"[bold]{escaped(result['run'])}[/]: linear probes of {len(result['layers'])} layers, {len(folds)} folds, by "
        f"{result['unit']}; mean ± standard deviation over folds; gain over the best layer, in points",
    )
    head = ("layer", f"{what} %", "over chance", "balanced %", "gain ± s.e.")
    print_table(head, rows, width=PLAIN_WIDTH, fold=False, styles=[style for *_, style in lines])
    where = "on the held-out group" if folds[0]["dev_group"] else "by leaving out training clips"
    show_line(f"Chosen {where}, fold by fold: layer {', '.join(map(str, probe['best_layer']['chosen']))}; "
          f"fusion {', '.join(probe['best_fusion']['chosen'])}.")  # fmt: skip
    best = max(probe["layers"], key=lambda layer: probe["layers"][layer][metric]["mean"])
    show_line(f"Highest alone: layer {best}. The report tests which layers are worse, after training.")
    show_line(
        f"Chance: {what} {percent(chance[metric]['mean'])} (always the most frequent training class), "
        f"balanced accuracy {percent(chance['balanced_accuracy']['mean'])}.",
    )
    if "note" in probe:
        show_line(probe["note"])


def _spread(figure: dict[str, Any]) -> str:
    std = figure["std"]
    return f"{100 * figure['mean']:5.1f}" + (f" ± {100 * std:4.1f}" if std is not None else "")


def _gain(gain: dict[str, Any]) -> str:
    error = gain["standard_error"]
    return f"{100 * gain['mean']:+5.1f}" + (f" ± {100 * error:4.1f}" if error is not None else "")
