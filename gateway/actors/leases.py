"""Leases: duties that one node at a time does for all nodes of a store.

A holder lives while it is joined in `nodes` under the epoch that it took the lease in; being joined renews it, so a
lease costs no writes of its own.  Each node reads all leases every quarter of a lease, takes those that are free and
wanted, and ends a duty as soon as its lease is lost or may have run out.  What an earlier holder may still be writing
is stopped by the fence: the epoch of the lease, one more for every holder.

A node whose clock cannot be believed (`gateway.actors.clock`) takes no lease, and gives back those that it holds.

For a new duty of an actor, one line: `nursery.start_soon(hold, "name", duty)`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Never, Protocol, final

import attrs
import structlog
import trio

from gateway.actors.runtime import Inbox
from gateway.actors.store import NodeStore, Row, Statement, Value
from gateway.errors import StoreUnavailable

log = structlog.get_logger(__name__)

TOPIC = "leases"
LEASE_MS = 1200
LOOKS = 4
"""How often a lease is looked at before it would run out."""

JOINED = "n.node = leases.node AND n.epoch = leases.node_epoch AND n.lease_until >= :store_ms"
# Changing nothing locks the row: who takes the lease waits for the holder's step to end, or the step for the taking.
FENCE = f"""
    UPDATE leases SET epoch = epoch WHERE name = :name AND node = :node AND node_epoch = :node_epoch AND epoch = :epoch
        AND EXISTS (SELECT 1 FROM nodes n WHERE {JOINED})
"""  # noqa: S608 - a condition from above
TAKE = f"""
    INSERT INTO leases (name, node, node_epoch, epoch, taken_at)
    VALUES (:name, :node, :node_epoch, 1, :store_ms)
    ON CONFLICT (name) DO UPDATE SET node = excluded.node, node_epoch = excluded.node_epoch, epoch = leases.epoch + 1,
        taken_at = excluded.taken_at
    WHERE (leases.node = excluded.node AND leases.node_epoch = excluded.node_epoch)
        OR NOT EXISTS (SELECT 1 FROM nodes n WHERE {JOINED})
    RETURNING epoch
"""  # noqa: S608 - a condition from above
# No node is ever joined under epoch 0; the row stays, for the count of its holders.
GIVE_BACK = """
    UPDATE leases SET node_epoch = 0
    WHERE name = :name AND node = :node AND node_epoch = :node_epoch AND epoch = :epoch
"""
LOOK = """
    SELECT l.name, l.node, l.node_epoch, l.epoch, COALESCE(n.lease_until - :store_ms, -1)
    FROM leases l LEFT JOIN nodes n ON n.node = l.node AND n.epoch = l.node_epoch
"""


@attrs.frozen
class Held:
    """A lease in this node's hands: the `epoch` counts its holders, the node is joined under `node_epoch`."""

    name: str
    node: str
    node_epoch: int
    epoch: int

    def fence(self) -> Statement:
        """A statement for a step that no earlier holder may make: `Conflict` unless the lease is still held."""
        if self == ALONE:
            return Statement("SELECT 1", rows=1)
        return Statement(FENCE, self._named, rows=1)

    def given_back(self) -> Statement:
        """A statement that lets another node take it at once."""
        return Statement(GIVE_BACK, self._named)

    @property
    def _named(self) -> dict[str, Value]:
        return {"name": self.name, "node": self.node, "node_epoch": self.node_epoch, "epoch": self.epoch}


ALONE = Held("", "", 0, 0)
"""What a node holds that shares its store with nobody."""

Duty = Callable[[Held], Awaitable[None]]


class Hold(Protocol):
    """How an actor is told that a duty is for one node at a time: `Leases.hold`, or `alone`."""

    async def __call__(self, name: str, duty: Duty, /) -> None:
        """Run the duty while this node holds the lease of that name."""
        ...


async def alone(_name: str, duty: Duty, /) -> None:
    """Run the duty: there is no other node."""
    await duty(ALONE)


@attrs.frozen
class Seen:
    """A lease as the last look found it; `until` is when it runs out at the earliest, on trio's clock."""

    node: str
    node_epoch: int
    epoch: int
    until: float
    alive: bool


