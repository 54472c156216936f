from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from gateway.actors import retention
from gateway.actors.idempotency import idempotency
from gateway.actors.leases import ALONE, Leases
from gateway.actors.ledger import audit_store
from gateway.actors.retention import keep_sweeping, sweep
from gateway.actors.runtime import open_runtime
from gateway.actors.settlement import Standing, Verdict, Verification
from gateway.actors.store import Statement, Store, Value
from gateway.actors.store_time import Reached, confirmed
from gateway.errors import ExecutorFailed
from tests.actors.nodes import LEASE_MS, START_S, Member, open_nodes
from tests.http.shop import LIMITS, PAYER, Answer, Shop, open_shop

KEY = "0123456789abcdef0123"
DAY_MS = 24 * 3600 * 1000
TABLES = ("operations", "idempotency_keys", "idempotency_callers", "operation_events", "authorizations")


async def sealed(shop: Shop) -> list[Any]:
    return await shop.store.fetch(
        "SELECT sealed_output IS NULL, sealed_payment IS NULL, key_wrap IS NULL"
        " FROM operations o JOIN idempotency_keys k ON k.operation_id = o.operation_id"
    )


@pytest.mark.parametrize(("days", "kept"), [(6.9, True), (7.1, False)])
async def test_an_output_is_kept_seven_days(tmp_path: Path, days: float, kept: bool) -> None:
    async with open_shop(tmp_path) as shop:
        await shop.buy(key=KEY)
        await sweep(shop.store, confirmed(shop.clock() + int(days * DAY_MS)))
        assert ((await shop.post(key=KEY)).status == 200) is kept
        ((no_output, no_payment, no_wrap),) = await sealed(shop)
        assert bool(no_output) is bool(no_payment) is bool(no_wrap) is not kept


@pytest.mark.parametrize(("days", "kept"), [(399, True), (401, False)])
async def test_a_tombstone_is_kept_four_hundred_days(tmp_path: Path, days: int, kept: bool) -> None:
    async with open_shop(tmp_path) as shop:
        bought = await shop.buy(key=KEY)
        await sweep(shop.store, confirmed(shop.clock() + days * DAY_MS))
        answer = await shop.post(key=KEY)
        assert answer.status == (409 if kept else 402)
        if kept:
            assert answer.json["receipt"] == bought.json["receipt"]
        assert [await shop.rows(table) for table in TABLES if table != "operation_events"] == [int(kept)] * 2 + [
            2 * kept,
            kept,
        ]


REFUSED = Verification(Verdict.INVALID, "insufficient_funds")
MINUTE_MS = 60 * 1000


async def refused(shop: Shop) -> tuple[Answer, dict[str, str]]:
    """Present a payment that the facilitator refuses; return the answer, and the credential."""
    credential = PAYER.x402(await shop.post(key=KEY))
    shop.bank.verification = REFUSED
    answer = await shop.post(key=KEY, headers=credential)
    shop.bank.verification = Verification(Verdict.VALID)
    assert (answer.status, answer.code) == (402, "insufficient_funds")
    return answer, credential


@pytest.mark.parametrize(("minutes", "kept"), [(9, True), (11, False)])
@pytest.mark.parametrize("attempts", [1, 2])
async def test_a_refused_payment_is_kept_minutes(tmp_path: Path, minutes: int, attempts: int, *, kept: bool) -> None:
    async with open_shop(tmp_path) as shop:
        for _ in range(attempts):
            await refused(shop)
        assert await sealed_rows(shop) == [(b"", None, None, None)]
        await sweep(shop.store, confirmed(shop.clock() + minutes * MINUTE_MS))
        counts = [await shop.rows(table) for table in TABLES]
        assert (counts == [0] * len(TABLES)) is not kept


async def sealed_rows(shop: Shop) -> list[Any]:
    return await shop.store.fetch("SELECT sealed_request, sealed_payment, sealed_output, node_wrap FROM operations")


