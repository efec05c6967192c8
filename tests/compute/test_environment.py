"""Defaults of the process: what is set, and what environment variables override."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from daamctl.compute.environment import set_defaults

FAULTS = """
import resource
from daamctl.compute.environment import prepare
import numpy as np
prepare()
before = 0
for number in range(12):
    np.ones(16 << 20, np.float32)  # 64 MB, freed at once
    if number == 1:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc alone is told")
@pytest.mark.parametrize(("variables", "kept"), [({}, True), ({"MALLOC_MMAP_THRESHOLD_": "131072"}, False)])
def test_freed_memory_is_kept(variables: dict[str, str], kept: bool) -> None:
    """Ten blocks of 16,384 pages: none is fetched again, unless the user wants it otherwise."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    environment.pop("GLIBC_TUNABLES", None)
    environment["NUMPY_MADVISE_HUGEPAGE"] = "0"  # pages of 4 kB, as torch has them
    command = [sys.executable, "-c", FAULTS]
    done = subprocess.run(command, env=environment | variables, capture_output=True, text=True, check=True)
    assert (int(done.stdout) < 1000) is kept, done.stdout


def test_a_user_whom_the_system_does_not_know_gets_a_name_and_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000_001)  # the number of nobody
    for given, expected in (("", ("4000000001", "/")), ("mine", ("mine", "mine"))):
        monkeypatch.setenv("USER", given)
        monkeypatch.setenv("HOME", given)
        set_defaults()
        assert (os.environ["USER"], os.environ["HOME"]) == expected


def test_a_backend_of_a_notebook_that_is_not_installed_stops_no_command() -> None:
    """`!daamctl report demo` in a notebook passes the variable on, perhaps to another environment."""
    code = (
        "from daamctl.compute.environment import set_defaults; set_defaults(); "
        "import matplotlib; print(matplotlib.get_backend())"
    )
    environment = os.environ | {"MPLBACKEND": "module://matplotlib_inline.backend_inline"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip().lower() == "agg"


def test_a_home_that_cannot_be_written_is_no_matter() -> None:
    script = "from daamctl.compute.environment import prepare; prepare(); import matplotlib as m; m.get_configdir()"
    missing = ("MPLCONFIGDIR", "XDG_CONFIG_HOME", "XDG_CACHE_HOME")
    given = {name: value for name, value in os.environ.items() if name not in missing} | {"HOME": "/dev/null"}
    done = subprocess.run([sys.executable, "-c", script], env=given, capture_output=True, text=True, check=True)
    assert done.stderr == ""
