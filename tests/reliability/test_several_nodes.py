"""Two nodes over one PostgreSQL database.

Whichever of them dies, stalls or loses the database: nothing is lost, nothing is charged twice, and limits are those of
both together.
"""

from __future__ import annotations

import random
import secrets
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path

import attrs
import httpx
import psycopg
import pytest
import trio

from gateway.actors.failpoints import LABELS
from gateway.world.postgresql import PostgresqlServer
from gateway.world.world import World
from tests.reliability.forge import Forge
from tests.reliability.pair import LEASE_S, Pair
from tests.reliability.test_kill import Campaign, paid_transfers
from tests.reliability.test_store_trouble import until_ready
from tests.world.scenarios.purchase import (
    FREE,
    PRICE,
    Calls,
    Purchase,
    Shop,
    body,
    carries_challenge,
    fresh_key,
    funded,
    together,
)

pytestmark = [
    pytest.mark.world,
    pytest.mark.filterwarnings("ignore:Exception ignored in. <async_generator object ByteStream"),
]

MakePair = Callable[..., Pair]
CROWD = 64
UNHURRIED = {"verify_timeout_s": 20, "settle_timeout_s": 20, "settle_wait_s": 20}


@pytest.fixture
def pair_of(
    world: World, customer: httpx.AsyncClient, forge: Forge, tmp_path: Path, postgresql_url: str
) -> Iterator[MakePair]:
    made: list[Pair] = []

    def make(url: str = postgresql_url, **sections: object) -> Pair:
        directory = tmp_path / f"pair-{len(made)}"
        made.append(Pair.of(world, customer, directory, url, launch=forge.launch, **sections))  # type: ignore[arg-type]  # sections of the configuration
        return made[-1]

    yield make
    for each in made:
        each.kill()


@pytest.fixture
async def pair(pair_of: MakePair) -> AsyncIterator[Pair]:
    made = pair_of(payment=UNHURRIED)
    await made.start()
    yield made
    for node in made.nodes:
        assert node.defects() == []


# -- crowds ------------------------------------------------------------------------------------------------------------


async def crowd(pair: Pair, rounds: int, chance: random.Random) -> None:
    """Send 64 identical paid requests over both nodes, round after round."""
    payers = pair.shops[0].world.payers
    for number in range(rounds):
        payer = payers[number % len(payers)]
        before = len(await pair.shops[0].transfers(payer))
        calls = await Calls.from_now(pair.shops[0])
        order = await chance.choice(pair.shops).order(payer, chance.choice(("x402", "mpp")))
        senders = [partial(pair.shops[index % 2].send, order) for index in range(CROWD)]
        chance.shuffle(senders)
        answers = await together(senders)
        assert Counter(answer.status_code for answer in answers) == {200: CROWD}, Counter(
            answer.text for answer in answers if answer.status_code != 200
        )
        assert sum(answer.json()["replayed"] is False for answer in answers) == 1
        told = {answer.text.replace('"replayed":true', '"replayed":false') for answer in answers}
        assert len(told) == 1
        assert await calls.of("search", "settle") == {"search": 1, "settle": 1}
        assert len(await pair.shops[0].transfers(payer)) == before + 1


async def test_64_identical_requests_over_two_nodes_are_one_execution_and_one_transfer(pair: Pair) -> None:
    await crowd(pair, 8, random.Random("crowd"))


@pytest.mark.campaign
async def test_a_hundred_times_64_identical_requests_over_two_nodes(pair: Pair) -> None:
    await crowd(pair, 100, random.Random("crowd campaign"))


async def test_one_authorization_under_64_keys_over_two_nodes_is_one_operation(pair: Pair) -> None:
    one, two = pair.shops
    order = await one.order(one.world.payers[0])
    before, calls = len(await one.transfers(order.payer)), await Calls.from_now(one)
    orders = [attrs.evolve(order, key=fresh_key()) for _ in range(CROWD)]
    answers = await together([partial((one, two)[index % 2].send, each) for index, each in enumerate(orders)])
    assert Counter(answer.status_code for answer in answers) == {200: 1, 409: CROWD - 1}
    assert {answer.json()["code"] for answer in answers if answer.status_code == 409} == {"payment_already_bound"}
    assert await calls.of("search", "settle") == {"search": 1, "settle": 1}
    assert len(await one.transfers(order.payer)) == before + 1


