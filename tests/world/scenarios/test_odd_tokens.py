"""Tokens that take a fee, and payers whose account has code: what is told, and what of it would be a lie."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import httpx
import pytest
import trio

from gateway.config import load
from gateway.doctor._payment import payment
from gateway.registry.http_call import HttpAnswer, HttpCall
from gateway.world import token
from gateway.world.world import World, world_in_thread
from tests.world.scenarios.node_process import NodeProcess, running
from tests.world.scenarios.purchase import (
    Calls,
    Protocol,
    Shop,
    body,
    carries_challenge,
    fresh_key,
    mpp,
    mpp_payload,
    send_as_stranger,
    signed,
    submission,
    x402,
    x402_payload,
)

pytestmark = pytest.mark.world

MOVE = 0x863
"""Where `move(from, to, value)` begins in the token's code, and where it goes on after its first check."""
MOVED_ON = 0x8C5
DELEGATED = "0xef0100" + "11" * 20
"""The code of an account that has delegated to a contract (EIP-7702)."""


def taking_a_fee() -> str:
    """Return the token's code with one percent taken of each transfer: a jump to `value -= value / 100`, and back."""
    code = bytes.fromhex(token.token_code().runtime.removeprefix("0x"))
    assert code[MOVE : MOVE + 5].hex() == "5b60016001"
    detour = b"\x61" + len(code).to_bytes(2, "big") + b"\x56"
    fee = bytes.fromhex("5b8060649004900361") + MOVED_ON.to_bytes(2, "big") + b"\x56"
    return "0x" + (code[: MOVE + 1] + detour + code[MOVE + 5 :] + fee).hex()


@pytest.fixture(scope="module")
def odd_world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Yield a world of its own, whose token is bent."""
    with world_in_thread(tmp_path_factory.mktemp("odd"), block_time=0.25) as opened:
        yield opened


@pytest.fixture(scope="module")
def odd_node(odd_world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with running(NodeProcess.of(odd_world, tmp_path_factory.mktemp("node"))) as started:
        yield started


@pytest.fixture
async def odd(odd_world: World, odd_node: NodeProcess, customer: httpx.AsyncClient) -> AsyncIterator[Shop]:
    opened = Shop(customer, odd_node.url, odd_world)
    yield opened
    await opened.rpc.call("anvil_setCode", token.ADDRESS, token.token_code().runtime)
    await opened.heal()


async def examined(shop: Shop, node: NodeProcess) -> dict[str, str]:
    """Return how each check of the doctor's payment part stands."""

    async def call(wanted: HttpCall) -> HttpAnswer:
        answer = await shop.client.request(
            wanted.method, wanted.url, content=wanted.content, headers=dict(wanted.headers)
        )
        return HttpAnswer(answer.status_code, {}, answer.content, 1)

    configuration = await trio.to_thread.run_sync(load, node.config)
    head = await shop.rpc.call("eth_getBlockByNumber", "latest", False)
    found = await payment(configuration, call, int(head["timestamp"], 16))
    return {each.name.partition(" ")[0]: each.standing for each in found}


@pytest.mark.parametrize(("number", "protocol"), [(0, "x402"), (1, "mpp")])
async def test_a_token_that_takes_a_fee_leaves_the_payment_to_the_operator_and_never_tells_that_nothing_was_charged(
    odd: Shop, odd_world: World, number: int, protocol: Protocol
) -> None:
    payer = odd_world.payers[number]
    purchase = await odd.order(payer, protocol)
    await odd.rpc.call("anvil_setCode", token.ADDRESS, taking_a_fee())
    told = await odd.send(purchase)
    shown = await odd.ended(told.json()["operationId"])
    assert (shown["state"], shown["settlement"]["status"]) == ("NEEDS_OPERATOR", "unknown")
    assert [each.value for each in await odd.transfers(payer)] == [5940]
    for answer in (await odd.send(purchase), await odd.post(purchase.body, purchase.key)):
        assert (answer.status_code, answer.json()["code"]) == (503, "operator_needed"), answer.text
        assert "Do not sign another payment" in answer.json()["next"]
        assert not carries_challenge(answer)
        assert "output" not in answer.json()


async def test_a_fee_that_was_taken_before_the_credential_came_is_seen_before_anything_runs(
    odd: Shop, odd_world: World
) -> None:
    payer = odd_world.payers[2]
    purchase = await odd.order(payer)
    await odd.rpc.call("anvil_setCode", token.ADDRESS, taking_a_fee())
    await send_as_stranger(odd, submission(purchase.credential))
    calls = await Calls.from_now(odd)
    for _ in range(2):
        answer = await odd.send(purchase)
        assert (answer.status_code, answer.json()["code"]) == (503, "operator_needed"), answer.text
    assert await calls.of("settle", "search") == {"settle": 0, "search": 0}


async def test_the_doctor_sees_the_fee_without_paying_it(odd: Shop, odd_node: NodeProcess) -> None:
    before = await odd.transfers()
    assert set((await examined(odd, odd_node)).values()) == {"fine"}
    await odd.rpc.call("anvil_setCode", token.ADDRESS, taking_a_fee())
    found = await examined(odd, odd_node)
    assert found.pop("transfer") == "failed"
    assert set(found.values()) == {"fine"}
    assert await odd.transfers() == before


async def test_a_payer_who_has_delegated_is_told_so_and_not_to_sign_again(odd: Shop, odd_world: World) -> None:
    payer, wallet = odd_world.payers[3], odd_world.payers[4]
    sent, key = body(), fresh_key()
    challenge = await odd.challenge(sent, key)
    nonce = bytes.fromhex(mpp_payload(challenge, wallet)["payload"]["nonce"][2:])
    fields, signature = signed(wallet, challenge, nonce=nonce)
    over_mpp = mpp_payload(challenge, payer)
    over_mpp["payload"] |= fields | {"from": payer.address, "signature": "0x" + signature.hex()}
    of_the_wallet = [x402(x402_payload(challenge, wallet, authorization={"from": payer.address})), mpp(over_mpp)]
    for credential in of_the_wallet:
        assert (await odd.post(sent, key, credential)).json()["code"] == "signature_invalid"
    await odd.rpc.call("anvil_setCode", payer.address, DELEGATED)
    for credential in of_the_wallet:
        answer = await odd.post(sent, key, credential)
        assert (answer.status_code, answer.json()["code"]) == (402, "payer_has_code"), answer.text
        assert answer.json()["retryable"] is False
        assert "account without code" in answer.json()["next"]
        assert carries_challenge(answer)
    from_another_account = x402(x402_payload(challenge, odd_world.payers[5]))
    assert (await odd.post(sent, key, from_another_account)).status_code == 200


async def test_a_payer_who_has_delegated_and_whose_key_the_token_takes_is_served(odd: Shop, odd_world: World) -> None:
    payer = odd_world.payers[6]
    await odd.rpc.call("anvil_setCode", payer.address, DELEGATED)
    assert (await odd.send(await odd.order(payer))).status_code == 200
