"""Every printed number with its place in the report (`numbers.csv`), and the papers' claims (`claims.yaml`).

Sources: daam-v4 (arXiv 2401.11143v4), gaam-v1 (its first version), daam-blog (the authors' post) and dwatt
(docs/sources.md#the-papers). Both files are checked when they are read: an error names the file and the line or key.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from daamctl.config import read_yaml
from daamctl.errors import ConfigError, suggest

FOLDER = Path(__file__).parent
M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True)
class PublishedNumber:
    """One line of `numbers.csv`.

    Args:
        modality: speech, vision, text, or all; likewise corpus (its name in daamctl, if it is one of ours) and encoder.
        method: method, group of methods, or what is compared.
        layers: layer numbers that were trained alone, e.g. 9 or 10-12; empty for all layers.
        split: fold (F1), repeat (R1), mean, std, or another word that distinguishes numbers of one row.
        value: as printed, so that the number of digits is kept.
        unit: unit of the value; percent is accuracy.
        pipeline: reproduces the number, together with its -as-published twin; empty if no run does.
        report_table: key of its table in the report of the whole paper.
    """

    source: str
    table: str
    modality: str
    corpus: str
    encoder: str
    method: str
    layers: str
    split: str
    value: str
    unit: str
    pipeline: str
    report_table: str
    report_row: str
    report_column: str

    @property
    def full_table(self) -> str:
        """Source and table, e.g. daam-v4/T1."""
        return f"{self.source}/{self.table}"

    @property
    def is_fold(self) -> bool:
        """Whether it is one fold (F1, …) or one repeat (R1, …)."""
        return self.split[:1] in ("F", "R") and self.split[1:].isdigit()

    @property
    def layer_numbers(self) -> tuple[int, ...]:
        """`layers` as numbers: 10-12 is (10, 11, 12)."""
        first, _, last = self.layers.partition("-")
        return tuple(range(int(first), int(last or first) + 1))


COLUMNS = [field.name for field in fields(PublishedNumber)]


class StrictModel(BaseModel):
    """Base of what the YAML files contain: unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Experiment(StrictModel):
    """One of the three experiments: its main table, then tables with further rows; its table in the first version."""

    title: str
    item: str
    tables: tuple[str, ...]
    first: str

    @property
    def key(self) -> str:
        """Name of the pipeline that reproduces it, and of its corpus."""
        return self._main.pipeline

    @property
    def encoder(self) -> str:
        """Name of the encoder."""
        return self._main.encoder

    @property
    def modality(self) -> str:
        """Speech, vision or text."""
        return self._main.modality

    @property
    def _main(self) -> PublishedNumber:
        """The first number of the main table."""
        return next(number for number in numbers() if number.full_table == self.tables[0])

    def layers(self, kind: Literal["high", "low"]) -> tuple[int, ...]:
        """The layers of high or of low Importance Factor that the papers train alone."""
        for number in numbers():
            if number.pipeline == self.key and number.method.endswith(f"-{kind}-if"):
                return number.layer_numbers
        raise LookupError(f"numbers.csv has no layers of {kind} Importance Factor for {self.title}")


class Comparison(StrictModel):
    """The parameters of one method (its name, and which of its counts) beside those of another.

    `name` stands in the verdict if a claim has several comparisons.
    """

    text: str
    first: tuple[str, str]
    second: tuple[str, str]
    name: str = ""


class Claim(StrictModel):
    """A claim on numbers of parameters; `claims.yaml` describes the fields."""

    row: str
    unit: Literal["times", "percent", "fewer"]
    comparisons: tuple[Comparison, ...]
    least: float | None = None
    verdict: str = ""

    @model_validator(mode="after")
    def _one_verdict(self) -> Claim:
        if (self.least is None) == (not self.verdict):
            raise ValueError("give either least or verdict")
        return self


class Claims(StrictModel):
    """The content of `claims.yaml`, which describes the fields."""

    experiments: dict[str, Experiment]
    repeats: dict[str, tuple[str, ...]]
    groups: dict[str, tuple[str, ...]]
    sizes: dict[str, str]
    claims: tuple[Claim, ...]
    dwatt: dict[str, tuple[str, str]]


@cache
def numbers() -> tuple[PublishedNumber, ...]:
    """Every printed number, in the order of the file; see `read_numbers`."""
    return read_numbers(FOLDER / "numbers.csv")


@cache
def read_claims() -> Claims:
    """Read and check `claims.yaml`."""
    return read_data(FOLDER / "claims.yaml", Claims)


def experiments() -> tuple[Experiment, ...]:
    """The three experiments, in the order of the report."""
    return tuple(read_claims().experiments.values())


