"""The sample agent: buys with the stock x402 client and the stock MPP client, and proves what it got.

A process of its own (`python -m gateway.world.agent --help`), because both clients run on asyncio.  It prints one JSON
line a step: step, gateway, operation, protocol, status, operationId, price (what was asked for it, null for a free
one), charged (atomic units both), transaction, answeredBy, simulated, replayed, proved, ms, code and detail where
something is to be said, and joined where the same request was in flight already.  A line `{"waits": ...}` says what it
waits for.
"""

from __future__ import annotations

import argparse
import asyncio  # noqa: TID251 - the stock clients need it, and this is no part of the node
import json
import secrets
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from itertools import cycle
from pathlib import Path
from typing import Any
from urllib.parse import quote

import attrs
import httpx
from eth_account import Account
from eth_account.signers.local import LocalAccount
from mpp.client.transport import PaymentTransport
from mpp.methods.evm import client as mpp_evm
from mpp.methods.evm.assets import BASE_USDC
from x402 import x402Client
from x402.http.clients.httpx import x402HttpxClient
from x402.http.x402_http_client import x402HTTPClient
from x402.mechanisms.evm import EthAccountSigner
from x402.mechanisms.evm.exact import register_exact_evm_client

from gateway.registry.canonical import result_hash
from gateway.registry.receipts import ReceiptInvalid, verify_receipt

TIMEOUT_S = 90.0
TRIES = 240
PAUSE_S = 0.25
OPENING_TRIES = 360
"""Of `PAUSE_S` each: how long what is being started is waited for."""
SPENDING_CAP = "1"
"""Dollars a call: what stock clients allow without being told."""


@attrs.frozen
class Purchase:
    """One operation to call; `protocol` is `x402`, `mpp` or `free`.

    `model` is waited for until it can be called, and where it `starts` with the node, the operation itself.
    """

    name: str
    operation: str
    path: str
    protocol: str
    body: Mapping[str, Any]
    headers: Mapping[str, str] = attrs.field(factory=dict)
    model: str = ""
    starts: bool = False


PASSING = ("not_probed", "unproven", "proof_expired", "starting")
"""Why something is closed that will open by itself soon."""
FAST, LUNA = "gateway/fast", "openai/gpt-5.6-luna"
PRIMES = """
const primes = [];
for (let n = 2; primes.length < 10; n++) if (primes.every((p) => n % p)) primes.push(n);
require('fs').writeFileSync('/out/primes.json', JSON.stringify(primes));
console.log(primes.join(' '));
"""

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
    Purchase(
        "free chat",
        "chat.completions",
        "/v1/chat/completions",
        "free",
        {"model": FAST, "messages": [{"role": "user", "content": "Why is the sky blue?"}], "max_tokens": 48},
        model=FAST,
    ),
    Purchase(
        "AI over x402",
        "ai.execute",
        "/v1/ai/execute",
        "x402",
        {
            "model": LUNA,
            "input": {
                "kind": "chat",
                "messages": [{"role": "user", "content": "What is an HTTP status code?"}],
                "responseFormat": "text",
                "stream": False,
            },
            "maximumOutputTokens": 256,
        },
        model=LUNA,
    ),
    Purchase(
        "chat over MPP",
        "chat.completions",
        "/v1/chat/completions",
        "mpp",
        {
            "model": LUNA,
            "messages": [{"role": "user", "content": "What does a receipt prove?"}],
            "max_completion_tokens": 256,
        },
        {"x-gateway-funding": "paid"},
        LUNA,
    ),
    Purchase(
        "command over x402",
        "sandbox.execute",
        "/v1/sandbox/execute",
        "x402",
        {
            "command": ["node", "-e", PRIMES],
            "limits": {"cpuMillis": 2000, "wallTimeMs": 5000},
        },
        starts=True,
    ),
)


SURVIVOR = attrs.evolve(ROUND[1], name="taken over", body=dict(ROUND[1].body) | {"query": "what outlives a server"})
"""Bought from a node that is killed before it answers."""


async def buy_all(gateways: Sequence[str], account: LocalAccount, emit: Callable[[dict[str, Any]], None]) -> None:
    """Make the round: each purchase, and each paid one a second time under the same key; step by step, node by node."""
    key_set, turns = await _key_set(gateways[0]), cycle(gateways)
    for purchase in ROUND:
        named = {"Idempotency-Key": _new_key(), **purchase.headers}
        free, body = purchase.protocol == "free", dict(purchase.body)
        for name in (purchase.name, f"{purchase.name}, again")[: 1 if free else 2]:
            gateway = next(turns)
            if purchase.model or purchase.starts:
                await _until_open(gateway, purchase, emit)
            price = None if free else await _price(gateway, purchase)
            async with client_of(purchase.protocol, gateway, account) as client:
                asking = client.post(purchase.path, json=body, headers=named)
                emit(await _step(asking, purchase, gateway, key_set, name) | {"price": price})


