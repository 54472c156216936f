"""A node without a socket: real runtime, store and actors; the executor, the facilitator and the chain are scripted."""

from __future__ import annotations

import base64
import json
import os
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import coincurve
import orjson
import trio
from eth_hash.auto import keccak

from gateway.actors.idempotency import idempotency
from gateway.actors.ledger import Posted, ledger
from gateway.actors.operations import Limits, Room, Surroundings, operations
from gateway.actors.quota import Policy, quota
from gateway.actors.runtime import Inbox, Letter, Runtime, open_runtime
from gateway.actors.settlement import (
    BlockTime,
    ChainUnavailable,
    Funds,
    HasCode,
    Look,
    Message,
    ReadBalance,
    ReadFunds,
    Settle,
    SettlementPath,
    Sighting,
    Standing,
    StillStands,
    Submission,
    Verdict,
    Verification,
    Verify,
)
from gateway.actors.store import Engine, open_sqlite
from gateway.errors import GatewayError
from gateway.http import problems
from gateway.http.means import Means
from gateway.http.mpp import nonces
from gateway.http.pipeline import Incoming, Node, Pipeline
from gateway.http.request_headers import CallerAddress
from gateway.http.validation import structure
from gateway.registry.execution import Served, Work
from gateway.registry.operation import Operation
from gateway.registry.payment import Asset, Authorization, QuoteSecrets, Terms, checksum, digest
from gateway.registry.receipts import Signer
from gateway.registry.sealing import Naming, NodeSeal
from gateway.registry.table import OPERATIONS, PRICE_VERSION

ASSET = Asset("eip155:8453", 8453, "0x833589fCD6eDb6E08f4c7C32D4f71b54bdA02913", "USD Coin", "2", 6)
TERMS = Terms(ASSET, "0x90F79bf6EB2c4f870365E785982E1f101E93b906", "https://gateway.example", "gateway.example")
BODY: dict[str, Any] = {"query": "what is a tide", "synthesize": False}
PEPPERS = {1: b"p" * 32}
LIMITS = {"free_search": 12, "unpaid_quotes": 300, "payment_attempts": 120, "paid": 180}


@attrs.define(eq=False)
class Clock:
    """The wall clock, put ahead or back by a test; `skew_ms` is how far it is said to be from a shared store's."""

    ahead_ms: int = 0
    skew_ms: int | None = None

    def __call__(self) -> int:
        return time.time_ns() // 1_000_000 + self.ahead_ms


@attrs.define(eq=False)
class Search:
    """An executor that does what it is told and counts."""

    runs: int = 0
    failure: GatewayError | None = None
    closed: GatewayError | None = None
    billed: str | None = None
    releases: bool = False
    gate: trio.Event = attrs.field(factory=trio.Event)
    begun: trio.Event = attrs.field(factory=trio.Event)

    def __attrs_post_init__(self) -> None:
        self.gate.set()

    def hold(self) -> None:
        self.gate, self.begun = trio.Event(), trio.Event()

    def admit(self, operation: str, request: Any) -> None:
        del operation, request
        if self.closed is not None:
            raise self.closed

    def budget(self, operation: str, request: Any) -> str | None:
        del operation, request
        return self.billed

    async def execute(self, work: Work) -> Served:
        if self.releases:
            await work.release()
        self.runs += 1
        self.begun.set()
        await self.gate.wait()
        if self.failure is not None:
            raise self.failure
        route = {
            "routeId": "search:one",
            "qualificationId": "qual_1",
            "servingAdapters": ["one"],
            "degraded": False,
            "fallback": False,
            "cost": {"asset": "USD", "amountAtomic": "0", "usd": "0.000000", "basis": "none"},
        }
        return Served(
            {"query": work.request.query, "results": [], "run": self.runs, "route": route}, {"adapter": "one"}
        )


