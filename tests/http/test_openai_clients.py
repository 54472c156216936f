"""The stock clients of OpenAI's API against a node: they list, chat, get JSON, and read what went wrong."""

from __future__ import annotations

import os
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import openai
import orjson
import pytest
import trio
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, SecretStr

from gateway.world.npm import node_binary
from tests.http.ai_shop import (
    FREE,
    PAID,
    SAID,
    UPSTREAM,
    AiShop,
    Heard,
    Provider,
    Said,
    open_ai_shop,
    open_provider,
    route,
)
from tests.http.ai_shop import openai as completed

MESSAGES: list[Any] = [{"role": "user", "content": "what is a tide?"}]
CLIENTS = Path(__file__).parents[1] / "npm"
JSON, TEXT = {"content-type": "application/json"}, {"content-type": "text/plain"}
CLOSED = "openai/gpt-5-nano"


@attrs.frozen(eq=False)
class Site:
    """A node, its provider, and the clients of it."""

    shop: AiShop
    provider: Provider

    @property
    def base_url(self) -> str:
        return f"{self.shop.url}/v1"

    def client(self, **more: Any) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(api_key="none", base_url=self.base_url, **more)

    def langchain(self, model: str = FREE, **more: Any) -> ChatOpenAI:
        return ChatOpenAI(model=model, base_url=self.base_url, api_key=SecretStr("none"), **more)

    async def node(self, *calls: list[Any]) -> list[dict[str, Any]]:
        """Make calls with OpenAI's client for Node.js."""
        if not (CLIENTS / "node_modules").exists() and not os.environ.get("CI"):
            pytest.skip("the npm clients are not installed")
        command = [str(node_binary()), "chat_openai.mjs", self.base_url, orjson.dumps(calls).decode()]
        with trio.fail_after(60):
            done = await trio.run_process(command, cwd=CLIENTS, capture_stdout=True, stderr=subprocess.STDOUT)
        found: list[dict[str, Any]] = orjson.loads(done.stdout)
        return found


@asynccontextmanager
async def open_site(directory: Path, **more: Any) -> AsyncIterator[Site]:
    async with open_provider() as provider:
        routes = [route(provider), route(provider, PAID)]
        async with open_ai_shop(directory, routes, **more) as shop:
            yield Site(shop, provider)


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with open_site(tmp_path) as opened:
        yield opened


def json_said(heard: Heard) -> Said:
    assert heard.body["response_format"]["type"] in {"json_object", "json_schema"}
    return Said(completed(UPSTREAM, '{"cause": "the moon"}'))


def counting(asked: list[Any]) -> openai.DefaultAsyncHttpxClient:
    """Return what a client sends by, which takes note of every request."""

    async def note(request: Any) -> None:
        asked.append(request)

    return openai.DefaultAsyncHttpxClient(event_hooks={"request": [note]})


class Tide(BaseModel):
    cause: str


# -- openai-python -----------------------------------------------------------------------------------------------------


async def test_python_lists_the_models_and_what_the_node_says_of_them(site: Site) -> None:
    async with site.client() as client:
        models = {each.id: each async for each in client.models.list()}
    assert len(models) == 89
    assert models[FREE].owned_by == "openai"
    extra = models[FREE].model_extra
    assert extra
    assert extra["gateway"]["availability"] == "available"


@pytest.mark.parametrize("model", [FREE, "gateway/fast"])
async def test_python_looks_one_model_up(site: Site, model: str) -> None:
    async with site.client() as client:
        assert (await client.models.retrieve(model)).id == model


async def test_python_chats(site: Site) -> None:
    async with site.client() as client:
        answer = await client.chat.completions.create(model=FREE, messages=MESSAGES, max_tokens=64, temperature=0)
    assert answer.model == FREE
    assert answer.choices[0].message.content == SAID
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (7, 5, 12)
    assert answer.model_extra
    assert answer.model_extra["gateway"]["receipt"]["funding"] == "free"
    assert site.provider.heard[-1].body["temperature"] == 0


