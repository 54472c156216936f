from __future__ import annotations

import asyncio  # noqa: TID251 - to show that it is not used
import random
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import attrs
import orjson
import pytest
import trio
from trio.testing import MockClock

from gateway.actors.settlement import Chain, ChainUnavailable, Expiring, Funds, Search, Sighting, Standing
from gateway.actors.settlement._chain import (
    COOL_OFF_S,
    EXPIRY_MARGIN_S,
    HINTS_READ,
    NEWEST_HEAD_S,
    OLDEST_HEAD_S,
    READ_TOGETHER,
    SEEN_FOR_S,
)
from gateway.actors.settlement._trail import CALLS_A_LOOK
from gateway.registry.http_call import (
    AnswerTooLarge,
    HttpAnswer,
    HttpCall,
    UpstreamBroken,
    UpstreamTimeout,
    UpstreamUnreachable,
)
from tests.actors.settlement.toy_chain import (
    ASSET,
    PAYER,
    PRICE,
    STRANGER,
    Refusal,
    ToyChain,
    ToyEndPoint,
    answered,
    canceled,
    fails,
    later,
    nonce_of,
    said,
    search_for,
    through,
    transfer,
    used,
)

OURS, OTHERS = nonce_of(1), nonce_of(2)


@attrs.define
class Scene:
    toy: ToyChain
    end_point: ToyEndPoint
    chain: Chain
    search: Search
    from_block: int

    async def look(self, *hints: str, from_block: int | None = -1) -> Sighting:
        since = self.from_block if from_block == -1 else from_block
        return await self.chain.look(self.search, from_block=since, hints=hints)

    async def standing(self, *hints: str) -> Standing:
        return (await self.look(*hints)).standing

    async def reason(self, *hints: str) -> str:
        with pytest.raises(ChainUnavailable) as caught:
            await self.look(*hints)
        return str(caught.value)


@pytest.fixture
def scene() -> Scene:
    """A chain of one end point, and an authorization that was claimed at its latest block."""
    return make()


@attrs.define(eq=False)
class SlowEndPoint(ToyEndPoint):
    """It takes a second over each answer."""

    async def __call__(self, call: HttpCall) -> HttpAnswer:
        await trio.sleep(1)
        return await ToyEndPoint.__call__(self, call)


def make(*, confirmations: int = 1, late_s: float = 0, **options: Any) -> Scene:
    toy = ToyChain()
    end_point = ToyEndPoint(toy, **options)
    chain = through(end_point, confirmations=confirmations, late_s=late_s)
    return Scene(toy, end_point, chain, search_for(toy), toy.head)


# -- what the chain says -----------------------------------------------------------------------------------------------


async def test_a_transfer_is_found_by_its_hint(scene: Scene) -> None:
    name = scene.toy.include(used(OURS), transfer())
    seen = await scene.look(name)
    assert seen == Sighting(Standing.PAID, scene.toy.head, name, scene.toy.head, scene.toy.hash(scene.toy.head))
    assert scene.end_point.counts["eth_getLogs"] == 0


async def test_a_transfer_is_found_without_a_hint(scene: Scene) -> None:
    name = scene.toy.include(used(OURS), transfer())
    scene.toy.mine(5)
    seen = await scene.look()
    assert (seen.standing, seen.transaction, seen.block_number) == (Standing.PAID, name, scene.toy.head - 5)


async def test_a_payment_is_shallow_until_it_is_deep() -> None:
    scene = make(confirmations=3)
    name = scene.toy.include(used(OURS), transfer())
    assert [await scene.standing(), await scene.standing(name)] == [Standing.SHALLOW] * 2
    scene.toy.mine()
    assert [await scene.standing(), await scene.standing(name)] == [Standing.SHALLOW] * 2
    scene.toy.mine()
    assert [await scene.standing(), await scene.standing(name)] == [Standing.PAID] * 2


async def test_a_receipt_from_beyond_the_head_is_shallow(scene: Scene) -> None:
    name = scene.toy.include(used(OURS), transfer())
    receipt = scene.end_point.eth_getTransactionReceipt(name)
    scene.end_point.behind = 1
    scene.end_point.twists["eth_getTransactionReceipt"] = lambda _params, _result: receipt
    assert await scene.standing(name) is Standing.SHALLOW


async def test_an_authorization_that_nobody_used_is_unused(scene: Scene) -> None:
    scene.toy.include(used(OTHERS), transfer())
    scene.toy.include(used(OURS, STRANGER), transfer(sender=STRANGER))
    assert await scene.standing() is Standing.UNUSED


async def test_the_state_is_read_in_the_block_whose_time_is_judged(scene: Scene) -> None:
    await scene.look()
    block = next(params[1] for method, params in scene.end_point.asked if method == "eth_call")
    assert block == {"blockHash": scene.toy.hash(scene.toy.head), "requireCanonical": True}


async def test_an_expiry_counts_when_the_chain_is_well_past_it(scene: Scene) -> None:
    scene.toy.mine_until(scene.search.valid_before - 2)
    assert await scene.standing() is Standing.UNUSED
    for moment in (0, 2, EXPIRY_MARGIN_S - 2):
        scene.toy.mine_until(scene.search.valid_before + moment)
        assert await scene.reason() == "authorization_expiring"
        with pytest.raises(Expiring):
            await scene.look()
    scene.toy.mine_until(scene.search.valid_before + EXPIRY_MARGIN_S)
    assert await scene.standing() is Standing.EXPIRED


