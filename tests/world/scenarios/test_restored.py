"""A store that is restored from a backup: what was bought since is on the chain, and nobody sells or buys it twice.

The drill of the README: the node is stopped, its data directory copied, the node goes on selling, and the copy is put
back.  Attack: whoever reads the chain has every authorization that has settled since, signature included.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from typing import Any

import pytest
import trio

from gateway.world.chain import Account
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
    decoded,
    fresh_key,
    send_as_stranger,
    submission,
    x402,
    x402_payload,
)

pytestmark = pytest.mark.world

Maker = Callable[..., NodeProcess]


async def in_thread(call: Callable[[], Any]) -> None:
    await trio.to_thread.run_sync(call)


def stop(node: NodeProcess) -> None:
    node.terminate()
    assert node.wait() == 0


async def back_up(node: NodeProcess) -> None:
    await in_thread(lambda: stop(node))
    shutil.copytree(node.data_dir, node.directory / "backup")
    await in_thread(node.start)


async def restore(node: NodeProcess) -> None:
    await in_thread(lambda: stop(node))
    shutil.rmtree(node.data_dir)
    shutil.copytree(node.directory / "backup", node.data_dir)
    await in_thread(node.start)


def stolen(spent: dict[str, str], challenge: Challenge) -> dict[str, str]:
    """Return an authorization that was copied from the chain under a fresh quote."""
    payload = decoded(spent["PAYMENT-SIGNATURE"])
    payload |= {name: challenge.required[name] for name in ("resource", "extensions")}
    return x402(payload | {"accepted": challenge.terms})


@pytest.fixture
async def drilled(shop: Shop, payer: Account, own_node: Maker) -> tuple[NodeProcess, Shop, Purchase]:
    """Return a node whose store knows nothing of a purchase that its chain shows paid."""
    node = own_node()
    await in_thread(node.start)
    mine = Shop(shop.client, node.url, shop.world)
    await back_up(node)
    purchase = await mine.order(payer)
    assert (await mine.send(purchase)).status_code == 200
    await restore(node)
    assert node.rows()["operations"] == 0
    return node, mine, purchase


async def test_a_payment_that_settled_since_the_backup_buys_nothing_for_a_thief_and_is_delivered_to_its_owner(
    drilled: tuple[NodeProcess, Shop, Purchase], payer: Account
) -> None:
    node, mine, purchase = drilled
    calls = await Calls.from_now(mine)
    for sent, key in [(body("another request"), fresh_key())] * 2 + [(body("a third"), fresh_key())]:
        answer = await mine.post(sent, key, stolen(purchase.credential, await mine.challenge(sent, key)))
        assert (answer.status_code, answer.json()["code"]) == (409, "payment_already_bound"), answer.text
        assert not carries_challenge(answer)
    assert await calls.of("settle", "search") == {"settle": 0, "search": 0}
    served = await mine.send(purchase)
    assert served.status_code == 200, served.text
    assert (await mine.send(purchase)).json()["replayed"] is True
    assert await calls.of("settle", "search") == {"settle": 0, "search": 1}
    (transfer,) = await mine.transfers(payer)
    assert served.json()["receipt"]["settlement"]["transaction"] == transfer.transaction
    assert node.balances()["revenue"] == transfer.value
    assert node.defects() == []


@pytest.mark.parametrize("protocol", ["x402", "mpp"])
async def test_an_owner_who_comes_back_after_the_quote_is_never_asked_to_sign_again(
    shop: Shop, payer: Account, own_node: Maker, protocol: Protocol
) -> None:
    node = own_node(payment={"quote_ttl_s": 5})
    await in_thread(node.start)
    mine = Shop(shop.client, node.url, shop.world)
    await back_up(node)
    purchase = await mine.order(payer, protocol)
    assert (await mine.send(purchase)).status_code == 200
    await restore(node)
    calls = await Calls.from_now(mine)
    ends_at = time.monotonic() + 6
    await trio.sleep(max(0.0, ends_at - time.monotonic()))  # the quote's own life, by the clock
    (transfer,) = await mine.transfers(payer)
    for _ in range(2):
        answer = await mine.send(purchase)
        assert (answer.status_code, answer.json()["code"]) == (503, "settlement_pending"), answer.text
        assert not carries_challenge(answer)
        assert transfer.transaction in answer.json()["detail"]
        assert int(answer.headers["retry-after"]) > 0
    assert await calls.of("verify", "settle", "search") == {"verify": 0, "settle": 0, "search": 0}
    assert node.rows()["operations"] == 0
    assert len(await mine.transfers(payer)) == 1


async def test_a_quote_of_an_older_release_is_held_against_the_time_of_the_payment(
    drilled: tuple[NodeProcess, Shop, Purchase], payer: Account
) -> None:
    node, mine, purchase = drilled
    sent, key = body("with an old quote"), fresh_key()
    challenge = await mine.challenge(sent, key)
    old = repriced(challenge, sealed_by_the_node(node, mine, challenge, 6000, 0, 120), 6000)
    answer = await mine.post(sent, key, stolen(purchase.credential, old))
    assert (answer.status_code, answer.json()["code"]) == (409, "payment_already_bound"), answer.text
    fresh = x402(x402_payload(old, payer))
    assert (await mine.post(sent, key, fresh)).status_code == 200


async def test_26_what_a_third_party_submits_after_the_quote_is_delivered_once(
    drilled: tuple[NodeProcess, Shop, Purchase], payer: Account
) -> None:
    _, mine, _ = drilled
    purchase = await mine.order(payer)
    await send_as_stranger(mine, submission(purchase.credential))
    calls = await Calls.from_now(mine)
    assert (await mine.send(purchase)).status_code == 200
    assert await calls.of("settle", "search") == {"settle": 0, "search": 1}
    assert len(await mine.transfers(payer)) == 2
