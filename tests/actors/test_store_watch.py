"""What is known of a store that is looked at every few seconds."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import trio
from trio.testing import MockClock

from gateway.actors.runtime import open_runtime
from gateway.actors.store import Reason, StoreHealth
from gateway.actors.store_watch import LOOK_AGAIN_S, LOOK_EVERY_S, SILENT_S, StoreWatch

WELL = StoreHealth(writable=True, reason=None, since=1)
FULL = StoreHealth(writable=False, reason=Reason.DISK_FULL, since=2)


@attrs.define
class Store:
    """A store that answers a look with what `found` is, `after` so many seconds; `health` is what its writes told."""

    health: StoreHealth = WELL
    found: StoreHealth = WELL
    after: float = 0
    looks: list[float] = attrs.field(factory=list)

    async def probe(self) -> StoreHealth:
        self.looks.append(trio.current_time())
        await trio.sleep(self.after)
        return self.found


@asynccontextmanager
async def watching(store: Store) -> AsyncIterator[StoreWatch]:
    watched = StoreWatch(store)  # type: ignore[arg-type]  # all that it asks of one
    async with open_runtime() as runtime:
        await runtime.start("store-watch", watched.watch)
        yield watched


async def test_what_a_write_told_is_known_at_once(autojump_clock: MockClock) -> None:
    store = Store()
    async with watching(store) as watched:
        assert watched.health() is WELL
        store.health = FULL
        assert watched.health() is FULL


async def test_a_store_that_nobody_writes_to_is_looked_at_and_seldom_while_it_is_well(
    autojump_clock: MockClock,
) -> None:
    store = Store()
    async with watching(store) as watched:
        await trio.sleep(60)
        assert len(store.looks) <= 60 / LOOK_EVERY_S + 1
        store.found = FULL
        await trio.sleep(LOOK_EVERY_S)
        assert watched.health() is FULL


async def test_a_store_that_can_be_written_again_is_known_soon_though_nothing_is_sold(
    autojump_clock: MockClock,
) -> None:
    store = Store(health=FULL, found=FULL)
    async with watching(store) as watched:
        await trio.sleep(20)
        store.health = store.found = WELL
        await trio.sleep(LOOK_AGAIN_S)
        assert watched.health() is WELL


async def test_a_store_that_does_not_answer_a_look_is_stalled_before_the_look_ends(autojump_clock: MockClock) -> None:
    store = Store(after=math.inf)
    async with watching(store) as watched:
        await trio.sleep(SILENT_S / 2)
        assert watched.health().writable
        await trio.sleep(SILENT_S)
        known = watched.health()
        assert (known.writable, known.reason) == (False, Reason.STALLED)


async def test_a_node_that_does_not_get_the_processor_blames_no_store(autojump_clock: MockClock) -> None:
    store = Store(after=SILENT_S / 2)
    async with watching(store) as watched:
        await trio.sleep(SILENT_S / 4)
        autojump_clock.jump(3 * SILENT_S)
        assert watched.health().writable
        await trio.sleep(LOOK_EVERY_S)
        assert watched.health().writable
