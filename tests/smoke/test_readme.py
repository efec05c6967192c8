"""README and docs: Python examples print what they say, commands parse, links resolve."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import tomllib
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from typer.core import TyperGroup
from typer.main import get_command

from daamctl.cli.app import app
from daamctl.config import load_config, pipeline_names
from daamctl.encoders.encoder_size import check_name
from daamctl.methods import build, resolve_method
from tests.fixtures.added import install
from tests.fixtures.projects import REPOSITORY
from tests.test_sources import anchors_of

PAGES = {
    path.relative_to(REPOSITORY).as_posix(): path.read_text(encoding="utf-8")
    for path in [REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md", *sorted((REPOSITORY / "docs").glob("*.md"))]
}
EXAMPLES = [  # an indented block is a pattern to fill in, not a program
    (name, code)
    for name, page in PAGES.items()
    for code in re.findall(r"^```python\n(.*?)```", page, re.DOTALL | re.MULTILINE)
]
COMMANDS = sorted(
    {
        line
        for page in PAGES.values()
        for block in re.findall(r"```sh\n(.*?)```", page, re.DOTALL)
        for line in re.findall(r"^daamctl .*$", block.replace("$SLURM_ARRAY_TASK_ID", "1"), re.MULTILINE)
    }
)
LINKS = sorted(
    {(name, link) for name, page in PAGES.items() for link in re.findall(r"\]\(([^)\s]+)\)", page) if "//" not in link}
)
COMMAND_LINE = get_command(app)


def test_examples_commands_and_links_are_found() -> None:
    assert len(EXAMPLES) >= 2
    assert len(COMMANDS) > 40
    assert len(LINKS) > 40


@pytest.mark.parametrize(("name", "code"), EXAMPLES, ids=range(len(EXAMPLES)))
def test_example_prints_what_its_comments_say(
    name: str, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # an example may write files
    expected = [line.split("  # ")[1] for line in code.splitlines() if line.startswith("print(")]
    assert expected
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, name, "exec"), {})
    assert printed.getvalue().splitlines() == expected


@pytest.mark.parametrize("line", COMMANDS)
def test_command_parses(line: str) -> None:
    """It is parsed, not run."""
    words = shlex.split(line, comments=True)[1:]
    group = COMMAND_LINE
    assert isinstance(group, TyperGroup)
    if words[0].startswith("-"):
        assert words[0] in {option for one in group.params for option in one.opts} | {"--help"}
        return
    assert words[0] in group.commands
    group.commands[words[0]].make_context(words[0], words[1:])


def test_commands_name_what_there_is() -> None:
    """Methods are among those of a pipeline that comes with daamctl; encoders are presets, hub ids or paths."""
    shipped = {name: load_config(REPOSITORY, name).trained for name in pipeline_names(REPOSITORY)}
    for line in COMMANDS:
        words = shlex.split(line, comments=True)[1:]
        for word in words[1:]:
            run, separator, method = word.partition("/")
            if separator and run in shipped:
                assert method in shipped[run], line
        for option, value in pairwise(words):
            if option in ("--encoder", "-e") and not value.startswith(("/", ".", "~")):
                check_name(value)
            if option in ("--method", "-m") and words[0] == "train":
                resolve_method(value)


@pytest.mark.parametrize(("name", "link"), LINKS)
def test_link_resolves(name: str, link: str) -> None:
    path, _, anchor = link.partition("#")
    target = (REPOSITORY / name).parent / path if path else REPOSITORY / name
    assert target.exists()
    if anchor:
        assert anchor in anchors_of(target.read_text(encoding="utf-8"))


def test_the_package_of_the_page_adds_its_method(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = PAGES["docs/methods.md"]
    source, project = (page.split(f"```{kind}\n")[1].split("```")[0] for kind in ("py", "toml"))
    entries = tomllib.loads(project)["project"]["entry-points"]["daamctl.methods"]
    install(tmp_path, monkeypatch, entries, source=source)
    model = build("peak", num_layers=6, embed_dim=8, num_classes=4, share=0.0)
    layers = torch.randn(3, 6, 8)
    torch.testing.assert_close(model(layers), model.decoder(layers.mean(1)))


def test_readme_links_every_page() -> None:
    linked = {link for name, link in LINKS if name == "README.md"}
    assert {name for name in PAGES if name != "README.md"} <= linked
    assert PAGES["README.md"].count("\n") <= 180