async def _price(gateway: str, purchase: Purchase) -> str | None:
    """Return what is asked for a purchase, in atomic units, by looking at the price tag without buying."""
    named = {"Idempotency-Key": _new_key(), **purchase.headers}
    async with httpx.AsyncClient(base_url=gateway, timeout=TIMEOUT_S) as plain:
        with suppress(httpx.TransportError):
            return _price_tag(await plain.post(purchase.path, json=dict(purchase.body), headers=named))
    return None


def _price_tag(asked: httpx.Response) -> str | None:
    price = asked.json().get("price") if asked.status_code == 402 else None
    return str(price["amountAtomic"]) if price else None


async def _until_open(gateway: str, purchase: Purchase, emit: Callable[[dict[str, Any]], None]) -> None:
    """Wait while something is being started; returns as well when it stays closed, for the call to be told why."""
    told, what = None, purchase.model or purchase.operation
    async with httpx.AsyncClient(base_url=gateway, timeout=TIMEOUT_S) as plain:
        for _ in range(OPENING_TRIES):
            reason = await (_closed(plain, what) if purchase.model else _refused(plain, purchase))
            if reason not in PASSING:
                return
            if reason != told:
                emit({"waits": f"{what} is not open yet: {reason.replace('_', ' ')}"})
                told = reason
            await asyncio.sleep(PAUSE_S)


async def _refused(client: httpx.AsyncClient, purchase: Purchase) -> str | None:
    """Return why no price is told for a purchase, None where one is or the node does not say."""
    named = {"Idempotency-Key": _new_key(), **purchase.headers}
    with suppress(httpx.TransportError):
        answer = await client.post(purchase.path, json=dict(purchase.body), headers=named)
        reason = answer.json().get("reason") if answer.status_code == 503 else None
        return None if reason is None else str(reason)
    return None


async def _closed(client: httpx.AsyncClient, model: str) -> str | None:
    """Return why a model cannot be called now, None where it can or the node does not say."""
    with suppress(httpx.TransportError):
        answer = await client.get(f"/v1/models/{quote(model, safe='')}")
        if answer.status_code == 200:
            reason = answer.json()["gateway"]["commerce"]["reason"]
            return None if reason is None else str(reason)
    return None


async def buy_from_the_dying(
    gateways: Sequence[str], account: LocalAccount, emit: Callable[[dict[str, Any]], None]
) -> None:
    """Pay the first node, which somebody kills before it answers, and send the same request to the second.

    Once the first is back it is asked again.
    """
    first, second, *_ = gateways
    key_set, named = await _key_set(first), {"Idempotency-Key": _new_key()}
    body = dict(SURVIVOR.body)
    async with httpx.AsyncClient(timeout=TIMEOUT_S) as client:
        asked = await client.post(first + SURVIVOR.path, json=body, headers=named)
        if asked.status_code != 402:
            emit(await _step(_at_once(asked), SURVIVOR, first, key_set, SURVIVOR.name))
            return
        price = {"price": _price_tag(asked)}
        named |= await _credential(asked, account)
        with suppress(httpx.TransportError):
            early = await client.post(first + SURVIVOR.path, json=body, headers=named)
            emit(_line(SURVIVOR, first, SURVIVOR.name) | {"detail": f"answered {early.status_code}: was not killed"})
            return
        served = _until_served(client, second + SURVIVOR.path, body, named)
        emit(line := await _step(served, SURVIVOR, second, key_set, SURVIVOR.name) | price | {"joined": True})
        if line["status"] == 200:
            await _until_ready(client, first)
            asking = client.post(first + SURVIVOR.path, json=body, headers=named)
            emit(await _step(asking, SURVIVOR, first, key_set, f"{SURVIVOR.name}, again") | price)


async def _key_set(gateway: str) -> dict[str, Any]:
    async with httpx.AsyncClient(base_url=gateway, timeout=TIMEOUT_S) as plain:
        key_set: dict[str, Any] = (await plain.get("/.well-known/jwks.json")).raise_for_status().json()
        return key_set


def _new_key() -> str:
    return f"agent-{secrets.token_hex(16)}"


async def _credential(asked: httpx.Response, account: LocalAccount) -> dict[str, str]:
    """Return the header by which the stock client pays what a 402 asks for, to be sent more than once."""
    stock = x402HTTPClient(_payer(account))
    required = stock.get_payment_required_response(asked.headers.get, asked.json())
    return stock.encode_payment_signature_header(await stock.create_payment_payload(required))


async def _until_served(
    client: httpx.AsyncClient, url: str, body: Mapping[str, Any], headers: Mapping[str, str]
) -> httpx.Response:
    """Send the same request again while the answer is that it may be, and return the last one."""
    for _ in range(TRIES):
        answer = await client.post(url, json=body, headers=headers)
        if answer.status_code not in {409, 502, 503} or answer.json().get("retryable") is not True:
            return answer
        await asyncio.sleep(PAUSE_S)
    return await client.post(url, json=body, headers=headers)


