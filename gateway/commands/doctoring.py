"""`gateway doctor`: one line a check."""

from __future__ import annotations

from pathlib import Path

import click

from gateway.commands.exits import CHECK_FAILED, exit_codes, leave
from gateway.commands.options import CONFIG, JSON

MARKS = {"fine": ("ok  ", "green"), "note": ("note", "yellow"), "failed": ("FAIL", "red")}


@click.command()
@CONFIG
@JSON
def doctor(config_path: Path | None, *, as_json: bool) -> None:
    """Check this machine and the node's configuration: fact, consequence and exact fix, one line a check."""
    with exit_codes():
        import trio

        from gateway.commands import printing
        from gateway.doctor import examine

        examination = trio.run(examine, config_path)
        if as_json:
            printing.document(examination.as_json())
        else:
            for check in examination.checks:
                mark, color = MARKS[check.standing]
                click.echo(f"{click.style(mark, fg=color)}  {check.line()}")
        if examination.failed:
            leave(CHECK_FAILED)