async def test_a_refused_payment_sent_again_is_the_next_attempt_while_it_is_kept_and_a_fresh_claim_later(
    tmp_path: Path,
) -> None:
    async with open_shop(tmp_path) as shop:
        answer, credential = await refused(shop)
        first = answer.json["operationId"]
        await sweep(shop.store, confirmed(shop.clock() + 9 * MINUTE_MS))
        shop.bank.verification = REFUSED
        again = await shop.post(key=KEY, headers=credential)
        assert (again.status, again.json["operationId"]) == (402, first)
        await sweep(shop.store, confirmed(shop.clock() + 11 * MINUTE_MS))
        shop.bank.verification = Verification(Verdict.VALID)
        served = await shop.post(key=KEY, headers=credential)
        assert (served.status, served.json["execution"]["attempt"]) == (200, 1)
        assert served.json["operationId"] != first
        await sweep(shop.store, confirmed(shop.clock() + 11 * MINUTE_MS))
        assert (await shop.post(key=KEY)).json["replayed"] is True


async def test_what_was_bought_after_a_refused_payment_is_kept(tmp_path: Path) -> None:
    async with open_shop(tmp_path) as shop:
        answer, _ = await refused(shop)
        bought = await shop.buy(key=KEY)
        assert (bought.status, bought.json["operationId"]) == (200, answer.json["operationId"])
        await sweep(shop.store, confirmed(shop.clock() + DAY_MS))
        assert (await shop.post(key=KEY)).json["replayed"] is True


async def test_a_refused_payment_after_an_attempt_that_ran_is_kept_as_long_as_that(tmp_path: Path) -> None:
    async with open_shop(tmp_path) as shop:
        shop.search.failure = ExecutorFailed()
        assert (await shop.buy(key=KEY)).status == 502
        await refused(shop)
        await sweep(shop.store, confirmed(shop.clock() + 399 * DAY_MS))
        assert (await shop.rows("operations"), await shop.rows("authorizations")) == (1, 2)


@pytest.mark.parametrize(
    ("verification", "standing", "refused_later"),
    [
        (Verification(Verdict.UNAVAILABLE, "timeout"), None, False),
        (Verification(Verdict.UNAVAILABLE, "timeout"), None, True),
        (Verification(Verdict.INVALID, "nonce_already_used"), Standing.UNTRACED, False),
        (Verification(Verdict.INVALID, "nonce_already_used"), Standing.UNUSED, False),
    ],
)
async def test_a_payment_that_may_have_been_made_is_kept(
    tmp_path: Path, verification: Verification, standing: Standing | None, *, refused_later: bool
) -> None:
    async with open_shop(tmp_path) as shop:
        shop.bank.verification, shop.bank.standing = verification, standing
        assert (await shop.buy(key=KEY)).status == 503
        shop.bank.standing = None
        if refused_later:
            await refused(shop)
        await sweep(shop.store, confirmed(shop.clock() + 399 * DAY_MS))
        assert (await shop.rows("operations"), await shop.rows("authorizations")) == (1, 1 + refused_later)


async def test_a_result_whose_next_payment_is_refused_is_kept(tmp_path: Path) -> None:
    async with open_shop(tmp_path) as shop:
        shop.bank.standing = Standing.EXPIRED
        assert (await shop.buy(key=KEY)).code == "settlement_failed"
        await shop.store.commit(Statement("DELETE FROM payer_holds"))
        shop.bank.standing = None
        await refused(shop)
        await sweep(shop.store, confirmed(shop.clock() + 6 * DAY_MS))
        assert (await shop.buy(key=KEY)).status == 200
        assert shop.search.runs == 1


async def test_the_books_outlive_the_tombstone(tmp_path: Path) -> None:
    async with open_shop(tmp_path) as shop:
        await shop.buy(key=KEY)
        await sweep(shop.store, confirmed(shop.clock() + 500 * DAY_MS))
        found = await audit_store(shop.store)
        assert (found.entries, found.faults) == (4, ())


