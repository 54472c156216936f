from __future__ import annotations

from typing import Any

import orjson
import pytest

from gateway.world.ai_upstream import CALLS, AiUpstream
from gateway.world.door import Call, Late, Reply, Silence
from gateway.world.faults import AI_MODES, Faults

KEY = "sk-simulated"
MESSAGES = [{"role": "user", "content": "why is the sky blue"}]
HEADERS: dict[str, dict[str, str]] = {
    "openai": {"authorization": f"Bearer {KEY}"},
    "anthropic": {"x-api-key": KEY, "anthropic-version": "2023-06-01"},
    "gemini": {"x-goog-api-key": KEY},
}
PATHS = {
    "openai": "/v1/chat/completions",
    "anthropic": "/v1/messages",
    "gemini": "/v1beta/models/gemini-2.5-flash-lite:generateContent",
}
BODIES: dict[str, dict[str, Any]] = {
    "openai": {"model": "gpt-5.6-luna", "messages": MESSAGES, "max_completion_tokens": 64},
    "anthropic": {"model": "claude-sonnet-4-6", "messages": MESSAGES, "max_tokens": 64},
    "gemini": {
        "contents": [{"role": "user", "parts": [{"text": "why is the sky blue"}]}],
        "generationConfig": {"maxOutputTokens": 64},
    },
}
LISTINGS = {"openai": "/v1/models", "anthropic": "/v1/models", "gemini": "/v1beta/models"}
each_format = pytest.mark.parametrize("format_", ["openai", "anthropic", "gemini"])


def upstream(mode: str = "ok", latency_ms: int = 0) -> tuple[AiUpstream, Faults]:
    faults = Faults({"ai": AI_MODES}, {"ai": CALLS})
    faults.set("ai", mode, latency_ms)
    return AiUpstream(faults, KEY), faults


def completion(format_: str, **changes: Any) -> Call:
    body = orjson.dumps(BODIES[format_] | changes)
    return Call("POST", PATHS[format_], {}, HEADERS[format_], body)


def listing(format_: str, name: str = "") -> Call:
    return Call("GET", LISTINGS[format_] + (name and f"/{name}"), {}, HEADERS[format_], b"")


async def told(asked: AiUpstream, call: Call) -> tuple[int, dict[str, Any]]:
    reply = await asked.answer(call)
    assert isinstance(reply, Reply)
    return reply.status, orjson.loads(reply.body)


@each_format
async def test_a_chat_is_answered_the_same_each_time(format_: str) -> None:
    asked, faults = upstream()
    status, first = await told(asked, completion(format_))
    assert status == 200
    assert b"why is the sky blue" in orjson.dumps(first)
    assert await told(asked, completion(format_)) == (200, first)
    assert faults.state()["ai"] == {"completions": 2, "listings": 0, "aborted": 0}


@each_format
async def test_models_are_listed_and_told_one_by_one(format_: str) -> None:
    asked, faults = upstream()
    status, listed = await told(asked, listing(format_))
    assert status == 200
    models = listed["models" if format_ == "gemini" else "data"]
    name = models[0]["name" if format_ == "gemini" else "id"].removeprefix("models/")
    assert await told(asked, listing(format_, name)) == (200, models[0])
    assert (await told(asked, listing(format_, "no-such-model")))[0] == 404
    assert faults.state()["ai"] == {"completions": 0, "listings": 3, "aborted": 0}


@each_format
async def test_a_call_without_the_key_is_refused(format_: str) -> None:
    asked, _ = upstream()
    for call in (completion(format_), listing(format_)):
        for headers in ({"anthropic-version": "2023-06-01"}, dict.fromkeys(HEADERS[format_], "other")):
            status, error = await told(asked, Call(call.method, call.path, {}, headers, call.body))
            assert status == 401
            assert "error" in error


@each_format
async def test_a_model_that_is_not_served_is_refused(format_: str) -> None:
    asked, _ = upstream()
    call = completion(format_, model="gpt-2") if format_ != "gemini" else completion("gemini")
    elsewhere = Call("POST", call.path.replace("flash-lite", "nano"), {}, call.headers, call.body)
    assert (await told(asked, elsewhere))[0] == 404


