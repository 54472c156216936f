"""Whether two stores hold the same rows: both read in the order of their keys, side by side."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from itertools import zip_longest

import attrs

from gateway.actors.store.protocol import Row
from gateway.moving.tables import Table, encoded

OBSERVED_EVERY = 2000


@attrs.frozen
class Compared:
    """What both sides hold of one table: how many rows, and the SHA-256 over their canonical forms in order of the key.

    `differing` is the first key at which they differ; None where all is the same.
    """

    table: str
    rows: tuple[int, int]
    hashes: tuple[str, str]
    differing: str | None

    @property
    def equal(self) -> bool:
        """Whether both sides hold the same."""
        return self.rows[0] == self.rows[1] and self.hashes[0] == self.hashes[1]


def compare(table: Table, ours: Iterable[Row], theirs: Iterable[Row], observe: Callable[[int], object]) -> Compared:
    """Read the rows of a table on both sides; `observe` hears how many were read."""
    mine, other = hashlib.sha256(), hashlib.sha256()
    counts = [0, 0]
    differing: str | None = None
    for read, (left, right) in enumerate(zip_longest(ours, theirs), 1):
        forms = [b"" if row is None else encoded(row) + b"\n" for row in (left, right)]
        mine.update(forms[0])
        other.update(forms[1])
        counts[0] += left is not None
        counts[1] += right is not None
        if differing is None and forms[0] != forms[1]:
            differing = encoded(min(table.key_of(row) for row in (left, right) if row is not None)).decode()
        if read % OBSERVED_EVERY == 0:
            observe(read)
    observe(max(counts))
    return Compared(table.name, (counts[0], counts[1]), (mine.hexdigest(), other.hexdigest()), differing)
