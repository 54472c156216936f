"""A node that sells chats on a real socket: real actors, prober and adapters before a scripted model provider."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import h11
import httpx
import orjson
import trio

from gateway.actors.ai import AiFamily, ai_routes
from gateway.actors.idempotency import idempotency
from gateway.actors.ledger import Posted, ledger
from gateway.actors.operations import Limits, Surroundings, operations
from gateway.actors.prober import prober, reporter
from gateway.actors.quota import Policy, quota
from gateway.actors.runtime import open_runtime
from gateway.actors.store import Engine, open_sqlite
from gateway.actors.upstream import Caller, upstream
from gateway.http.models import ModelsPage
from gateway.http.pipeline import Node
from gateway.http.request_headers import CallerAddress
from gateway.http.routes import Readiness, build_app
from gateway.http.server import ServerLimits, bind, serve
from gateway.http.validation import structure
from gateway.registry.ai.adapter import RouteSettings
from gateway.registry.ai.adapters import build
from gateway.registry.ai.catalog import CATALOG
from gateway.registry.ai.choice import standing
from gateway.registry.ai.listing import Selling
from gateway.registry.payment import QuoteSecrets, Terms
from gateway.registry.qualification import Proofs, Rules
from gateway.registry.receipts import Signer
from gateway.registry.sealing import Naming, NodeSeal
from gateway.registry.table import OPERATIONS, PRICE_VERSION
from tests.http.shop import ASSET, PAYER, PEPPERS, TERMS, Bank, Clock, Payer

CHAT, EXECUTE, MODELS = "/v1/chat/completions", "/v1/ai/execute", "/v1/models"
FREE, PAID = "openai/gpt-oss-20b", "openai/gpt-5.6-luna"
SAID = "The moon draws the sea."
DAY_S = 24 * 3600
RULES = Rules(interval_s=0.5, probe_timeout_s=2, retry_first_s=0.1, failures_to_close=1)

# -- the provider ------------------------------------------------------------------------------------------------------


@attrs.frozen
class Heard:
    """A call that the provider got."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: Any


@attrs.frozen
class Said:
    """What the provider answers: a JSON document or, as bytes, whatever it is; None: it hangs up instead."""

    body: Any
    status: int = 200
    headers: Mapping[str, str] = attrs.field(factory=dict)


def completion(heard: Heard) -> Said:
    """Answer a completion in OpenAI's form."""
    return Said(openai(heard.body["model"]))


