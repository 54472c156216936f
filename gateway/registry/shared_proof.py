"""Proofs that one node makes for all: the rules for a node that takes another's finding in its own probe's place.

A bad finding closes the route wherever it was made.  A good one opens it, unless this node's own evidence is against
it: an own probe that failed, or own calls that closed the route.  Then only an own probe opens it again, which is due
as after any failure for as long as the others find the route well.
"""

from __future__ import annotations

from datetime import datetime

import attrs

from gateway.registry.qualification import Finding, Record, Rules, next_probe, probed

OVERDUE_INTERVALS = 2
"""How long a node waits for another's finding before it looks itself: before its last proof expires."""


def learned(
    record: Record, finding: Finding, *, now: float, wall: datetime, ms: int, rules: Rules, name: str
) -> Record:
    """Return the record after another node's probe that ended at `now`, on this node's clocks; `name` is its proof's.

    A probe that is older than what this node knows changes nothing but that it was `vouched` for.
    """
    record = attrs.evolve(record, vouched=finding.ok)
    contradicted = record.refused_here or record.closed_until is not None
    if now <= record.probed_at or (finding.ok and contradicted):
        return record
    after = probed(record, finding, now=now, wall=wall, ms=ms, rules=rules, name=name or None)
    return attrs.evolve(after, refused_here=record.refused_here)


def next_own_probe(record: Record, *, rules: Rules) -> float:
    """Return when a node that leaves the probing to another is to look itself.

    That is soon where its own evidence is against the others', and otherwise only once nobody seems to look any more.
    """
    contradicted = record.vouched and (record.refused_here or record.closed_until is not None)
    if record.suspect or contradicted:
        return next_probe(record, rules=rules)
    return record.probed_at + OVERDUE_INTERVALS * rules.interval_s