async def test_a_cancellation_is_no_payment(scene: Scene) -> None:
    name = scene.toy.include(canceled(OURS))
    scene.toy.include(transfer())
    assert await scene.standing(name) is Standing.CANCELLED


@pytest.mark.parametrize(
    "events",
    [
        (transfer(to=STRANGER),),
        (transfer(value=PRICE - 60), transfer(to=STRANGER, value=60)),  # a token that takes a fee
        (transfer(to=STRANGER, value=60), transfer(value=PRICE - 60)),
        (transfer(value=PRICE - 1),),  # one that rebases, and rounds
    ],
)
async def test_an_authorization_that_made_another_transfer_is_no_cancelled_one(
    scene: Scene, events: tuple[Any, ...]
) -> None:
    name = scene.toy.include(used(OURS), *events)
    seen = await scene.look()
    assert (seen.standing, seen.transaction, seen.block_number) == (Standing.DIVERTED, name, scene.toy.head)
    assert await scene.look(name) == seen


@pytest.mark.parametrize(
    ("events", "standing"),
    [((canceled(OURS),), Standing.CANCELLED), ((used(OURS), transfer(value=1)), Standing.DIVERTED)],
)
async def test_what_spent_it_unpaid_counts_when_it_is_as_deep_as_a_payment_must_be(
    events: tuple[Any, ...], standing: Standing
) -> None:
    scene = make(confirmations=2)
    scene.toy.include(*events)
    assert await scene.standing() is Standing.UNTRACED
    scene.toy.mine()
    assert await scene.standing() is standing


async def test_a_late_cancellation_is_no_trace_lost(scene: Scene) -> None:
    scene.toy.mine_until(scene.search.valid_before + 4000)
    scene.toy.include(canceled(OURS))
    assert await scene.standing() is Standing.CANCELLED


async def test_a_use_whose_transfer_cannot_be_told_is_untraced(scene: Scene) -> None:
    scene.toy.include(transfer(), used(OURS))
    assert await scene.standing() is Standing.UNTRACED


async def test_two_payments_of_one_payer_in_one_transaction_are_two(scene: Scene) -> None:
    name = scene.toy.include(used(OURS), transfer(), used(OTHERS), transfer(), used(nonce_of(3)), transfer(to=STRANGER))
    for number, standing in ((1, Standing.PAID), (2, Standing.PAID), (3, Standing.DIVERTED), (4, Standing.UNUSED)):
        scene.search = attrs.evolve(scene.search, nonce=nonce_of(number))
        assert [await scene.standing(), await scene.standing(name)] == [standing] * 2


# -- accounts and blocks -----------------------------------------------------------------------------------------------


async def test_an_account_with_code_is_told_from_one_without(scene: Scene) -> None:
    assert not await scene.chain.has_code(PAYER)
    scene.end_point.codes[PAYER.lower()] = "0xef0100" + "11" * 20
    assert await scene.chain.has_code(PAYER)
    scene.end_point.chain_id = 1
    with pytest.raises(ChainUnavailable, match="rpc_wrong_chain"):
        await scene.chain.has_code(PAYER)


async def test_a_block_tells_its_time(scene: Scene) -> None:
    assert await scene.chain.timestamp(7) == scene.toy.time(7)
    with pytest.raises(ChainUnavailable):
        await scene.chain.timestamp(scene.toy.head + 1)


# -- hints -------------------------------------------------------------------------------------------------------------


async def test_a_hint_that_was_reverted_hides_nothing(scene: Scene) -> None:
    reverted = scene.toy.include(used(OURS), transfer(), succeeded=False)
    assert await scene.standing(reverted) is Standing.UNUSED
    paid = scene.toy.include(used(OURS), transfer())
    again = scene.toy.include(used(OURS), transfer(), succeeded=False)
    assert (await scene.look(reverted, again)).transaction == paid


async def test_a_hint_to_the_payment_of_another_pays_nothing(scene: Scene) -> None:
    theirs = scene.toy.include(used(OURS, STRANGER), transfer(sender=STRANGER), used(OTHERS), transfer())
    assert await scene.standing(theirs) is Standing.UNUSED


async def test_a_pending_hint_is_waited_for(scene: Scene) -> None:
    assert await scene.standing("0x" + "77" * 32) is Standing.UNUSED
    name = scene.toy.include(used(OURS), transfer())
    scene.end_point.twists["eth_getTransactionReceipt"] = lambda _params, told: (
        told | {"blockNumber": None, "blockHash": None}
    )
    assert await scene.reason(name) == "rpc_contradiction"
    del scene.end_point.twists["eth_getTransactionReceipt"]
    assert await scene.standing(name) is Standing.PAID


@pytest.mark.parametrize(
    "twist",
    [
        lambda _params, _told: "0x",
        lambda _params, _told: [],
        lambda _params, told: {name: told[name] for name in told if name != "logs"},
        lambda _params, told: told | {"logs": [None]},
        lambda _params, told: told | {"status": None},
        lambda _params, told: told | {"blockNumber": "0xzz"},
        lambda _params, told: told | {"blockHash": "0x1"},
        lambda _params, told: told | {"transactionHash": "0x" + "88" * 32},
    ],
)
async def test_a_garbled_hint_is_passed_over(scene: Scene, twist: Callable[[Any, Any], Any]) -> None:
    hint = scene.toy.include(used(OTHERS), transfer())
    paid = scene.toy.include(used(OURS), transfer())
    scene.end_point.twists["eth_getTransactionReceipt"] = lambda params, told: (
        twist(params, told) if params == [hint] else told
    )
    assert (await scene.look(hint)).transaction == paid


