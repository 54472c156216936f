"""What commands print: one JSON document, or lines and tables for a person."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click

WIDTH_OF_A_FILE = 240


def document(value: Any) -> None:
    """Print one JSON document on standard output."""
    import orjson

    click.echo(orjson.dumps(value, option=orjson.OPT_INDENT_2).decode())


def table(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table on standard output; what is None shows as a dash."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    shown = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for heading in headings:
        shown.add_column(heading, overflow="fold")
    for row in rows:
        shown.add_row(*(Text("-" if each is None else str(each)) for each in row))
    Console(highlight=False, width=None if sys.stdout.isatty() else WIDTH_OF_A_FILE).print(shown)


def members(values: Mapping[str, object]) -> None:
    """Print names and values, a line each."""
    width = max(map(len, values), default=0)
    for name, value in values.items():
        click.echo(f"{name:<{width}}  {'-' if value is None else value}")
