"""Which releases run over a store, and whether they can live with the next migrations.

A node writes its release into the engine's table `nodes` as `0.1.0+schema.2`: its version, and how many migrations it
knows (the build metadata of semver.org, point 10).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

import attrs

from gateway.actors.store.schema import Migration

_KNOWN = re.compile(r"[+.]schema\.(\d{1,6})\Z")


def named(version: str, known: int) -> str:
    """The release of a node: its version, and how many migrations it knows."""
    return f"{version}{'.' if '+' in version else '+'}schema.{known}"


def known_by(release: str) -> int | None:
    """How many migrations a release says that it knows; None where it does not say."""
    found = _KNOWN.search(release)
    return int(found[1]) if found else None


@attrs.frozen
class LiveNode:
    """A node that runs over the store now; `served` tells whether it could go on once the migrations are applied."""

    node: str
    release: str
    served: bool


def judge(
    nodes: Iterable[tuple[str, str]], applied: int, serves: Mapping[int, int], pending: Sequence[Migration]
) -> list[LiveNode]:
    """Tell of each live node (name and release) whether it can live with the pending migrations.

    `applied` is how many migrations the store has, `serves` the release that each serves where that is an older one.
    A node whose release does not say what it knows is taken to know the least with which it could run at all.
    """
    least = least_known(applied, serves)
    needed = max((each.serves for each in pending), default=0)
    return [LiveNode(node, release, needed <= _known(release, least)) for node, release in nodes]


def _known(release: str, least: int) -> int:
    told = known_by(release)
    return least if told is None else told


def least_known(applied: int, serves: Mapping[int, int]) -> int:
    """How many migrations a node knows at least that runs over a store which has `applied`."""
    return next(
        known
        for known in range(applied + 1)
        if all(serves.get(version, version) <= known for version in range(known + 1, applied + 1))
    )
