"""What commands print: one JSON document, or lines and tables for a person."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click

WIDTH_OF_A_FILE = 240
LONG_NAME = re.compile(r"(?:0x|sha256:|[a-z]{1,8}_)?[0-9A-Za-z]{20,}")
"""An operationId, a hash, an address: they begin and end in ways that tell them apart."""


def document(value: Any) -> None:
    """Print one JSON document on standard output."""
    import orjson

    click.echo(orjson.dumps(value, option=orjson.OPT_INDENT_2).decode())


def table(
    headings: Sequence[str], rows: Sequence[Sequence[object]], *, wide: bool = False, least: Sequence[str] = ()
) -> None:
    """Print a table on standard output; what is None shows as a dash.

    On a terminal that is too narrow for it, ids and hashes are shortened in the middle, then the columns `least` are
    left out, the first of them first, until the others fit, and a last line names them.  What is still too long is cut
    at its end; a line never folds.  `wide` prints everything whole, as into a file.
    """
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    cells = [["-" if each is None else str(each) for each in row] for row in rows]
    console = Console(highlight=False, width=None if sys.stdout.isatty() and not wide else WIDTH_OF_A_FILE)
    columns = {heading: [row[at] for row in cells] for at, heading in enumerate(headings)}

    def fits() -> bool:
        return sum(max(map(cell_len, (heading, *column))) + 2 for heading, column in columns.items()) <= console.width

    left_out: list[str] = []
    if sys.stdout.isatty() and not wide and not fits():
        columns = {heading: [shortened(each) for each in column] for heading, column in columns.items()}
        for heading in least:
            if fits():
                break
            del columns[heading]
            left_out.append(heading)
    shown = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for heading in columns:
        shown.add_column(heading, overflow="fold" if wide else "ellipsis", no_wrap=not wide)
    for row in zip(*columns.values(), strict=True):
        shown.add_row(*map(Text, row))
    console.print(shown)
    if left_out:
        click.echo(f"no room for: {', '.join(name for name in headings if name in left_out)}; --json has everything")


def shortened(cell: str) -> str:
    """Return an id or a hash without its middle, everything else as it is."""
    return f"{cell[:9]}…{cell[-5:]}" if LONG_NAME.fullmatch(cell) else cell


def members(values: Mapping[str, object]) -> None:
    """Print names and values, a line each."""
    width = max(map(len, values), default=0)
    for name, value in values.items():
        click.echo(f"{name:<{width}}  {'-' if value is None else value}")
