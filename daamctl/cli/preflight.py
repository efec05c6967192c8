"""`daamctl preflight`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from daamctl.cli import common
from daamctl.cli.common import escaped, show_line

if TYPE_CHECKING:
    from rich.console import Console

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


def command(
    pipeline: common.Pipeline = None,
    corpus: common.Corpus = None,
    encoder: common.EncoderName = None,
    sets: common.Sets = None,
    dry_run: common.DryRun = False,
) -> None:
    """Before training: probe every layer linearly, estimate what layer fusion can gain, and check the data."""
    layout, config = common.resolve(pipeline, sets, corpus=corpus, encoder=encoder)
    common.stop_if_dry(dry_run, config)
    from daamctl.stages.check import refuse_problems

    refuse_problems(config, layout.run_name)
    from rich.console import Console

    from daamctl.stages import preflight
    from daamctl.store.files import read_json

    path = preflight.run(layout, config)
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = PLAIN_WIDTH
    _show(console, read_json(path))
    common.show_path(path)


def _show(console: Console, result: dict[str, Any]) -> None:
    """Print the tables and the verdict. Without a terminal, print no colours and do not wrap lines."""
    if result["probe"] is not None:
        _show_probe(console, result)
    show_line(console, "\n[bold]Data[/]")
    for finding in result["checks"]:
        show_line(console, f"[{STYLES[finding['severity']]}]{finding['severity']:<8}[/]{escaped(finding['text'])}")
        if finding["severity"] != "ok" and finding["examples"]:
            show_line(console, f"{'':8}[dim]{escaped('for example: ' + '; '.join(finding['examples']))}[/]")
    verdict = result["verdict"]
    show_line(console, f"\n[bold]Verdict: {verdict['case']}[/]")
    show_line(console, escaped(verdict["text"]))
    show_line(console, f"[dim]Rule. {escaped(verdict['rule'])}[/]")


def _show_probe(console: Console, result: dict[str, Any]) -> None:
    from rich.table import Table

    from daamctl.artifacts.terms import percent
    from daamctl.data.task import FIGURES

    probe, headroom, metric = result["probe"], result["headroom"], result["metric"]
    chance, what = probe["chance"], FIGURES[metric]
    low = chance[metric]["mean"]
    shown = [*probe["layers"].values(), *(probe[name] for name in FUSIONS if probe[name] is not None)]
    high = max(one[metric]["mean"] for one in shown)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("layer", f"{what} %", "over chance", "balanced %", "gain ± s.e."):
        table.add_column(heading, no_wrap=True)

    def add(name: str, one: dict[str, Any], *, gain: str = "", style: str | None = None) -> None:
        share = (one[metric]["mean"] - low) / (high - low) if high > low else 0.0
        bar = ("█" if console.is_terminal else "#") * max(0, round(BAR_WIDTH * share))
        table.add_row(name, _spread(one[metric]), bar, _spread(one["balanced_accuracy"]), gain, style=style)

    for layer, one in probe["layers"].items():
        add(layer, one)
    table.add_section()
    for key, name in FUSIONS.items():
        if probe[key] is not None:
            add(name, probe[key], gain=_gain(headroom[key]) if key in headroom else "", style="bold")
    add("chance", chance, style="dim")
    folds = result["folds"]
    show_line(
        console,
        f"[bold]{escaped(result['run'])}[/]: linear probes of {len(result['layers'])} layers, {len(folds)} folds, by "
        f"{result['unit']}; mean ± standard deviation over folds; gain over the best layer, in points",
    )
    console.print(table)
    where = "on the held-out group" if folds[0]["dev_group"] else "by leaving out training clips"
    show_line(console, f"Chosen {where}, fold by fold: layer {', '.join(map(str, probe['best_layer']['chosen']))}; "
          f"fusion {', '.join(probe['best_fusion']['chosen'])}.")  # fmt: skip
    best = max(probe["layers"], key=lambda layer: probe["layers"][layer][metric]["mean"])
    show_line(console, f"Highest alone: layer {best}. The report tests which layers are worse, after training.")
    show_line(
        console,
        f"Chance: {what} {percent(chance[metric]['mean'])} (always the most frequent training class), "
        f"balanced accuracy {percent(chance['balanced_accuracy']['mean'])}.",
    )
    if "note" in probe:
        show_line(console, probe["note"])


def _spread(figure: dict[str, Any]) -> str:
    std = figure["sample_std"]
    return f"{100 * figure['mean']:5.1f}" + (f" ± {100 * std:4.1f}" if std is not None else "")


def _gain(gain: dict[str, Any]) -> str:
    error = gain["standard_error"]
    return f"{100 * gain['mean']:+5.1f}" + (f" ± {100 * error:4.1f}" if error is not None else "")