async def test_the_same_key_for_another_request_is_a_conflict_on_the_other_node(pair: Pair) -> None:
    one, two = pair.shops
    key = fresh_key()
    assert (await one.post(body("first"), key, path=FREE)).status_code == 200
    answer = await two.post(body("second"), key, path=FREE)
    assert (answer.status_code, answer.json()["code"]) == (409, "idempotency_key_reused")


async def test_a_failed_attempt_is_told_to_those_who_waited_for_it_on_the_other_node(pair: Pair) -> None:
    one, two = pair.shops
    await one.fault("search", "blocked")
    order = await one.order(one.world.payers[1])
    answers = await together([partial((one, two)[index % 2].send, order) for index in range(16)])
    await one.heal()
    assert {answer.status_code for answer in answers} <= {502, 503}, [answer.text for answer in answers]
    assert len(await one.transfers(order.payer)) == len(await two.transfers(order.payer))
    served = await two.until_served(order)
    assert (await one.send(order)).json()["receipt"] == served.json()["receipt"]


# -- limits ------------------------------------------------------------------------------------------------------------


async def test_600_free_calls_over_two_nodes_at_a_limit_of_50_are_50(pair_of: MakePair) -> None:
    pair = pair_of(quota={"free_search": 50})
    await pair.start()
    calls = await Calls.from_now(pair.shops[0])
    answers = await together(
        [partial(pair.shops[number % 2].post, body(f"call {number}"), fresh_key(), path=FREE) for number in range(600)]
    )
    assert Counter(answer.status_code for answer in answers) == {200: 50, 429: 550}
    assert (await calls.of("search"))["search"] == 50
    refused = next(answer for answer in answers if answer.status_code == 429)
    assert (refused.json()["code"], not carries_challenge(refused)) == ("quota_exceeded", True)


async def test_unpaid_quotes_are_limited_over_both_nodes(pair_of: MakePair) -> None:
    pair = pair_of(quota={"unpaid_quotes": 40})
    await pair.start()
    answers = await together(
        [partial(pair.shops[number % 2].post, body(f"call {number}"), fresh_key()) for number in range(200)]
    )
    counted = Counter(answer.status_code for answer in answers)
    assert set(counted) == {402, 429}
    assert 40 - 2 * 4 <= counted[402] <= 40, counted


async def test_a_payers_exposure_is_limited_over_both_nodes(pair_of: MakePair) -> None:
    pair = pair_of(payment=UNHURRIED | {"max_unsettled_per_payer": 3 * PRICE})
    await pair.start()
    one, two = pair.shops
    payer = one.world.payers[2]
    orders = [await (one, two)[number % 2].order(payer) for number in range(12)]
    await one.fault("facilitator", "settle_hang_before")
    answers: list[httpx.Response] = []

    async def send(shop: Shop, order: Purchase) -> None:
        answers.append(await shop.send(order, prefer="wait=2"))

    async with trio.open_nursery() as nursery:
        for number, order in enumerate(orders):
            nursery.start_soon(send, (one, two)[number % 2], order)
        await trio.sleep(1.5)
        ((unsettled,),) = pair.one.select("SELECT COALESCE(SUM(amount), 0) FROM operations WHERE state = 'executed'")
        assert int(unsettled) <= 3 * PRICE
    refused = [answer for answer in answers if answer.status_code == 503 and answer.json()["code"] == "exposure_limit"]
    assert len(refused) >= 9
    await one.heal()
    for order in orders:
        await two.until_served(order)


async def test_a_balance_over_both_nodes_serves_what_it_covers_and_nothing_beyond(pair: Pair) -> None:
    one, two = pair.shops
    covered, beyond = 6, 20
    (payer,) = await funded(one.world, one.client, ["a balance over two nodes"], covered * PRICE)
    orders = [await (one, two)[number % 2].order(payer) for number in range(covered)]
    answers = await together([partial((one, two)[number % 2].send, each) for number, each in enumerate(orders)])
    assert [answer.status_code for answer in answers] == [200] * covered, [answer.text for answer in answers]
    (payer,) = await funded(one.world, one.client, ["another balance over two nodes"], PRICE)
    orders = [await (one, two)[number % 2].order(payer) for number in range(beyond)]
    calls = await Calls.from_now(one)
    answers = await together([partial((one, two)[number % 2].send, each) for number, each in enumerate(orders)])
    assert {answer.status_code for answer in answers} <= {200, 402}, [answer.text for answer in answers]
    assert (await calls.of("search"))["search"] == sum(answer.status_code == 200 for answer in answers) <= 1
    assert {answer.json()["code"] for answer in answers if answer.status_code == 402} == {"insufficient_funds"}


