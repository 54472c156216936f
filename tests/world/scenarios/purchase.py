"""A payer by hand: challenges read, credentials built with every knob, purchases sent until they are served."""

from __future__ import annotations

import base64
import json
import re
import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import attrs
import httpx
import trio
from eth_account import Account as EthAccount
from eth_utils.crypto import keccak

from gateway.world import token
from gateway.world.chain import CHAIN_ID, NETWORK, Account, Rpc, Transfer, account
from gateway.world.world import World

FREE, PAID = "/v1/search/free", "/v1/search/paid"
CHAT, EXECUTE = "/v1/chat/completions", "/v1/ai/execute"
PRICE = 6000
TYPES = {
    "TransferWithAuthorization": [
        {"name": "from", "type": "address"},
        {"name": "to", "type": "address"},
        {"name": "value", "type": "uint256"},
        {"name": "validAfter", "type": "uint256"},
        {"name": "validBefore", "type": "uint256"},
        {"name": "nonce", "type": "bytes32"},
    ],
    "CancelAuthorization": [{"name": "authorizer", "type": "address"}, {"name": "nonce", "type": "bytes32"}],
}
DOMAIN = {"name": token.NAME, "version": token.VERSION, "chainId": CHAIN_ID, "verifyingContract": token.ADDRESS}
PARAMETER = re.compile(r'([a-z]+)="([^"]*)"')
CURVE_ORDER = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141

Protocol = Literal["x402", "mpp"]


def body(query: str = "what is a tide", **members: Any) -> dict[str, Any]:
    return {"query": query, "synthesize": False, **members}


def fresh_key() -> str:
    return secrets.token_hex(16)


def encoded(value: object) -> str:
    return base64.b64encode(json.dumps(value).encode()).decode()


def decoded(value: str) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(base64.urlsafe_b64decode(value.replace("+", "-").replace("/", "_") + "=="))
    return told


