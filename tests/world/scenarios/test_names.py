"""What a key names and for whom: bearer secrets, weak keys, equal requests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.world.chain import Account
from gateway.world.world import World
from tests.world.scenarios.node_process import NodeProcess, running
from tests.world.scenarios.purchase import (
    FREE,
    Calls,
    Purchase,
    Shop,
    body,
    fresh_key,
    mpp,
    mpp_payload,
    x402,
    x402_payload,
)

pytestmark = pytest.mark.world

HERE, ELSEWHERE = {"X-Forwarded-For": "192.0.2.1"}, {"X-Forwarded-For": "198.51.100.1"}
NEIGHBOURS = {"X-Forwarded-For": "2001:db8:1:2::1"}, {"X-Forwarded-For": "2001:db8:1:2:ffff::2"}


@pytest.fixture(scope="module")
def proxied_node(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    directory: Path = tmp_path_factory.mktemp("proxied")
    with running(NodeProcess.of(world, directory, quota={"trusted_proxies": ["127.0.0.1"]})) as started:
        yield started


@pytest.fixture
async def proxied(world: World, customer: httpx.AsyncClient, proxied_node: NodeProcess) -> Shop:
    return Shop(customer, proxied_node.url, world)


async def test_a_long_key_replays_from_anywhere(proxied: Shop) -> None:
    key = fresh_key()
    first = await proxied.post(body(), key, HERE, path=FREE)
    again = await proxied.post(body(), key, ELSEWHERE, path=FREE)
    assert (first.json()["replayed"], again.json()["replayed"]) == (False, True)


async def test_a_key_under_16_characters_names_something_in_its_own_network_only(proxied: Shop) -> None:
    key = fresh_key()[:15]
    first = await proxied.post(body(), key, HERE, path=FREE)
    stranger = await proxied.post(body(), key, ELSEWHERE, path=FREE)
    assert (first.status_code, stranger.status_code) == (200, 200)
    assert stranger.json()["replayed"] is False
    assert stranger.json()["operationId"] != first.json()["operationId"]
    shown = await proxied.client.get(
        f"{proxied.url}/v1/operations/{first.json()['operationId']}", headers={"Idempotency-Key": key} | ELSEWHERE
    )
    assert "output" not in shown.json()
    again = await proxied.post(body(), key, HERE, path=FREE)
    assert again.json()["operationId"] == first.json()["operationId"]


async def test_the_addresses_of_one_ipv6_network_are_one_caller(proxied: Shop) -> None:
    key = fresh_key()[:15]
    first, second = NEIGHBOURS
    assert (await proxied.post(body(), key, first, path=FREE)).json()["replayed"] is False
    assert (await proxied.post(body(), key, second, path=FREE)).json()["replayed"] is True


async def test_another_callers_key_under_another_body_is_as_good_as_fresh(proxied: Shop) -> None:
    key = fresh_key()
    assert (await proxied.post(body("one"), key, HERE, path=FREE)).status_code == 200
    assert (await proxied.post(body("two"), key, HERE, path=FREE)).status_code == 409
    other = await proxied.post(body("two"), key, ELSEWHERE, path=FREE)
    assert (other.status_code, other.json()["replayed"]) == (200, False)


async def test_one_key_on_two_operations_is_a_conflict(proxied: Shop) -> None:
    key = fresh_key()
    assert (await proxied.post(body(), key, HERE, path=FREE)).status_code == 200
    paid = await proxied.post(body(), key, HERE)
    assert (paid.status_code, paid.json()["code"]) == (409, "idempotency_key_reused")


@pytest.mark.parametrize(
    "same",
    [
        {"query": "same", "synthesize": False, "maxResults": 3.0},
        {"synthesize": False, "maxResults": 3, "language": "en", "region": "US", "query": "same"},
        {"query": "\u0073ame", "synthesize": False, "region": "US"},
    ],
)
async def test_equal_requests_have_one_hash_and_one_result_however_they_are_spelled(
    shop: Shop, payer: Account, same: dict[str, Any]
) -> None:
    purchase = await shop.order(payer, sent=body("same"))
    first = await shop.send(purchase)
    again = await shop.post(same, purchase.key)
    assert (again.status_code, again.json()["replayed"]) == (200, True)
    assert again.json()["requestHash"] == first.json()["requestHash"]
    assert len(await shop.transfers(payer)) == 1


async def test_one_authorization_over_both_protocols_is_one_payment(shop: Shop, payer: Account) -> None:
    sent, key = body(), fresh_key()
    challenge = await shop.challenge(sent, key)
    over_mpp = mpp_payload(challenge, payer)
    nonce = bytes.fromhex(over_mpp["payload"]["nonce"][2:])
    over_x402 = x402_payload(challenge, payer, nonce=nonce, validBefore=int(over_mpp["payload"]["validBefore"]))
    assert (await shop.post(sent, key, x402(over_x402))).status_code == 200
    answer = await shop.send(Purchase(payer, sent, fresh_key(), mpp(over_mpp)))
    assert (answer.status_code, answer.json()["code"]) == (409, "payment_already_bound")
    assert len(await shop.transfers(payer)) == 1


async def test_an_operation_shows_its_output_to_who_has_the_key_only(shop: Shop, payer: Account) -> None:
    purchase = await shop.order(payer)
    served = await shop.send(purchase)
    operation_id = served.json()["operationId"]
    for key in (None, fresh_key()):
        shown = await shop.operation(operation_id, key)
        assert shown["state"] == "RECEIPTED"
        assert not {"output", "execution"} & shown.keys()
    assert (await shop.operation(operation_id, purchase.key))["output"] == served.json()["output"]


async def test_an_impatient_buyer_is_told_to_come_back_and_the_purchase_completes(shop: Shop, payer: Account) -> None:
    purchase = await shop.order(payer)
    calls = await Calls.from_now(shop)
    answer = await shop.send(purchase, prefer="wait=0")
    assert answer.status_code in {200, 409, 503}
    await shop.until_served(purchase)
    assert await calls.of("search", "settle") == {"search": 1, "settle": 1}
    assert len(await shop.transfers(payer)) == 1


def test_the_nodes_have_logged_no_defect(node: NodeProcess, proxied_node: NodeProcess) -> None:
    assert node.defects() == []
    assert proxied_node.defects() == []
