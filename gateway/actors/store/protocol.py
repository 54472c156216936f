"""What the node asks of a durable store, whichever engine keeps it.

SQL is portable: TEXT, BIGINT and BLOB columns, `:name` parameters, ON CONFLICT and RETURNING.  Every engine passes
the same conformance suite, `tests/actors/store/test_protocol.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, runtime_checkable

import attrs
import trio

from gateway.actors.store.errors import SILENCES, UNAVAILABLE, Failure, Reason

Value = str | int | bytes | None
"""What a column holds: text without NUL, a 64-bit signed integer, bytes or NULL.  Never a float, never a bool."""

Row = tuple[Value, ...]
"""One row, its columns in the order of the SELECT or RETURNING list."""

STORE_CLOCK = "store_ms"
"""`:store_ms` in any statement or query is the store's own clock in milliseconds since 1970: one clock for all nodes.

The engine binds it; nobody passes it.
"""

_INT_BOUND = 2**63


def checked(parameters: Mapping[str, Value]) -> dict[str, Value]:
    """The parameters as plain values that every engine stores alike.

    Raises TypeError for anything but str, int, bytes and None (bool and float too), ValueError for an int beyond
    64 bits and for text with a NUL or a lone surrogate.
    """
    return {name: _plain(name, value) for name, value in parameters.items()}


def _plain(name: str, value: Value) -> Value:
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return _storable(name, value if type(value) is str else str.__str__(value))
    if isinstance(value, bool):
        raise TypeError(f":{name} is a bool; store 0 or 1")
    if isinstance(value, int):
        return _within_64_bits(name, int.__int__(value))
    raise TypeError(f":{name} is a {type(value).__name__}; only str, int, bytes and None are stored")


def _storable(name: str, text: str) -> str:
    if "\0" in text:
        raise ValueError(f":{name} holds a NUL character; store it as bytes")
    if not text.isascii():
        text.encode()  # a lone surrogate is a ValueError too
    return text


def _within_64_bits(name: str, number: int) -> int:
    if not -_INT_BOUND <= number < _INT_BOUND:
        raise ValueError(f":{name} is beyond 64 bits")
    return number


@attrs.frozen
class Statement:
    """One statement of a step.

    `rows` is how many rows it must change, or return when it returns rows (RETURNING, SELECT); any other number rolls
    back the whole step.  Raises what `checked` raises.
    """

    sql: str
    parameters: Mapping[str, Value] = attrs.field(factory=dict, converter=checked)
    rows: int | None = None


class Store(Protocol):
    """Atomic durable steps and consistent reads.  A read that starts after a commit has returned sees it."""

    async def commit(self, *statements: Statement, relaxed: bool = False) -> list[list[Row]]:
        """Run the statements as one atomic step; return, once it is durable, the rows that each of them returned.

        A step that carries no money may be `relaxed`: it outlives the node's death all the same, but a power loss may
        take the last of such steps back, as if they had not been asked for; the next step that is not makes them
        durable.  Where an engine gains nothing by that, it is as durable as any other.

        A caller that is cancelled while its step runs does not stop it.  Raises `Conflict` or `StatementFailed` (the
        step is undone), `StoreUnavailable` (it never happened) or `StoreUncertain` (a later read must tell).
        """
        ...

    async def fetch(self, sql: str, parameters: Mapping[str, Value] = {}) -> list[Row]:
        """All rows of one query.  Raises `StatementFailed` or `StoreUnavailable`."""
        ...

    async def fetch_many(self, queries: Sequence[tuple[str, Mapping[str, Value]]]) -> list[list[Row]]:
        """The rows of each query, all from one snapshot.  Raises `StatementFailed` or `StoreUnavailable`."""
        ...

    async def look_up(self, queries: Sequence[tuple[str, Mapping[str, Value]]]) -> list[list[Row]]:
        """The same for queries that each find a few rows by an index, on the road of every request."""
        ...


@runtime_checkable
class InLoop(Protocol):
    """A store that may answer look-ups without waiting for anything."""

    @property
    def at_hand(self) -> bool:
        """Whether it does now; else those who ask had better wait together."""
        ...

    def look_up_at_once(self, queries: Sequence[tuple[str, Mapping[str, Value]]]) -> list[list[Row]]:
        """See `Store.look_up`."""
        ...


@attrs.frozen
class StoreHealth:
    """Whether the store does what the node asks of it; `reason` where not, `since` in seconds since 1970.

    `name` is the word for machines.
    """

    writable: bool
    reason: Reason | None
    since: float
    code: str = ""

    @property
    def name(self) -> str:
        """The reason, with the database's code where it has no name of its own; "" where there is none.

        All silences have one name, so that who looks while a store stalls is not told something else each time.
        """
        if self.reason is None or self.reason in SILENCES:
            return "" if self.reason is None else UNAVAILABLE
        return Failure(self.reason, code=self.code).name


@attrs.frozen
class Membership:
    """A node's place in the table `nodes`: its name, and the epoch that it is joined under."""

    node: str
    epoch: int


class NodeStore(Store, Protocol):
    """A store as the actors of a node see it that several nodes may share: with this node's membership."""

    @property
    def shared(self) -> bool:
        """Whether other nodes may write to it at the same time."""
        ...

    @property
    def membership(self) -> Membership:
        """As what this node is joined; another epoch once its lease has run out and it joined anew."""
        ...

    def tell(self, *topics: str) -> None:
        """Wake who hears of these topics, on this node and, soon, on the others; best effort, never blocks."""
        ...

    def hear(self, topic: str) -> AbstractContextManager[trio.Event]:
        """An event that is set once the topic is told.  It only shortens a wait: who hears looks again in any case."""
        ...


class Engine(NodeStore, Protocol):
    """A store as its owner sees it: with its health."""

    @property
    def health(self) -> StoreHealth:
        """What the last write told."""
        ...

    async def probe(self) -> StoreHealth:
        """Whether the store is writable, found out by a durable write unless one succeeded within the last second.

        It tells of tables that are missing or not permitted, too.  Never raises.
        """
        ...
