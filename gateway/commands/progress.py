"""How far a long work is, on standard error: bars on a terminal, lines now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import attrs
import click

LINE_EVERY_S = 5.0

Progress = Callable[[str, int, int], object]
"""Hears what is being done, how many rows of it are done, and of how many."""


@contextmanager
def progress(*, terminal: bool) -> Iterator[Progress]:
    """Show progress for the length of a block; what has nothing to do is not shown."""
    if not terminal:
        yield Lines(time.monotonic)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    with Bars(*columns, console=Console(stderr=True)) as bars:
        rates: dict[str, Rate] = {}
        tasks = {}

        def told(what: str, done: int, of: int) -> None:
            if of == 0:
                return
            rate = rates.setdefault(what, Rate(done, time.monotonic()))
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=of, rate="")
            bars.update(tasks[what], completed=done, rate=rate.told(done, time.monotonic()))

        yield told


@attrs.frozen
class Rate:
    """Rows a second since a work was begun, or gone on with."""

    rows: int
    at: float

    def told(self, rows: int, now: float) -> str:
        """How fast it goes."""
        return f"{(rows - self.rows) / (now - self.at):,.0f} rows/s" if rows > self.rows and now > self.at else ""


@attrs.define
class Lines:
    """Progress in lines: each work when it is done, and every few seconds before."""

    _now: Callable[[], float]
    _rates: dict[str, Rate] = attrs.field(factory=dict)
    _last: float = float("-inf")

    def __call__(self, what: str, done: int, of: int) -> None:
        """Hear of progress."""
        now = self._now()
        rate = self._rates.get(what)
        if rate is None:
            rate = self._rates[what] = Rate(done, now)
            if done == 0:
                return
        if of == 0 or (done < of and now < self._last + LINE_EVERY_S):
            return
        self._last = now
        speed = rate.told(done, now)
        click.echo(f"{what}: {done:,} of {of:,} rows{', ' if speed else ''}{speed}", err=True)
