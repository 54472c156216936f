"""What a quote promises, and when none is made (reference: attack cases 32, 33, 37)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio

from gateway.keys import rotate
from gateway.world import token
from gateway.world.chain import NETWORK, Account
from tests.world.scenarios.node_process import NodeProcess
from tests.world.scenarios.old_quotes import repriced, sealed_by_the_node
from tests.world.scenarios.purchase import (
    Calls,
    Challenge,
    Protocol,
    Purchase,
    Shop,
    body,
    carries_challenge,
    fresh_key,
    x402,
    x402_payload,
)

pytestmark = pytest.mark.world

Maker = Callable[..., NodeProcess]
RPC = f"rpc/{NETWORK}"


def moved(shop: Shop, node: NodeProcess) -> Shop:
    """Return the shop of another node in the same world."""
    return Shop(shop.client, node.url, shop.world)


async def in_thread(call: Callable[[], None]) -> None:
    await trio.to_thread.run_sync(call)


async def test_32_a_live_quote_of_an_older_price_list_is_honoured_at_its_price(
    shop: Shop, payer: Account, node: NodeProcess
) -> None:
    sent, key = body(), fresh_key()
    challenge = await shop.challenge(sent, key)
    old = repriced(challenge, sealed_by_the_node(node, shop, challenge, 5000, 60, 120), 5000)
    served = await shop.post(sent, key, x402(x402_payload(old, payer)))
    assert served.status_code == 200, served.text
    assert served.json()["receipt"]["charge"]["amountAtomic"] == "5000"
    assert [each.value for each in await shop.transfers(payer)] == [5000]


async def test_32_an_expired_quote_is_refused_with_a_fresh_one_and_nothing_is_claimed(
    shop: Shop, payer: Account, node: NodeProcess
) -> None:
    sent, key = body(), fresh_key()
    challenge = await shop.challenge(sent, key)
    old = repriced(challenge, sealed_by_the_node(node, shop, challenge, 6000, 121, 120), 6000)
    before, calls = node.rows(), await Calls.from_now(shop)
    answer = await shop.post(sent, key, x402(x402_payload(old, payer)))
    assert (answer.status_code, answer.json()["code"]) == (402, "quote_expired")
    assert node.rows() == before
    assert await calls.of("verify", "settle", "search") == {"verify": 0, "settle": 0, "search": 0}
    assert (await shop.post(sent, key, x402(x402_payload(Challenge.of(answer), payer)))).status_code == 200


async def test_32_the_price_in_the_challenge_is_the_price_charged(shop: Shop, payer: Account) -> None:
    purchase = await shop.order(payer)
    served = await shop.send(purchase)
    quoted = (await shop.post(body(), fresh_key())).json()["price"]
    charge = served.json()["receipt"]["charge"]
    assert (charge["amountAtomic"], charge["usd"]) == (quoted["amountAtomic"], quoted["usd"])
    assert [str(each.value) for each in await shop.transfers(payer)] == [quoted["amountAtomic"]]


@pytest.mark.parametrize("protocol", ["x402", "mpp"])
async def test_33_quotes_and_keys_outlive_the_rotation_of_every_secret(
    shop: Shop, payer: Account, own_node: Maker, protocol: Protocol
) -> None:
    node = own_node()
    await in_thread(node.start)
    mine = moved(shop, node)
    served = await mine.order(payer, protocol)
    first = await mine.send(served)
    assert first.status_code == 200
    quoted = await mine.order(payer, protocol)
    for kind in ("quote", "pepper", "node", "receipt"):
        assert rotate(node.data_dir / "keys", kind) == 2
    await in_thread(node.restart)
    assert (await mine.send(quoted)).status_code == 200
    again = await mine.send(Purchase(None, served.body, served.key))
    assert (again.status_code, again.json()["replayed"]) == (200, True)
    assert again.json()["receipt"] == first.json()["receipt"]
    conflict = await mine.post(body("another body"), served.key)
    assert (conflict.status_code, conflict.json()["code"]) == (409, "idempotency_key_reused")
    keys = (await mine.client.get(f"{mine.url}/.well-known/jwks.json")).json()["keys"]
    assert len(keys) == 2
    assert len(await mine.transfers(payer)) == 2
    assert node.defects() == []


async def test_33_a_node_without_its_pepper_refuses_to_start(shop: Shop, payer: Account, own_node: Maker) -> None:
    node = own_node()
    await in_thread(node.start)
    mine = moved(shop, node)
    assert (await mine.send(await mine.order(payer))).status_code == 200
    node.terminate()
    assert await trio.to_thread.run_sync(node.wait) == 0
    pepper = node.data_dir / "keys" / "pepper-1.key"
    kept = pepper.read_bytes()
    for content in (None, bytes(32)):
        pepper.unlink(missing_ok=True)
        if content is not None:
            pepper.touch(mode=0o600)
            pepper.write_bytes(content)
        node.spawn()
        assert await trio.to_thread.run_sync(node.wait) == 3
        assert "pepper" in node.log.splitlines()[-1]
    pepper.write_bytes(kept)
    await in_thread(node.start)


async def test_37_nothing_is_quoted_or_claimed_without_a_proven_engine(
    shop: Shop, payer: Account, own_node: Maker
) -> None:
    node = own_node()
    await shop.fault("search", "hang")
    await in_thread(node.start)
    mine = moved(shop, node)
    before = node.rows()
    for credential in ({}, not_asked_for(payer)):
        answer = await mine.post(body(), fresh_key(), credential)
        assert (answer.status_code, answer.json()["code"]) == (503, "operation_unavailable")
        assert not carries_challenge(answer)
    free = await mine.post(body(), fresh_key(), path="/v1/search/free")
    assert (free.status_code, free.json()["code"]) == (503, "operation_unavailable")
    assert node.rows() == before
    await mine.fault("search", "ok")
    assert (await mine.challenge()).terms["amount"] == "6000"


def not_asked_for(payer: Account) -> dict[str, str]:
    """Return a well-formed credential for terms that this node never offered."""
    extra = {"name": token.NAME, "version": token.VERSION, "quote": "none"}
    terms: dict[str, Any] = {
        "scheme": "exact",
        "network": NETWORK,
        "asset": token.ADDRESS,
        "amount": "6000",
        "extra": extra,
    }
    terms |= {"payTo": payer.address, "maxTimeoutSeconds": 162}
    return x402(x402_payload(Challenge({"accepts": [terms], "resource": {}, "extensions": {}}, {}), payer))


@pytest.mark.parametrize(
    ("target", "mode", "reason"),
    [
        ("facilitator", "refuse", "facilitator_"),
        ("facilitator", "garbage", "facilitator_"),
        (RPC, "wrong_chain", "rpc_wrong_chain"),
        (RPC, "html", "rpc_"),
    ],
)
async def test_37_nothing_paid_is_quoted_without_a_proven_settlement_path(
    shop: Shop, payer: Account, own_node: Maker, target: str, mode: str, reason: str
) -> None:
    node = own_node()
    await shop.fault(target, mode)
    await in_thread(node.start)
    mine = moved(shop, node)
    answer = await mine.post(body(), fresh_key())
    assert (answer.status_code, answer.json()["code"]) == (503, "settlement_unavailable")
    assert answer.json()["reason"].startswith(reason)
    assert not carries_challenge(answer)
    assert (await mine.post(body(), fresh_key(), path="/v1/search/free")).status_code == 200
    await mine.heal()
    purchase = await mine.order(payer)
    assert (await mine.send(purchase)).status_code == 200


async def test_37_too_much_unsettled_of_one_payer_is_refused_without_a_claim(
    shop: Shop, payer: Account, own_node: Maker
) -> None:
    node = own_node(payment={"max_unsettled_per_payer": 12_000})
    await in_thread(node.start)
    mine = moved(shop, node)
    orders = [await mine.order(payer) for _ in range(3)]
    await mine.fault("facilitator", "settle_500_before")
    codes = [(await mine.send(order)).json()["code"] for order in orders]
    assert codes == ["settlement_pending", "settlement_pending", "exposure_limit"]
    refused = await mine.send(orders[2])
    assert (refused.status_code, refused.json()["code"]) == (503, "exposure_limit")
    assert not carries_challenge(refused)
    await mine.heal()
    for order in orders:
        await mine.until_served(order)
    assert len(await mine.transfers(payer)) == 3
