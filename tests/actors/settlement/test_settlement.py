"""The actor: how the path from a signature to a receipt opens and closes, and what its letters are answered."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from itertools import pairwise

import attrs
import orjson
import pytest
import trio
from trio.testing import MockClock

from gateway.actors.payment import Payment
from gateway.actors.runtime import ActorDown, Ref, Runtime, open_runtime
from gateway.actors.settlement import (
    BlockTime,
    ChainUnavailable,
    Facilitator,
    Funds,
    HasCode,
    Look,
    Message,
    ReadBalance,
    ReadFunds,
    Settle,
    SettlementPath,
    Standing,
    StillStands,
    Submission,
    Verdict,
    Verification,
    Verify,
    Wanted,
    settlement,
)
from gateway.actors.settlement._actor import (
    PROBE_INTERVAL_S,
    PROBE_RETRY_S,
    PROOF_LIFE_S,
    START_PATIENCE_S,
    search_of,
)
from gateway.actors.settlement._chain import NEWEST_HEAD_S
from gateway.registry.http_call import HttpAnswer, HttpCall, UpstreamTimeout
from tests.actors.settlement.toy_chain import (
    ASSET,
    CHAIN_ID,
    PAYEE,
    PAYER,
    PRICE,
    ToyChain,
    ToyEndPoint,
    later,
    nonce_of,
    said,
    through,
    transfer,
    used,
)

NETWORK = f"eip155:{CHAIN_ID}"
SUPPORTED = {"kinds": [{"x402Version": 2, "scheme": "exact", "network": NETWORK}]}


@attrs.define
class Back:
    """A facilitator whose health a test turns up and down; `probes` holds the times of its probes."""

    healthy: bool = True
    hangs: bool = False
    settles: trio.Event | None = None
    probes: list[float] = attrs.field(factory=list)
    settled: int = 0

    async def __call__(self, call: HttpCall) -> HttpAnswer:
        if call.url.endswith("/supported"):
            self.probes.append(trio.current_time())
        if self.hangs:
            await trio.sleep(call.timeout_s)
            raise UpstreamTimeout("facilitator")
        if call.url.endswith("/settle"):
            self.settled += 1
            if self.settles is not None:
                await self.settles.wait()
        answer = SUPPORTED | {"isValid": True, "success": True, "transaction": "0x" + "77" * 32}
        return HttpAnswer(200 if self.healthy else 500, {}, orjson.dumps(answer), 1)


@attrs.frozen
class Scene:
    ref: Ref[Message]
    path: SettlementPath
    back: Back
    toy: ToyChain
    end_point: ToyEndPoint
    runtime: Runtime


@asynccontextmanager
async def settling(*, healthy: bool = True, hangs: bool = False) -> AsyncIterator[Scene]:
    back, toy = Back(healthy, hangs), ToyChain()
    end_point = ToyEndPoint(toy)
    path = SettlementPath()
    body = partial(
        settlement,
        facilitator=Facilitator("http://facilitator.example", back, 10, 20),
        chain=through(end_point),
        network=NETWORK,
        path=path,
    )
    async with open_runtime() as runtime:
        yield Scene(await runtime.start("settlement", body), path, back, toy, end_point, runtime)


def payment(toy: ToyChain) -> Payment:
    return Payment(
        protocol="x402",
        chain_id=CHAIN_ID,
        network=NETWORK,
        asset=ASSET,
        payer=PAYER,
        pay_to=PAYEE,
        amount=PRICE,
        nonce="0x" + nonce_of(1).hex(),
        valid_before=toy.time() + 600,
        quote_id="q",
        price_version="1",
        challenge_id=None,
        body={"x402Version": 2},
    )


# -- the path ----------------------------------------------------------------------------------------------------------


async def test_the_path_is_proven_before_the_actor_is_ready(autojump_clock: MockClock) -> None:
    async with settling() as scene:
        assert scene.path.closed is None
        assert scene.path.head == scene.toy.head
        assert len(scene.back.probes) == 1


async def test_a_path_that_was_never_proven_is_closed() -> None:
    assert SettlementPath().closed == "unproven"


async def test_a_start_does_not_wait_for_what_hangs(autojump_clock: MockClock) -> None:
    began = trio.current_time()
    async with settling(hangs=True) as scene:
        assert trio.current_time() - began <= START_PATIENCE_S
        assert scene.path.closed is not None
        scene.back.hangs = False
        await trio.sleep(5 + 2 * PROBE_RETRY_S)
        assert scene.path.closed is None


async def test_the_proof_is_renewed_before_it_expires(autojump_clock: MockClock) -> None:
    async with settling() as scene:
        for _ in range(20):
            await trio.sleep(10)
            assert scene.path.closed is None
        assert len(scene.back.probes) == pytest.approx(200 / PROBE_INTERVAL_S, abs=2)


async def test_one_failed_probe_closes_nothing(autojump_clock: MockClock) -> None:
    async with settling() as scene:
        scene.back.healthy = False
        await trio.sleep(PROBE_INTERVAL_S + PROBE_RETRY_S / 2)
        assert (scene.path.failures, scene.path.closed) == (1, None)
        scene.back.healthy = True
        await trio.sleep(PROBE_RETRY_S + 0.1)
        assert (scene.path.failures, scene.path.closed) == (0, None)


async def test_a_second_failure_closes_with_its_reason(autojump_clock: MockClock) -> None:
    async with settling() as scene:
        scene.back.healthy = False
        await trio.sleep(PROBE_INTERVAL_S + PROBE_RETRY_S + 0.1)
        assert scene.path.closed == "facilitator_status_500"
        scene.back.healthy = True
        await trio.sleep(2 * PROBE_RETRY_S + 0.1)
        assert scene.path.closed is None


async def test_a_clock_that_is_behind_the_chain_closes_at_the_first_look(autojump_clock: MockClock) -> None:
    async with settling() as scene:
        scene.end_point.twists["eth_getBlockByNumber"] = later(2 * NEWEST_HEAD_S)
        await trio.sleep(PROBE_INTERVAL_S + 0.1)
        assert scene.path.closed == "clock_skew"
        scene.end_point.twists.clear()
        await trio.sleep(2 * PROBE_RETRY_S + 0.1)
        assert scene.path.closed is None


async def test_a_chain_that_cannot_be_read_closes_the_path(autojump_clock: MockClock) -> None:
    async with settling() as scene:
        scene.end_point.http = said(200, b"<html>")
        await trio.sleep(PROBE_INTERVAL_S + PROBE_RETRY_S + 0.1)
        assert scene.path.closed == "rpc_garbage"
        scene.end_point.http = None
        scene.end_point.chain_id = 5
        await trio.sleep(5 * PROBE_RETRY_S)
        assert scene.path.closed == "rpc_wrong_chain"


async def test_a_proof_that_nothing_renews_expires(autojump_clock: MockClock) -> None:
    async with settling() as scene:
        last = scene.path.proven_until
        assert last == pytest.approx(trio.current_time() + PROOF_LIFE_S)
        await scene.runtime.stop(1)
        await trio.sleep(PROOF_LIFE_S + 0.1)
        assert scene.path.closed == "proof_expired"


async def test_probes_of_a_closed_path_come_ever_more_seldom(autojump_clock: MockClock) -> None:
    async with settling(healthy=False) as scene:
        await trio.sleep(120)
        times = scene.back.probes
        pauses = [later - earlier for earlier, later in pairwise(times)]
        assert pauses[:4] == pytest.approx([1, 2, 4, 8])
        assert set(map(round, pauses[4:])) == {PROBE_INTERVAL_S}


async def test_somebody_who_meets_a_closed_path_has_it_probed_soon(autojump_clock: MockClock) -> None:
    async with settling(healthy=False) as scene:
        await trio.sleep(62)
        probed = len(scene.back.probes)
        scene.back.healthy = True
        scene.ref.tell(Wanted())
        await trio.sleep(PROBE_RETRY_S + 0.1)
        assert len(scene.back.probes) == probed + 1
        assert scene.path.closed is None


async def test_many_who_meet_it_do_not_have_it_probed_more_often(autojump_clock: MockClock) -> None:
    async with settling(healthy=False) as scene:
        await trio.sleep(60)
        probed = len(scene.back.probes)
        for _ in range(100):
            scene.ref.tell(Wanted())
            await trio.sleep(0.1)
        assert len(scene.back.probes) - probed <= 10 / PROBE_RETRY_S + 1


# -- letters -----------------------------------------------------------------------------------------------------------


async def test_letters_are_answered_by_facilitator_and_chain(autojump_clock: MockClock) -> None:
    async with settling() as scene:
        paying = payment(scene.toy)
        assert await scene.ref.ask(Verify(paying)) == Verification(Verdict.VALID)
        assert await scene.ref.ask(Settle(paying)) == Submission("0x" + "77" * 32, "success", sent=True)
        assert (await scene.ref.ask(Look(paying))).standing is Standing.UNUSED
        name = scene.toy.include(used(nonce_of(1)), transfer())
        seen = await scene.ref.ask(Look(paying, scene.toy.head, (name,)))
        assert (seen.standing, seen.transaction) == (Standing.PAID, name)
        assert scene.path.head == scene.toy.head
        assert await scene.ref.ask(StillStands(name, scene.toy.hash(scene.toy.head)))
        scene.toy.minted[PAYER.lower()] = 2 * PRICE
        assert await scene.ref.ask(ReadBalance(ASSET, PAYER)) == PRICE
        assert await scene.ref.ask(ReadFunds(ASSET, PAYER, [paying.nonce])) == Funds(PRICE, frozenset({paying.nonce}))
        assert await scene.ref.ask(BlockTime(scene.toy.head)) == scene.toy.time()
        assert await scene.ref.ask(HasCode(PAYER)) is False


async def test_a_chain_that_cannot_be_read_refuses_the_letter_and_crashes_nothing(autojump_clock: MockClock) -> None:
    async with settling() as scene:
        scene.end_point.http = said(500)
        with pytest.raises(ChainUnavailable, match="rpc_status_500"):
            await scene.ref.ask(Look(payment(scene.toy)))
        with pytest.raises(ChainUnavailable, match="rpc_status_500"):
            await scene.ref.ask(StillStands("0x" + "11" * 32, "0x" + "22" * 32))
        assert scene.ref.health().crashes == 0


async def test_a_settlement_that_takes_long_holds_nobody_up(autojump_clock: MockClock) -> None:
    async with settling() as scene, trio.open_nursery() as nursery:
        scene.back.settles = trio.Event()
        paying = payment(scene.toy)
        answers = []

        async def ask() -> None:
            answers.append(await scene.ref.ask(Settle(paying), within=25))

        for _ in range(50):
            nursery.start_soon(ask)
        while scene.back.settled < 50:
            await trio.lowlevel.checkpoint()
        assert (await scene.ref.ask(Look(paying))).standing is Standing.UNUSED
        assert answers == []
        scene.back.settles.set()
    assert len(answers) == 50


async def test_a_settlement_under_way_at_shutdown_is_finished(autojump_clock: MockClock) -> None:
    async with settling() as scene, trio.open_nursery() as nursery:
        scene.back.settles = trio.Event()
        answers = []

        async def ask() -> None:
            answers.append(await scene.ref.ask(Settle(payment(scene.toy)), within=25))

        nursery.start_soon(ask)
        while not scene.back.settled:
            await trio.lowlevel.checkpoint()
        nursery.start_soon(scene.runtime.stop, 10)
        await trio.sleep(3)
        scene.back.settles.set()
    assert [answer.sent for answer in answers] == [True]
    with pytest.raises(ActorDown):
        await scene.ref.ask(Verify(payment(scene.toy)))


def test_a_payment_is_looked_for_by_what_the_token_knows() -> None:
    paying = payment(ToyChain())
    search = search_of(paying)
    assert (search.asset, search.authorizer, search.pay_to, search.value) == (ASSET, PAYER, PAYEE, PRICE)
    assert (search.nonce, search.valid_before) == (nonce_of(1), paying.valid_before)