async def test_a_hint_too_large_to_read_is_passed_over(scene: Scene) -> None:
    paid = scene.toy.include(used(OURS), transfer())
    honest = scene.end_point

    async def call(wanted: HttpCall) -> HttpAnswer:
        if b"77777" in wanted.content:
            raise AnswerTooLarge("rpc")
        return await honest(wanted)

    chain = attrs.evolve(scene.chain, call=call)
    seen = await chain.look(scene.search, from_block=None, hints=["0x" + "77" * 32])
    assert seen.transaction == paid


async def test_only_the_last_hints_are_read(scene: Scene) -> None:
    hints = [f"0x{number:064x}" for number in range(20)]
    await scene.look(*hints)
    asked = [params[0] for method, params in scene.end_point.asked if method == "eth_getTransactionReceipt"]
    assert sorted(asked) == hints[-HINTS_READ:]


# -- odd answers -------------------------------------------------------------------------------------------------------


async def test_upper_case_nulls_and_members_of_its_own_are_no_matter(scene: Scene) -> None:
    name = scene.toy.include(used(OURS), transfer())

    def shout(_params: Any, told: Any) -> Any:
        logs = [
            {key: value.upper().replace("X", "x", 1) if isinstance(value, str) else value for key, value in log.items()}
            | {"blockTimestamp": 1_700_000_000, "topics": [topic.upper().replace("X", "x") for topic in log["topics"]]}
            for log in told["logs"]
        ]
        odd: dict[str, Any] = {
            "type": "0x7E",
            "logsBloom": None,
            "from": None,
            "effectiveGasPrice": None,
            "l1Fee": {},
            "to": "",
        }
        return (
            told | odd | {"logs": logs, "contractAddress": "", "blockHash": told["blockHash"].upper().replace("X", "x")}
        )

    scene.end_point.twists["eth_getTransactionReceipt"] = shout
    scene.end_point.twists["eth_getBlockByNumber"] = lambda _params, told: (
        told | {"miner": None, "transactions": None, "extraData": "0x" + "00" * 200, "difficulty": None}
    )
    assert await scene.standing(name) is Standing.PAID
    assert await scene.standing() is Standing.PAID


NONSENSE: dict[str, tuple[Callable[[HttpCall, dict[str, Any]], HttpAnswer], str]] = {
    "unreachable": (fails(UpstreamUnreachable("rpc")), "rpc_unreachable"),
    "hang": (fails(UpstreamTimeout("rpc")), "rpc_timeout"),
    "reset": (fails(UpstreamBroken("rpc")), "rpc_connection_broken"),
    "huge": (fails(AnswerTooLarge("rpc")), "rpc_answer_too_large"),
    "http_429": (said(429, b'{"jsonrpc":"2.0","id":1,"error":{}}'), "rpc_status_429"),
    "http_500": (said(500), "rpc_status_500"),
    "redirect": (said(302), "rpc_status_302"),
    "html": (said(200, b"<!doctype html>"), "rpc_garbage"),
    "empty": (said(200, b""), "rpc_garbage"),
    "list": (said(200, b"[]"), "rpc_garbage"),
    "null": (said(200, b"null"), "rpc_garbage"),
    "deep": (said(200, b"[" * 100_000), "rpc_garbage"),
    "number": (said(200, b'{"jsonrpc":"2.0","id":1,"result":1e999}'), "rpc_garbage"),
    "error object": (lambda _call, asked: answered(asked, {"error": {"code": -32000, "message": "no"}}), "rpc_error"),
    "error without id": (said(200, b'{"jsonrpc":"2.0","id":null,"error":{"code":-32005}}'), "rpc_error"),
    "error text": (lambda _call, asked: answered(asked, {"error": "busy", "result": "0x2105"}), "rpc_error"),
    "other id": (lambda _call, asked: answered(asked | {"id": asked["id"] + 1}, {"result": "0x2105"}), "rpc_garbage"),
    "id as text": (
        lambda _call, asked: answered(asked | {"id": str(asked["id"])}, {"result": "0x2105"}),
        "rpc_garbage",
    ),
    "no result": (lambda _call, asked: answered(asked, {}), "rpc_garbage"),
    "result of another kind": (lambda _call, asked: answered(asked, {"result": {"a": 1}}), "rpc_garbage"),
    "wrong chain": (lambda _call, asked: answered(asked, {"result": "0x5"}), "rpc_wrong_chain"),
}


@pytest.mark.parametrize("nonsense", NONSENSE)
async def test_what_is_no_answer_decides_nothing(scene: Scene, nonsense: str) -> None:
    scene.toy.mine_until(scene.search.valid_before + 4000)
    scene.end_point.http, reason = NONSENSE[nonsense]
    assert await scene.reason() == reason
    with pytest.raises(ChainUnavailable, match=reason):
        await scene.chain.usable()
    with pytest.raises(ChainUnavailable, match=reason):
        await scene.chain.still_stands("0x" + "11" * 32, "0x" + "22" * 32)


TWISTS: list[tuple[str, Any]] = [
    ("eth_getBlockByNumber", None),
    ("eth_getBlockByNumber", {}),
    ("eth_getBlockByNumber", {"number": "0x1", "hash": None, "timestamp": "0x1"}),
    ("eth_getBlockByNumber", {"number": None, "hash": "0x" + "33" * 32, "timestamp": "0xffffffffff"}),
    ("eth_getBlockByNumber", {"number": "0x1", "hash": "0x33", "timestamp": "0xffffffffff"}),
    ("eth_getBlockByNumber", {"number": "0x-1", "hash": "0x" + "33" * 32, "timestamp": True}),
    ("eth_call", None),
    ("eth_call", "0x"),
    ("eth_call", "0x0"),
    ("eth_call", "0x" + "00" * 64),
    ("eth_call", 0),
    ("eth_call", False),
    ("eth_call", {"result": "0x"}),
]


