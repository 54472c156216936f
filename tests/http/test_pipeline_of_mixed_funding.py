"""The road of an operation whose requests are free or paid one by one, that is stopped when left, or is a preview."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from gateway.errors import ModelUnavailable, RequestTooLarge
from gateway.registry.execution import Served, Work
from gateway.registry.operation import Operation
from gateway.registry.table import SEARCH_PAID
from tests.http.shop import LIMITS, PAYER, Answer, Shop, open_shop

FREE: dict[str, Any] = {"query": "free tides", "synthesize": False}
PAID: dict[str, Any] = {"query": "tides", "synthesize": False}
KEY = "a key of the caller's own"


def mixed(**more: Any) -> Mapping[str, Operation]:
    """Return a table of one operation, free where the query says so."""
    operation = attrs.evolve(
        SEARCH_PAID,
        price=lambda request: 0 if request.query.startswith("free") else 6_000,
        key_required=False,
        quota="free_search",
        funding_header=True,
        stops_when_left=True,
        **more,
    )
    return {operation.id: operation}


@attrs.define(eq=False)
class Stopped:
    """Notes of the executions that were cancelled."""

    count: int = 0
    seen: trio.Event = attrs.field(factory=trio.Event)


def watch(shop: Shop) -> Stopped:
    """Note when an execution of the shop is cancelled."""
    stopped, inner = Stopped(), shop.search

    class Watched:
        def admit(self, operation: str, request: Any) -> None:
            inner.admit(operation, request)

        def budget(self, operation: str, request: Any) -> str | None:
            return inner.budget(operation, request)

        async def execute(self, work: Work) -> Served:
            try:
                return await inner.execute(work)
            except trio.Cancelled:
                stopped.count += 1
                stopped.seen.set()
                raise

    families: Any = shop.node.families
    families["search"] = Watched()
    return stopped


@asynccontextmanager
async def left(shop: Shop, **more: Any) -> AsyncIterator[None]:
    """Leave the block while a call is under way that has just been given up by its client."""
    shop.search.hold()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_ask, shop, more)
        await shop.search.begun.wait()
        nursery.cancel_scope.cancel()
    yield


async def _ask(shop: Shop, more: dict[str, Any]) -> Answer:
    return await shop.post(**more)


async def test_a_free_request_is_answered_and_a_paid_one_of_the_same_operation_is_quoted(tmp_path: Path) -> None:
    async with open_shop(tmp_path, table=mixed()) as shop:
        free = await shop.post(body=FREE)
        assert (free.status, free.json["receipt"]["funding"]) == (200, "free")
        assert 'free_search";r=11' in free.headers["RateLimit"]
        quoted = await shop.post(body=PAID)
        assert (quoted.status, quoted.json["price"]["amountAtomic"]) == (402, "6000")
        bought = await shop.buy(PAID, key=KEY)
        assert (bought.status, bought.json["receipt"]["funding"], len(shop.bank.paid)) == (200, "paid", 1)


async def test_a_payment_that_comes_with_a_free_request_is_neither_read_nor_settled(tmp_path: Path) -> None:
    async with open_shop(tmp_path, table=mixed()) as shop:
        quoted = await shop.post(body=PAID, key=KEY)
        for headers in (PAYER.x402(quoted), {"PAYMENT-SIGNATURE": "nonsense"}, {"X-PAYMENT": "old"}):
            answer = await shop.post(body=FREE, headers=headers)
            assert (answer.status, answer.json["receipt"]["funding"]) == (200, "free")
        assert (shop.bank.verified, shop.bank.paid) == (0, {})


async def test_an_exhausted_free_quota_never_becomes_a_quote(tmp_path: Path) -> None:
    async with open_shop(tmp_path, table=mixed(), limits=LIMITS | {"free_search": 1}) as shop:
        assert (await shop.post(body=FREE)).status == 200
        refused = await shop.post(body=FREE)
        assert (refused.status, refused.challenged) == (429, False)


@pytest.mark.parametrize(("body", "said"), [(FREE, "paid"), (PAID, "free")])
async def test_a_funding_that_the_request_has_not_is_refused(tmp_path: Path, body: Any, said: str) -> None:
    async with open_shop(tmp_path, table=mixed()) as shop:
        answer = await shop.post(body=body, headers={"X-Gateway-Funding": said})
        assert (answer.status, answer.code, answer.challenged) == (400, "funding_mismatch", False)
        assert shop.search.runs == 0


@pytest.mark.parametrize(("body", "said", "status"), [(FREE, "free", 200), (PAID, "paid", 402)])
async def test_the_funding_that_it_has_may_be_said(tmp_path: Path, body: Any, said: str, status: int) -> None:
    async with open_shop(tmp_path, table=mixed()) as shop:
        assert (await shop.post(body=body, headers={"X-Gateway-Funding": said})).status == status


async def test_what_the_schema_cannot_say_is_told_with_the_faults_of_the_headers(tmp_path: Path) -> None:
    from gateway.errors import InvalidRequest, Violation

    def check(request: Any) -> InvalidRequest | None:
        return (
            InvalidRequest("too tidal", errors=[Violation("/query", "too tidal")]) if "tides" in request.query else None
        )

    async with open_shop(tmp_path, table=mixed(check=check)) as shop:
        answer = await shop.post(body=PAID, key="short")
        assert (answer.status, answer.pointers) == (400, ["", "/query"])
        assert (await shop.post(body={"query": "free", "synthesize": False})).status == 200


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"Idempotency-Key": "short"}, "idempotency_key_invalid"),
        ({"PAYMENT-SIGNATURE": "nonsense"}, "malformed_credential"),
        ({"Idempotency-Key": "short", "PAYMENT-SIGNATURE": "nonsense"}, "invalid_request"),
        ({"X-Gateway-Funding": "perhaps"}, "invalid_header"),
        ({}, "model_unavailable"),
    ],
)
async def test_a_faulty_request_is_told_its_faults_before_that_nothing_can_serve_it(
    tmp_path: Path, headers: dict[str, str], code: str
) -> None:
    async with open_shop(tmp_path, table=mixed(check=lambda _: ModelUnavailable("closed"))) as shop:
        assert (await shop.post(body=PAID, headers=headers)).code == code


async def test_a_live_quote_is_honoured_after_its_request_became_too_dear_to_be_quoted(tmp_path: Path) -> None:
    dear: list[RequestTooLarge] = []
    async with open_shop(tmp_path, table=mixed(check=lambda _: next(iter(dear), None))) as shop:
        quoted = await shop.post(body=PAID, key=KEY)
        payment = PAYER.x402(quoted)
        dear.append(RequestTooLarge("over the most"))
        assert (await shop.post(body=PAID, key=KEY)).code == "request_too_large"
        assert (await shop.post(body=PAID | {"query": "more tides"}, headers=payment)).code == "request_too_large"
        bought = await shop.post(body=PAID, key=KEY, headers=payment)
        assert (bought.status, bought.json["receipt"]["charge"]["amountAtomic"]) == (200, "6000")
        assert (await shop.post(body=PAID, key=KEY, headers=payment)).json["replayed"]


async def test_an_expired_quote_of_what_is_too_dear_now_is_followed_by_no_other(tmp_path: Path) -> None:
    dear: list[RequestTooLarge] = []
    async with open_shop(tmp_path, table=mixed(check=lambda _: next(iter(dear), None))) as shop:
        payment = PAYER.x402(await shop.post(body=PAID, key=KEY))
        dear.append(RequestTooLarge("over the most"))
        shop.clock.ahead_ms += 121_000
        answer = await shop.post(body=PAID, key=KEY, headers=payment)
        assert (answer.status, answer.code, answer.challenged) == (400, "request_too_large", False)


async def test_a_request_may_have_a_smaller_cap_than_its_operation(tmp_path: Path) -> None:
    table = mixed(cap=lambda request: 60 if request.query.startswith("free") else None)
    async with open_shop(tmp_path, table=table) as shop:
        long = "free " + "a" * 60
        assert (await shop.post(body=FREE | {"query": long})).code == "content_too_large"
        assert (await shop.post(body=PAID | {"query": "a" * 60})).status == 402


async def test_a_preview_is_never_run_nor_quoted(tmp_path: Path) -> None:
    async with open_shop(tmp_path, table=mixed(callable=False)) as shop:
        for body in (FREE, PAID):
            answer = await shop.post(body=body)
            assert (answer.status, answer.code, answer.challenged) == (503, "operation_not_callable", False)
        assert shop.search.runs == 0


# -- the client leaves -------------------------------------------------------------------------------------------------


async def test_a_free_execution_that_its_client_left_is_stopped_and_its_key_runs_anew(tmp_path: Path) -> None:
    async with open_shop(tmp_path, table=mixed()) as shop:
        stopped = watch(shop)
        async with left(shop, body=FREE, key=KEY):
            with trio.fail_after(1):
                await stopped.seen.wait()
        shop.search.gate.set()
        answer = await shop.post(body=FREE, key=KEY)
        assert (answer.status, answer.json["execution"]["attempt"], shop.search.runs) == (200, 2, 2)
        replayed = await shop.post(body=FREE, key=KEY)
        assert (replayed.json["replayed"], shop.search.runs) == (True, 2)


async def test_a_paid_execution_that_its_client_left_runs_on_and_replays(tmp_path: Path) -> None:
    async with open_shop(tmp_path, table=mixed()) as shop:
        stopped = watch(shop)
        paying = PAYER.x402(await shop.post(body=PAID, key=KEY))
        async with left(shop, body=PAID, key=KEY, headers=paying):
            await trio.sleep(0.5)
        shop.search.gate.set()
        answer = await shop.post(body=PAID, key=KEY)
        assert (answer.status, answer.json["replayed"], shop.search.runs) == (200, True, 1)
        assert (stopped.count, len(shop.bank.paid)) == (0, 1)


async def test_an_execution_goes_on_while_somebody_waits_for_it(tmp_path: Path) -> None:
    async with open_shop(tmp_path, table=mixed()) as shop:
        stopped, answers = watch(shop), []

        async def stay() -> None:
            answers.append(await shop.post(body=FREE, key=KEY))

        async with trio.open_nursery() as nursery:
            async with left(shop, body=FREE, key=KEY):
                nursery.start_soon(stay)
                await trio.sleep(0.5)
            shop.search.gate.set()
        assert [answer.status for answer in answers] == [200]
        assert (stopped.count, shop.search.runs) == (0, 1)


async def test_an_operation_that_is_not_to_be_stopped_runs_on(tmp_path: Path) -> None:
    table = {name: attrs.evolve(each, stops_when_left=False) for name, each in mixed().items()}
    async with open_shop(tmp_path, table=table) as shop:
        stopped = watch(shop)
        async with left(shop, body=FREE, key=KEY):
            await trio.sleep(0.5)
        shop.search.gate.set()
        answer = await shop.post(body=FREE, key=KEY)
        assert (answer.json["replayed"], shop.search.runs, stopped.count) == (True, 1, 0)
