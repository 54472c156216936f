"""Does it all add up? What the agent says it bought, against what the chain says was paid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from gateway.world.chain import Transfer

CLOSED = ("operation_unavailable", "capability_unavailable", "model_unavailable")
"""Problem codes of a family that this host cannot run: refused before any quote, with a reason."""


@attrs.frozen
class Row:
    """One step of the agent and what became of it: `verdict` is `held`, `closed` or `failed`, `reason` why not held.

    `price` is what was asked for it, None where nothing was; `by` is who answered, and whether only a stand-in of the
    local world did; `replayed` says that the same answer had been given before.
    """

    step: str
    operation: str
    protocol: str
    status: int | None
    charged: int
    transaction: str
    settled: bool
    replayed: bool
    proved: bool
    ms: int
    verdict: str
    reason: str
    price: int | None = None
    by: str = ""
    node: str = ""


@attrs.frozen
class TakeOver:
    """What became of an operation whose node, `killed`, died while it settled.

    `by` is the node that served it, `ms` milliseconds after the kill; the killed one was ready again `back_ms` after it
    was started.
    """

    killed: str
    by: str
    ms: int
    back_ms: int


@attrs.frozen
class Tally:
    """All rows, and what is wrong with the whole; `transfers` counts those on the chain."""

    rows: tuple[Row, ...]
    transfers: int
    faults: tuple[str, ...]
    take_over: TakeOver | None = None

    @property
    def holds(self) -> bool:
        """True when nothing failed; closed families are not failures."""
        return not self.faults and all(row.verdict != "failed" for row in self.rows)

    @property
    def complete(self) -> bool:
        """True when nothing failed and nothing was closed."""
        return self.holds and all(row.verdict == "held" for row in self.rows)


def tally(
    lines: Sequence[Mapping[str, Any]], transfers: Sequence[Transfer], planned: int, take_over: TakeOver | None = None
) -> Tally:
    """Judge every line of the agent, then the round: `planned` lines, one transfer a purchase, none for a replay."""
    on_chain = {transfer.transaction: transfer.value for transfer in transfers}
    rows = tuple(judge(line, on_chain) for line in lines)
    bought = [row for row in rows if row.charged and not row.replayed]
    faults = []
    if len(lines) < planned and all(row.verdict == "held" for row in rows):
        faults.append(f"the agent made {len(lines)} of {planned} steps")
    if len(transfers) != len(bought):
        faults.append(f"{len(bought)} purchases, {len(transfers)} transfers on the chain")
    return Tally(rows, len(transfers), tuple(faults), take_over)


def judge(line: Mapping[str, Any], on_chain: Mapping[str, int]) -> Row:
    """Judge one line; `on_chain` maps a transaction to the atomic units it moved to the seller."""
    charged, transaction = int(line["charged"]), line["transaction"] or ""
    settled = charged > 0 and on_chain.get(transaction) == charged
    reason = _reason(line, charged=charged, settled=settled)
    closed = line.get("code") in CLOSED
    return Row(
        step=line["step"],
        operation=line["operation"],
        protocol=line["protocol"],
        status=line["status"],
        charged=charged,
        transaction=transaction,
        settled=settled,
        replayed=line["replayed"] and not line.get("joined", False),
        proved=line["proved"],
        ms=line["ms"],
        verdict="closed" if closed else "failed" if reason else "held",
        reason=reason,
        price=None if line.get("price") is None else int(line["price"]),
        by=_by(line),
        node=line.get("node", ""),
    )


def _by(line: Mapping[str, Any]) -> str:
    if not line.get("answeredBy"):
        return ""
    return f"{line['answeredBy']}, simulated" if line.get("simulated") else str(line["answeredBy"])


def _reason(line: Mapping[str, Any], *, charged: int, settled: bool) -> str:
    again, free = line["step"].endswith(", again"), line["protocol"] == "free"
    if line["status"] != 200:
        return str(line.get("detail") or line.get("code") or f"status {line['status']}")
    if not line["proved"]:
        return str(line.get("detail") or "the receipt does not stand")
    odd = again != line["replayed"] and not line.get("joined", False)
    wrong = {
        "a free call was charged": free and charged,
        f"{charged} was charged and {line.get('price')} asked": not free and line.get("price") != str(charged),
        "the chain shows no such transfer": not free and not settled,
        "was not replayed": odd and again,
        "was replayed": odd,
    }
    return next((reason for reason, holds in wrong.items() if holds), "")