@pytest.mark.parametrize(("method", "result"), TWISTS)
async def test_a_result_of_the_wrong_shape_decides_nothing(scene: Scene, method: str, result: Any) -> None:
    scene.toy.mine_until(scene.search.valid_before + 4000)
    scene.end_point.twists[method] = lambda _params, _told: result
    assert await scene.reason() == "rpc_garbage"


async def test_a_block_that_is_gone_from_under_the_look_decides_nothing(scene: Scene) -> None:
    scene.toy.mine_until(scene.search.valid_before + 4000)

    def reorganised(_params: Any, told: Any) -> Any:
        scene.toy.reorganise(3)
        return told

    scene.end_point.twists["eth_getBlockByNumber"] = reorganised
    assert await scene.reason() == "rpc_error"


@pytest.mark.parametrize("result", [None, {}, "0x", [None], [{}], [{"address": 1}], "logs", [[]]])
async def test_logs_of_the_wrong_shape_decide_nothing(scene: Scene, result: Any) -> None:
    scene.toy.include(used(OURS), transfer())
    scene.end_point.twists["eth_getLogs"] = lambda _params, _told: result
    assert await scene.reason() == "rpc_garbage"


async def test_lost_logs_leave_a_spent_authorization_untraced(scene: Scene) -> None:
    name = scene.toy.include(used(OURS), transfer())
    scene.end_point.twists["eth_getLogs"] = lambda _params, told: told[1::2]
    assert await scene.standing() is Standing.UNTRACED
    assert await scene.standing(name) is Standing.PAID
    del scene.end_point.twists["eth_getLogs"]
    assert await scene.standing() is Standing.PAID


async def test_a_log_that_was_reorganised_away_is_none(scene: Scene) -> None:
    scene.toy.include(canceled(OURS))
    scene.end_point.twists["eth_getLogs"] = lambda _params, told: [log | {"removed": True} for log in told]
    assert await scene.standing() is Standing.UNTRACED


async def test_an_end_point_that_ignores_the_filter_fools_nobody(scene: Scene) -> None:
    scene.toy.include(canceled(OTHERS))
    scene.toy.include(canceled(OURS, STRANGER))
    scene.toy.include({**canceled(OURS), "address": STRANGER.lower()})
    paid = scene.toy.include(used(OURS), transfer())
    scene.end_point.twists["eth_getLogs"] = lambda _params, _told: scene.toy.logs(0, scene.toy.head)
    assert (await scene.look()).transaction == paid


@pytest.mark.parametrize(
    "twist",
    [
        lambda _params, _told: None,
        lambda _params, told: told | {"logs": []},
        lambda _params, told: told | {"logs": told["logs"][1:]},
        lambda _params, told: told | {"logs": [told["logs"][0], told["logs"][2]]},
        lambda _params, told: told | {"status": "0x0"},
    ],
)
async def test_an_event_that_its_receipt_does_not_show_decides_nothing(
    scene: Scene, twist: Callable[[Any, Any], Any]
) -> None:
    scene.toy.include(used(OURS), transfer(to=STRANGER), transfer())
    scene.end_point.twists["eth_getTransactionReceipt"] = twist
    assert await scene.reason() == "rpc_contradiction"


async def test_a_receipt_cut_off_before_the_transfer_is_no_refusal(scene: Scene) -> None:
    scene.toy.include(used(OURS), transfer())
    scene.end_point.twists["eth_getTransactionReceipt"] = lambda _params, told: told | {"logs": told["logs"][:1]}
    assert await scene.standing() is Standing.UNTRACED


def corrupt(rng: random.Random, value: Any) -> Any:
    """Return a JSON value with one thing wrong somewhere in it."""
    junk: Any = rng.choice([None, {}, [], "", "0x", "0xzz", -1, 2**70, True, 1.5, "latest", "0x" + "ff" * 32])
    if isinstance(value, dict) and value and rng.random() < 0.9:
        name = rng.choice(list(value))
        if rng.random() < 0.3:
            return {key: each for key, each in value.items() if key != name}
        return value | {name: corrupt(rng, value[name])}
    if isinstance(value, list) and value and rng.random() < 0.9:
        place = rng.randrange(len(value))
        if rng.random() < 0.3:
            return value[:place] + value[place + 1 :]
        return [*value[:place], corrupt(rng, value[place]), *value[place + 1 :]]
    return junk


def corrupting(rng: random.Random, _params: Any, told: Any) -> Any:
    return corrupt(rng, told)


@pytest.mark.parametrize("events", [(used(OTHERS), transfer(), used(OURS), transfer()), (canceled(OURS),), ()])
async def test_corruption_never_ends_an_operation_wrongly(events: tuple[Any, ...]) -> None:
    """Whatever one wrong member does, nothing final is said but the truth."""
    truth = {4: Standing.PAID, 1: Standing.CANCELLED, 0: Standing.EXPIRED}[len(events)]
    said_so = 0
    for seed in range(400):
        rng = random.Random(seed)
        scene = make()
        hints = [scene.toy.include(*events)] * rng.randrange(2) if events else []
        if not hints and events:
            scene.toy.include(*events)
        scene.toy.mine_until(scene.search.valid_before + 4000)
        method = rng.choice(["eth_getBlockByNumber", "eth_getLogs", "eth_getTransactionReceipt", "eth_chainId"])
        scene.end_point.twists[method] = partial(corrupting, rng)
        try:
            seen = await scene.look(*hints)
        except ChainUnavailable:
            continue
        assert seen.standing in {truth, Standing.UNTRACED, Standing.SHALLOW if truth is Standing.PAID else truth}, seed
        said_so += seen.standing is truth
    assert said_so > 20


