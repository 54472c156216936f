"""What keys stand for, asked of the actor itself; what a caller sees of it is in tests/http/test_pipeline.py."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from gateway.actors import idempotency as module
from gateway.actors.idempotency import Known, LookUp, Show, idempotency
from gateway.actors.operations import Earlier, Ended
from gateway.actors.runtime import Runtime, open_runtime
from gateway.actors.store import Engine, Row, Statement, Value, open_sqlite
from gateway.errors import ExecutorFailed, IdempotencyKeyReused, OperationNotFound, StoreUnavailable
from gateway.registry.sealing import Naming
from tests.http.shop import BODY, PAYER, Shop, open_shop

KEY = "0123456789abcdef0123"
HERE, ELSEWHERE = "192.0.2.1", "198.51.100.7"
OTHER_HASH = "sha256:" + "00" * 32


def look_up(shop: Shop, key: str, request_hash: str, *, network: str = HERE, **more: Any) -> LookUp:
    naming = shop.node.naming
    return LookUp((naming.names(key, network),), request_hash, naming.network_names(network), **more)


@attrs.define(eq=False)
class Watched:
    """A store that counts snapshots, and is away when told so."""

    engine: Engine
    snapshots: int = 0
    gate: trio.Event = attrs.field(factory=trio.Event)
    away: bool = False

    async def commit(self, *statements: Statement, relaxed: bool = False) -> list[list[Row]]:
        return await self.engine.commit(*statements, relaxed=relaxed)

    async def fetch(self, sql: str, parameters: Mapping[str, Value] = {}) -> list[Row]:
        return await self.engine.fetch(sql, parameters)

    async def look_up(self, queries: Sequence[tuple[str, Mapping[str, Value]]]) -> list[list[Row]]:
        return await self.fetch_many(queries)

    async def fetch_many(self, queries: Sequence[tuple[str, Mapping[str, Value]]]) -> list[list[Row]]:
        self.snapshots += 1
        await self.gate.wait()
        if self.away:
            raise StoreUnavailable("gone", retry_after=3)
        return await self.engine.fetch_many(queries)


async def started(runtime: Runtime, store: Watched) -> Any:
    return await runtime.start("idempotency", partial(idempotency, store=store), capacity=256)


async def test_look_ups_that_wait_together_are_read_in_one_snapshot(tmp_path: Path) -> None:
    naming = Naming({1: b"p" * 32})
    async with open_runtime() as runtime, open_sqlite(runtime, tmp_path / "gateway.db") as engine:
        store = Watched(engine)
        ref = await started(runtime, store)
        async with trio.open_nursery() as nursery:
            for number in range(1 + module.BATCH):
                names = (naming.names(f"{number:020d}", HERE),)
                nursery.start_soon(ref.ask, LookUp(names, OTHER_HASH, naming.network_names(HERE)))
            with trio.fail_after(5):
                while ref.health().depth + ref.health().held <= module.BATCH:
                    await trio.lowlevel.checkpoint()
            store.gate.set()
        assert store.snapshots == 2


@attrs.define(eq=False)
class AtHand(Watched):
    """A store that answers at once, unless it is crowded."""

    crowded: bool = False
    at_once: int = 0

    @property
    def at_hand(self) -> bool:
        return not self.crowded

    def look_up_at_once(self, queries: Sequence[tuple[str, Mapping[str, Value]]]) -> list[list[Row]]:
        self.at_once += 1
        if self.away:
            raise StoreUnavailable("gone", retry_after=3)
        return [[] for _ in queries]


async def test_a_store_that_answers_at_once_is_waited_for_only_where_it_is_crowded(tmp_path: Path) -> None:
    naming = Naming({1: b"p" * 32})
    question = LookUp((naming.names(KEY, HERE),), OTHER_HASH, naming.network_names(HERE))
    async with open_runtime() as runtime, open_sqlite(runtime, tmp_path / "gateway.db") as engine:
        store = AtHand(engine)
        store.gate.set()
        ref = await started(runtime, store)
        assert await ref.ask(question) == Known()
        assert (store.at_once, store.snapshots) == (1, 0)
        store.crowded = True
        assert await ref.ask(question) == Known()
        assert (store.at_once, store.snapshots) == (1, 1)
        store.crowded, store.away = False, True
        with pytest.raises(StoreUnavailable) as caught:
            await ref.ask(question)
        assert caught.value.retry_after == 3
        assert ref.health().crashes == 0


async def test_a_store_that_is_away_is_told_to_each_asker(tmp_path: Path) -> None:
    naming = Naming({1: b"p" * 32})
    async with open_runtime() as runtime, open_sqlite(runtime, tmp_path / "gateway.db") as engine:
        store = Watched(engine, away=True)
        store.gate.set()
        ref = await started(runtime, store)
        told: list[StoreUnavailable] = []

        async def ask() -> None:
            with pytest.raises(StoreUnavailable) as caught:
                await ref.ask(LookUp((naming.names(KEY, HERE),), OTHER_HASH, naming.network_names(HERE)))
            told.append(caught.value)

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(ask)
        assert len({id(each) for each in told}) == 3
        assert {each.retry_after for each in told} == {3}
        assert ref.health().crashes == 0


async def test_a_key_that_nobody_used_stands_for_nothing(tmp_path: Path) -> None:
    async with open_shop(tmp_path) as shop:
        assert await shop.node.idempotency.ask(look_up(shop, KEY, OTHER_HASH)) == Known()


async def test_a_hit_needs_the_key_and_the_request(tmp_path: Path) -> None:
    async with open_shop(tmp_path) as shop:
        request_hash = (await shop.post("search.free", key=KEY)).json["requestHash"]
        ask = shop.node.idempotency.ask
        for network in (HERE, ELSEWHERE):
            found = await ask(look_up(shop, KEY, request_hash, network=network))
            assert isinstance(found.operation, Ended)
            assert found.operation.replayed
        assert await ask(look_up(shop, KEY, OTHER_HASH, network=ELSEWHERE)) == Known()
        assert await ask(look_up(shop, KEY + "x", request_hash)) == Known()
        with pytest.raises(IdempotencyKeyReused) as caught:
            await ask(look_up(shop, KEY, OTHER_HASH))
        assert caught.value.operation_id is None


async def test_a_payer_is_proven_by_an_authorization_that_is_not_bound_and_by_no_other(tmp_path: Path) -> None:
    async with open_shop(tmp_path) as shop:
        await shop.buy(key=KEY)
        (row,) = await shop.store.fetch("SELECT chain_id, asset, authorizer, nonce FROM authorizations")
        bound: Any = row
        fresh = (*bound[:3], "0x" + "00" * 32)
        payer = shop.node.naming.payer_names(PAYER.address)
        ask = shop.node.idempotency.ask
        elsewhere = partial(look_up, shop, KEY, OTHER_HASH, network=ELSEWHERE, payer=payer)
        with pytest.raises(IdempotencyKeyReused):
            await ask(elsewhere(authorization=fresh))
        assert await ask(elsewhere(authorization=bound)) == Known(None, payment_bound=True)


async def test_a_payment_bound_to_what_the_key_names_is_no_conflict(tmp_path: Path) -> None:
    async with open_shop(tmp_path) as shop:
        shop.search.failure = ExecutorFailed()
        failed = await shop.buy(key=KEY)
        (row,) = await shop.store.fetch("SELECT chain_id, asset, authorizer, nonce FROM authorizations")
        request_hash = (await shop.store.fetch("SELECT request_hash FROM operations"))[0][0]
        authorization: Any = row
        found = await shop.node.idempotency.ask(look_up(shop, KEY, str(request_hash), authorization=authorization))
        assert isinstance(found.operation, Earlier)
        assert (found.operation.operation_id, found.operation.attempt) == (failed.json["operationId"], 1)
        assert (found.payment_bound, found.paid) == (False, False)


async def test_nothing_in_the_store_can_be_read_without_the_key(tmp_path: Path) -> None:
    body = BODY | {"query": "kanarienvogel"}
    async with open_shop(tmp_path) as shop:
        bought = await shop.buy(body, key=KEY)
        assert bought.json["output"]["query"] == "kanarienvogel"
        await shop.post("search.free", body, key="password")
    stored = b"".join([path.read_bytes() for path in tmp_path.iterdir()])  # noqa: ASYNC240 - the node has ended
    for secret in (b"kanarienvogel", KEY.encode(), b"password", HERE.encode(), b"what is a tide"):
        assert secret not in stored


async def test_an_operation_nobody_has_is_not_shown(tmp_path: Path) -> None:
    async with open_shop(tmp_path) as shop:
        with pytest.raises(OperationNotFound):
            await shop.node.idempotency.ask(Show("op_01JDQ0000000000000000000AB"))


@pytest.mark.parametrize("sql", [module.BY_KEY, module.BY_CALLER, module.BY_AUTHORIZATION, module.WRAP, module.HISTORY])
async def test_a_look_up_costs_the_same_however_much_is_stored(tmp_path: Path, sql: str) -> None:
    parameters = dict.fromkeys(re.findall(r":(\w+)", sql), "x")
    async with open_runtime() as runtime, open_sqlite(runtime, tmp_path / "gateway.db") as store:
        plan = await store.fetch(f"EXPLAIN QUERY PLAN {sql}", parameters)
        assert not [row for row in plan if str(row[3]).startswith("SCAN")]