# -- keys --------------------------------------------------------------------------------------------------------------


async def test_a_node_with_another_pepper_refuses_to_join(pair: Pair) -> None:
    keys = pair.two.directory.parent / "keys"
    pair.two.kill()
    pepper = keys / "pepper-1.key"
    kept = pepper.read_bytes()
    pepper.write_bytes(secrets.token_bytes(32))
    try:
        pair.two.spawn()
        assert await trio.to_thread.run_sync(pair.two.wait, 30) == 3
        assert "pepper-1" in pair.two.log
    finally:
        pepper.write_bytes(kept)
    await trio.to_thread.run_sync(pair.two.start)
    pair.two.directory.joinpath("node.log").write_text("")


async def test_a_node_that_is_paid_to_another_address_refuses_to_join(pair: Pair) -> None:
    world = pair.shops[0].world
    pair.two.kill()
    kept = pair.two.config.read_text()
    pair.two.config.write_text(kept.replace(world.pay_to, "0x" + "ab" * 20))
    assert pair.two.config.read_text() != kept
    pair.two.spawn()
    assert await trio.to_thread.run_sync(pair.two.wait, 30) == 2
    assert "/payment/pay_to" in pair.two.log.splitlines()[-1]
    pair.two.config.write_text(kept)
    pair.two.directory.joinpath("node.log").write_text("")
    await trio.to_thread.run_sync(pair.two.start)


async def test_a_second_node_of_the_same_name_refuses_to_join(
    pair: Pair, forge: Forge, customer: httpx.AsyncClient
) -> None:
    world = pair.shops[0].world
    twin = Pair.of(world, customer, pair.one.directory.parent, pair.one.store_url, launch=forge.launch)
    twin.one.spawn()
    assert await trio.to_thread.run_sync(twin.one.wait, 30) in {2, 3}
    pair.one.directory.joinpath("node.log").write_text("")
    assert await trio.to_thread.run_sync(pair.one.ready)


# -- the owner dies ----------------------------------------------------------------------------------------------------


async def die_at(label: str, rounds: int, pair: Pair) -> None:
    """Kill the node that has the operations at a label; the other node, and only that, serves what it left."""
    one, two = pair.shops
    campaign = Campaign(pair.one, one, one.world.payers, random.Random(f"several {label} {rounds}"))
    before = paid_transfers(await one.transfers(), campaign.payers)
    await trio.to_thread.run_sync(partial(pair.one.start, GATEWAY_FAILPOINT=f"{label}:1"))
    await trio.to_thread.run_sync(pair.two.start)
    for number in range(rounds):
        if number:
            await campaign.start(f"{label}:{campaign.chance.randint(1, 2)}")
        orders = await campaign.orders()
        if label.startswith("fail"):
            await one.fault("search", "blocked")
        answers = await campaign.place(orders)
        await campaign.death()
        await one.heal()
        campaign.shop = two
        began = time.monotonic()
        await campaign.collect(orders, answers)
        assert time.monotonic() - began < 20
        campaign.shop = one
    campaign.shop = two
    await campaign.audit()
    assert paid_transfers(await two.transfers(), campaign.payers) - before == 2 * rounds
    for node in pair.nodes:
        assert node.defects() == []


@pytest.mark.parametrize("label", LABELS)
async def test_what_a_killed_node_left_at_a_failpoint_is_finished_by_the_other(label: str, pair_of: MakePair) -> None:
    await die_at(label, 1, pair_of())


@pytest.mark.campaign
@pytest.mark.parametrize("label", LABELS)
async def test_what_a_node_left_that_was_killed_ten_times_is_finished_by_the_other(
    label: str, pair_of: MakePair
) -> None:
    await die_at(label, 10, pair_of())