async def test_python_gets_json(site: Site) -> None:
    site.provider.say = json_said
    async with site.client() as client:
        answer = await client.chat.completions.create(
            model=FREE, messages=MESSAGES, response_format={"type": "json_object"}
        )
        assert orjson.loads(answer.choices[0].message.content or "") == {"cause": "the moon"}
        parsed = await client.chat.completions.parse(model=FREE, messages=MESSAGES, response_format=Tide)
    assert parsed.choices[0].message.parsed == Tide(cause="the moon")


async def test_a_key_replays_the_completion_to_python(site: Site) -> None:
    once = {"Idempotency-Key": "a-key-of-the-callers-own"}
    async with site.client() as client:
        ask = partial(client.chat.completions.create, model=FREE, messages=MESSAGES, extra_headers=once)
        first, again = await ask(), await ask()
    assert first.id == again.id
    assert again.model_extra
    assert again.model_extra["gateway"]["replayed"] is True
    assert len(site.provider.heard) == 1


@attrs.frozen
class Wrong:
    """A call that fails, and what the client is to find in its error."""

    name: str
    body: dict[str, Any]
    status: int
    code: str
    type: str
    param: str | None
    says: str

    @property
    def asked(self) -> dict[str, Any]:
        return {"model": FREE, "messages": MESSAGES} | self.body


HOPELESS = [
    Wrong("no such model", {"model": "gpt-4o"}, 400, "model_not_found", "invalid_request_error", "model", "gpt-4o"),
    Wrong(
        "a role that is unknown",
        {"messages": [{"role": "tool", "content": "4", "tool_call_id": "call_1"}]},
        400,
        "invalid_request",
        "invalid_request_error",
        "messages[0].role",
        "Tools are unsupported",
    ),
    Wrong("streaming", {"stream": True}, 400, "unsupported_parameter", "invalid_request_error", "stream", "`stream`"),
    Wrong("many answers", {"n": 2}, 400, "unsupported_parameter", "invalid_request_error", "n", "`n`"),
    Wrong(
        "more tokens than the model has",
        {"max_tokens": 4096},
        400,
        "invalid_request",
        "invalid_request_error",
        "max_tokens",
        "1024",
    ),
    Wrong("a paid model", {"model": PAID}, 402, "payment_required", "payment_required", None, "0.007000 USD"),
    Wrong("a model without a route", {"model": CLOSED}, 503, "model_unavailable", "server_error", None, CLOSED),
]


@pytest.mark.parametrize("wrong", HOPELESS, ids=lambda wrong: wrong.name)
async def test_python_reads_what_is_wrong_and_asks_once(site: Site, wrong: Wrong) -> None:
    asked: list[Any] = []
    async with site.client(http_client=counting(asked)) as client:
        with pytest.raises(openai.APIStatusError) as caught:
            await client.chat.completions.create(**wrong.asked)
    error = caught.value
    assert (error.status_code, error.code, error.type, error.param) == (
        wrong.status,
        wrong.code,
        wrong.type,
        wrong.param,
    )
    assert wrong.says in str(error)
    assert len(asked) == 1


async def test_python_gives_up_at_once_where_the_wait_is_too_long(tmp_path: Path) -> None:
    """A daily budget that is spent comes back tomorrow, not within the client's patience."""
    async with open_provider() as provider:
        routes = [route(provider, name="billed", billed=True)]
        limits = {"billed:ai/billed": 1}
        async with open_ai_shop(tmp_path, routes, limits=limits) as shop, Site(shop, provider).client() as client:
            ask = partial(client.chat.completions.create, model=FREE, messages=MESSAGES)
            await ask()
            with trio.fail_after(5), pytest.raises(openai.RateLimitError) as caught:
                await ask()
    assert caught.value.type == "insufficient_quota"


async def test_a_key_that_was_used_otherwise_is_a_conflict_that_python_does_not_repeat(site: Site) -> None:
    once = {"Idempotency-Key": "a-key-of-the-callers-own"}
    asked: list[Any] = []
    async with site.client(http_client=counting(asked)) as client:
        await client.chat.completions.create(model=FREE, messages=MESSAGES, extra_headers=once)
        with pytest.raises(openai.ConflictError) as caught:
            await client.chat.completions.create(model=FREE, messages=[*MESSAGES, *MESSAGES], extra_headers=once)
    assert caught.value.code == "idempotency_key_reused"
    assert len(asked) == 2