# -- end points that are behind ----------------------------------------------------------------------------------------


async def test_absence_is_not_believed_of_an_end_point_that_fell_behind(scene: Scene) -> None:
    await scene.chain.usable()
    scene.toy.include(used(OURS), transfer())
    scene.end_point.behind = 12
    assert await scene.reason() == "rpc_behind"
    scene.toy.mine(12)
    assert await scene.standing() is Standing.PAID


async def test_absence_is_not_believed_of_an_end_point_behind_the_claim(scene: Scene) -> None:
    scene.from_block = scene.toy.head
    scene.toy.include(used(OURS), transfer())
    scene.end_point.behind = 12
    assert await scene.reason() == "rpc_behind"


async def test_an_answer_that_another_look_overtakes_is_no_reason_to_take_its_end_point_for_behind(
    scene: Scene, autojump_clock: MockClock
) -> None:
    honest = scene.end_point

    async def call(wanted: HttpCall) -> HttpAnswer:
        """Let the first answer about the latest block be a second on its way."""
        answer = await honest(wanted)
        if honest.counts["eth_getBlockByNumber"] == 1 and b"latest" in wanted.content:
            await trio.sleep(1)
        return answer

    chain = attrs.evolve(scene.chain, call=call)
    seen: list[Standing] = []

    async def look() -> None:
        seen.append((await chain.look(scene.search, from_block=scene.from_block, hints=())).standing)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(look)
        await trio.sleep(0.5)
        scene.toy.mine(2)
        await look()
    assert seen == [Standing.UNUSED, Standing.UNUSED]


async def test_an_expiry_is_not_believed_of_an_end_point_that_fell_behind() -> None:
    scene = make()
    scene.toy.mine_until(scene.search.valid_before - 4)
    scene.toy.include(used(OURS), transfer())
    scene.toy.mine_until(scene.search.valid_before + 100)
    await scene.chain.usable()
    scene.end_point.behind = 12
    scene.end_point.twists["eth_call"] = lambda _params, _told: "0x" + "00" * 32
    assert await scene.reason() == "rpc_behind"


async def test_a_payment_is_believed_of_an_end_point_that_fell_behind(scene: Scene) -> None:
    name = scene.toy.include(used(OURS), transfer())
    scene.toy.mine(12)
    await scene.chain.usable()
    scene.end_point.behind = 5
    assert await scene.standing(name) is Standing.PAID


async def test_a_machine_that_is_behind_its_address_decides_nothing(scene: Scene) -> None:
    """One address, two machines: the head comes from one that is ahead of the one that reads the state."""
    scene.toy.mine_until(scene.search.valid_before - 4)
    scene.toy.include(used(OURS), transfer())
    scene.toy.mine_until(scene.search.valid_before + 100)

    def lagging(_params: Any, told: Any) -> Any:
        del told
        raise Refusal(-32001, "header not found")

    scene.end_point.twists["eth_call"] = lagging
    assert await scene.reason() == "rpc_error"


async def test_a_lower_chain_is_believed_in_the_end(scene: Scene, autojump_clock: MockClock) -> None:
    await scene.chain.usable()
    scene.toy.head -= 5
    scene.from_block = scene.toy.head
    assert await scene.reason() == "rpc_behind"
    await trio.sleep(SEEN_FOR_S + 1)
    assert await scene.standing() is Standing.UNUSED
    assert scene.chain.height == scene.toy.head


async def test_an_end_point_that_stopped_is_not_believed() -> None:
    scene = make(late_s=OLDEST_HEAD_S + 1)
    assert await scene.reason() == "rpc_stale"
    with pytest.raises(ChainUnavailable, match="rpc_stale"):
        await scene.chain.usable()
    with pytest.raises(ChainUnavailable, match="rpc_stale"):
        await scene.chain.still_stands("0x" + "11" * 32, "0x" + "22" * 32)
    scene.toy.include(used(OURS), transfer())
    assert await scene.standing() is Standing.PAID


async def test_a_clock_that_is_behind_the_chain_is_told_from_an_end_point_that_stopped() -> None:
    await make(late_s=-NEWEST_HEAD_S).chain.usable()
    with pytest.raises(ChainUnavailable, match="clock_skew"):
        await make(late_s=-NEWEST_HEAD_S - 1).chain.usable()


def block_ms(chain: Chain) -> int | None:
    return chain.block_ms


async def test_the_time_of_the_latest_block_is_known_for_a_minute(autojump_clock: MockClock) -> None:
    scene = make(late_s=OLDEST_HEAD_S + 1)
    assert block_ms(scene.chain) is None
    with pytest.raises(ChainUnavailable, match="rpc_stale"):
        await scene.chain.usable()
    assert block_ms(scene.chain) == scene.toy.time() * 1000
    await trio.sleep(SEEN_FOR_S + 1)
    assert block_ms(scene.chain) is None


# -- several end points ------------------------------------------------------------------------------------------------


