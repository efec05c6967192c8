"""Fixtures that several test modules share."""

from __future__ import annotations

import functools
import gc
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from daamctl.compute.environment import DEFAULTS

for _name, _value in DEFAULTS.items():
    os.environ.setdefault(_name, _value)
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("DAAMCTL_CACHE", str(Path(tempfile.gettempdir()) / f"daamctl-tests-{os.getuid()}"))
os.environ.setdefault("OMP_NUM_THREADS", "1")  # tiny tensors: threads that share two cores only wait for one another
MEMORY = Path("/dev/shm")
if "TMPDIR" not in os.environ and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > 4 * 2**30:
    # A disk takes longer than most tests do. A run holds less than half a gigabyte at once.
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))

import hypothesis  # noqa: E402
import typer.testing  # noqa: E402
from typer.main import get_command  # noqa: E402

from tests.fixtures.projects import REPOSITORY, write_project  # noqa: E402
from tests.fixtures.shapes import check_shapes_on_import, config  # noqa: E402  (loads numpy, which reads the above)

# `CliRunner` reads the signatures of all commands for every call, which takes longer than most calls.
typer.testing._get_command = functools.cache(get_command)

hypothesis.settings.register_profile("untimed", deadline=None)  # on a busy machine any example may take long
hypothesis.settings.load_profile("untimed")

check_shapes_on_import()  # before anything imports the modules that are checked


LONGEST = ("smoke", "stages", "contracts", "fit")
"""Folders with the longest tests, which begin first, so that processes end together."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the folders with the longest tests first."""

    def place(item: pytest.Item) -> int:
        folder = item.path.relative_to(REPOSITORY / "tests").parts[0]
        return LONGEST.index(folder) if folder in LONGEST else len(LONGEST)

    items.sort(key=place)


def pytest_runtest_setup() -> None:
    """Count calls with shapes anew; and keep what is imported out of garbage collection.

    Collecting after every training takes as long as a tiny training if it goes through all of torch.
    """
    config.calls = 0
    if len(sys.modules) > len(_frozen) + 100:
        _frozen.update(sys.modules)
        gc.collect()
        gc.freeze()


_frozen = set[str]()
"""Names of the modules whose objects are no longer looked through."""


@pytest.fixture(autouse=True)
def _own_logging() -> Iterator[None]:
    """A command, or a fixture of a module that runs one, sets up logging for its process; no test may inherit that."""
    _reset_logging()
    yield
    _reset_logging()


def _reset_logging() -> None:
    root = logging.getLogger()
    root.handlers[:] = [handler for handler in root.handlers if type(handler).__module__.startswith("_pytest")]
    for logger, level in ((root, logging.WARNING), (logging.getLogger("daamctl"), logging.NOTSET)):
        if logger.level != level:  # to set it empties a cache of every logger there is
            logger.setLevel(level)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project without data: the real params.yaml, stages.yaml and pipelines; current folder, tracking into itself."""
    write_project(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv("DAAMCTL_ROOT", raising=False)
    return tmp_path


@pytest.fixture
def blank_pictures() -> Iterator[None]:
    """Figures are described but not drawn; for fixtures of a module, the context manager of the same name."""
    from tests.fixtures import pictures  # loads matplotlib, which few tests need

    with pictures.blank_pictures():
        yield


@pytest.fixture
def unchecked_shapes() -> Iterator[None]:
    """Switch the check of shapes off, for wrong shapes that our own code must refuse."""
    before = config.jaxtyping_disable
    config.update("jaxtyping_disable", True)
    yield
    config.update("jaxtyping_disable", before)