async def _until_ready(client: httpx.AsyncClient, gateway: str) -> None:
    for _ in range(TRIES):
        with suppress(httpx.TransportError):
            if (await client.get(f"{gateway}/readyz")).status_code == 200:
                return
        await asyncio.sleep(PAUSE_S)


async def _at_once(answer: httpx.Response) -> httpx.Response:
    return answer


def client_of(protocol: str, gateway: str, account: LocalAccount) -> httpx.AsyncClient:
    """Return an HTTP client that pays by `protocol` without being asked; `free` pays nothing."""
    match protocol:
        case "x402":
            return x402HttpxClient(_payer(account), base_url=gateway, timeout=TIMEOUT_S)
        case "mpp":
            method = mpp_evm.charge(currency=BASE_USDC, account=account, max_amount=SPENDING_CAP)
            return httpx.AsyncClient(transport=PaymentTransport([method]), base_url=gateway, timeout=TIMEOUT_S)
        case "free":
            return httpx.AsyncClient(base_url=gateway, timeout=TIMEOUT_S)
    raise ValueError(protocol)


def _payer(account: LocalAccount) -> x402Client:
    return register_exact_evm_client(x402Client(), EthAccountSigner(account))


async def _step(
    asking: Awaitable[httpx.Response], purchase: Purchase, gateway: str, key_set: Mapping[str, Any], name: str
) -> dict[str, Any]:
    told = _line(purchase, gateway, name)
    began = time.perf_counter()
    try:
        answer = await asking
        told |= {"status": answer.status_code} | outcome(answer, key_set)
    except Exception as error:  # noqa: BLE001 - any failure of a client is a line of the report
        told |= {"detail": f"{type(error).__name__}: {error}"}
    return told | {"ms": round((time.perf_counter() - began) * 1000)}


def _line(purchase: Purchase, gateway: str, name: str) -> dict[str, Any]:
    """Return the line of a step that has come to nothing so far."""
    about = {"operation": purchase.operation, "protocol": purchase.protocol}
    return {"step": name, "gateway": gateway, **about, "status": None, **UNPROVED, "ms": 0}


UNPROVED: Mapping[str, Any] = {
    "operationId": None,
    "price": None,
    "charged": "0",
    "transaction": None,
    "answeredBy": None,
    "simulated": False,
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
        problem = body if isinstance(body, dict) else {"detail": body}
        reason = f" ({problem['reason']})" if "reason" in problem else ""
        detail = f"{problem.get('detail', body)}{reason}"
        return dict(UNPROVED) | {"code": problem.get("code", ""), "detail": detail}
    about, output = _opened(body)
    receipt, route = about.get("receipt") or {}, output.get("route") or {}
    told = {
        "operationId": about.get("operationId"),
        "charged": str((receipt.get("charge") or {}).get("amountAtomic", "0")),
        "transaction": (receipt.get("settlement") or {}).get("transaction"),
        "answeredBy": route.get("model") or output.get("model") or next(iter(route.get("servingAdapters") or ()), None),
        "simulated": route.get("simulated") is True,
        "replayed": about.get("replayed") is True,
        "proved": False,
    }
    try:
        verify_receipt(receipt, key_set)
    except ReceiptInvalid as error:
        return told | {"detail": f"receipt: {error}"}
    bound = {
        "operationId": about.get("operationId"),
        "requestHash": about.get("requestHash"),
        "resultHash": result_hash(output),
    }
    for member, value in bound.items():
        if receipt.get(member) != value:
            return told | {"detail": f"receipt: {member} is {receipt.get(member)}, the answer's is {value}"}
    return told | {"proved": True}


def _opened(body: Mapping[str, Any]) -> tuple[Mapping[str, Any], dict[str, Any]]:
    """Return what an answer says of its operation, and the output that its receipt speaks of."""
    about = body.get("gateway")
    if body.get("object") == "chat.completion" and isinstance(about, dict):
        output = {name: value for name, value in body.items() if name != "gateway"}
        return about, output | {"route": about.get("route")}
    return body, body.get("output") or {}


def main(arguments: Sequence[str]) -> int:
    """Make one round; the lines say how it went, the exit code only that it was made."""
    parser = argparse.ArgumentParser(prog="python -m gateway.world.agent")
    parser.add_argument("--gateway", required=True, action="append", help="address of a node, once or more")
    parser.add_argument("--key-file", required=True, type=Path, help="file of the payer's private key")
    parser.add_argument("--take-over", action="store_true", help="buy from the first node while somebody kills it")
    options = parser.parse_args(arguments)
    account = Account.from_key(options.key_file.read_text().strip())

    def emit(line: dict[str, Any]) -> None:
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()

    asyncio.run((buy_from_the_dying if options.take_over else buy_all)(options.gateway, account, emit))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
