"""How far a move is: the fact `moving-from` of the store that it fills, written with every batch of rows."""

from __future__ import annotations

from typing import Self

import attrs
import orjson

from gateway.actors.store.protocol import Row
from gateway.moving.tables import decoded, encoded


@attrs.frozen
class Mark:
    """The move of the store `store`, which was in `state` when it began.

    All tables before `table` are copied, and of `table` the rows up to the key `after`; `rows` are copied in all.
    """

    store: str
    state: str
    table: str = ""
    after: Row | None = None
    rows: int = 0

    def moved_on(self, table: str, after: Row, rows: int) -> Self:
        """The mark `rows` rows of `table` later, of which `after` is the key of the last."""
        return attrs.evolve(self, table=table, after=after, rows=self.rows + rows)

    @property
    def text(self) -> str:
        """As it is stored."""
        members = attrs.asdict(self, recurse=False) | {"after": self.after and encoded(self.after).decode()}
        return orjson.dumps(members).decode()

    @classmethod
    def of(cls, text: str) -> Self:
        """Read what `text` wrote."""
        members = orjson.loads(text)
        return cls(**members | {"after": members["after"] and decoded(members["after"])})