async def test_what_is_open_or_waits_for_the_operator_is_never_swept(tmp_path: Path) -> None:
    async with open_shop(tmp_path) as shop, trio.open_nursery() as nursery:
        shop.search.hold()
        nursery.start_soon(post_free, shop)
        await shop.search.begun.wait()
        await sweep(shop.store, confirmed(shop.clock() + 500 * DAY_MS))
        assert await shop.rows("operations") == 1
        shop.search.gate.set()


async def post_free(shop: Shop) -> None:
    await shop.post("search.free", key=KEY)


async def test_a_failed_operation_that_is_taken_on_again_keeps_its_key(tmp_path: Path) -> None:
    """The sweeper may have chosen it while it was still failed."""
    async with open_shop(tmp_path) as shop:
        shop.bank.standing = Standing.EXPIRED
        failed = await shop.buy(key=KEY)
        assert failed.code == "settlement_failed"
        (row,) = await shop.store.fetch("SELECT operation_id FROM operations")
        later = shop.clock() + 8 * DAY_MS
        await shop.store.commit(
            Statement("UPDATE operations SET state = 'claimed', ended_at = NULL, output_until = NULL", rows=1)
        )
        await shop.store.commit(*retention._drop_output(str(row[0]), later))
        ((no_output, _, no_wrap),) = await sealed(shop)
        assert (no_output, no_wrap) == (0, 0)
        await shop.store.commit(Statement("UPDATE operations SET state = 'failed', ended_at = 1", rows=1))


async def test_a_failed_operation_without_output_can_be_taken_on_until_its_tombstone(tmp_path: Path) -> None:
    async with open_shop(tmp_path) as shop:
        shop.search.failure = ExecutorFailed()
        assert (await shop.post("search.free", key=KEY)).status == 502
        await sweep(shop.store, confirmed(shop.clock() + 100 * DAY_MS))
        shop.search.failure = None
        assert (await shop.post("search.free", key=KEY)).json["execution"]["attempt"] == 2


async def test_more_than_one_step_s_worth_is_swept_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "SWEEP_AT_ONCE", 2)
    async with open_shop(tmp_path) as shop:
        for number in range(7):
            await shop.post("search.free", key=f"{number:020d}")
        await sweep(shop.store, confirmed(shop.clock() + 8 * DAY_MS))
        assert await shop.store.fetch("SELECT COUNT(*) FROM operations WHERE sealed_output IS NOT NULL") == [(0,)]
        await sweep(shop.store, confirmed(shop.clock() + 500 * DAY_MS))
        assert [await shop.rows(table) for table in TABLES] == [0] * 5


async def test_sweeping_goes_on_after_the_store_was_away(
    autojump_clock: MockClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_nodes(tmp_path) as nodes, trio.open_nursery() as nursery:
        store = await nodes.join("one")
        swept: list[int] = []

        async def note(_: Store, reached: Reached) -> None:
            swept.append(reached.ms)

        monkeypatch.setattr(retention, "sweep", note)
        with store.unreachable():
            nursery.start_soon(keep_sweeping, store, nothing, ALONE)
            await trio.sleep(300)
            assert swept == []
        await trio.sleep(301)
        assert swept == [(START_S + 600) * 1000]
        nursery.cancel_scope.cancel()


def nothing() -> None:
    return


async def test_a_run_drops_a_bounded_number_and_the_next_one_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "SWEEP_AT_ONCE", 2)
    monkeypatch.setattr(retention, "SWEEP_A_RUN", 4)
    async with open_shop(tmp_path) as shop:
        for number in range(7):
            await shop.post("search.free", key=f"{number:020d}")
        left = []
        for _ in range(3):
            await sweep(shop.store, confirmed(shop.clock() + 8 * DAY_MS))
            found = await shop.store.fetch("SELECT COUNT(*) FROM operations WHERE sealed_output IS NOT NULL")
            left.append(found[0][0])
        assert left == [3, 0, 0]