async def test_python_itself_tries_again_where_time_heals(site: Site) -> None:
    said = iter([Said({"error": {"message": "overloaded"}}, status=500)])

    def first_fails(heard: Heard) -> Said:
        return next(said, Said(completed(heard.body["model"])))

    site.provider.say = first_fails
    async with site.client() as client:
        answer = await client.chat.completions.create(model=FREE, messages=MESSAGES)
    assert answer.choices[0].message.content == SAID
    assert len(site.provider.heard) == 2


@pytest.mark.parametrize(
    ("method", "path", "sent", "status", "code"),
    [
        ("GET", "/v1/chat/completions", {}, 405, "method_not_allowed"),
        ("POST", "/v1/chat/completions", {"content": b"{", "headers": JSON}, 400, "invalid_json"),
        ("POST", "/v1/chat/completions", {"content": b"{}", "headers": TEXT}, 415, "unsupported_media_type"),
        ("POST", "/v1/chat/completions", {"content": b" " * 300_000, "headers": JSON}, 413, "content_too_large"),
        ("GET", "/v1/models/openai/no-such-model", {}, 404, "not_found"),
    ],
)
async def test_what_never_reaches_the_operation_is_told_to_these_clients_too(
    site: Site, method: str, path: str, sent: dict[str, Any], status: int, code: str
) -> None:
    answer = await site.shop.client.request(method, path, **sent)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert answer.headers["x-should-retry"] == "false"


# -- openai-node -------------------------------------------------------------------------------------------------------


@pytest.mark.npm
async def test_node_lists_chats_and_gets_json(site: Site) -> None:
    listed, found, chatted = await site.node(
        ["models.list"],
        ["models.retrieve", FREE],
        ["chat.completions.create", {"model": FREE, "messages": MESSAGES}],
    )
    assert len(listed["value"]["data"]) == 89
    assert found["value"]["id"] == FREE
    assert chatted["value"]["choices"][0]["message"]["content"] == SAID
    assert chatted["value"]["gateway"]["replayed"] is False
    site.provider.say = json_said
    asked = {"model": FREE, "messages": MESSAGES, "response_format": {"type": "json_object"}}
    (answered,) = await site.node(["chat.completions.create", asked])
    assert orjson.loads(answered["value"]["choices"][0]["message"]["content"]) == {"cause": "the moon"}


@pytest.mark.npm
async def test_node_reads_what_is_wrong_and_asks_once(site: Site) -> None:
    told = await site.node(*(["chat.completions.create", wrong.asked] for wrong in HOPELESS))
    for wrong, each in zip(HOPELESS, told, strict=True):
        error = each["error"]
        assert (error["status"], error["code"], error["type"], error["param"]) == (
            wrong.status,
            wrong.code,
            wrong.type,
            wrong.param,
        )
        assert wrong.says in error["message"]
        assert each["requests"] == 1


# -- LangChain ---------------------------------------------------------------------------------------------------------


async def test_langchain_chats(site: Site) -> None:
    model = site.langchain(max_tokens=64, temperature=0.5, seed=7)
    answer = await trio.to_thread.run_sync(model.invoke, "what is a tide?")
    assert answer.content == SAID
    assert answer.response_metadata["model_name"] == FREE
    assert answer.usage_metadata == {
        "input_tokens": 7,
        "output_tokens": 5,
        "total_tokens": 12,
        "input_token_details": {},
        "output_token_details": {},
    }
    asked = site.provider.heard[-1].body
    assert (asked["temperature"], asked["seed"]) == (0.5, 7)


@pytest.mark.parametrize("method", ["json_mode", "json_schema"])
async def test_langchain_gets_structure(site: Site, method: Any) -> None:
    site.provider.say = json_said
    structured = site.langchain().with_structured_output(Tide, method=method)
    assert await trio.to_thread.run_sync(structured.invoke, "tell the cause as JSON") == Tide(cause="the moon")


async def test_langchain_shows_the_price_of_a_paid_model(site: Site) -> None:
    with pytest.raises(openai.APIStatusError, match=r"0\.007000 USD"):
        await trio.to_thread.run_sync(site.langchain(PAID).invoke, "what is a tide?")
