"""Nothing is quoted that could not be claimed: a store that cannot be written, an actor that is not up or full."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import attrs
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from gateway.actors.operations import Limits
from gateway.actors.runtime import Ask, Inbox, Restart, open_runtime
from gateway.actors.settlement import Verdict
from gateway.actors.store import SILENCES, UNAVAILABLE, Reason, StoreHealth
from gateway.errors import CapacityExhausted, ExposureLimit, StoreUnavailable
from gateway.http.means import Means
from gateway.http.pipeline import Pipeline
from tests.http.shop import OTHER_PAYER, PAYER, Answer, Shop, open_shop

KEY = "0123456789abcdef0123"
OTHER_KEY = "fedcba9876543210fedc"
WELL = StoreHealth(writable=True, reason=None, since=0)


@attrs.define
class Store:
    """What is known of the store, as a test says."""

    known: StoreHealth = WELL

    def health(self) -> StoreHealth:
        return self.known

    def fails(self, reason: Reason = Reason.DISK_FULL) -> None:
        self.known = StoreHealth(writable=False, reason=reason, since=0)


@asynccontextmanager
async def watched_shop(directory: Path) -> AsyncIterator[tuple[Shop, Store]]:
    """Open a shop that looks at what is known of its store."""
    store = Store()
    async with open_shop(directory) as shop:
        node = attrs.evolve(shop.node, means=Means(store.health, (shop.node.idempotency, shop.node.operations)))
        pipelines = {each.id: Pipeline.of(each, node) for each in shop.table.values()}
        yield attrs.evolve(shop, node=node, pipelines=pipelines), store


@attrs.frozen
class Refusal:
    """A facilitator's refusal, which comes when something else has happened meanwhile."""

    meanwhile: Callable[[], None]
    reason: str = "insufficient_funds"

    @property
    def verdict(self) -> Verdict:
        self.meanwhile()
        return Verdict.INVALID


def check_refused(answer: Answer, reason: str = "disk_full") -> None:
    assert (answer.status, answer.code, answer.json["reason"]) == (503, "store_unavailable", reason)
    assert not answer.challenged
    assert "accepts" not in answer.json
    assert (answer.json["retryable"], int(answer.headers["Retry-After"]) >= 1) == (True, True)


# -- on the road -------------------------------------------------------------------------------------------------------


async def test_while_the_store_cannot_be_written_nothing_is_quoted_and_once_it_can_be_everything_is(
    tmp_path: Path,
) -> None:
    async with watched_shop(tmp_path) as (shop, store):
        store.fails()
        check_refused(await shop.post(key=KEY))
        check_refused(await shop.post(body=b""))  # the probe of a crawler
        store.known = WELL
        assert (await shop.post(key=KEY)).status == 402


async def test_while_the_store_cannot_be_written_a_free_call_does_not_run_and_costs_no_quota(tmp_path: Path) -> None:
    async with watched_shop(tmp_path) as (shop, store):
        store.fails(Reason.LEASE_LOST)
        for _ in range(13):
            check_refused(await shop.post("search.free", key=KEY), "store_unavailable")
        assert shop.search.runs == 0
        store.known = WELL
        assert (await shop.post("search.free", key=KEY)).headers["RateLimit"].startswith('"free_search";r=11;')


async def test_while_the_store_cannot_be_written_a_payment_is_neither_verified_nor_refused_with_a_challenge(
    tmp_path: Path,
) -> None:
    async with watched_shop(tmp_path) as (shop, store):
        quoted = await shop.post(key=KEY)
        store.fails(Reason.READ_ONLY)
        check_refused(await shop.post(key=KEY, headers=PAYER.x402(quoted)), "read_only")
        check_refused(await shop.post(key=KEY, headers=PAYER.x402(quoted, value=1)), "read_only")
        check_refused(await shop.post(key=KEY, headers=PAYER.mpp(quoted)), "read_only")
        assert (shop.bank.verified, shop.search.runs) == (0, 0)
        store.known = WELL
        assert (await shop.post(key=KEY, headers=PAYER.x402(quoted))).status == 200


async def test_a_payment_that_is_refused_while_the_store_fails_is_not_asked_for_again(tmp_path: Path) -> None:
    async with watched_shop(tmp_path) as (shop, store):
        quoted = await shop.post(key=KEY)
        shop.bank.verification = Refusal(store.fails)  # type: ignore[assignment]  # it looks like a verification
        check_refused(await shop.post(key=KEY, headers=PAYER.x402(quoted)))


async def test_a_completed_key_replays_from_a_store_that_can_be_read(tmp_path: Path) -> None:
    async with watched_shop(tmp_path) as (shop, store):
        first = await shop.buy(key=KEY)
        free = await shop.post("search.free", key=OTHER_KEY)
        store.fails()
        again = await shop.post(key=KEY)
        assert (again.status, again.json["replayed"], again.json["receipt"]) == (200, True, first.json["receipt"])
        paying = await shop.post(key=KEY, headers=OTHER_PAYER.x402(await quote_of(shop, store)))
        assert (paying.status, paying.json["replayed"]) == (200, True)
        again = await shop.post("search.free", key=OTHER_KEY)
        assert (again.status, again.json["receipt"]) == (200, free.json["receipt"])


