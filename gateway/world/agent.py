"""The sample agent: buys with the stock x402 client and the stock MPP client, and proves what it got.

A process of its own (`python -m gateway.world.agent --help`), because both clients run on asyncio.  It prints one JSON
line a step: step, operation, protocol, status, operationId, charged (atomic units), transaction, replayed, proved, ms,
and code and detail where something is to be said.
"""

from __future__ import annotations

import argparse
import asyncio  # noqa: TID251 - the stock clients need it, and this is no part of the node
import json
import secrets
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import httpx
from eth_account import Account
from eth_account.signers.local import LocalAccount
from mpp.client.transport import PaymentTransport
from mpp.methods.evm import client as mpp_evm
from mpp.methods.evm.assets import BASE_USDC
from x402 import x402Client
from x402.http.clients.httpx import x402HttpxClient
from x402.mechanisms.evm import EthAccountSigner
from x402.mechanisms.evm.exact import register_exact_evm_client

from gateway.registry.canonical import result_hash
from gateway.registry.receipts import ReceiptInvalid, verify_receipt

TIMEOUT_S = 90.0
SPENDING_CAP = "1"
"""Dollars a call: what stock clients allow without being told."""


@attrs.frozen
class Purchase:
    """One operation to call; `protocol` is `x402`, `mpp` or `free`."""

    name: str
    operation: str
    path: str
    protocol: str
    body: Mapping[str, Any]


ROUND = (
    Purchase(
        "free search", "search.free", "/v1/search/free", "free", {"query": "who pays for the web", "synthesize": False}
    ),
    Purchase(
        "search over x402",
        "search.paid",
        "/v1/search/paid",
        "x402",
        {"query": "history of the HTTP 402 status code", "maxResults": 5, "synthesize": False},
    ),
    Purchase(
        "search over MPP",
        "search.paid",
        "/v1/search/paid",
        "mpp",
        {"query": "how do software agents pay for APIs", "maxResults": 5, "synthesize": False},
    ),
)


async def buy_all(gateway: str, account: LocalAccount, emit: Callable[[dict[str, Any]], None]) -> None:
    """Make the round: each purchase, and each paid one a second time under the same key."""
    async with httpx.AsyncClient(base_url=gateway, timeout=TIMEOUT_S) as plain:
        key_set = (await plain.get("/.well-known/jwks.json")).raise_for_status().json()
    for purchase in ROUND:
        key = f"agent-{secrets.token_hex(16)}"
        async with client_of(purchase.protocol, gateway, account) as client:
            emit(await _step(client, purchase, key, key_set, purchase.name))
            if purchase.protocol != "free":
                emit(await _step(client, purchase, key, key_set, f"{purchase.name}, again"))


def client_of(protocol: str, gateway: str, account: LocalAccount) -> httpx.AsyncClient:
    """Return an HTTP client that pays by `protocol` without being asked; `free` pays nothing."""
    match protocol:
        case "x402":
            payer = register_exact_evm_client(x402Client(), EthAccountSigner(account))
            return x402HttpxClient(payer, base_url=gateway, timeout=TIMEOUT_S)
        case "mpp":
            method = mpp_evm.charge(currency=BASE_USDC, account=account, max_amount=SPENDING_CAP)
            return httpx.AsyncClient(transport=PaymentTransport([method]), base_url=gateway, timeout=TIMEOUT_S)
        case "free":
            return httpx.AsyncClient(base_url=gateway, timeout=TIMEOUT_S)
    raise ValueError(protocol)


async def _step(
    client: httpx.AsyncClient, purchase: Purchase, key: str, key_set: Mapping[str, Any], name: str
) -> dict[str, Any]:
    told: dict[str, Any] = {
        "step": name,
        "operation": purchase.operation,
        "protocol": purchase.protocol,
        "status": None,
    }
    began = time.perf_counter()
    try:
        answer = await client.post(purchase.path, json=dict(purchase.body), headers={"Idempotency-Key": key})
        told |= {"status": answer.status_code} | outcome(answer, key_set)
    except Exception as error:  # noqa: BLE001 - any failure of a client is a line of the report
        told |= dict(UNPROVED) | {"detail": f"{type(error).__name__}: {error}"}
    return told | {"ms": round((time.perf_counter() - began) * 1000)}


UNPROVED: Mapping[str, Any] = {
    "operationId": None,
    "charged": "0",
    "transaction": None,
    "replayed": False,
    "proved": False,
}


def outcome(answer: httpx.Response, key_set: Mapping[str, Any]) -> dict[str, Any]:
    """Return what an answer says was bought and paid, `proved` if its receipt stands and speaks of this very output."""
    try:
        body = answer.json()
    except ValueError:
        return dict(UNPROVED) | {"detail": "the answer is not JSON"}
    if not isinstance(body, dict) or answer.status_code != 200:
        code = body.get("code", "") if isinstance(body, dict) else ""
        return dict(UNPROVED) | {
            "code": code,
            "detail": str(body.get("detail", body) if isinstance(body, dict) else body),
        }
    receipt = body.get("receipt") or {}
    told = {
        "operationId": body.get("operationId"),
        "charged": str((receipt.get("charge") or {}).get("amountAtomic", "0")),
        "transaction": (receipt.get("settlement") or {}).get("transaction"),
        "replayed": body.get("replayed") is True,
        "proved": False,
    }
    try:
        verify_receipt(receipt, key_set)
    except ReceiptInvalid as error:
        return told | {"detail": f"receipt: {error}"}
    bound = {
        "operationId": body.get("operationId"),
        "requestHash": body.get("requestHash"),
        "resultHash": result_hash(body.get("output") or {}),
    }
    for member, value in bound.items():
        if receipt.get(member) != value:
            return told | {"detail": f"receipt: {member} is {receipt.get(member)}, the answer's is {value}"}
    return told | {"proved": True}


def main(arguments: Sequence[str]) -> int:
    """Make one round; the lines say how it went, the exit code only that it was made."""
    parser = argparse.ArgumentParser(prog="python -m gateway.world.agent")
    parser.add_argument("--gateway", required=True, help="address of the node")
    parser.add_argument("--key-file", required=True, type=Path, help="file of the payer's private key")
    options = parser.parse_args(arguments)
    account = Account.from_key(options.key_file.read_text().strip())

    def emit(line: dict[str, Any]) -> None:
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()

    asyncio.run(buy_all(options.gateway, account, emit))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
