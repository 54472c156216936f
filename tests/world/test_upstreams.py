from __future__ import annotations

from typing import Any

import httpx
import pytest

from gateway.world.faults import FACILITATOR_MODES, RPC_MODES, SEARCH_MODES
from gateway.world.world import World

pytestmark = pytest.mark.world


@pytest.mark.parametrize(
    ("target", "modes"),
    [("facilitator", FACILITATOR_MODES), ("rpc/eip155:8453", RPC_MODES), ("search", SEARCH_MODES)],
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
    assert told["modes"] == {"facilitator": "ok", "rpc/eip155:8453": "ok", "search": "ok"}
    assert set(told) == {"modes", "facilitator", "rpc", "search"}


async def test_an_unknown_mode_or_target_is_refused_with_what_is_allowed(
    world: World, client: httpx.AsyncClient
) -> None:
    answer = await client.put(f"{world.faults_url}/search", json={"mode": "refuse"})
    assert (answer.status_code, answer.json()["allowed"]) == (400, list(SEARCH_MODES))
    answer = await client.put(f"{world.faults_url}/venue/kalshi", json={"mode": "ok"})
    assert (answer.status_code, answer.json()["allowed"]) == (400, ["facilitator", "rpc/eip155:8453", "search"])


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
