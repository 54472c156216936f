"""What a person sees of the demonstration: a line for each thing that happens, a table at the end."""

from __future__ import annotations

import json

import attrs
from rich.console import Console
from rich.table import Table

from gateway.world import token
from gateway.world.tally import Row, TakeOver, Tally

GLYPHS = {"held": "[green]held[/]", "closed": "[yellow]closed[/]", "failed": "[red]FAILED[/]"}


class Report:
    """Tells progress on `progress` (standard error by default) and the outcome on `outcome` (standard output)."""

    def __init__(self, *, progress: Console | None = None, outcome: Console | None = None) -> None:
        self._progress = progress or Console(stderr=True, highlight=False)
        self._outcome = outcome or Console(highlight=False)

    def say(self, text: str) -> None:
        """Tell one thing that happened."""
        self._progress.print(text, markup=False, soft_wrap=True)

    def step(self, row: Row) -> None:
        """Tell one step of the agent as it happens; only the chain can say later whether it was settled."""
        mark = "ok" if row.status == 200 else row.reason
        at = f" at {row.node}" if row.node else ""
        by = f", answered by {row.by}" if row.by else ""
        self.say(f"  {row.step}{at}: {mark}{by} ({row.ms} ms)")

    def table(self, found: Tally) -> None:
        """Show what was bought, charged, settled and proved, and what did not add up."""
        shown = Table(
            title="what the agent bought", title_justify="left", box=None, padding=(0, 2, 0, 0), pad_edge=False
        )
        several = len({row.node for row in found.rows}) > 1
        for heading in ("step", "node" if several else "price", "charged", "settled", "receipt", "time", ""):
            shown.add_column(heading, no_wrap=True, justify="right" if heading == "time" else "left")
        for row in found.rows:
            shown.add_row(
                row.step,
                row.node if several else _dollars(row.price),
                _charged(row),
                _settled(row),
                "proved" if row.proved else "-",
                f"{row.ms} ms",
                GLYPHS[row.verdict],
            )
        self._outcome.print(shown)
        self._outcome.print(_sum(found), markup=False)
        for by in dict.fromkeys(row.by for row in found.rows if row.by):
            steps = ", ".join(row.step for row in found.rows if row.by == by and not row.replayed)
            self._outcome.print(f"answered by {by}: {steps}", markup=False, soft_wrap=True)
        if found.take_over is not None:
            self._outcome.print(_told(found.take_over), markup=False, soft_wrap=True)
        for row in found.rows:
            if row.verdict != "held":
                self._outcome.print(f"{row.verdict}: {row.step}: {row.reason}", markup=False, soft_wrap=True)
        for fault in found.faults:
            self._outcome.print(f"failed: {fault}", markup=False, soft_wrap=True)

    def json(self, found: Tally) -> None:
        """Print the same as one JSON object; amounts as decimal strings of atomic units."""
        rows = [attrs.asdict(row) | {"charged": str(row.charged), "price": _decimal(row.price)} for row in found.rows]
        told = {"holds": found.holds, "complete": found.complete, "transfers": found.transfers, "faults": found.faults}
        if found.take_over is not None:
            shown = found.take_over
            told["takeOver"] = {"killed": shown.killed, "by": shown.by, "ms": shown.ms, "backMs": shown.back_ms}
        self._outcome.file.write(json.dumps(told | {"steps": rows}) + "\n")
        self._outcome.file.flush()


def _sum(found: Tally) -> str:
    bought = [row for row in found.rows if row.charged and not row.replayed]
    replayed = sum(row.replayed for row in found.rows)
    plural = "" if found.transfers == 1 else "s"
    return f"{len(bought)} bought, {replayed} replayed for nothing, {found.transfers} transfer{plural} on the chain"


def _told(take_over: TakeOver) -> str:
    killed, by = take_over.killed, take_over.by
    return (
        f"{killed} was killed while a payment settled; {by} finished it and served the same request "
        f"{take_over.ms / 1000:.1f} s later\n"
        f"{killed} was back {take_over.back_ms / 1000:.1f} s after its start and replays the answer of {by}"
    )


def _charged(row: Row) -> str:
    if row.replayed:
        return "replayed"
    return _dollars(row.charged) if row.charged else "free" if row.proved else "-"


def _dollars(atomic: int | None) -> str:
    if atomic is None:
        return "-"
    whole, part = divmod(atomic, 10**token.DECIMALS)
    return f"{whole}.{part:0{token.DECIMALS}d}"


def _decimal(atomic: int | None) -> str | None:
    return None if atomic is None else str(atomic)


def _settled(row: Row) -> str:
    if not row.settled:
        return "-"
    return "the same" if row.replayed else row.transaction[:10]