@pytest.mark.parametrize(("days", "swept"), [(7 + 3.4, True), (7 + 3.6, False)])
async def test_a_sweep_of_most_of_what_is_kept_waits_for_the_chain(tmp_path: Path, days: float, swept: bool) -> None:
    async with open_shop(tmp_path) as shop:
        await shop.buy(key=KEY)
        reached = shop.clock() + int(days * DAY_MS)
        await sweep(shop.store, Reached(reached, reached, confirmed=False))
        assert bool((await sealed(shop))[0][0]) is swept
        await sweep(shop.store, confirmed(reached))
        assert (await sealed(shop))[0][0]


async def test_a_burst_of_short_lived_operations_is_swept_without_the_chain(tmp_path: Path) -> None:
    """Those of refused payments live for minutes: many of them at once are no sign of a wrong clock."""
    async with open_shop(tmp_path, limits=LIMITS | {"free_search": 1000}) as shop:
        bought = await shop.buy(key=KEY)
        for number in range(150):
            await shop.post("search.free", key=f"{number:020d}")
        short = "UPDATE operations SET output_until = ended_at + 60000, tombstone_until = ended_at + 300000"
        await shop.store.commit(Statement(f"{short} WHERE funding = 'free'"))
        reached = shop.clock() + 600_000
        await sweep(shop.store, Reached(reached, reached, confirmed=False))
        assert await shop.store.fetch("SELECT funding FROM operations") == [("paid",)]
        assert (await shop.post(key=KEY)).json["receipt"] == bought.json["receipt"]


async def test_what_routes_and_nodes_that_are_gone_left_behind_is_forgotten_after_a_month(tmp_path: Path) -> None:
    async with open_shop(tmp_path) as shop:
        for name, age_ms, node in (("old", 31, "gone"), ("new", 29, "gone"), ("held", 31, "node-1")):
            named: dict[str, Value] = {"name": name, "age": age_ms * DAY_MS, "node": node}
            await shop.store.commit(
                Statement("INSERT INTO leases VALUES (:name, :node, 1, 1, :store_ms - :age)", named),
                Statement("INSERT INTO findings VALUES (:name, '', :node, :store_ms - :age, 1, '{}')", named),
            )
        await sweep(shop.store, confirmed(shop.clock()))
        assert await shop.store.fetch("SELECT name FROM leases ORDER BY name") == [("held",), ("new",)]
        assert await shop.store.fetch("SELECT route FROM findings") == [("new",)]


async def test_of_two_nodes_one_sweeps_and_the_other_goes_on_when_it_has_died(
    autojump_clock: MockClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    swept: list[tuple[str, int]] = []

    async def note(store: Store, reached: Reached) -> None:
        assert isinstance(store, Member)
        swept.append((store.node, reached.ms // 1000 - START_S))

    monkeypatch.setattr(retention, "sweep", note)

    async def live(member: Member, scope: trio.CancelScope) -> None:
        with scope:
            async with open_runtime() as runtime:
                leases = Leases(member, lease_ms=LEASE_MS)
                await runtime.start("leases", leases.watch)
                await runtime.start("names", partial(idempotency, store=member, hold=leases.hold))
                await trio.sleep_forever()

    async with open_nodes(tmp_path) as nodes, trio.open_nursery() as nursery:
        members = [await nodes.join(name) for name in ("one", "two")]
        process = trio.CancelScope()
        nursery.start_soon(live, members[0], process)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(live, members[1], trio.CancelScope())
        await trio.sleep(1500)
        members[0].away = True
        process.cancel()
        await trio.sleep(601)
        assert swept == [("one", 0), ("one", 600), ("one", 1200), ("two", 1501)]
        nursery.cancel_scope.cancel()
