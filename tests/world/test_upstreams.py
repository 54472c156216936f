from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import psycopg
import pytest
import trio

from gateway.world.door import Call, Door, Reply
from gateway.world.faults import (
    AI_MODES,
    FACILITATOR,
    FACILITATOR_MODES,
    RPC_MODES,
    SEARCH_MODES,
    STORE,
    STORE_MODES,
    Faults,
)
from gateway.world.postgresql import PostgresqlServer, open_server
from gateway.world.store import StoreServer
from gateway.world.upstreams import Control
from gateway.world.world import World

pytestmark = pytest.mark.world


@pytest.mark.parametrize(
    ("target", "modes"),
    [("facilitator", FACILITATOR_MODES), ("rpc/eip155:8453", RPC_MODES), ("search", SEARCH_MODES), ("ai", AI_MODES)],
)
async def test_every_mode_can_be_set_and_is_told(
    world: World, client: httpx.AsyncClient, fault: Any, target: str, modes: tuple[str, ...]
) -> None:
    for mode in modes:
        await fault(target, mode)
        assert (await client.get(world.faults_url)).json()["modes"][target] == mode


async def test_setting_a_mode_answers_what_is_in_force(world: World, client: httpx.AsyncClient, fault: Any) -> None:
    await fault("search", "ok")
    told = (await client.put(f"{world.faults_url}/rpc%2Feip155%3A8453", json={"mode": "ok"})).json()
    assert told["modes"] == {"facilitator": "ok", "rpc/eip155:8453": "ok", "search": "ok", "ai": "ok"}
    assert set(told) == {"modes", "facilitator", "rpc", "search", "ai"}


async def test_an_unknown_mode_or_target_is_refused_with_what_is_allowed(
    world: World, client: httpx.AsyncClient
) -> None:
    answer = await client.put(f"{world.faults_url}/search", json={"mode": "refuse"})
    assert (answer.status_code, answer.json()["allowed"]) == (400, list(SEARCH_MODES))
    answer = await client.put(f"{world.faults_url}/venue/kalshi", json={"mode": "ok"})
    assert (answer.status_code, answer.json()["allowed"]) == (400, ["facilitator", "rpc/eip155:8453", "search", "ai"])


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"ok"', b"{}"])
async def test_a_bad_body_is_refused(world: World, client: httpx.AsyncClient, body: bytes) -> None:
    assert (await client.put(f"{world.faults_url}/search", content=body)).status_code == 400


async def test_other_methods_and_paths_are_refused(world: World, client: httpx.AsyncClient) -> None:
    assert (await client.post(world.faults_url)).status_code == 405
    assert (await client.get(f"{world.faults_url}/search")).status_code == 405
    assert (await client.get(world.faults_url.replace("/faults", "/nowhere"))).status_code == 404


async def test_the_search_engine_is_searched_over_http(world: World, client: httpx.AsyncClient) -> None:
    before = (await client.get(world.faults_url)).json()["search"]["search"]
    answer = await client.get(f"{world.search_url}/search", params={"q": "trio", "format": "json"})
    assert len(answer.json()["results"]) == 20
    assert (await client.get(f"{world.search_url}/healthz")).text == "OK"
    assert (await client.get(world.faults_url)).json()["search"]["search"] == before + 1


async def test_the_models_are_asked_over_http_with_their_key(world: World, client: httpx.AsyncClient) -> None:
    before = (await client.get(world.faults_url)).json()["ai"]
    url, key = f"{world.ai_url}/v1/models", world.ai_key_file.read_text()
    assert (await client.get(url)).status_code == 401
    listed = await client.get(url, headers={"Authorization": f"Bearer {key}"})
    assert "gpt-5.6-luna" in {each["id"] for each in listed.json()["data"]}
    after = (await client.get(world.faults_url)).json()["ai"]
    assert after == before | {"listings": before["listings"] + 2}
    assert world.ai_key_file.stat().st_mode & 0o077 == 0


async def test_models_that_refuse_are_not_there_and_come_back_at_their_address(
    world: World, client: httpx.AsyncClient, fault: Any
) -> None:
    await fault("ai", "refuse")
    with pytest.raises(httpx.ConnectError):
        await client.get(f"{world.ai_url}/v1/models")
    assert (await client.get(f"{world.search_url}/healthz")).status_code == 200
    await fault("ai", "ok")
    assert (await client.get(f"{world.ai_url}/v1/models")).status_code == 401


async def test_answers_are_late_as_long_as_it_is_asked_for(world: World, client: httpx.AsyncClient) -> None:
    told = (await client.put(f"{world.faults_url}/ai", json={"mode": "ok", "latencyMs": 1500})).json()
    assert (told["modes"]["ai"], told["latencyMs"]) == ("ok", {"ai": 1500})
    told = (await client.put(f"{world.faults_url}/ai", json={"mode": "ok"})).json()
    assert "latencyMs" not in told


# -- the store, in a world that has one --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shared() -> Iterator[PostgresqlServer]:
    with open_server() as server:
        yield server


@pytest.fixture
async def control(shared: PostgresqlServer) -> AsyncIterator[Control]:
    async with trio.open_nursery() as nursery:
        state = Faults({FACILITATOR: FACILITATOR_MODES, STORE: STORE_MODES}, {})
        door = Door(nursery, unasked)
        try:
            yield Control(state, {FACILITATOR: door}, StoreServer(shared, shared.url()))
        finally:
            door.release()
            nursery.cancel_scope.cancel()


async def unasked(call: Call) -> Reply:
    raise AssertionError(call)


async def ordered(control: Control, mode: str) -> tuple[int, dict[str, Any]]:
    reply = await control.answer(Call("PUT", "/faults/store", {}, {}, json.dumps({"mode": mode}).encode()))
    assert isinstance(reply, Reply)
    return reply.status, json.loads(reply.body)


def serves(server: PostgresqlServer) -> bool:
    try:
        with psycopg.connect(server.url(), connect_timeout=2):
            return True
    except psycopg.OperationalError:
        return False


async def test_an_order_is_answered_when_the_store_has_followed_it(control: Control, shared: PostgresqlServer) -> None:
    for mode, up in (("kill", False), ("ok", True), ("pause", False), ("ok", True)):
        status, told = await ordered(control, mode)
        assert (status, told["modes"]["store"], serves(shared)) == (200, mode, up)


async def test_a_store_that_does_not_come_back_is_told(control: Control, shared: PostgresqlServer) -> None:
    await ordered(control, "kill")
    version = shared.data / "PG_VERSION"
    hidden = version.rename(shared.data / "PG_VERSION.hidden")
    status, told = await ordered(control, "ok")
    hidden.rename(version)
    assert status == 500
    assert "PG_VERSION" in told["error"]
    assert (await ordered(control, "ok"))[0] == 200


async def test_a_world_without_a_store_of_its_own_has_no_such_target(world: World, client: httpx.AsyncClient) -> None:
    answer = await client.put(f"{world.faults_url}/store", json={"mode": "kill"})
    assert answer.status_code == 400