def openai(model: str, content: str | None = SAID, finish: str = "stop", **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": finish}
    usage = {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}
    made = {"id": "up-1", "object": "chat.completion", "created": 1, "model": model, "choices": [choice]}
    return made | {"usage": usage} | more


def listing(heard: Heard) -> Said:
    """Name every upstream model that a route of these tests asks for, one or all, in the form of the format asked."""
    name = heard.path.partition("/models/")[2]
    if heard.path.startswith("/v1beta/"):
        gemini = {"name": f"models/{name or UPSTREAM}", "supportedGenerationMethods": ["generateContent"]}
        return Said(gemini if name else {"models": [gemini]})
    found = {"id": name or UPSTREAM, "object": "model", "type": "model"}
    return Said(found if name else {"object": "list", "data": [found], "has_more": False})


UPSTREAM = "upstream-model"


@attrs.define(eq=False)
class Provider:
    """A model provider that says what it is told to, and remembers what it was asked.

    Attributes:
        say: answers a completion; `show`: a listing.
        heard: the completions it was asked for.
        looked_at: how often it was asked for a listing.
        hung_up: completions whose caller left before the answer.
    """

    say: Callable[[Heard], Said | None] = completion
    show: Callable[[Heard], Said | None] = listing
    heard: list[Heard] = attrs.field(factory=list)
    looked_at: int = 0
    hung_up: int = 0
    port: int = 0
    begun: trio.Event = attrs.field(factory=trio.Event)
    left: trio.Event = attrs.field(factory=trio.Event)
    gate: trio.Event = attrs.field(factory=trio.Event)
    nursery: trio.Nursery | None = None
    _open: trio.CancelScope | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def hold(self) -> None:
        """Let completions wait for `gate`."""
        self.gate, self.begun, self.left = trio.Event(), trio.Event(), trio.Event()

    async def start(self) -> None:
        assert self.nursery is not None
        await self.nursery.start(self._listen)

    def die(self) -> None:
        """Close every connection and listen no more."""
        assert self._open is not None
        self._open.cancel()

    async def _listen(self, task_status: trio.TaskStatus[None]) -> None:
        (listener,) = await trio.open_tcp_listeners(self.port, host="127.0.0.1")
        self.port = listener.socket.getsockname()[1]
        with trio.CancelScope() as self._open:
            await trio.serve_listeners(self._serve, [listener], task_status=_quietly(task_status))

    async def _serve(self, stream: trio.SocketStream) -> None:
        async with stream:
            try:
                while await self._exchange(stream):
                    pass
            except (trio.BrokenResourceError, h11.RemoteProtocolError):
                return  # who leaves between two calls is no caller that hung up

    async def _exchange(self, stream: trio.SocketStream) -> bool:
        wire = h11.Connection(h11.SERVER)
        heard = await _hear(stream, wire)
        if heard is None:
            return False
        if heard.method == "GET":
            self.looked_at += 1
            said = self.show(heard)
        else:
            self.heard.append(heard)
            self.begun.set()
            if not await self._waited(stream):
                self.hung_up += 1
                self.left.set()
                return False
            said = self.say(heard)
        if said is None:
            return False
        body = said.body if isinstance(said.body, bytes) else orjson.dumps(said.body)
        headers = {"content-type": "application/json", "content-length": str(len(body))} | dict(said.headers)
        head = h11.Response(status_code=said.status, headers=list(headers.items()))
        sent = [wire.send(each) for each in (head, h11.Data(data=body), h11.EndOfMessage())]
        await stream.send_all(b"".join(each for each in sent if each))
        return True

    async def _waited(self, stream: trio.SocketStream) -> bool:
        """Wait for the gate; False where the caller is gone first."""
        if self.gate.is_set():
            return True
        stayed = True
        async with trio.open_nursery() as nursery:

            async def watch() -> None:
                nonlocal stayed
                try:
                    stayed = bool(await stream.receive_some(1))
                except trio.BrokenResourceError:
                    stayed = False
                nursery.cancel_scope.cancel()

            nursery.start_soon(watch)
            await self.gate.wait()
            nursery.cancel_scope.cancel()
        return stayed


async def _hear(stream: trio.SocketStream, wire: h11.Connection) -> Heard | None:
    head: h11.Request | None = None
    body = bytearray()
    while True:
        match wire.next_event():
            case h11.NEED_DATA:
                wire.receive_data(await stream.receive_some(65536))
            case h11.Request() as request:
                head = request
            case h11.Data(data=data):
                body += data
            case h11.EndOfMessage():
                assert head is not None
                headers = {name.decode().lower(): value.decode() for name, value in head.headers}
                content = orjson.loads(body) if body else None
                return Heard(head.method.decode(), head.target.decode(), headers, content)
            case _:
                return None


def _quietly(task_status: trio.TaskStatus[None]) -> Any:
    class Started:
        def started(self, _: Any = None) -> None:
            task_status.started()

    return Started()


@asynccontextmanager
async def open_provider() -> AsyncIterator[Provider]:
    """Hold a provider that listens for the length of a block."""
    async with trio.open_nursery() as nursery:
        provider = Provider(nursery=nursery)
        provider.gate.set()
        await provider.start()
        yield provider
        nursery.cancel_scope.cancel()


# -- the node ----------------------------------------------------------------------------------------------------------


def route(provider: Provider, model: str = FREE, kind: str = "openai", **more: Any) -> RouteSettings:
    """Return the settings of a route to a model over a provider."""
    path = {"openai": "/v1", "anthropic": "/v1", "gemini": "/v1beta"}[kind]
    settings = RouteSettings(model, kind, provider.url + path, upstream_model=UPSTREAM, key="k-provider")
    return attrs.evolve(settings, **{"billed": False, "canary": False} | more)


@attrs.frozen(eq=False)
class AiShop:
    """A node that sells chats."""

    url: str
    client: httpx.AsyncClient
    bank: Bank
    proofs: Proofs
    store: Engine

    async def chat(
        self, model: str = FREE, body: Mapping[str, Any] = {}, headers: Mapping[str, str] = {}
    ) -> httpx.Response:
        """Ask for a chat completion, with members of `body` and `headers` beside the usual ones."""
        return await self.client.post(CHAT, json=chat_body(model) | dict(body), headers=dict(headers))

    async def execute(
        self, model: str = FREE, body: Mapping[str, Any] = {}, headers: Mapping[str, str] = {}
    ) -> httpx.Response:
        """Ask for `ai.execute`."""
        return await self.client.post(EXECUTE, json=execute_body(model) | dict(body), headers=dict(headers))

    async def buy(self, model: str = PAID, *, key: str) -> httpx.Response:
        """Buy a chat completion over x402."""
        return await self.chat(model, headers=await self.payment(model, key=key))

    async def payment(self, model: str = PAID, *, key: str) -> dict[str, str]:
        """Return the headers that pay for a chat completion under a key."""
        keyed = {"idempotency-key": key}
        quoted = await self.chat(model, headers=keyed)
        assert quoted.status_code == 402, quoted.text
        return keyed | paid(quoted)

    async def until(self, route_id: str, *, is_open: bool) -> None:
        """Wait until a route is open, or closed."""
        with trio.fail_after(10):
            while self.proofs.of(route_id).open is not is_open:  # noqa: ASYNC110 - proofs are read, never announced
                await trio.sleep(0.02)

    async def rows(self, table: str) -> int:
        found = await self.store.fetch(f"SELECT COUNT(*) FROM {table}")
        return int(found[0][0] or 0)


def chat_body(model: str = FREE) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": "what is a tide?"}], "max_tokens": 64}


def execute_body(model: str = FREE) -> dict[str, Any]:
    asked = {"kind": "chat", "messages": [{"role": "user", "content": "what is a tide?"}]}
    return {"model": model, "input": asked | {"responseFormat": "text", "stream": False}, "maximumOutputTokens": 64}


def paid(quoted: httpx.Response, payer: Payer = PAYER) -> dict[str, str]:
    """Return the header that pays the x402 challenge of a 402."""
    required = orjson.loads(base64.b64decode(quoted.headers["payment-required"]))
    return {"payment-signature": payer.payment(required)}


def _utc() -> datetime:
    return datetime.now(UTC)


@asynccontextmanager
async def open_ai_shop(
    directory: Path,
    routes: Sequence[RouteSettings],
    *,
    limits: Mapping[str, int] = {},
    rules: Rules = RULES,
    terms: Terms | None = TERMS,
    deadline_s: float = 60.0,
) -> AsyncIterator[AiShop]:
    """Open a node that sells chats over `routes`; `limits` are quotas by name, `billed:...` daily ones."""
    bank, clock, signer = Bank(), Clock(), Signer.from_keys({1: b"r" * 32})
    counts = {"free_search": 12, "free_ai": 100, "unpaid_quotes": 300, "payment_attempts": 120, "paid": 180} | dict(
        limits
    )
    policies = {name: Policy(name, limit, DAY_S if ":" in name else 60) for name, limit in counts.items()}
    async with open_runtime() as runtime, open_sqlite(runtime, directory / "gateway.db") as store:
        start = partial(runtime.start, capacity=1024)
        names = await start("idempotency", partial(idempotency, store=store))
        quotas = await start("quota", partial(quota, policies=policies, store=store, clock_ms=clock))
        books = await start("ledger", partial(ledger, store=store, signer=signer, clock_ms=clock))
        call = Caller(await start("upstream", upstream))
        built, proofs = build(routes, CATALOG, None), Proofs(trio.current_time)
        watch = partial(prober, routes=ai_routes(built, call, rules), proofs=proofs, utc=_utc)
        family = AiFamily(CATALOG, built, proofs, call, reporter(await start("prober", watch)), _utc)
        settlement = await start("settlement", bank.run)
        around = Surroundings(
            store=store,
            settlement=settlement,
            families={"ai": family},
            seal=NodeSeal({1: b"n" * 32}),
            signer=signer,
            asset=ASSET,
            node="node-1",
            clock_ms=clock,
            draining=trio.Event(),
            posted=partial(books.tell, Posted()),
            settle_wait_s=15,
            payer_hold_s=900,
            verify_timeout_s=5,
            settle_timeout_s=5,
        )
        sold = [attrs.evolve(each, deadline_s=deadline_s) for each in OPERATIONS.values() if each.family == "ai"]
        table = {each.id: each for each in sold}
        desk = partial(
            operations, around=around, table=table, structure=structure, limits=Limits(), head=lambda: bank.path.head
        )
        node = Node(
            terms=terms,
            secrets=QuoteSecrets({"1": b"q" * 32}, "1"),
            naming=Naming(PEPPERS),
            callers=CallerAddress.of(()),
            price_version=PRICE_VERSION,
            families={"ai": family},
            path=bank.path,
            want_path=lambda: None,
            settlement=settlement,
            idempotency=names,
            quota=quotas,
            operations=await start("operations", desk),
            clock_ms=clock,
        )
        selling = Selling(TERMS.base_url, terms, None, counts["free_ai"])
        app = build_app(
            table,
            node,
            base_url=TERMS.base_url,
            key_set=signer.key_set,
            readiness=Readiness(_ready),
            models=ModelsPage(CATALOG, partial(standing, CATALOG, built, proofs.of), lambda: selling),
        )
        async with trio.open_nursery() as nursery:
            stop = trio.Event()
            limits_of_server = ServerLimits(drain_s=2)
            (url,) = await nursery.start(partial(serve, app, [bind("127.0.0.1:0")], limits=limits_of_server, stop=stop))
            async with httpx.AsyncClient(base_url=url, timeout=30) as client:
                yield AiShop(url, client, bank, proofs, store)
            stop.set()


async def _ready() -> list[dict[str, str]]:
    return []
