"""Every Python example of the README runs and prints what it says."""

from __future__ import annotations

import contextlib
import io
import re

import pytest

from tests.conftest import REPOSITORY

EXAMPLES = re.findall(r"```python\n(.*?)```", (REPOSITORY / "README.md").read_text(encoding="utf-8"), re.DOTALL)


def test_examples_are_found() -> None:
    assert len(EXAMPLES) >= 2


@pytest.mark.parametrize("code", EXAMPLES, ids=range(len(EXAMPLES)))
def test_example_prints_what_its_comments_say(code: str) -> None:
    expected = [line.split("  # ")[1] for line in code.splitlines() if line.startswith("print(")]
    assert expected
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "README.md", "exec"), {})
    assert printed.getvalue().splitlines() == expected
