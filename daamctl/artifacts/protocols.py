"""What `protocols` finds: `protocols.parquet`, a row per cell, and `protocols.json`, which says what the names mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from daamctl.artifacts.scores import ProtocolScore, frame_of, read_table, table_file
from daamctl.store.artifact import Artifact
from daamctl.store.tables import write_frame

PROTOCOLS = "protocols.json"
PROBES = {"last": "last layer", "best": "best layer", "mean": "mean of layers", "all": "all layers"}
"""Probe -> its name in texts."""


@dataclass(frozen=True, kw_only=True)
class Protocols:
    """Closed-form probes under several protocols.

    Args:
        item: word for what is scored.
        reference: the protocol that the others are compared with.
        texts: protocol -> what it does.
        sources: protocol -> where it is from; empty for one that is of no benchmark or paper.
        absent: protocol that was left out -> why.
        train: settings of `train` that the probes and the folds of the pipeline follow.
        rows: the figures, which are not in the record but in the table.
    """

    run: str
    embeddings_key: str
    item: str
    reference: str
    texts: dict[str, str]
    sources: dict[str, str]
    absent: dict[str, str]
    train: dict[str, Any] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    rows: Sequence[ProtocolScore] = ()

    def cell(
        self, protocol: str, probe: str, against: str | None = None, metric: str = "accuracy"
    ) -> ProtocolScore | None:
        """A figure; with `against`, the row with the difference from that protocol."""
        own = (row for row in self.rows if (row.protocol, row.probe, row.metric) == (protocol, probe, metric))
        return next((row for row in own if against in (None, row.against)), None)


def write_protocols(folder: Path, found: Protocols) -> None:
    """Write the table, then the record with its hash."""
    path = table_file(folder, "protocols")
    write_frame(path, frame_of("protocols", found.rows), {"run": found.run, "table": "protocols"})
    record = asdict(replace(found, rows=()))
    Artifact(folder / PROTOCOLS, Protocols).seal(folder, {k: v for k, v in record.items() if k != "rows"}, [path])


def find_protocols(folder: Path, *, hide: Path | None = None) -> Protocols | None:
    """Read what was found for a run; None if there is nothing.

    Raises:
        ArtifactError: a file is missing, changed or of another run.
    """
    found = Artifact(folder / PROTOCOLS, Protocols, hide=hide).find()
    if found is None:
        return None
    rows = read_table(table_file(folder, "protocols")).iter_rows(named=True)
    return replace(found, rows=[ProtocolScore(**row) for row in rows])