async def test_who_waits_on_the_other_node_is_served_as_soon_as_it_takes_over(pair_of: MakePair) -> None:
    pair = pair_of(payment=UNHURRIED)
    await pair.start(GATEWAY_FAILPOINT="keep.after")
    one, two = pair.shops
    order = await two.order(one.world.payers[3])
    served: list[httpx.Response] = []

    async def wait() -> None:
        served.append(await two.send(order))

    began = time.monotonic()
    async with trio.open_nursery() as nursery:
        with pytest.raises(httpx.TransportError):
            await one.send(order)
        nursery.start_soon(wait)
    assert served[0].status_code == 200
    assert time.monotonic() - began < 6
    assert pair.two.select("SELECT node, epoch, state FROM operations") == [("two", 2, "receipted")]


# -- the owner stalls --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(2))
async def test_a_node_stopped_past_its_lease_writes_nothing_stale_when_it_goes_on(pair_of: MakePair, seed: int) -> None:
    pair = pair_of(payment=UNHURRIED)
    await pair.start()
    one, two = pair.shops
    chance = random.Random(f"stall {seed}")
    campaign = Campaign(pair.one, two, one.world.payers, chance)
    before = paid_transfers(await one.transfers(), campaign.payers)
    orders = [each for _ in range(3) for each in await campaign.orders()]
    answers: dict[str, httpx.Response] = {}

    async def place(order: Purchase) -> None:
        answers[order.key] = await one.send(order)

    async with trio.open_nursery() as nursery:
        for order in orders:
            nursery.start_soon(place, order)
        await trio.sleep(chance.uniform(0.05, 0.4))
        pair.one.process.send_signal(signal.SIGSTOP)  # type: ignore[union-attr]  # it runs
        try:
            await trio.sleep(2 * LEASE_S)
            await campaign.collect(orders, {})
            columns = "operation_id, node, epoch, state, settlement, receipt, result_hash, ended_at, transaction_hash"
            rows = pair.two.select(f"SELECT {columns} FROM operations ORDER BY operation_id")
            told = pair.two.select("SELECT * FROM operation_events ORDER BY operation_id, step")
        finally:
            pair.one.process.send_signal(signal.SIGCONT)  # type: ignore[union-attr]
    await trio.sleep(2 * LEASE_S)
    assert pair.two.select(f"SELECT {columns} FROM operations ORDER BY operation_id") == rows
    assert pair.two.select("SELECT * FROM operation_events ORDER BY operation_id, step") == told
    for order in orders:
        answer = answers[order.key]
        assert answer.status_code in {200, 409, 503}, answer.text
        if answer.status_code == 200:
            assert answer.json()["receipt"] == campaign.kept[order.key][1].json()["receipt"]
    ((epoch,),) = pair.two.select("SELECT epoch FROM nodes WHERE node = 'one'")
    assert epoch == 2
    await campaign.audit()
    assert paid_transfers(await two.transfers(), campaign.payers) - before == 6
    later = await one.order(one.world.payers[4])
    assert (await one.send(later)).status_code == 200


# -- the database dies -------------------------------------------------------------------------------------------------


async def serve(server: PostgresqlServer) -> None:
    """Start the database again; from this thread, with whose end it would end."""
    server.launch()
    while not await trio.to_thread.run_sync(server.await_ready):
        server.launch()


async def rob(pair: Pair, server: PostgresqlServer, kills: int) -> None:
    """Kill the database under load, again and again; what was acknowledged must be there, the rest is served later."""
    one, two = pair.shops
    campaign = Campaign(pair.one, two, one.world.payers, random.Random(f"rob {kills}"))
    before = paid_transfers(await one.transfers(), campaign.payers)
    orders: list[Purchase] = []
    answers: dict[str, httpx.Response] = {}

    async def place(shop: Shop, order: Purchase) -> None:
        answers[order.key] = await shop.send(order)

    for _ in range(kills):
        fresh = [order for _ in range(3) for order in await campaign.orders()]
        async with trio.open_nursery() as nursery:
            for number, order in enumerate(fresh):
                nursery.start_soon(place, pair.shops[number % 2], order)
            await trio.sleep(campaign.chance.uniform(0.02, 0.6))
            await trio.to_thread.run_sync(server.kill)
            await trio.sleep(campaign.chance.uniform(0.0, 1.0))
            await serve(server)
        orders += fresh
    for order in orders:
        answer = answers[order.key]
        assert not carries_challenge(answer), answer.text
        if answer.status_code != 200:
            assert answer.json()["retryable"] is True, answer.text
    await campaign.collect(orders, answers)
    await campaign.audit()
    assert paid_transfers(await two.transfers(), campaign.payers) - before == 6 * kills


