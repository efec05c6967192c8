"""Build step: copies the files that a new project starts with into the wheel. All else is in pyproject.toml."""

from __future__ import annotations

import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent.resolve()
sys.path.insert(0, str(ROOT))

from daamctl.store import starter  # noqa: E402


class BuildWithStarterFiles(build_py):
    """Adds `daamctl/starter_files/`. An editable install needs no copy: it reads the checkout."""

    def run(self) -> None:
        """Copy the modules, then the files of a new project."""
        super().run()
        if not self.editable_mode:
            for target, source in self._starter_files().items():
                self.mkpath(str(Path(target).parent))
                self.copy_file(source, target)

    def get_source_files(self) -> list[str]:
        """Add the files to a source distribution, too."""
        return [*super().get_source_files(), *starter.files_in(ROOT)]

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        """Name the copies among the files that are built."""
        copies = [] if self.editable_mode else list(self._starter_files())
        return [*super().get_outputs(include_bytecode), *copies]

    def _starter_files(self) -> dict[str, str]:
        """Copy in the build folder -> file of the checkout."""
        folder = Path(self.build_lib) / "daamctl" / starter.PACKAGED.name
        return {str(folder / name): str(path) for name, path in starter.files_in(ROOT).items()}


if __name__ == "__main__":
    setup(cmdclass={"build_py": BuildWithStarterFiles})