async def quote_of(shop: Shop, store: Store) -> Answer:
    failing, store.known = store.known, WELL
    try:
        return await shop.post(key="another-key-of-somebody")
    finally:
        store.known = failing


async def test_a_refusal_for_a_closed_settlement_path_carries_no_challenge_either(tmp_path: Path) -> None:
    async with watched_shop(tmp_path) as (shop, _):
        quoted = await shop.post(key=KEY)

        def closes() -> None:
            shop.bank.path.proven_until, shop.bank.path.reason = float("-inf"), "facilitator_timeout"

        shop.bank.verification = Refusal(closes)  # type: ignore[assignment]  # it looks like a verification
        answer = await shop.post(key=KEY, headers=PAYER.x402(quoted))
        assert (answer.status, answer.code, answer.challenged) == (503, "settlement_unavailable", False)


async def test_a_node_whose_operations_are_all_taken_quotes_nothing_until_one_ends(tmp_path: Path) -> None:
    async with open_shop(tmp_path, most=Limits(operations=1)) as shop, trio.open_nursery() as nursery:
        shop.search.hold()
        nursery.start_soon(partial(shop.post, "search.free", key=OTHER_KEY, headers={}))
        await shop.search.begun.wait()
        for refused in (await shop.post(key=KEY), await shop.post("search.free", key=KEY)):
            assert (refused.status, refused.code, refused.challenged) == (503, "capacity_exhausted", False)
            assert refused.json["retryable"]
        shop.search.gate.set()
        await wait_all_tasks_blocked()
        while (answer := await shop.post(key=KEY)).code != "payment_required":  # noqa: ASYNC110 - nothing tells of it
            await trio.sleep(0.01)
        assert answer.challenged


async def test_a_node_with_too_much_unsettled_quotes_nothing_and_serves_what_is_free(tmp_path: Path) -> None:
    async with open_shop(tmp_path, most=Limits(unsettled=6000)) as shop, trio.open_nursery() as nursery:
        quoted = await shop.post(key=OTHER_KEY)
        shop.search.hold()
        nursery.start_soon(partial(shop.post, key=OTHER_KEY, headers=PAYER.x402(quoted)))
        await shop.search.begun.wait()
        refused = await shop.post(key=KEY)
        assert (refused.status, refused.code, refused.challenged) == (503, "exposure_limit", False)
        shop.search.gate.set()
        assert (await shop.post("search.free", key=KEY)).status == 200


# -- the parts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reason", list(Reason))
def test_every_reason_of_the_store_is_told(reason: Reason) -> None:
    store = Store()
    store.fails(reason)
    with pytest.raises(StoreUnavailable) as caught:
        Means(store.health).admit("paid")
    assert caught.value.extra == {"reason": UNAVAILABLE if reason in SILENCES else reason.value}
    assert caught.value.detail.endswith("; nothing was begun.")


def test_a_store_that_tells_no_reason_is_unwritable() -> None:
    with pytest.raises(StoreUnavailable) as caught:
        Means(lambda: StoreHealth(writable=False, reason=None, since=0)).admit("paid")
    assert caught.value.extra == {"reason": "unwritable"}


def test_the_word_for_what_is_missing_is_that_of_the_refusal() -> None:
    store = Store()
    assert Means(store.health).closed is None
    store.fails()
    assert Means(store.health).closed == "disk_full"
    assert Means(room=lambda _: ExposureLimit()).closed == "exposure_limit"


def test_where_nothing_is_known_nothing_is_refused() -> None:
    Means().admit("paid")
    Means(lambda: WELL).admit("paid")


class Work(Ask[int]):
    """Asks for anything."""


async def test_an_actor_that_crashed_is_waited_for_and_not_sold_from(autojump_clock: MockClock) -> None:
    lives = 0

    async def body(inbox: Inbox[Work]) -> None:
        nonlocal lives
        lives += 1
        inbox.ready()
        async for letter in inbox:
            letter.answer(letter.message, 1)
            raise ValueError

    async with open_runtime() as runtime:
        ref = await runtime.start("operations", body, restart=Restart(first=1.0))
        means = Means(lambda: WELL, (ref,))
        means.admit("paid")
        await ref.ask(Work())
        await wait_all_tasks_blocked()
        with pytest.raises(StoreUnavailable) as caught:
            means.admit("paid")
        assert caught.value.extra == {"reason": "restarting"}
        await trio.sleep(2)
        means.admit("paid")
    assert lives == 2
    with pytest.raises(StoreUnavailable) as caught:
        means.admit("paid")
    assert caught.value.extra == {"reason": "stopped"}


async def test_an_actor_whose_mailbox_is_full_is_not_sold_from(autojump_clock: MockClock) -> None:
    reading = trio.Event()

    async def body(inbox: Inbox[Work]) -> None:
        inbox.ready()
        await reading.wait()
        async for letter in inbox:
            letter.answer(letter.message, 1)

    async with open_runtime() as runtime:
        ref = await runtime.start("operations", body, capacity=2)
        means = Means(lambda: WELL, (ref,))
        ref.tell(Work())
        means.admit("paid")
        ref.tell(Work())
        with pytest.raises(CapacityExhausted) as caught:
            means.admit("paid")
        assert caught.value.extra == {"reason": "overloaded"}
        reading.set()
        await wait_all_tasks_blocked()
        means.admit("paid")