def pair() -> tuple[ToyEndPoint, ToyEndPoint, Chain, Search]:
    toy = ToyChain()
    first, second = ToyEndPoint(toy), ToyEndPoint(toy)
    return first, second, through(first, second), search_for(toy)


async def test_one_end_point_from_the_future_makes_no_clock_wrong() -> None:
    first, second, chain, _ = pair()
    first.twists["eth_getBlockByNumber"] = later(2 * NEWEST_HEAD_S)
    await chain.usable()
    assert second.asked


@pytest.mark.parametrize("nonsense", NONSENSE)
async def test_the_next_end_point_answers_for_one_that_does_not(nonsense: str) -> None:
    first, second, chain, search = pair()
    first.http = NONSENSE[nonsense][0]
    name = first.chain.include(used(OURS), transfer())
    assert (await chain.look(search, from_block=None, hints=())).transaction == name
    assert await chain.still_stands(name, first.chain.hash(first.chain.head))
    await chain.usable()
    assert second.asked


async def test_the_last_reason_is_told_when_none_answers() -> None:
    first, second, chain, search = pair()
    first.http, second.http = said(500), said(502)
    with pytest.raises(ChainUnavailable, match="rpc_status_502"):
        await chain.look(search, from_block=None, hints=())


async def test_one_that_failed_is_asked_last_for_a_while(autojump_clock: MockClock) -> None:
    first, second, chain, _ = pair()
    first.http = said(500)
    await chain.usable()
    asked = len(first.asked)
    await chain.usable()
    assert len(first.asked) == asked
    first.http = None
    second.http = said(500)
    await chain.usable()
    await trio.sleep(COOL_OFF_S + 1)
    second.http = None
    second.asked.clear()
    await chain.usable()
    assert second.asked == []


async def test_an_expiry_is_asked_of_every_end_point() -> None:
    first, second, chain, search = pair()
    first.chain.include(used(OURS), transfer())
    first.chain.mine_until(search.valid_before + 100)
    first.twists["eth_call"] = lambda _params, _told: "0x" + "00" * 32
    assert (await chain.look(search, from_block=None, hints=())).standing is Standing.PAID
    second.http = said(500)
    assert (await chain.look(search, from_block=None, hints=())).standing is Standing.EXPIRED


async def test_a_lost_trace_is_found_by_another_end_point() -> None:
    first, _, chain, search = pair()
    name = first.chain.include(used(OURS), transfer())
    first.twists["eth_getLogs"] = lambda _params, _told: []
    assert (await chain.look(search, from_block=None, hints=())).transaction == name


async def test_a_proved_cancellation_counts_more_than_what_another_does_not_know() -> None:
    first, second, chain, search = pair()
    first.chain.include(canceled(OURS))
    second.twists["eth_call"] = lambda _params, _told: "0x" + "00" * 32
    assert (await chain.look(search, from_block=None, hints=())).standing is Standing.CANCELLED


async def test_a_spent_state_counts_more_than_an_unspent_one() -> None:
    first, second, chain, search = pair()
    first.chain.include(used(OURS), transfer())
    first.twists["eth_getLogs"] = lambda _params, _told: []
    second.twists["eth_call"] = lambda _params, _told: "0x" + "00" * 32
    assert (await chain.look(search, from_block=None, hints=())).standing is Standing.UNTRACED


async def test_no_second_end_point_is_asked_about_an_unused_authorization() -> None:
    _, second, chain, search = pair()
    assert (await chain.look(search, from_block=None, hints=())).standing is Standing.UNUSED
    assert second.asked == []


async def test_a_chain_without_end_points_says_so() -> None:
    chain = through()
    with pytest.raises(ChainUnavailable, match="rpc_not_configured"):
        await chain.usable()
    with pytest.raises(ChainUnavailable, match="rpc_not_configured"):
        await chain.look(search_for(ToyChain()), from_block=None, hints=())
    assert chain.height is None


# -- the way back to a transaction -------------------------------------------------------------------------------------

THREE_DAYS = 3 * 24 * 3600


async def test_a_node_that_was_away_for_days_finds_the_transaction(scene: Scene) -> None:
    scene.toy.mine(30)
    name = scene.toy.include(used(OURS), transfer())
    scene.toy.mine_until(scene.toy.time() + THREE_DAYS)
    assert (await scene.look()).transaction == name
    assert scene.end_point.counts["eth_getLogs"] == 1


@pytest.mark.parametrize("limit", [10, 100, 1_000])
async def test_a_short_range_limit_hides_no_transaction(limit: int) -> None:
    scene = make(range_limit=limit)
    scene.toy.mine(280)
    name = scene.toy.include(used(OURS), transfer())
    scene.toy.mine_until(scene.toy.time() + THREE_DAYS)
    assert (await scene.look()).transaction == name


async def test_a_search_too_long_for_one_look_goes_on_in_the_next() -> None:
    scene = make(range_limit=10)
    scene.toy.mine(1700)
    name = scene.toy.include(used(OURS), transfer())
    scene.toy.mine_until(scene.toy.time() + THREE_DAYS)
    assert await scene.reason() == "rpc_search_unfinished"
    assert scene.end_point.counts["eth_getLogs"] == CALLS_A_LOOK
    assert (await scene.look()).transaction == name


