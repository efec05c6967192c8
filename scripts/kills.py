"""Kill a command at random moments, start it again, and compare its results with those of an undisturbed run.

    python scripts/kills.py "daamctl run demo"
    python scripts/kills.py "dvc repro report@demo" --kills 20
    python scripts/kills.py "daamctl run mine" --pipeline mine.yaml    # e.g. one that fine-tunes
    python scripts/kills.py "daamctl mlm --encoder MODEL --from TEXTS --finetune" --longest 10

Makes two projects, `undisturbed` and `killed`, in the folder and runs the command in both. Paths in it are absolute.
In the second, SIGKILL ends it after a random time: its process group, and every other time also the server of DVC's
stages. When a command ends before its time, its results are compared, its data are removed, and it starts from the
beginning. Exit code 1: a command failed, results differ, or unfinished work is left behind.

Without network and data run demo, demo-random, demo-text, demo-tokens, digits, demo-vqvae (reconstruct) and every
pipeline over their corpora and presets named *-micro or wavlm-demo.
"""

from __future__ import annotations

import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

SAME = [sys.executable, str(Path(__file__).with_name("same_numbers.py")), "--tolerance", "1e-6"]
"""A fold that is trained without those beside it differs in the last digits."""
MOST_PER_RUN = 10
"""Kills until a run may end; else most of them would hit the last stage again and again."""


def main(
    command: str,
    pipeline: Annotated[Path | None, typer.Option(help="File to add to pipelines/.")] = None,
    kills: Annotated[int, typer.Option(help="Number of kills.")] = 60,
    longest: Annotated[float, typer.Option(help="Longest time until a kill, in seconds.")] = 20.0,
    folder: Annotated[Path | None, typer.Option(help="Where the projects are made; default: a temporary one.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the random times.")] = 1,
) -> None:
    """Kill, start again, compare."""
    root = Path(tempfile.mkdtemp(prefix="daamctl-kills-")) if folder is None else folder
    undisturbed, killed = root / "undisturbed", root / "killed"
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    run = shlex.split(command)
    for project in (undisturbed, killed):
        subprocess.run(["daamctl", "init", project], check=True, capture_output=True)
        if pipeline is not None:
            shutil.copy(pipeline, project / "pipelines")
    started = time.monotonic()
    subprocess.run(run, cwd=undisturbed, check=True, capture_output=True)
    typer.echo(f"undisturbed: {time.monotonic() - started:.0f} s")

    generator, done, rounds, of_round = random.Random(seed), 0, 0, 0
    stages: dict[str, int] = {}
    while done < kills or of_round or rounds == 0:
        wait = generator.uniform(0.3, longest) if done < kills and of_round < MOST_PER_RUN else None
        log = root / "killed.log"
        with log.open("w") as output:
            process = subprocess.Popen(run, cwd=killed, stdout=output, stderr=output, start_new_session=True)
            try:
                code = process.wait(wait)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                if done % 2:
                    kill_those_in(killed)
                done, of_round = done + 1, of_round + 1
                stage = newest_stage(killed / "data")
                stages[stage] = stages.get(stage, 0) + 1
                continue
        if code:
            typer.echo(f"after {done} kills the run ended with {code}:\n{log.read_text()[-3000:]}")
            raise typer.Exit(1)
        rounds, of_round = rounds + 1, 0
        compared = subprocess.run([*SAME, undisturbed, killed], capture_output=True, text=True)
        typer.echo(f"finished after {done} kills: {(compared.stdout or compared.stderr).splitlines()[-1]}")
        left = [path for path in (killed / "data/.work").rglob("*") if path.is_file() and path.suffix != ".lock"]
        known = {path.relative_to(undisturbed) for path in (undisturbed / "data/.work").rglob("*")}
        strays = [str(path) for path in left if path.relative_to(killed) not in known]
        # whole folders of unfinished work that nothing takes up; single files are small
        unfinished = (killed / "data").rglob(f".*-{8 * '[0-9a-f]'}*")
        strays += [str(path) for path in (*unfinished, *(killed / "data").rglob(".*-unfinished")) if path.is_dir()]
        if compared.returncode or strays:
            typer.echo(compared.stdout + "".join(f"left behind: {name}\n" for name in strays))
            raise typer.Exit(1)
        shutil.rmtree(killed / "data")
        shutil.rmtree(killed / ".dvc/cache", ignore_errors=True)  # DVC would take results from there
    typer.echo(f"{done} kills, {rounds} finished runs, all results equal; last written before a kill: {stages}")


def kill_those_in(project: Path) -> None:
    """Kill every process whose working folder is the project."""
    for link in Path("/proc").glob("[0-9]*/cwd"):
        with suppress(OSError):
            if link.readlink() == project.resolve():
                os.kill(int(link.parent.name), signal.SIGKILL)


def newest_stage(data: Path) -> str:
    """Stage that wrote a file last."""
    times: dict[tuple[str, ...], float] = {}
    for path in data.rglob("*"):
        with suppress(OSError):  # what the server of DVC's stages leaves may still go away
            if path.is_file():
                times[path.relative_to(data).parts] = path.stat().st_mtime
    newest = max(times, key=lambda parts: times[parts], default=("none",))
    return newest[newest[0] == ".work"]


if __name__ == "__main__":
    typer.run(main)
