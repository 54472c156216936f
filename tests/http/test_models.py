"""The list of models over HTTP: one list, one model under both spellings of its id, copies that are asked for again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any
from urllib.parse import quote

import attrs
import httpx
import openai
import pytest
import trio

from gateway.http.models import ModelsPage, add_models
from gateway.http.server import GatewayApp, ServerLimits, bind, serve
from gateway.registry.ai.catalog import CATALOG
from gateway.registry.ai.listing import Selling, model_list
from gateway.registry.qualification import Finding
from tests.http.shop import TERMS
from tests.registry.ai.shelf import LUNA, RULES, SMOLLM2, Shelf, route

PATH = "/v1/models"
SELLING = Selling(TERMS.base_url, TERMS, None, 12)


@attrs.define(eq=False)
class Site:
    shelf: Shelf
    url: str = ""
    selling: Selling = SELLING
    client: httpx.AsyncClient = attrs.field(init=False)

    async def get(self, path: str = PATH, **headers: str) -> httpx.Response:
        return await self.client.get(path, headers={name.replace("_", "-"): value for name, value in headers.items()})


@asynccontextmanager
async def open_site() -> AsyncIterator[Site]:
    site = Site(Shelf([route(SMOLLM2), route(LUNA, simulated=True)]))
    app = GatewayApp(base_url=TERMS.base_url, body_cap=lambda _: 100, encoded_prefixes=("/v1/models/",))
    add_models(app, ModelsPage(CATALOG, site.shelf.standing, lambda: site.selling))
    stop = trio.Event()
    async with trio.open_nursery() as nursery:
        listener = bind("127.0.0.1:0")
        site.url = (await nursery.start(partial(serve, app, [listener], limits=ServerLimits(drain_s=2), stop=stop)))[0]
        async with httpx.AsyncClient(base_url=site.url) as site.client:
            yield site
        stop.set()


def item(answer: httpx.Response, model_id: str) -> Any:
    return next(each for each in answer.json()["data"] if each["id"] == model_id)


async def availability(site: Site) -> Any:
    return item(await site.get(), LUNA)["gateway"]["availability"]


# -- the list ----------------------------------------------------------------------------------------------------------


async def test_the_list_holds_89_models_and_the_catalog_s_metadata() -> None:
    async with open_site() as site:
        answer = await site.get()
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
    listed = answer.json()
    assert set(listed) == {"object", "data", "gateway"}
    assert listed["object"] == "list"
    assert len(listed["data"]) == 89
    assert all(isinstance(each[name], str) for each in listed["data"] for name in ("id", "object", "owned_by"))
    assert all(isinstance(each["gateway"], dict) for each in listed["data"])
    assert listed["gateway"]["catalogVersion"] == "2026-07-25.3"


async def test_head_is_the_list_without_its_body() -> None:
    async with open_site() as site:
        whole = await site.get()
        head = await site.client.head(PATH)
    assert (head.status_code, head.content) == (200, b"")
    for name in ("etag", "content-length", "cache-control"):
        assert head.headers[name] == whole.headers[name]


async def test_parameters_change_nothing() -> None:
    async with open_site() as site:
        assert (await site.get(f"{PATH}?limit=1&after=x")).content == (await site.get()).content


@pytest.mark.parametrize("path", [PATH, f"{PATH}/{LUNA}"])
async def test_only_reading_is_allowed(path: str) -> None:
    async with open_site() as site:
        answer = await site.client.post(path, json={})
    assert (answer.status_code, answer.json()["code"]) == (405, "method_not_allowed")
    assert answer.headers["allow"] == "GET, HEAD, OPTIONS"


# -- what changes it ---------------------------------------------------------------------------------------------------


async def test_the_next_answer_after_a_failed_call_is_closed_and_a_probe_opens_it_again() -> None:
    async with open_site() as site:
        seen = [await availability(site)]
        site.shelf.probe(LUNA)
        seen.append(await availability(site))
        site.shelf.call(LUNA, ok=False)
        seen.append(await availability(site))
        site.shelf.probe(LUNA, Finding(ok=False, reason="status_500"))
        seen.append(await availability(site))
        site.shelf.now += RULES.retry_first_s
        site.shelf.probe(LUNA)
        seen.append(await availability(site))
    assert seen == ["unproven", "available", "unavailable", "unavailable", "available"]


async def test_a_proof_that_expires_changes_the_next_answer() -> None:
    async with open_site() as site:
        site.shelf.probe(SMOLLM2)
        before = await site.get()
        site.shelf.now = RULES.validity_s
        after = await site.get(if_none_match=before.headers["etag"])
    assert item(before, "gateway/fast")["gateway"]["commerce"]["callable"] is True
    assert after.status_code == 200
    assert item(after, "gateway/fast")["gateway"]["commerce"]["callable"] is False


async def test_a_payment_path_that_closes_changes_the_next_answer() -> None:
    async with open_site() as site:
        site.shelf.probe(LUNA)
        counts = [(await site.get()).json()["gateway"]["counts"]["purchasable"]]
        site.selling = attrs.evolve(site.selling, settlement="unproven")
        counts.append((await site.get()).json()["gateway"]["counts"]["purchasable"])
    assert counts == [1, 0]


async def test_a_list_that_says_the_same_is_not_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def counted(*told: Any) -> Any:
        made.append(told)
        return model_list(*told)

    monkeypatch.setattr("gateway.http.models.model_list", counted)
    async with open_site() as site:
        site.shelf.probe(SMOLLM2)
        first, again = await site.get(), await site.get()
        site.shelf.now = RULES.validity_s
        await site.get()
        await site.get()
    assert first.content == again.content
    assert len(made) == 2


# -- copies ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [PATH, f"{PATH}/{LUNA}"])
async def test_a_copy_that_is_still_right_is_not_sent_again(path: str) -> None:
    async with open_site() as site:
        whole = await site.get(path)
        tag = whole.headers["etag"]
        assert whole.headers["cache-control"] == "public, max-age=1"
        for known in (tag, f"W/{tag}", f'"other", {tag}'):
            again = await site.get(path, if_none_match=known)
            assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
            assert again.headers["cache-control"] == "public, max-age=1"
        assert (await site.get(path, if_none_match='"other"')).status_code == 200


# -- one model ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spelled", [LUNA, quote(LUNA, safe=""), LUNA.replace("/", "%2f")])
async def test_a_model_is_found_under_both_spellings_of_its_slash(spelled: str) -> None:
    async with open_site() as site:
        site.shelf.probe(LUNA)
        one = await site.get(f"{PATH}/{spelled}")
        assert (one.status_code, one.headers["content-type"]) == (200, "application/json")
        assert one.json() == item(await site.get(), LUNA)


async def test_every_id_of_the_list_can_be_asked_for() -> None:
    async with open_site() as site:
        for listed in (await site.get()).json()["data"]:
            assert (await site.get(f"{PATH}/{quote(listed['id'], safe='')}")).json() == listed


@pytest.mark.parametrize(
    "spelled",
    ["openai/gpt-6-luna", "luna", "OpenAI/gpt-5.6-luna", "openai%2Fgpt-5.6-luna%2F", "openai%252Fgpt-5.6-luna", "%00"],
)
async def test_an_unknown_id_is_a_404_that_names_the_parameter(spelled: str) -> None:
    async with open_site() as site:
        answer = await site.get(f"{PATH}/{spelled}")
    assert (answer.status_code, answer.headers["content-type"]) == (404, "application/problem+json")
    assert answer.json()["code"] == "not_found"
    assert answer.json()["param"] == "model"


async def test_a_long_unknown_id_is_not_told_back_whole() -> None:
    async with open_site() as site:
        answer = await site.get(f"{PATH}/{'x' * 2000}")
    assert answer.status_code == 404
    assert len(answer.json()["detail"]) < 200


# -- stock clients -----------------------------------------------------------------------------------------------------


def stock_client(site: Site) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{site.url}/v1", api_key="none", max_retries=0)


async def test_openai_s_client_lists_and_retrieves() -> None:
    async with open_site() as site, stock_client(site) as client:
        listed = await client.models.list()
        luna = await client.models.retrieve(LUNA)
        with pytest.raises(openai.NotFoundError):
            await client.models.retrieve("openai/gpt-6-luna")
    assert [each.id for each in listed.data] == list(CATALOG.models)
    assert (luna.id, luna.created, luna.owned_by) == (LUNA, CATALOG.created, "openai")