def read_numbers(path: Path) -> tuple[PublishedNumber, ...]:
    """Read and check a file of printed numbers.

    Raises:
        ConfigError: wrong columns, a value that is not a number, an unknown pipeline, a number without its place in
            the report, or a number that is there twice; with file and line.
    """
    with path.open(encoding="utf-8", newline="") as file:
        lines = csv.reader(file)
        head = next(lines, [])
        if head != COLUMNS:
            raise ConfigError(f"{path} line 1: the columns must be {', '.join(COLUMNS)}, got {', '.join(head)}")
        found: list[PublishedNumber] = []
        first_lines: dict[tuple[str, ...], int] = {}
        for cells in lines:
            where = f"{path} line {lines.line_num}"
            # a comma in a cell without quotes moves all that follow
            if len(cells) != len(COLUMNS):
                raise ConfigError(f"{where}: {len(COLUMNS)} cells are needed, got {len(cells)}")
            number = PublishedNumber(*cells)
            if not all((number.report_table, number.report_row, number.report_column)):
                place = "report_table, report_row and report_column must say where the number is shown"
                raise ConfigError(f"{where}: {place}")
            try:
                float(number.value)
            except ValueError:
                raise ConfigError(f"{where}: value '{number.value}' is not a number") from None
            known = read_claims().experiments
            if number.pipeline and number.pipeline not in known:
                raise ConfigError(f"{where}: unknown pipeline '{number.pipeline}'", fix=suggest(number.pipeline, known))
            key = (*cells[: COLUMNS.index("value")], number.unit)  # what distinguishes numbers
            if key in first_lines:
                raise ConfigError(f"{where}: the same number is in line {first_lines[key]}")
            first_lines[key] = lines.line_num
            found.append(number)
    return tuple(found)


def read_data(path: Path, model: type[M]) -> M:
    """Read and check a YAML file.

    Raises:
        ConfigError: every mistake, with file and dotted key; places in lists are counted from 1.
    """
    try:
        return model.model_validate(read_yaml(path))
    except ValidationError as error:
        problems = []
        for item in error.errors():
            key = ".".join(str(part + 1) if isinstance(part, int) else part for part in item["loc"])
            told = f"{item['msg']} (got {item['input']!r})"
            if item["type"] == "value_error":  # our own checks, which include the value
                told = item["msg"].removeprefix("Value error, ")
            told = {"extra_forbidden": "unknown key", "missing": "missing"}.get(item["type"], told)
            problems.append(f"{key}: {told}")
        raise ConfigError(f"{path}: " + "\n  ".join(problems)) from None


@cache
def rows_of(table: str) -> dict[str, tuple[PublishedNumber, ...]]:
    """The printed numbers of one table of the report: row -> numbers, in print order."""
    rows: dict[str, list[PublishedNumber]] = {}
    for number in numbers():
        if number.report_table == table:
            rows.setdefault(number.report_row, []).append(number)
    return {row: tuple(part) for row, part in rows.items()}


def rows_by_experiment(table: str) -> Iterator[tuple[Experiment, str, tuple[PublishedNumber, ...]]]:
    """The rows of a table of the report that belong to an experiment, in the order of the experiments."""
    for experiment in experiments():
        for row, part in rows_of(table).items():
            if part[0].pipeline == experiment.key:
                yield experiment, row, part


def printed(part: Sequence[PublishedNumber]) -> str:
    """The numbers of one row as text; sources that print them differently are separated by a slash."""
    by_table: dict[str, list[PublishedNumber]] = {}
    for number in part:
        by_table.setdefault(number.full_table, []).append(number)
    return " / ".join(dict.fromkeys(_text(own) for own in by_table.values()))


def printed_in(part: Sequence[PublishedNumber]) -> str:
    """The sources and tables of printed numbers, e.g. `daam-v4 T1, T3; daam-blog T1`."""
    by_source: dict[str, list[str]] = {}
    for number in part:
        by_source.setdefault(number.source, []).append(number.table)
    return "; ".join(f"{source} {', '.join(dict.fromkeys(tables))}" for source, tables in by_source.items())


def _text(part: Sequence[PublishedNumber]) -> str:
    """The numbers that one source prints in one row: folds, mean and deviation, ranges, or a single number."""
    # a true minus sign, as on paper
    value = {number.split: number.value.replace("-", "−") for number in part}
    texts = []
    if folds := [number.value for number in part if number.is_fold]:
        texts.append(", ".join(folds))
    if mean := [value[split] for split in ("mean", "std") if split in value]:
        texts.append(" ± ".join(mean))
    for start, sign in (("", ""), ("mean-offset-", "δ "), ("scaled-variance-", "ξ ")):
        if {f"{start}min", f"{start}max"} <= value.keys():
            texts.append(f"{sign}{value[f'{start}min']} to {value[f'{start}max']}")
    return "; ".join(texts or value.values())