async def test_a_database_killed_under_load_loses_nothing_that_was_acknowledged(
    pair_of: MakePair, killable_postgresql: PostgresqlServer
) -> None:
    pair = pair_of(killable_postgresql.create_database("robbed"))
    await pair.start()
    await rob(pair, killable_postgresql, 2)


@pytest.mark.campaign
async def test_a_database_killed_ten_times_under_load_loses_nothing_that_was_acknowledged(
    pair_of: MakePair, killable_postgresql: PostgresqlServer
) -> None:
    pair = pair_of(killable_postgresql.create_database("robbed"))
    await pair.start()
    await rob(pair, killable_postgresql, 10)


async def test_without_its_database_a_node_says_503_with_the_reason_and_recovers_by_itself(
    pair_of: MakePair, killable_postgresql: PostgresqlServer
) -> None:
    pair = pair_of(killable_postgresql.create_database("away"))
    await pair.start()
    one, two = pair.shops
    order = await one.order(one.world.payers[5])
    before, calls = len(await one.transfers(order.payer)), await Calls.from_now(one)
    await trio.to_thread.run_sync(killable_postgresql.kill)
    for shop in pair.shops:
        for sent in (order, Purchase(None, body(fresh_key()), fresh_key(), path=FREE)):
            began = time.monotonic()
            answer = await shop.send(sent)
            assert (answer.status_code, answer.json()["code"]) == (503, "store_unavailable"), answer.text
            assert answer.json()["retryable"] is True
            assert answer.json()["reason"] in {"unreachable", "shutting_down", "starting"}, answer.text
            assert not carries_challenge(answer)
            assert time.monotonic() - began < 15
    for node in pair.nodes:
        await until_ready(node, False)
    assert await calls.of("verify", "settle") == {"verify": 0, "settle": 0}
    await serve(killable_postgresql)
    await two.until_served(order)
    assert len(await one.transfers(order.payer)) == before + 1
    for node in pair.nodes:
        await trio.to_thread.run_sync(node.wait_ready)


async def readiness(pair: Pair, looks: int) -> list[str]:
    """What the nodes say of themselves, by their second look on; no answer waits for the store."""
    told: list[str] = []
    async with httpx.AsyncClient(timeout=5, trust_env=False) as client:
        for number in range(looks):
            for node in pair.nodes:
                began = time.monotonic()
                faults = (await client.get(f"{node.url}/readyz")).json()["faults"]
                assert time.monotonic() - began < 1.5  # 0.3 s, and what a busy machine adds
                told += [f"{each['part']}: {each['reason']}" for each in faults] if number else []
            await trio.sleep(0.4)
    return told


async def test_a_database_that_hangs_is_not_waited_for_and_nothing_is_charged(
    pair_of: MakePair, killable_postgresql: PostgresqlServer
) -> None:
    pair = pair_of(killable_postgresql.create_database("hangs"), store={"statement_timeout_s": 3})
    await pair.start()
    one, two = pair.shops
    order = await one.order(one.world.payers[6])
    before = len(await one.transfers(order.payer))
    killable_postgresql.pause()
    try:
        answer = await one.send(order)
        told = await readiness(pair, 12)
    finally:
        killable_postgresql.resume()
    assert set(told) == {"store: store_unavailable"}, told
    assert answer.status_code in {503, 409}, answer.text
    assert answer.json()["retryable"] is True
    served = await two.until_served(order)
    assert served.json()["receipt"]["settlement"]["status"] == "settled"
    assert len(await one.transfers(order.payer)) == before + 1


async def test_a_database_that_takes_no_more_connections_is_named(
    pair_of: MakePair, killable_postgresql: PostgresqlServer
) -> None:
    url = killable_postgresql.create_database("full")
    pair = pair_of(url)
    await pair.start()
    with psycopg.connect(killable_postgresql.url(), autocommit=True) as administrator:
        administrator.execute(b"CREATE ROLE guest LOGIN CONNECTION LIMIT 0")
    pair.two.kill()
    config = pair.two.config.read_text().replace("postgresql://postgres@", "postgresql://guest@")
    pair.two.config.write_text(config)
    pair.two.spawn()
    assert await trio.to_thread.run_sync(pair.two.wait, 30) == 3
    assert "connections" in pair.two.log
