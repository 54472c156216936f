"""Everything that a node of the local world calls, on three local addresses: two that can be shut, one for the rest.

The facilitator and the models have an address of their own each, because `refuse` means that nobody listens there; the
search engine, the chain's endpoint and the control of the faults share one: `/search-engine`, `/rpc/{chain}`,
`/faults`.  The store, which nodes reach without us, is in the control only.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from urllib.parse import unquote

import attrs
import httpx
import orjson
import trio

from gateway.world import ai_upstream, facilitator_faults, faults, search_engine
from gateway.world.ai_upstream import AiUpstream
from gateway.world.chain_faults import ChainDoor
from gateway.world.child import ChildFailed
from gateway.world.door import Call, Door, Reply, Silence, url_of
from gateway.world.facilitator_faults import FacilitatorDoor
from gateway.world.faults import FaultRefused, Faults
from gateway.world.search_engine import SearchEngine
from gateway.world.store import StoreServer

UPSTREAM_S = 130.0
"""Longer than the facilitator waits for a block, so that what it says is what is passed on."""


@attrs.frozen
class Upstreams:
    """Where the node finds its upstreams, and where their faults are set."""

    facilitator_url: str
    search_url: str
    ai_url: str
    rpc_url: str
    faults_url: str


@asynccontextmanager
async def open_upstreams(
    *,
    network: str,
    rpc_url: str,
    facilitator_url: str,
    ai_key: str,
    port: int = 0,
    store: StoreServer | None = None,
) -> AsyncIterator[Upstreams]:
    """Serve the upstreams of one chain; `rpc_url` and `facilitator_url` are the real ones behind the doors.

    `ai_key` is what the models are asked with, `store` the server that the control may torment.
    """
    rpc_target = f"{faults.RPC}/{network}"
    state = Faults(
        {
            faults.FACILITATOR: faults.FACILITATOR_MODES,
            rpc_target: faults.RPC_MODES,
            faults.SEARCH: faults.SEARCH_MODES,
            faults.AI: faults.AI_MODES,
        }
        | ({faults.STORE: faults.STORE_MODES} if store else {}),
        {
            faults.FACILITATOR: facilitator_faults.CALLS,
            faults.SEARCH: (search_engine.CALL,),
            faults.AI: ai_upstream.CALLS,
        },
    )
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
    async with (
        httpx.AsyncClient(timeout=UPSTREAM_S, limits=limits) as client,
        trio.open_nursery() as nursery,
    ):
        facilitator = Door(nursery, FacilitatorDoor(state, client, facilitator_url).answer)
        chain = ChainDoor(state, rpc_target, client, rpc_url)
        models = Door(nursery, AiUpstream(state, ai_key).answer)
        control = Control(state, {faults.FACILITATOR: facilitator, faults.AI: models}, store)
        rest = Door(nursery, _routes(SearchEngine(state), {f"/{rpc_target}": chain}, control), port)
        doors = (facilitator, models, rest)
        for door in doors:
            door.open()
        try:
            yield Upstreams(
                facilitator_url=url_of(facilitator.port),
                search_url=url_of(rest.port, "/search-engine"),
                ai_url=url_of(models.port),
                rpc_url=url_of(rest.port, f"/{rpc_target}"),
                faults_url=url_of(rest.port, "/faults"),
            )
        finally:
            for door in doors:
                door.release()
            nursery.cancel_scope.cancel()


class Control:
    """`GET /faults` tells what is in force and counted; `PUT /faults/{target}` with `{"mode": ...}` sets one mode.

    `latencyMs` beside the mode makes the answers of `ai` late.
    """

    def __init__(self, state: Faults, doors: Mapping[str, Door], store: StoreServer | None = None) -> None:
        """`doors` are those that `refuse` shuts, by target."""
        self._faults = state
        self._doors = doors
        self._store = store

    async def answer(self, call: Call) -> Reply:
        """Answer one call of whoever torments the node."""
        target = unquote(call.path).removeprefix("/faults").strip("/")
        match call.method, bool(target):
            case "GET", False:
                return Reply.json(self._faults.state())
            case "PUT", True:
                return await self._put(target, call.body)
        return Reply.json(
            {"error": "GET /faults, or PUT /faults/{target}"}, 405, (("allow", "PUT" if target else "GET"),)
        )

    async def _put(self, target: str, body: bytes) -> Reply:
        try:
            asked = orjson.loads(body)
            asked = asked if isinstance(asked, dict) else {}
            self._faults.set(target, asked.get("mode"), asked.get("latencyMs", 0))
        except orjson.JSONDecodeError as error:
            return Reply.json({"error": f'send {{"mode": "..."}}: {error}'}, 400)
        except FaultRefused as error:
            return Reply.json({"error": error.detail, "allowed": error.allowed}, 400)
        if target == faults.STORE and self._store is not None:
            try:
                await self._store.put(self._faults.mode(target))
            except ChildFailed as failure:
                return Reply.json({"error": str(failure)}, 500)
        if target in self._doors:
            door = self._doors[target]
            (door.shut if self._faults.mode(target) == faults.REFUSE else door.open)()
        return Reply.json(self._faults.state())


def _routes(
    search: SearchEngine, chains: dict[str, ChainDoor], control: Control
) -> Callable[[Call], Awaitable[Reply | Silence]]:
    async def answer(call: Call) -> Reply | Silence:
        path = unquote(call.path).rstrip("/")
        if path == "/faults" or path.startswith("/faults/"):
            return await control.answer(call)
        if path in chains:
            return await chains[path].answer(call)
        if path.startswith("/search-engine/"):
            return await search.answer(attrs.evolve(call, path=path.removeprefix("/search-engine")))
        return Reply.json({"error": f"there is no {call.path}"}, 404)

    return answer