@final
class Leases:
    """All leases of a store as one node sees them; `watch` is the actor that looks, actors hold them through `hold`.

    `lease_ms` is the lease by which the nodes of this store are joined; `believed` says whether this node's clock is.
    """

    def __init__(
        self, store: NodeStore, *, lease_ms: int = LEASE_MS, believed: Callable[[], bool] = lambda: True
    ) -> None:
        self._store = store
        self._believed = believed
        self._lease_s = lease_ms / 1000
        self._seen: Mapping[str, Seen] = MappingProxyType({})
        self._looks = 0
        self._shown = 0  # the number of the look that `_seen` is from
        self._blind = False
        self._looked = trio.Event()
        self._held: dict[str, Held | None] = {}

    @property
    def seen(self) -> Mapping[str, Seen]:
        """Every lease by name, as the last look found it: what an operator is shown."""
        return self._seen

    @property
    def held(self) -> Mapping[str, Held]:
        """The leases that this node holds, by name."""
        return {name: held for name, held in self._held.items() if held is not None}

    async def watch(self, inbox: Inbox[Never]) -> None:
        """The actor "leases": look every quarter of a lease, and at once when one is given back."""
        async with trio.open_nursery() as nursery:
            if self._store.shared:
                await self._look()
                nursery.start_soon(self._keep_looking)
            inbox.ready()
            async for _ in inbox:
                pass
            nursery.cancel_scope.cancel()

    async def hold(self, name: str, duty: Duty, /) -> None:
        """Run the duty while this node holds the lease; take it again, and run it again, whenever it was lost.

        Returns when the duty does, and the lease is given back then, as after an exception or a cancellation.  A duty
        whose lease is lost is cancelled within a quarter of a lease and one look; where the store cannot be asked, when
        the lease may have run out.  So is one whose node is not to be believed any more.  On a store of one node the
        duty just runs.
        """
        if not self._store.shared:
            await alone(name, duty)
            return
        with self._wanted(name):
            while not await self._serve(await self._taken(name), duty):
                pass

    # -- holding -------------------------------------------------------------------------------------------------------

    @contextmanager
    def _wanted(self, name: str) -> Iterator[None]:
        if name in self._held:
            raise RuntimeError(f"lease {name} is wanted twice on one node")
        self._held[name] = None
        try:
            yield
        finally:
            del self._held[name]

    async def _taken(self, name: str) -> Held:
        """Wait for the lease."""
        while True:
            looked = self._looked
            if self._free(name):
                held = await self._take(name)
                if held is not None and self._good_until(held) > trio.current_time():
                    return held
            await looked.wait()

    async def _take(self, name: str) -> Held | None:
        member = self._store.membership
        named: dict[str, Value] = {"name": name, "node": member.node, "node_epoch": member.epoch}
        try:
            (taken,) = await self._store.commit(Statement(TAKE, named))
        except StoreUnavailable as error:
            log.info("lease_not_taken", lease=name, reason=error.detail)
            return None
        if not taken:
            return None
        await self._look()  # what was seen before does not know of it
        return Held(name, member.node, member.epoch, int(taken[0][0] or 0))

    async def _serve(self, held: Held, duty: Duty) -> bool:
        """Do the duty until it is done or the lease is lost; return True when it is done."""
        log.info("lease_taken", lease=held.name, epoch=held.epoch)
        self._held[held.name] = held
        done = False
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._end_when_lost, held, nursery.cancel_scope)
                await duty(held)
                done = True
                nursery.cancel_scope.cancel()
        finally:
            self._held[held.name] = None
            if self._good_until(held) > trio.current_time():
                await self._give_back(held)
            else:
                log.warning("lease_lost", lease=held.name, epoch=held.epoch)
        return done

    async def _end_when_lost(self, held: Held, scope: trio.CancelScope) -> None:
        while self._believed() and (until := self._good_until(held)) > trio.current_time():
            with trio.move_on_at(until):
                await self._looked.wait()
        scope.cancel()

    async def _give_back(self, held: Held) -> None:
        """Let another node take it now; where that fails, it waits until this node's lease has run out."""
        with trio.move_on_after(self._lease_s, shield=True):
            try:
                await self._store.commit(held.given_back())
            except StoreUnavailable as error:
                log.info("lease_not_given_back", lease=held.name, reason=error.detail)
            else:
                self._store.tell(TOPIC)

    # -- looking -------------------------------------------------------------------------------------------------------

    def _free(self, name: str) -> bool:
        """Say whether the lease is worth a try: nobody alive has it, or this node has it from before a crash."""
        seen, member = self._seen.get(name), self._store.membership
        if not self._shown or not self._believed():
            return False
        return seen is None or not seen.alive or (seen.node, seen.node_epoch) == (member.node, member.epoch)

    def _good_until(self, held: Held) -> float:
        """Return until when a lease is this node's at least; minus infinity once it is lost."""
        seen = self._seen.get(held.name)
        if self._store.membership.epoch != held.node_epoch or seen is None:
            return float("-inf")
        same = (seen.node, seen.node_epoch, seen.epoch) == (held.node, held.node_epoch, held.epoch)
        return seen.until if same else float("-inf")

    async def _keep_looking(self) -> None:
        while True:
            with self._store.hear(TOPIC) as told:
                await self._look()
                with trio.move_on_after(self._lease_s / LOOKS):
                    await told.wait()

    async def _look(self) -> None:
        """Read all leases; a store that does not answer within a lease is not waited for."""
        self._looks += 1
        number, began = self._looks, trio.current_time()
        try:
            with trio.move_on_after(self._lease_s):
                rows = await self._store.fetch(LOOK)
                if number > self._shown:  # of two that look at once, the later is right
                    self._publish(number, {str(row[0]): _seen(row[1:], began) for row in rows})
                return
            reason = f"no answer within {self._lease_s:g} s"
        except StoreUnavailable as error:
            reason = error.detail
        if not self._blind:
            log.warning("leases_unseen", reason=reason)
        self._blind = True

    def _publish(self, number: int, seen: dict[str, Seen]) -> None:
        self._shown, self._seen, self._blind = number, MappingProxyType(seen), False
        looked, self._looked = self._looked, trio.Event()
        looked.set()


def _seen(row: Row, began: float) -> Seen:
    node, node_epoch, epoch, left_ms = str(row[0]), *(int(each or 0) for each in row[1:])
    return Seen(node, node_epoch, epoch, until=began + left_ms / 1000, alive=left_ms >= 0)