def unpadded(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


# -- reading a 402 -----------------------------------------------------------------------------------------------------


@attrs.frozen
class Challenge:
    """What a 402 asks for: the decoded PAYMENT-REQUIRED, and the parameters of the WWW-Authenticate challenge."""

    required: dict[str, Any]
    payment: dict[str, str]

    @classmethod
    def of(cls, answer: httpx.Response) -> Challenge:
        assert answer.status_code == 402, answer.text
        scheme, _, parameters = answer.headers["www-authenticate"].partition(" ")
        assert scheme == "Payment"
        return cls(decoded(answer.headers["payment-required"]), dict(PARAMETER.findall(parameters)))

    @property
    def terms(self) -> dict[str, Any]:
        """The one entry of `accepts`."""
        (terms,) = self.required["accepts"]
        assert isinstance(terms, dict)
        return terms


def carries_challenge(answer: httpx.Response) -> bool:
    return "payment-required" in answer.headers or "www-authenticate" in answer.headers


# -- credentials -------------------------------------------------------------------------------------------------------


def signed(
    payer: Account, challenge: Challenge, *, domain: Mapping[str, Any] | None = None, **changes: Any
) -> tuple[dict[str, str], bytes]:
    """Sign an authorization as the challenge asks, some members changed: its wire form and 65 bytes."""
    terms = challenge.terms
    now = int(time.time())
    message: dict[str, Any] = {
        "from": payer.address,
        "to": terms["payTo"],
        "value": int(terms["amount"]),
        "validAfter": 0,
        "validBefore": now + terms["maxTimeoutSeconds"],
        "nonce": secrets.token_bytes(32),
    } | changes
    signature = EthAccount.from_key(payer.private_key).sign_typed_data(
        {**DOMAIN, **(domain or {})}, {"TransferWithAuthorization": TYPES["TransferWithAuthorization"]}, message
    )
    return {name: str(each) for name, each in message.items()} | {
        "nonce": "0x" + message["nonce"].hex()
    }, signature.signature


def x402_payload(
    challenge: Challenge,
    payer: Account,
    *,
    accepted: Mapping[str, Any] | None = None,
    authorization: Mapping[str, str] | None = None,
    signature: bytes | None = None,
    payment_id: str | None = None,
    domain: Mapping[str, Any] | None = None,
    **changes: Any,
) -> dict[str, Any]:
    """Return an x402 payload; `changes` are signed, `accepted`, `authorization` and `signature` replaced unsigned."""
    fields, made = signed(payer, challenge, domain=domain, **changes)
    extensions = json.loads(json.dumps(challenge.required["extensions"]))
    if payment_id is not None:
        extensions["payment-identifier"]["info"]["id"] = payment_id
    return {
        "x402Version": 2,
        "payload": {
            "authorization": fields | dict(authorization or {}),
            "signature": "0x" + (made if signature is None else signature).hex(),
        },
        "accepted": challenge.terms | dict(accepted or {}),
        "resource": challenge.required["resource"],
        "extensions": extensions,
    }


def x402(payload: Mapping[str, Any]) -> dict[str, str]:
    """Return the header of an x402 payload."""
    return {"PAYMENT-SIGNATURE": encoded(payload)}


def mpp_payload(
    challenge: Challenge,
    payer: Account,
    *,
    rule: Literal["draft", "pympp", "random"] = "draft",
    echo: Mapping[str, str] | None = None,
    domain: Mapping[str, Any] | None = None,
    **changes: Any,
) -> dict[str, Any]:
    """Return an MPP credential whose nonce follows one of the two rules, or none; `echo` alters the challenge."""
    asked = challenge.payment
    nonces = {
        "draft": keccak(f"{asked['id']}{asked['realm']}".encode()),
        "pympp": keccak(json.dumps([asked["id"], asked["realm"]], separators=(",", ":")).encode()),
        "random": secrets.token_bytes(32),
    }
    members: dict[str, Any] = {"nonce": nonces[rule]} | changes
    fields, signature = signed(payer, challenge, domain=domain, **members)
    return {
        "challenge": {name: value for name, value in asked.items() if name != "description"} | dict(echo or {}),
        "payload": {"type": "authorization", **fields, "signature": "0x" + signature.hex()},
        "source": f"did:pkh:{NETWORK}:{payer.address}",
    }


def mpp(payload: Mapping[str, Any]) -> dict[str, str]:
    """Return the header of an MPP credential."""
    return {"Authorization": f"Payment {unpadded(payload)}"}


def nonce_of(headers: Mapping[str, str]) -> str:
    """Return the nonce of the authorization in a credential's header."""
    ((name, value),) = headers.items()
    if name == "PAYMENT-SIGNATURE":
        return str(decoded(value)["payload"]["authorization"]["nonce"])
    return str(decoded(value.removeprefix("Payment "))["payload"]["nonce"])


def high_s(signature: bytes) -> bytes:
    """Return the other signature of the same key over the same message, which EIP-2 bans."""
    s = CURVE_ORDER - int.from_bytes(signature[32:64], "big")
    return signature[:32] + s.to_bytes(32, "big") + bytes((55 - signature[64],))


# -- buying ------------------------------------------------------------------------------------------------------------


@attrs.frozen
class Purchase:
    """A request with its key and the credential that pays for it; a free one has none."""

    payer: Account | None
    body: dict[str, Any]
    key: str
    credential: dict[str, str] = attrs.field(factory=dict, repr=False)
    path: str = PAID


@attrs.frozen
class Shop:
    """One node as its customers meet it, with the world's controls and the chain beside it."""

    client: httpx.AsyncClient
    url: str
    world: World

    async def post(
        self, sent: object, key: str | None = None, headers: Mapping[str, str] | None = None, *, path: str = PAID
    ) -> httpx.Response:
        named = {} if key is None else {"Idempotency-Key": key}
        return await self.client.post(self.url + path, json=sent, headers=named | dict(headers or {}))

    async def challenge(
        self, sent: Mapping[str, Any] | None = None, key: str | None = None, *, path: str = PAID
    ) -> Challenge:
        """Ask for the price; a node whose settlement path is closed for now is asked again for half a minute."""
        answer = await self.post(sent or body(), key or fresh_key(), path=path)
        for _ in range(60):
            if answer.status_code != 503:
                break
            await trio.sleep(0.5)
            answer = await self.post(sent or body(), key or fresh_key(), path=path)
        return Challenge.of(answer)

    async def order(
        self,
        payer: Account,
        protocol: Protocol = "x402",
        *,
        sent: dict[str, Any] | None = None,
        key: str | None = None,
        path: str = PAID,
    ) -> Purchase:
        """Get a challenge and sign it; nothing is sent yet."""
        sent, key = sent or body(secrets.token_hex(8)), key or fresh_key()
        challenge = await self.challenge(sent, key, path=path)
        if protocol == "x402":
            return Purchase(payer, sent, key, x402(x402_payload(challenge, payer)), path)
        return Purchase(payer, sent, key, mpp(mpp_payload(challenge, payer)), path)

    async def send(self, purchase: Purchase, *, prefer: str | None = None) -> httpx.Response:
        wish = {} if prefer is None else {"Prefer": prefer}
        return await self.post(purchase.body, purchase.key, purchase.credential | wish, path=purchase.path)

    async def until_served(self, purchase: Purchase, *, tries: int = 120) -> httpx.Response:
        """Send the same request again, as a patient client does, until it is served.

        No answer on the way may carry a challenge, and none may be anything but "later".
        """
        last = "never answered"
        for _ in range(tries):
            try:
                answer = await self.send(purchase)
            except httpx.TransportError:
                await trio.sleep(0.25)
                continue
            last = f"{answer.status_code} {answer.text}"
            if answer.status_code == 200:
                return answer
            assert answer.status_code in {409, 502, 503}, answer.text
            assert answer.json()["retryable"] is True, answer.text
            assert not carries_challenge(answer)
            await trio.sleep(0.25)
        raise AssertionError(f"not served after {tries} tries: {last}")

    # -- what can be seen from beside the node -------------------------------------------------------------------------

    @property
    def rpc(self) -> Rpc:
        return Rpc(self.world.rpc_url, self.client)

    async def transfers(self, payer: Account | None = None) -> list[Transfer]:
        """Return the transfers to the payee, of one payer or of all."""
        found = await self.rpc.transfers(self.world.pay_to)
        return [each for each in found if payer is None or each.sender == payer.address.lower()]

    async def counts(self) -> Counter[str]:
        """Return the calls of every upstream so far: `verify`, `settle`, `search`, `completions`, ..."""
        told = (await self.client.get(self.world.faults_url)).raise_for_status().json()
        return Counter(told["facilitator"] | told["search"] | told["ai"])

    async def fault(self, target: str, mode: str, **members: Any) -> None:
        answer = await self.client.put(f"{self.world.faults_url}/{target}", json={"mode": mode, **members})
        assert answer.status_code == 200, answer.text

    async def heal(self) -> None:
        for target in ("facilitator", f"rpc/{NETWORK}", "search", "ai"):
            await self.fault(target, "ok")

    async def ended(self, operation_id: str, key: str | None = None) -> dict[str, Any]:
        """Return an operation once it has ended."""
        for _ in range(300):
            shown = await self.operation(operation_id, key)
            if shown["state"] in {"RECEIPTED", "FAILED", "EXPIRED", "NEEDS_OPERATOR"}:
                return shown
            await trio.sleep(0.1)
        raise AssertionError(f"{operation_id} has not ended")

    async def operation(self, operation_id: str, key: str | None = None) -> dict[str, Any]:
        named = {} if key is None else {"Idempotency-Key": key}
        answer = await self.client.get(f"{self.url}/v1/operations/{operation_id}", headers=named)
        assert answer.status_code == 200, answer.text
        told: dict[str, Any] = answer.json()
        return told

    async def model(self, model_id: str) -> dict[str, Any]:
        """Return what the node says of a model: the `gateway` object of its listing."""
        answer = await self.client.get(f"{self.url}/v1/models/{model_id}")
        assert answer.status_code == 200, answer.text
        told: dict[str, Any] = answer.json()["gateway"]
        return told


@attrs.frozen
class Calls:
    """How often the upstreams are called from here on."""

    shop: Shop
    before: Counter[str]

    @classmethod
    async def from_now(cls, shop: Shop) -> Calls:
        return cls(shop, await shop.counts())

    async def of(self, *kinds: str) -> dict[str, int]:
        now = await self.shop.counts()
        return {kind: now[kind] - self.before[kind] for kind in kinds}


async def hang_up(shop: Shop, purchase: Purchase, *, after: str | None) -> None:
    """Send a purchase over a bare socket and close it: at once, or once the upstream call named `after` was made."""
    calls = await Calls.from_now(shop)
    content = json.dumps(purchase.body).encode()
    host, port = shop.url.removeprefix("http://").split(":")
    lines = [f"POST {purchase.path} HTTP/1.1", f"Host: {host}:{port}", f"Idempotency-Key: {purchase.key}"]
    lines += ["Content-Type: application/json", f"Content-Length: {len(content)}"]
    lines += [f"{name}: {value}" for name, value in purchase.credential.items()]
    async with await trio.open_tcp_stream(host, int(port)) as stream:
        await stream.send_all("\r\n".join([*lines, "", ""]).encode() + content)
        for _ in range(500):
            if after is None or (await calls.of(after))[after]:
                return
            await trio.sleep(0.01)
        raise AssertionError(f"{after} was never called")


async def together(calls: Sequence[Callable[[], Awaitable[httpx.Response]]]) -> list[httpx.Response]:
    """Start all calls in one moment and return their answers."""
    answers: list[httpx.Response] = []

    async def one(call: Callable[[], Awaitable[httpx.Response]]) -> None:
        answers.append(await call())

    async with trio.open_nursery() as nursery:
        for call in calls:
            nursery.start_soon(one, call)
    return answers


async def funded(
    world: World, client: httpx.AsyncClient, names: Iterable[str], amount: int = 10**9
) -> Sequence[Account]:
    """Mint for fresh accounts, derived from their names."""
    accounts = [account(name) for name in names]
    owner = account("mint").address
    rpc = Rpc(world.rpc_url, client)
    await rpc.call("anvil_impersonateAccount", owner)
    try:
        first = int(await rpc.call("eth_getTransactionCount", owner, "pending"), 16)
        sent = await rpc.batch(
            [("eth_sendTransaction", [_mint(owner, each, nonce, amount)]) for nonce, each in enumerate(accounts, first)]
        )
    finally:
        await rpc.call("anvil_stopImpersonatingAccount", owner)
    await mined(rpc, sent[-1])
    return accounts


def _mint(owner: str, to: Account, nonce: int, amount: int) -> dict[str, str]:
    data = f"0x40c10f19{to.address[2:].lower():0>64}{amount:064x}"
    return {"from": owner, "to": token.ADDRESS, "nonce": hex(nonce), "gas": hex(100_000), "data": data}


async def mined(rpc: Rpc, transaction: str) -> dict[str, Any]:
    """Return the receipt of a transaction once it has one."""
    for _ in range(200):
        receipt: dict[str, Any] | None = await rpc.call("eth_getTransactionReceipt", transaction)
        if receipt is not None:
            return receipt
        await trio.sleep(0.05)
    raise AssertionError(f"{transaction} was not mined")


async def send_as_stranger(shop: Shop, data: str) -> dict[str, Any]:
    """Send a call of the token from an account that is no party to any purchase; returns its receipt."""
    stranger = account("mint").address
    rpc = shop.rpc
    await rpc.call("anvil_impersonateAccount", stranger)
    try:
        sent = await rpc.call(
            "eth_sendTransaction", {"from": stranger, "to": token.ADDRESS, "gas": hex(300_000), "data": data}
        )
    finally:
        await rpc.call("anvil_stopImpersonatingAccount", stranger)
    receipt = await mined(rpc, sent)
    assert receipt["status"] == "0x1", receipt
    return receipt


def submission(headers: Mapping[str, str]) -> str:
    """Return the call data by which anybody can settle an x402 credential."""
    payload = decoded(headers["PAYMENT-SIGNATURE"])["payload"]
    fields, signature = payload["authorization"], bytes.fromhex(payload["signature"][2:])
    selector = keccak(
        text="transferWithAuthorization(address,address,uint256,uint256,uint256,bytes32,uint8,bytes32,bytes32)"
    )[:4].hex()
    words = [f"{fields[name][2:].lower():0>64}" for name in ("from", "to")]
    words += [f"{int(fields[name]):064x}" for name in ("value", "validAfter", "validBefore")]
    words += [fields["nonce"][2:], f"{signature[64]:064x}", signature[:32].hex(), signature[32:64].hex()]
    return "0x" + selector + "".join(words)


def cancellation(payer: Account, headers: Mapping[str, str]) -> str:
    """Return the call data by which the payer cancels an authorization."""
    nonce = bytes.fromhex(nonce_of(headers)[2:])
    types = {"CancelAuthorization": TYPES["CancelAuthorization"]}
    message = {"authorizer": payer.address, "nonce": nonce}
    signature: bytes = EthAccount.from_key(payer.private_key).sign_typed_data(DOMAIN, types, message).signature
    selector = keccak(text="cancelAuthorization(address,bytes32,uint8,bytes32,bytes32)")[:4].hex()
    words = [f"{payer.address[2:].lower():0>64}", nonce.hex(), f"{signature[64]:064x}"]
    return "0x" + selector + "".join(words) + signature[:32].hex() + signature[32:64].hex()
