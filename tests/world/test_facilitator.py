from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import orjson
import pytest
import trio

from gateway.world.chain import NETWORK, Rpc, account
from gateway.world.facilitator import decide, facilitator_of
from gateway.world.world import World

pytestmark = pytest.mark.world

Pay = Callable[..., dict[str, Any]]


async def call(client: httpx.AsyncClient, world: World, kind: str, body: Any) -> dict[str, Any]:
    answer = await client.post(f"{world.facilitator_url}/{kind}", json=body)
    assert answer.status_code == 200
    told: dict[str, Any] = answer.json()
    return told


async def test_it_supports_exact_payments_on_the_chain(world: World, client: httpx.AsyncClient) -> None:
    told = (await client.get(f"{world.facilitator_url}/supported")).json()
    assert {"x402Version": 2, "scheme": "exact", "network": NETWORK} in told["kinds"]
    assert told["signers"] == {"eip155:*": [account("facilitator").address]}


async def test_a_good_payment_verifies_and_settles_once(world: World, client: httpx.AsyncClient, pay: Pay) -> None:
    payer, seller = world.payers[0], account("a seller of its own")
    paid = pay(payer, seller.address)
    assert await call(client, world, "verify", paid) == {"isValid": True, "payer": payer.address}
    settled = await call(client, world, "settle", paid)
    assert settled["success"]
    (transfer,) = await Rpc(world.rpc_url, client).transfers(seller.address)
    assert (transfer.value, transfer.transaction) == (6000, settled["transaction"])
    assert (await call(client, world, "verify", paid))["invalidReason"] == "invalid_exact_evm_nonce_already_used"
    assert (await call(client, world, "settle", paid))["success"] is False
    assert len(await Rpc(world.rpc_url, client).transfers(seller.address)) == 1


async def test_a_payment_that_does_not_stand_is_an_answer(world: World, client: httpx.AsyncClient, pay: Pay) -> None:
    stranger = account("nobody's friend")
    told = await call(client, world, "verify", pay(stranger, world.pay_to))
    assert told["isValid"] is False
    assert told["invalidReason"] == "invalid_exact_evm_insufficient_balance"


async def test_settlements_wait_for_blocks_together(world: World, client: httpx.AsyncClient, pay: Pay) -> None:
    seller = account("a busy seller")
    settled = []

    async def settle(index: int) -> None:
        settled.append(await call(client, world, "settle", pay(world.payers[index % 16], seller.address)))

    head = int(await Rpc(world.rpc_url, client).call("eth_blockNumber"), 16)
    async with trio.open_nursery() as nursery:
        for index in range(16):
            nursery.start_soon(settle, index)
    assert all(each["success"] for each in settled)
    blocks = {transfer.block for transfer in await Rpc(world.rpc_url, client).transfers(seller.address)}
    assert max(blocks) - head < 16


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"x402Version": 2}', b'{"x402Version": 2, "paymentPayload": 1}'])
def test_what_cannot_be_read_is_refused(world: World, body: bytes) -> None:
    facilitator = facilitator_of(account("facilitator").private_key, world.rpc_url, NETWORK)
    for path in ("/verify", "/settle"):
        status, told = decide(facilitator, "POST", path, body)
        assert status == 400
        assert told["error"]


def test_another_scheme_is_refused(world: World, pay: Pay) -> None:
    facilitator = facilitator_of(account("facilitator").private_key, world.rpc_url, NETWORK)
    asked = pay(world.payers[0], world.pay_to)
    asked["paymentPayload"]["accepted"] = asked["paymentRequirements"] = asked["paymentRequirements"] | {
        "scheme": "upto"
    }
    status, told = decide(facilitator, "POST", "/verify", orjson.dumps(asked))
    assert (status, told["error"].partition(":")[0]) == (400, "unsupported_scheme")


@pytest.mark.parametrize(
    ("method", "path", "status"), [("GET", "/", 404), ("GET", "/verify", 405), ("POST", "/x", 404)]
)
def test_other_paths_and_methods_are_refused(world: World, method: str, path: str, status: int) -> None:
    facilitator = facilitator_of(account("facilitator").private_key, world.rpc_url, NETWORK)
    assert decide(facilitator, method, path, b"")[0] == status
