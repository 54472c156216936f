"""What one caller brings about closes a model or the search for nobody; what is really broken closes, and heals."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import attrs
import httpx
import pytest
import trio

from gateway.world.world import World
from tests.world.scenarios.node_process import NodeProcess, running
from tests.world.scenarios.odd_upstream import CHATS, MODEL, SEARCHES, OddUpstream, odd_upstream
from tests.world.scenarios.purchase import CHAT, Shop, fresh_key

pytestmark = pytest.mark.world

FREE, TRIED = "openai/gpt-oss-20b", "google/gemma-4-31b-it"
"""The second one's route may be proved by canaries."""
SEARCH = "/v1/search/free"
ATTACKER = "203.0.113.66"
PROBE_S = 3
TIMES = 7
others = (f"198.51.{100 + number // 250}.{number % 250 + 1}" for number in range(2500))


@attrs.frozen
class Scene:
    shop: Shop
    upstream: OddUpstream

    async def chat(self, prompt: str, caller: str, model: str = FREE) -> httpx.Response:
        body = {"model": model, "messages": [{"role": "user", "content": prompt}], "max_tokens": 64}
        return await self.shop.post(body, fresh_key(), {"X-Forwarded-For": caller}, path=CHAT)

    async def search(self, query: str, caller: str) -> httpx.Response:
        body = {"query": query, "synthesize": False}
        return await self.shop.post(body, fresh_key(), {"X-Forwarded-For": caller}, path=SEARCH)

    async def until(self, *, well: bool, within_s: float) -> httpx.Response:
        """Return the first chat of others that is served, or that is refused because the model is closed."""
        with trio.fail_after(within_s):
            while True:
                answer = await self.chat("How are you?", next(others))
                if (answer.status_code == 200) is well and (well or answer.json()["code"] == "model_unavailable"):
                    return answer
                await trio.sleep(0.1)


@pytest.fixture(scope="module")
def upstream() -> Iterator[OddUpstream]:
    with odd_upstream() as started:
        yield started


@pytest.fixture(scope="module")
def node(world: World, upstream: OddUpstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    route: dict[str, Any] = {"kind": "openai", "base_url": upstream.url, "upstream_model": MODEL, "billed": False}
    routes = [route | {"model": FREE, "canary": False}, route | {"model": TRIED, "canary": True}]
    ai = {"embedded": False, "probe_interval_s": PROBE_S, "route": routes}
    search = {"adapter": [{"kind": "searxng", "base_url": upstream.url}]}
    quota = {"trusted_proxies": ["127.0.0.1"]}
    with running(NodeProcess.of(world, tmp_path_factory.mktemp("node"), ai=ai, search=search, quota=quota)) as started:
        yield started


@pytest.fixture
async def here(shop: Shop, upstream: OddUpstream) -> AsyncIterator[Scene]:
    yield Scene(shop, upstream)
    upstream.broken = False


@pytest.mark.parametrize("model", [FREE, TRIED])
async def test_what_a_prompt_brings_about_leaves_the_model_open_for_everybody_else(here: Scene, model: str) -> None:
    for prompt in CHATS:
        for _ in range(TIMES):
            answer = await here.chat(prompt, ATTACKER, model)
            assert answer.status_code in {400, 503}, answer.text
            assert answer.json()["code"] in {"execution_failed", "context_length_exceeded"}, (prompt, answer.text)
            assert (await here.shop.model(model))["availability"] == "available", prompt
        assert (await here.chat("How are you?", next(others), model)).status_code == 200, prompt


async def test_canaries_that_doubt_brings_about_are_few(here: Scene) -> None:
    """Doubt wants one a caller in ten minutes: those of the test before have all been sent."""
    before = here.upstream.asked["chat"]
    for _ in range(TIMES):
        await here.chat("tool call", ATTACKER, TRIED)
    await trio.sleep(PROBE_S)
    assert here.upstream.asked["chat"] - before <= TIMES + 1


async def test_what_a_query_brings_about_leaves_the_search_open_for_everybody_else(here: Scene) -> None:
    for query in SEARCHES:
        for _ in range(TIMES):
            answer = await here.search(query, ATTACKER)
            assert (answer.status_code, answer.json()["code"] != "operation_unavailable") == (502, True), answer.text
        assert (await here.search("tides", next(others))).status_code == 200, query
    assert here.upstream.asked["/elsewhere"] == 0


@pytest.mark.parametrize("query", ["!!gh x", "x !!gh", "!images tide", ":fr tide", "<3 tide", "!!", ":de !!g <850 x"])
async def test_a_command_to_the_engine_is_a_query_like_any_other(here: Scene, query: str) -> None:
    answer = await here.search(query, ATTACKER)
    assert answer.status_code == 200, answer.text
    assert answer.json()["output"]["query"] == query


async def test_a_prompt_on_which_the_upstream_fails_closes_the_model_for_a_second_in_all(here: Scene) -> None:
    assert (await here.chat("crash", ATTACKER)).json()["reason"] == "status_500"
    await here.until(well=True, within_s=5)
    closed = 0.0
    for _ in range(TIMES):
        began = trio.current_time()
        assert (await here.chat("crash", ATTACKER)).json()["reason"] == "status_500"
        await here.until(well=True, within_s=5)
        closed += trio.current_time() - began
        await trio.sleep(0.2)
    assert closed < TIMES


async def test_an_upstream_that_fails_everybody_stays_closed_longer_and_longer_and_heals(here: Scene) -> None:
    here.upstream.broken = True
    refused = await here.until(well=False, within_s=5)
    assert refused.json()["reason"] == "status_500"
    spoiled = 0
    with trio.move_on_after(8):
        while True:
            spoiled += (await here.chat("How are you?", next(others))).json()["code"] == "execution_failed"
            await trio.sleep(0.1)
    assert spoiled <= 6
    here.upstream.broken = False
    await here.until(well=True, within_s=2 * PROBE_S + 5)


async def test_an_upstream_that_is_gone_is_closed_within_an_interval_by_its_reason_and_heals(here: Scene) -> None:
    await here.until(well=True, within_s=10)
    here.upstream.stop()
    try:
        refused = await here.until(well=False, within_s=1.2 * PROBE_S + 1)
        assert refused.json()["reason"] == "unreachable"
    finally:
        here.upstream.start()
    await here.until(well=True, within_s=2 * PROBE_S + 5)


async def test_three_searches_on_which_the_engine_fails_close_it_and_it_heals(here: Scene) -> None:
    here.upstream.broken = True
    for _ in range(3):
        assert (await here.search("tides", next(others))).json()["reason"] == "status_500"
    refused = await here.search("tides", next(others))
    assert (refused.status_code, refused.json()["reason"]) == (503, "consecutive_failures")
    here.upstream.broken = False
    with trio.fail_after(10):
        while (await here.search("tides", next(others))).status_code != 200:  # noqa: ASYNC110 - another process
            await trio.sleep(0.1)


def test_the_node_has_logged_no_defect(node: NodeProcess) -> None:
    assert node.defects() == []
