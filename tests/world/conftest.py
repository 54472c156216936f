from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import httpx
import pytest
from eth_account import Account as EthAccount

from gateway.world import token
from gateway.world.chain import CHAIN_ID, Account
from gateway.world.world import World, world_in_thread

AUTHORIZATION = [
    {"name": "from", "type": "address"},
    {"name": "to", "type": "address"},
    {"name": "value", "type": "uint256"},
    {"name": "validAfter", "type": "uint256"},
    {"name": "validBefore", "type": "uint256"},
    {"name": "nonce", "type": "bytes32"},
]
DOMAIN = {
    "name": token.NAME,
    "version": token.VERSION,
    "chainId": CHAIN_ID,
    "verifyingContract": token.ADDRESS,
}

Pay = Callable[..., dict[str, Any]]


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world_in_thread(tmp_path_factory.mktemp("world"), block_time=0.25) as opened:
        yield opened


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(timeout=30) as opened:
        yield opened


@pytest.fixture
async def fault(world: World, client: httpx.AsyncClient) -> AsyncIterator[Callable[..., Any]]:
    touched = []

    async def put(target: str, mode: str) -> None:
        touched.append(target)
        (await client.put(f"{world.faults_url}/{target}", json={"mode": mode})).raise_for_status()

    yield put
    for target in touched:
        (await client.put(f"{world.faults_url}/{target}", json={"mode": "ok"})).raise_for_status()


@pytest.fixture
def pay() -> Pay:
    """Return a maker of facilitator calls: a signed authorization and the terms it was signed for."""

    def make(payer: Account, pay_to: str, value: int = 6000, **changes: Any) -> dict[str, Any]:
        message: dict[str, Any] = {
            "from": payer.address,
            "to": pay_to,
            "value": value,
            "validAfter": 0,
            "validBefore": int(time.time()) + 600,
            "nonce": secrets.token_bytes(32),
        } | changes
        signed = EthAccount.from_key(payer.private_key).sign_typed_data(
            DOMAIN, {"TransferWithAuthorization": AUTHORIZATION}, message
        )
        authorization = {name: str(each) for name, each in message.items()} | {"nonce": f"0x{message['nonce'].hex()}"}
        terms = {
            "scheme": "exact",
            "network": f"eip155:{CHAIN_ID}",
            "asset": token.ADDRESS,
            "amount": str(value),
            "payTo": pay_to,
            "maxTimeoutSeconds": 60,
            "extra": {"name": token.NAME, "version": token.VERSION},
        }
        payload = {"authorization": authorization, "signature": f"0x{signed.signature.hex()}"}
        return {
            "x402Version": 2,
            "paymentPayload": {"x402Version": 2, "payload": payload, "accepted": terms},
            "paymentRequirements": terms,
        }

    return make