@attrs.define(eq=False)
class Bank:
    """A facilitator and a chain in one, that do what they are told and count."""

    path: SettlementPath = attrs.field(factory=SettlementPath)
    verification: Verification = attrs.field(factory=lambda: Verification(Verdict.VALID))
    standing: Standing | None = None
    balance: int = 10**12
    verified: int = 0
    paid: dict[str, str] = attrs.field(factory=dict)
    block: int = 101
    with_code: set[str] = attrs.field(factory=set)
    block_time: int = 0
    looks: int = 0
    away: ChainUnavailable | None = None
    looking: list[Letter[Message]] | None = None

    def open(self) -> None:
        self.path.proven_until = float("inf")
        self.path.head = 100

    async def run(self, inbox: Inbox[Message]) -> None:
        self.open()
        inbox.ready()
        async for letter in inbox:
            self.serve(letter)

    def serve(self, letter: Letter[Message]) -> None:
        message = letter.message
        if self.away is not None and isinstance(message, Look | HasCode):
            letter.refuse(self.away)
            return
        if self.looking is not None and isinstance(message, Look):
            self.looking.append(letter)
            return
        match message:
            case Verify():
                self.verified += 1
                letter.answer(message, self.verification)
            case Settle(payment):
                transaction = self.paid.setdefault(payment.nonce, "0x" + os.urandom(32).hex())
                letter.answer(message, Submission(transaction, "success", sent=True))
            case Look(payment):
                self.looks += 1
                transaction = self.paid.get(payment.nonce, "")
                standing = self.standing or (Standing.PAID if transaction else Standing.UNUSED)
                if standing is Standing.PAID:
                    letter.answer(message, Sighting(standing, 101, transaction, self.block, "0x" + "b1" * 32))
                else:
                    letter.answer(message, Sighting(standing, 101))
            case HasCode(address):
                self.looks += 1
                letter.answer(message, address in self.with_code)
            case BlockTime():
                letter.answer(message, self.block_time)
            case ReadBalance():
                letter.answer(message, self.balance)
            case ReadFunds():
                letter.answer(message, Funds(self.balance, frozenset(self.paid)))
            case StillStands():
                letter.answer(message, True)
            case _:
                pass


@attrs.frozen
class Answer:
    """What the wire would show."""

    status: int
    headers: Mapping[str, str]
    body: bytes = attrs.field(repr=False)

    @property
    def json(self) -> Any:
        return orjson.loads(self.body)

    @property
    def code(self) -> str:
        assert self.status >= 400
        return str(self.json["code"])

    @property
    def pointers(self) -> list[str]:
        return [each["pointer"] for each in self.json.get("errors", [])]

    @property
    def challenged(self) -> bool:
        return "PAYMENT-REQUIRED" in self.headers or "WWW-Authenticate" in self.headers


@attrs.frozen(eq=False)
class Shop:
    """A node that takes requests by call."""

    runtime: Runtime
    store: Engine
    node: Node
    search: Search
    bank: Bank
    clock: Clock
    signer: Signer
    table: Mapping[str, Operation]
    pipelines: dict[str, Pipeline]

    async def post(
        self,
        operation: str = "search.paid",
        body: Any = BODY,
        *,
        key: str | None = None,
        headers: Mapping[str, str] | list[tuple[str, str]] = (),  # type: ignore[assignment]  # an empty list
        peer: str = "192.0.2.1",
        content_type: str | None = "application/json",
    ) -> Answer:
        content = body if isinstance(body, bytes) else orjson.dumps(body)
        lines = [("content-type", content_type)] if content_type and content else []
        if key is not None:
            lines.append(("idempotency-key", key))
        lines += (
            [(name.lower(), value) for name, value in dict(headers).items()] if isinstance(headers, Mapping) else []
        )
        lines += [(name.lower(), value) for name, value in headers] if isinstance(headers, list) else []
        try:
            answer = await self.pipelines[operation].call(Incoming(lines, content, peer))
        except GatewayError as failure:
            return Answer(*problems.render(failure, base_url=TERMS.base_url, instance=self.table[operation].path))
        return Answer(200, answer.headers, answer.body)

    async def buy(self, body: Any = BODY, *, key: str, payer: Payer | None = None, **more: Any) -> Answer:
        """Ask, pay what is asked over x402, and send the same again."""
        quoted = await self.post(body=body, key=key, **more)
        assert quoted.status == 402, quoted.body
        return await self.post(body=body, key=key, headers=(payer or PAYER).x402(quoted), **more)

    async def rows(self, table: str) -> int:
        found = await self.store.fetch(f"SELECT COUNT(*) FROM {table}")
        return int(found[0][0] or 0)