async def test_a_search_goes_on_where_a_failure_stopped_it() -> None:
    scene = make(range_limit=10)
    scene.toy.mine(600)
    name = scene.toy.include(used(OURS), transfer())
    honest, searched, failed = scene.end_point, list[int](), list[bool]()

    async def call(wanted: HttpCall) -> HttpAnswer:
        asked = orjson.loads(wanted.content)
        if asked["method"] == "eth_getLogs":
            searched.append(int(asked["params"][0]["fromBlock"], 16))
            if len(searched) == 50 and not failed:
                failed.append(True)
                raise UpstreamTimeout("rpc")
        return await honest(wanted)

    scene.chain = attrs.evolve(scene.chain, call=call)
    assert await scene.reason() == "rpc_timeout"
    stopped = searched[-1]
    searched.clear()
    assert (await scene.look()).transaction == name
    assert min(searched) == stopped


async def test_a_range_that_is_always_too_long_decides_nothing() -> None:
    scene = make(range_limit=4)
    scene.toy.include(used(OURS), transfer())
    assert await scene.reason() == "rpc_error"


@pytest.mark.parametrize("minutes_before", [1, 50, 80])
@pytest.mark.parametrize("claimed_at", ["a known block", "no known block"])
async def test_what_a_third_party_settled_before_the_claim_is_found(minutes_before: int, claimed_at: str) -> None:
    scene = make()
    name = scene.toy.include(used(OURS), transfer())
    scene.toy.mine_until(scene.toy.time() + 60 * minutes_before)
    scene.search = search_for(scene.toy, valid_for_s=1200)
    from_block = scene.toy.head if claimed_at == "a known block" else None
    assert (await scene.look(from_block=from_block)).transaction == name
    scene.toy.mine_until(scene.toy.time() + THREE_DAYS)
    assert (await scene.look(from_block=from_block)).transaction == name


async def test_a_search_for_what_is_not_there_ends() -> None:
    scene = make()
    scene.toy.include(used(OURS), transfer())
    scene.end_point.twists["eth_getLogs"] = lambda _params, _told: []
    scene.toy.mine_until(scene.toy.time() + THREE_DAYS)
    assert await scene.standing() is Standing.UNTRACED
    assert scene.end_point.counts["eth_getLogs"] < 100
    assert scene.end_point.counts["eth_getBlockByNumber"] < 10


async def test_a_search_begins_anew_once_it_has_seen_all(scene: Scene) -> None:
    name = scene.toy.include(used(OURS), transfer())
    scene.end_point.twists["eth_getLogs"] = lambda _params, _told: []
    assert [await scene.standing(), await scene.standing()] == [Standing.UNTRACED] * 2
    del scene.end_point.twists["eth_getLogs"]
    assert (await scene.look()).transaction == name


async def test_a_young_chain_has_no_blocks_before_its_first() -> None:
    toy = ToyChain(head=3)
    end_point = ToyEndPoint(toy)
    search = search_for(toy)
    name = toy.include(used(OURS), transfer())
    for from_block in (None, 0, 2, 4, 10**9):
        if from_block == 10**9:
            with pytest.raises(ChainUnavailable, match="rpc_behind"):
                await through(end_point).look(search, from_block=from_block, hints=())
        else:
            assert (await through(end_point).look(search, from_block=from_block, hints=())).transaction == name
    end_point.twists["eth_getLogs"] = lambda _params, _told: []
    assert (await through(end_point).look(search, from_block=2, hints=())).standing is Standing.UNTRACED


async def test_searches_left_unfinished_are_forgotten_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.actors.settlement._chain.TRAILS_KEPT", 3)
    scene = make(range_limit=4)
    for number in range(6):
        scene.search = attrs.evolve(scene.search, nonce=nonce_of(number))
        scene.toy.include(used(nonce_of(number)), transfer())
        assert await scene.reason() == "rpc_error"
    assert len(scene.chain._memory.trails) == 3


# -- reorganisations, readiness, cost ----------------------------------------------------------------------------------


async def test_a_transaction_stands_while_its_block_does(scene: Scene) -> None:
    name = scene.toy.include(used(OURS), transfer())
    block_hash = scene.toy.hash(scene.toy.head)
    assert await scene.chain.still_stands(name, block_hash)
    assert await scene.chain.still_stands(name, block_hash.upper().replace("X", "x"))
    scene.toy.reorganise(1)
    assert not await scene.chain.still_stands(name, block_hash)
    assert await scene.standing() is Standing.UNUSED


async def test_that_a_transaction_stands_is_one_question(scene: Scene) -> None:
    name = scene.toy.include(used(OURS), transfer())
    assert await scene.chain.still_stands(name, scene.toy.hash(scene.toy.head))
    assert [method for method, _ in scene.end_point.asked] == ["eth_getTransactionReceipt"]


async def test_a_transaction_that_moved_to_another_block_does_not_stand_where_it_was(scene: Scene) -> None:
    name = scene.toy.include(used(OURS), transfer())
    block_hash = scene.toy.hash(scene.toy.head)
    moved = scene.toy.transactions[name]
    scene.toy.reorganise(1)
    scene.toy.mine()
    scene.toy.transactions[name] = attrs.evolve(moved, block=scene.toy.head)
    assert not await scene.chain.still_stands(name, block_hash)
    seen = await scene.look()
    assert (seen.transaction, seen.block_hash) == (name, scene.toy.hash(scene.toy.head))


async def test_an_end_point_that_fell_behind_shows_no_reorganisation(scene: Scene) -> None:
    name = scene.toy.include(used(OURS), transfer())
    block_hash = scene.toy.hash(scene.toy.head)
    assert await scene.standing(name) is Standing.PAID
    scene.end_point.behind = 12
    with pytest.raises(ChainUnavailable, match="rpc_behind"):
        await scene.chain.still_stands(name, block_hash)


