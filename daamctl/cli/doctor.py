"""`daamctl doctor`."""

from __future__ import annotations


def command() -> None:
    """Show what this machine has: devices, precision, versions, disk, decoders, tracking store, corpora."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from daamctl.config import find_root
    from daamctl.doctor import examine

    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in examine(find_root()):
        table.add_row(name, escape(text))
    Console().print(table)


command.__name__ = "doctor"