@asynccontextmanager
async def open_shop(
    directory: Path,
    *,
    terms: Terms | None = TERMS,
    limits: Mapping[str, int] = LIMITS,
    peppers: Mapping[int, bytes] = PEPPERS,
    table: Mapping[str, Operation] = OPERATIONS,
    proxies: tuple[str, ...] = (),
    settle_wait_s: float = 15.0,
    capacity: int = 1024,
    most: Limits = Limits(),  # noqa: B008 - it is frozen
) -> AsyncIterator[Shop]:
    """Open a shop over the store in `directory`."""
    search, bank, clock = Search(), Bank(), Clock()
    signer = Signer.from_keys({1: b"r" * 32})
    async with open_runtime() as runtime, open_sqlite(runtime, directory / "gateway.db") as store:
        start = partial(runtime.start, capacity=capacity)
        names = await start("idempotency", partial(idempotency, store=store))
        policies = {name: Policy(name, limit) for name, limit in limits.items()}
        quotas = await start("quota", partial(quota, policies=policies, store=store, clock_ms=clock))
        books = await start("ledger", partial(ledger, store=store, signer=signer, clock_ms=clock))
        settlement = await start("settlement", bank.run)
        families = {"search": search}
        around = Surroundings(
            store=store,
            settlement=settlement,
            families=families,
            seal=NodeSeal({1: b"n" * 32}),
            signer=signer,
            asset=ASSET,
            node="node-1",
            clock_ms=clock,
            draining=trio.Event(),
            posted=partial(books.tell, Posted()),
            settle_wait_s=settle_wait_s,
            payer_hold_s=900,
            verify_timeout_s=5,
            settle_timeout_s=5,
        )
        room = Room()
        desk = await start(
            "operations",
            partial(
                operations,
                around=around,
                table=table,
                structure=structure,
                limits=most,
                head=lambda: bank.path.head,
                room=room,
            ),
        )
        node = Node(
            terms=terms,
            secrets=QuoteSecrets({"1": b"q" * 32}, "1"),
            naming=Naming(peppers),
            callers=CallerAddress.of(proxies),
            price_version=PRICE_VERSION,
            families=families,
            path=bank.path,
            want_path=lambda: None,
            idempotency=names,
            quota=quotas,
            operations=desk,
            settlement=settlement,
            clock_ms=clock,
            clock_skew=lambda: clock.skew_ms,
            means=Means(room=room.full),
        )
        pipelines = {each.id: Pipeline.of(each, node) for each in table.values()}
        yield Shop(runtime, store, node, search, bank, clock, signer, table, pipelines)


# -- who pays ----------------------------------------------------------------------------------------------------------


@attrs.frozen
class Payer:
    """An account that signs what it is asked to pay."""

    secret: bytes = attrs.field(repr=False)

    @property
    def address(self) -> str:
        public = coincurve.PrivateKey(self.secret).public_key.format(compressed=False)
        return checksum("0x" + keccak(public[1:])[12:].hex())

    def sign(self, *, to: str, value: int, nonce: bytes, valid_before: int, valid_after: int = 0) -> dict[str, Any]:
        """Return the members of a signed authorization, `signature` among them."""
        unsigned = Authorization(self.address, checksum(to), value, valid_after, valid_before, nonce, b"")
        raw = coincurve.PrivateKey(self.secret).sign_recoverable(digest(ASSET, unsigned), hasher=None)
        return {**unsigned.fields(), "signature": "0x" + (raw[:64] + bytes((raw[64] + 27,))).hex()}

    def x402(self, quoted: Answer, *, payment_id: str | None = None, **changes: Any) -> dict[str, str]:
        """Return the header that pays the x402 challenge of a 402."""
        required = json.loads(base64.b64decode(quoted.headers["PAYMENT-REQUIRED"]))
        return {"PAYMENT-SIGNATURE": self.payment(required, payment_id=payment_id, **changes)}

    def payment(self, required: Mapping[str, Any], *, payment_id: str | None = None, **changes: Any) -> str:
        asked = required["accepts"][0]
        members: dict[str, Any] = {
            "to": asked["payTo"],
            "value": int(asked["amount"]),
            "nonce": os.urandom(32),
            "valid_before": int(time.time()) + asked["maxTimeoutSeconds"],
        }
        signed = self.sign(**members | changes)
        signature = signed.pop("signature")
        payload: dict[str, Any] = {
            "x402Version": 2,
            "payload": {"authorization": signed, "signature": signature},
            "accepted": asked,
            "resource": required["resource"],
            "extensions": json.loads(json.dumps(required["extensions"])),
        }
        if payment_id is not None:
            payload["extensions"]["payment-identifier"]["info"]["id"] = payment_id
        return base64.b64encode(orjson.dumps(payload)).decode()

    def mpp(self, quoted: Answer) -> dict[str, str]:
        """Return the header that pays the MPP challenge of a 402."""
        challenge = dict(re.findall(r'(\w+)="([^"]*)"', quoted.headers["WWW-Authenticate"]))
        asked = json.loads(base64.urlsafe_b64decode(challenge["request"] + "=="))
        signed = self.sign(
            to=asked["recipient"],
            value=int(asked["amount"]),
            nonce=nonces(challenge["id"], challenge["realm"])[0],
            valid_before=int(time.time()) + 162,
        )
        challenge.pop("description")
        credential = {"challenge": challenge, "payload": {"type": "authorization", **signed}}
        return {"Authorization": "Payment " + base64.urlsafe_b64encode(orjson.dumps(credential)).rstrip(b"=").decode()}


PAYER = Payer(b"\x11" * 32)
OTHER_PAYER = Payer(b"\x22" * 32)

Call = Callable[[], Any]


async def together(count: int, call: Call) -> list[Answer]:
    """Make the same call many times at once."""
    answers: list[Answer] = []

    async def one() -> None:
        answers.append(await call())

    async with trio.open_nursery() as nursery:
        for _ in range(count):
            nursery.start_soon(one)
    return answers