@each_format
@pytest.mark.parametrize("member", ["models", "provider", "gateway"])
async def test_a_member_that_is_not_known_is_refused(format_: str, member: str) -> None:
    status, error = await told(upstream()[0], completion(format_, **{member: 1}))
    assert status == 400
    assert member in error["error"]["message"]


@each_format
@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"{}", b'{"messages": [], "contents": []}'])
async def test_a_body_that_is_no_chat_is_refused(format_: str, body: bytes) -> None:
    asked, _ = upstream()
    call = Call("POST", PATHS[format_], {}, HEADERS[format_], body)
    assert (await told(asked, call))[0] in {400, 404}


@pytest.mark.parametrize(("method", "path"), [("GET", "/v1/chat/completions"), ("POST", "/v1/models"), ("GET", "/v2")])
async def test_what_is_not_there_is_404_and_counts_for_nothing(method: str, path: str) -> None:
    asked, faults = upstream()
    assert (await told(asked, Call(method, path, {}, HEADERS["openai"], b"{}")))[0] == 404
    assert faults.state()["ai"] == dict.fromkeys(CALLS, 0)


# -- faults ------------------------------------------------------------------------------------------------------------


@each_format
@pytest.mark.parametrize(("mode", "status"), [("http_500", 500), ("http_429", 429)])
async def test_an_error_is_one_for_listings_as_well(format_: str, mode: str, status: int) -> None:
    asked, _ = upstream(mode)
    for call in (completion(format_), listing(format_)):
        reply = await asked.answer(call)
        assert isinstance(reply, Reply)
        assert reply.status == status
        assert dict(reply.headers).get("retry-after") == ("1" if status == 429 else None)
        assert "error" in orjson.loads(reply.body)


@each_format
async def test_hanging_says_nothing_and_counts_who_leaves_a_completion(format_: str) -> None:
    asked, faults = upstream("hang")
    for call in (completion(format_), listing(format_)):
        reply = await asked.answer(call)
        assert isinstance(reply, Silence)
        reply.left()
    assert faults.state()["ai"] == {"completions": 1, "listings": 1, "aborted": 1}


@each_format
@pytest.mark.parametrize("mode", ["empty_choices", "wrong_model", "invalid_json"])
async def test_what_is_wrong_with_completions_leaves_the_listing_as_it_is(format_: str, mode: str) -> None:
    asked, _ = upstream(mode)
    assert await told(asked, listing(format_)) == await told(upstream()[0], listing(format_))


async def test_empty_choices_are_empty_in_each_format() -> None:
    asked, _ = upstream("empty_choices")
    assert (await told(asked, completion("openai")))[1]["choices"] == []
    assert (await told(asked, completion("anthropic")))[1]["content"] == []
    assert "candidates" not in (await told(asked, completion("gemini")))[1]


async def test_a_wrong_model_names_itself_in_each_format() -> None:
    asked, _ = upstream("wrong_model")
    assert (await told(asked, completion("openai")))[1]["model"] == "gpt-4o-mini-2024-07-18"
    assert (await told(asked, completion("anthropic")))[1]["model"] == "claude-haiku-4-5-20251001"
    assert (await told(asked, completion("gemini")))[1]["modelVersion"] == "gemini-2.5-flash"


@each_format
async def test_invalid_json_is_a_200_that_cannot_be_read(format_: str) -> None:
    reply = await upstream("invalid_json")[0].answer(completion(format_))
    assert isinstance(reply, Reply)
    assert reply.status == 200
    with pytest.raises(orjson.JSONDecodeError):
        orjson.loads(reply.body)


async def test_a_latency_delays_completions_and_counts_who_does_not_wait() -> None:
    asked, faults = upstream(latency_ms=1500)
    late = await asked.answer(completion("openai"))
    assert isinstance(late, Late)
    assert (late.after_s, late.reply.status) == (1.5, 200)
    assert isinstance(await asked.answer(listing("openai")), Reply)
    late.left()
    assert faults.state()["ai"] == {"completions": 1, "listings": 1, "aborted": 1}