async def test_an_end_point_is_usable_when_it_reads_blocks_by_hash(scene: Scene) -> None:
    await scene.chain.usable()
    assert scene.chain.height == scene.toy.head

    def old(_params: Any, _told: Any) -> Any:
        raise Refusal(-32602, "invalid argument 1: hex string without 0x prefix")

    scene.end_point.twists["eth_getBalance"] = old
    with pytest.raises(ChainUnavailable, match="rpc_no_reads_by_block_hash"):
        await scene.chain.usable()


async def test_no_primitive_of_another_loop_is_touched(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    def touched(*_args: object, **_named: object) -> None:
        raise AssertionError

    for name in ("sleep", "gather", "wait_for", "get_event_loop", "get_running_loop", "create_task", "ensure_future"):
        monkeypatch.setattr(asyncio, name, touched)
    for name in ("acquire", "__aenter__"):
        monkeypatch.setattr(asyncio.Lock, name, touched)
    name = scene.toy.include(used(OURS), transfer())
    assert await scene.standing() is Standing.PAID
    assert await scene.chain.still_stands(name, scene.toy.hash(scene.toy.head))


async def test_a_look_costs_little(scene: Scene) -> None:
    scene.toy.include(used(OURS), transfer())
    costs = []
    for _ in range(5):
        began = time.process_time()
        for _ in range(10):
            assert await scene.standing() is Standing.PAID
        costs.append((time.process_time() - began) / 10)
    assert min(costs) < 0.010


async def test_a_look_that_knows_the_transaction_is_one_round_trip(autojump_clock: MockClock) -> None:
    toy = ToyChain()
    end_point = SlowEndPoint(toy)
    chain, search = through(end_point), search_for(toy)
    hints = ["0x" + "77" * 32, toy.include(used(OURS), transfer())]
    began = trio.current_time()
    assert (await chain.look(search, from_block=None, hints=hints)).standing is Standing.PAID
    assert await chain.still_stands(hints[1], toy.hash(toy.head))
    assert trio.current_time() == began + 2


async def test_one_look_asks_few_questions(scene: Scene) -> None:
    name = scene.toy.include(used(OURS), transfer())
    await scene.look(name)
    assert len(scene.end_point.asked) == 3
    scene.end_point.asked.clear()
    await scene.look()
    assert len(scene.end_point.asked) == 5
    assert all(orjson.dumps(params) for _, params in scene.end_point.asked)


def test_a_search_names_its_token_and_payer(scene: Scene) -> None:
    assert scene.search.asset == ASSET
    assert scene.search.state_call[16:36].hex() == PAYER[2:].lower()


# -- balances ----------------------------------------------------------------------------------------------------------


async def test_a_balance_is_one_call(scene: Scene) -> None:
    scene.toy.minted[PAYER.lower()] = 7000
    assert await scene.chain.balance(ASSET, PAYER) == 7000
    assert scene.end_point.counts == {"eth_call": 1}


async def test_a_balance_and_the_state_of_authorizations_are_of_one_block(scene: Scene) -> None:
    scene.toy.minted[PAYER.lower()] = 20_000
    scene.toy.include(used(OURS), transfer())
    nonces = ["0x" + nonce.hex() for nonce in (OURS, OTHERS)]
    assert await scene.chain.funds(ASSET, PAYER, nonces) == Funds(14_000, frozenset(nonces[:1]))
    blocks = {str(params[1]) for method, params in scene.end_point.asked if method == "eth_call"}
    assert blocks == {str({"blockHash": scene.toy.hash(scene.toy.head), "requireCanonical": True})}
    assert scene.end_point.counts == {"eth_chainId": 1, "eth_getBlockByNumber": 1, "eth_call": 3}


async def test_the_state_of_very_many_authorizations_is_read(scene: Scene) -> None:
    nonces = ["0x" + nonce_of(number).hex() for number in range(3 * READ_TOGETHER)]
    scene.toy.minted[PAYER.lower()] = 20_000
    scene.toy.include(used(nonce_of(2 * READ_TOGETHER)), transfer())
    funds = await scene.chain.funds(ASSET, PAYER, nonces)
    assert funds.used == {"0x" + nonce_of(2 * READ_TOGETHER).hex()}


async def test_an_end_point_that_is_behind_or_old_tells_no_funds(scene: Scene) -> None:
    await scene.chain.usable()
    scene.end_point.behind = 1
    with pytest.raises(ChainUnavailable, match="rpc_behind"):
        await scene.chain.funds(ASSET, PAYER, [])
    late = through(scene.end_point, late_s=OLDEST_HEAD_S + 10)
    with pytest.raises(ChainUnavailable, match="rpc_stale"):
        await late.funds(ASSET, PAYER, [])


async def test_a_balance_is_asked_of_the_next_end_point_where_one_fails() -> None:
    toy = ToyChain(minted={PAYER.lower(): 7000})
    broken, well = ToyEndPoint(toy, http=said(500)), ToyEndPoint(toy)
    assert await through(broken, well).balance(ASSET, PAYER) == 7000
    with pytest.raises(ChainUnavailable, match="rpc_status_500"):
        await through(broken).balance(ASSET, PAYER)


async def test_what_is_no_word_is_no_balance(scene: Scene) -> None:
    scene.end_point.twists["eth_call"] = lambda _params, _result: "0x"
    with pytest.raises(ChainUnavailable, match="rpc_garbage"):
        await scene.chain.balance(ASSET, PAYER)
