"""What became of a route, for people: spells of one state and one reason, as one node saw them.

A spell is cut at the borders of five minutes; those of one hour become one for each state and reason once nobody looks
at them that closely any more.  Times are milliseconds since 1970, by the node's wall clock.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs

FINE_MS = 5 * 60 * 1000
COARSE_MS = 60 * 60 * 1000


@attrs.frozen
class Spell:
    """A time in which a route was in one state for one reason, and what was seen of it meanwhile.

    Attributes:
        width: milliseconds between the borders that it lies between; `began_at` and `ended_at` are never beyond them.
        lasted_ms: how long it was so; less than from beginning to end where it is made of several.
        qualification_id: the first proof that stood in it; None while the route was closed.
        p50_ms: median of successful calls, of probes where there were no calls; None: there was neither.
    """

    route: str
    node: str
    began_at: int
    ended_at: int
    width: int
    lasted_ms: int
    state: str
    reason: str | None
    qualification_id: str | None = None
    probes: int = 0
    failed_probes: int = 0
    calls: int = 0
    failed_calls: int = 0
    p50_ms: int | None = None


def thinned(spells: Iterable[Spell], width: int = COARSE_MS) -> list[Spell]:
    """Return spells between wider borders: one of each route, node, state and reason, in the order they began."""
    alike: dict[tuple[object, ...], list[Spell]] = {}
    for each in sorted(spells, key=lambda spell: (spell.began_at, spell.route, spell.node)):
        alike.setdefault((each.route, each.node, each.began_at // width, each.state, each.reason), []).append(each)
    return [_one(group, width) for group in alike.values()]


def _one(group: list[Spell], width: int) -> Spell:
    return attrs.evolve(
        group[0],
        ended_at=max(each.ended_at for each in group),
        width=width,
        lasted_ms=sum(each.lasted_ms for each in group),
        qualification_id=next((each.qualification_id for each in group if each.qualification_id), None),
        probes=sum(each.probes for each in group),
        failed_probes=sum(each.failed_probes for each in group),
        calls=sum(each.calls for each in group),
        failed_calls=sum(each.failed_calls for each in group),
        p50_ms=_median(group),
    )


def _median(group: list[Spell]) -> int | None:
    """Return the median of medians, each as heavy as what it was taken of."""
    timed = sorted((each.p50_ms, _weight(each)) for each in group if each.p50_ms is not None)
    half, below = sum(weight for _, weight in timed) / 2, 0
    for median, weight in timed:
        below += weight
        if below >= half:
            return median
    return None


def _weight(spell: Spell) -> int:
    return max(spell.calls - spell.failed_calls or spell.probes - spell.failed_probes, 1)
