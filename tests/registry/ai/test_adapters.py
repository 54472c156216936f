from __future__ import annotations

import contextlib
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.registry.ai.adapter import ModelAdapter, RouteSettings
from gateway.registry.ai.adapters import EMBEDDED_MODEL, RouteSettingsError, build
from gateway.registry.ai.anthropic import AnthropicAdapter
from gateway.registry.ai.catalog import CATALOG
from gateway.registry.ai.gemini import GeminiAdapter
from gateway.registry.ai.openai import OpenAiAdapter

KEY = "sk-a-key-that-must-not-show"
LUNA = RouteSettings("openai/gpt-5.6-luna", "openai", upstream_model="gpt-5.6-luna", key=KEY)
LOCAL = RouteSettings("openai/gpt-oss-20b", "openai", "http://127.0.0.1:11434", "gpt-oss:20b")
EMBEDDED = RouteSettings(EMBEDDED_MODEL, "embedded")
INSIDE: ModelAdapter = OpenAiAdapter("http://127.0.0.1:1", "smollm2")


def refused(*settings: RouteSettings, embedded: ModelAdapter | None = INSIDE) -> RouteSettingsError:
    with pytest.raises(RouteSettingsError) as wrong:
        build(settings, CATALOG, embedded)
    return wrong.value


def test_every_kind_is_built_in_the_operators_order_at_its_public_address() -> None:
    sonnet = RouteSettings("anthropic/claude-sonnet-4.6", "anthropic", upstream_model="claude-sonnet-4-6", key=KEY)
    gemini = RouteSettings("google/gemini-3.1-pro-preview", "gemini", upstream_model="models/gemini-3.1", key=KEY)
    routes = build([gemini, LUNA, EMBEDDED, sonnet], CATALOG, INSIDE)
    assert [route.route_id for route in routes] == [
        "ai/google/gemini-3.1-pro-preview",
        "ai/openai/gpt-5.6-luna",
        f"ai/{EMBEDDED_MODEL}",
        "ai/anthropic/claude-sonnet-4.6",
    ]
    assert [route.adapter for route in routes] == [
        GeminiAdapter("https://generativelanguage.googleapis.com", "gemini-3.1", KEY, "google/gemini-3.1-pro-preview"),
        OpenAiAdapter("https://api.openai.com/v1", "gpt-5.6-luna", KEY, "openai/gpt-5.6-luna"),
        INSIDE,
        AnthropicAdapter("https://api.anthropic.com", "claude-sonnet-4-6", KEY, "anthropic/claude-sonnet-4.6"),
    ]


def test_a_route_with_a_key_is_billed_and_one_without_may_be_tried_out() -> None:
    luna, local, inside = build([LUNA, LOCAL, EMBEDDED], CATALOG, INSIDE)
    assert (luna.billed, local.billed, inside.billed) == (True, False, False)
    assert (luna.canary, local.canary, inside.canary) == (False, True, True)
    assert luna.budget == "billed:ai/openai/gpt-5.6-luna"


@pytest.mark.parametrize(
    ("said", "billed", "canary"),
    [
        ({"billed": False}, False, True),
        ({"billed": True, "canary": True}, True, True),
        ({"billed": False, "canary": False}, False, False),
    ],
)
def test_the_operator_may_say_otherwise(said: dict[str, Any], billed: bool, canary: bool) -> None:
    (route,) = build([attrs.evolve(LUNA, **said)], CATALOG, None)
    assert (route.billed, route.canary) == (billed, canary)


def test_further_routes_of_a_model_are_numbered() -> None:
    names = [route.route_id for route in build([LUNA, LOCAL, LUNA, LUNA], CATALOG, None)]
    assert names == [
        "ai/openai/gpt-5.6-luna",
        "ai/openai/gpt-oss-20b",
        "ai/openai/gpt-5.6-luna-2",
        "ai/openai/gpt-5.6-luna-3",
    ]


def test_a_name_is_the_operators() -> None:
    (route,) = build([attrs.evolve(LUNA, name="luna-eu")], CATALOG, None)
    assert route.route_id == "ai/luna-eu"


def test_two_routes_of_one_name_are_refused() -> None:
    wrong = refused(LUNA, LOCAL, attrs.evolve(LOCAL, name=LUNA.model))
    assert wrong.index == 2
    assert "ai/openai/gpt-5.6-luna" in wrong.message


def test_an_alias_may_have_a_route_of_its_own() -> None:
    (route,) = build([attrs.evolve(LUNA, model="gateway/code", upstream_model="glm-5.1")], CATALOG, None)
    assert (route.model, route.route_id) == ("gateway/code", "ai/gateway/code")


def test_a_stand_in_says_that_it_is_one() -> None:
    (route,) = build([attrs.evolve(LOCAL, simulated=True)], CATALOG, None)
    assert route.simulated


def test_the_embedded_model_answers_for_itself_and_the_alias_that_stands_on_it() -> None:
    routes = build([EMBEDDED, attrs.evolve(EMBEDDED, model="gateway/fast")], CATALOG, INSIDE)
    assert [route.adapter for route in routes] == [INSIDE, INSIDE]


@pytest.mark.parametrize("model", ["openai/gpt-5.6-luna", "gateway/smart", "gateway/deep", "gateway/code"])
def test_the_embedded_model_answers_for_no_other(model: str) -> None:
    assert EMBEDDED_MODEL in refused(attrs.evolve(EMBEDDED, model=model)).message


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"model": "openai/gpt-6-luna"}, "the catalog has no model 'openai/gpt-6-luna'"),
        ({"model": ""}, "the catalog has no model"),
        ({"model": "openai/whisper-tiny.en"}, "not sold as a chat"),
        ({"kind": "azure"}, "openai, anthropic, gemini, embedded"),
        ({"upstream_model": ""}, "upstream_model"),
        ({"upstream_model": "a b"}, "upstream_model"),
        ({"upstream_model": "a\r\nx: y"}, "upstream_model"),
        ({"name": "a name"}, "name"),
        ({"name": "\n"}, "name"),
        ({"key": ""}, "key_file"),
        ({"key": "", "base_url": "https://api.openai.com"}, "key_file"),
        ({"key": f"{KEY}\n{KEY}"}, "key_file"),
        ({"key": "schlüssel"}, "key_file"),
        ({"base_url": "api.openai.com"}, "base_url"),
        ({"base_url": "ftp://api.openai.com"}, "base_url"),
        ({"base_url": "https://"}, "base_url"),
        ({"base_url": "https://me:secret@api.openai.com"}, "base_url"),
        ({"base_url": "https://api.openai.com/v1?a=b"}, "base_url"),
        ({"base_url": "https://api.openai.com/v1#x"}, "base_url"),
        ({"base_url": "https://api.openai.com:99999"}, "base_url"),
        ({"base_url": "https://[::1"}, "base_url"),
        ({"base_url": "https://a b/"}, "base_url"),
        ({"base_url": "http://api.openai.com/v1"}, "over http://"),
        ({"base_url": "HTTP://10.0.0.7:8000"}, "over http://"),
        ({"base_url": "http://127.0.0.1.evil.example"}, "over http://"),
    ],
)
def test_settings_that_cannot_work_are_refused_with_what_to_do(change: dict[str, Any], told: str) -> None:
    wrong = refused(LOCAL, attrs.evolve(LUNA, **change))
    assert wrong.index == 1
    assert told in wrong.message
    assert KEY not in str(wrong)
    assert "secret" not in str(wrong)


def test_an_embedded_route_has_nothing_to_configure_and_must_be_switched_on() -> None:
    assert "takes no base_url" in refused(attrs.evolve(EMBEDDED, base_url="http://127.0.0.1:1")).message
    assert "takes no base_url" in refused(attrs.evolve(EMBEDDED, key=KEY)).message
    assert "switched off" in refused(EMBEDDED, embedded=None).message


@pytest.mark.parametrize("base_url", ["http://127.0.0.1:8000", "http://localhost:8000/v1", "http://[::1]:8000"])
def test_a_key_may_go_over_http_to_this_host(base_url: str) -> None:
    (route,) = build([attrs.evolve(LUNA, base_url=base_url)], CATALOG, None)
    assert route.adapter.probe_calls()[0].url == f"{base_url.removesuffix('/v1')}/v1/models"


def test_http_without_a_key_may_go_anywhere() -> None:
    (route,) = build([attrs.evolve(LOCAL, base_url="http://10.0.0.7:8000/")], CATALOG, None)
    assert route.adapter.probe_calls()[0].url == "http://10.0.0.7:8000/v1/models"


def test_what_an_upstream_charges_is_not_guessed() -> None:
    (route,) = build([LUNA], CATALOG, None)
    assert route.rates is None


def test_no_settings_are_no_routes() -> None:
    assert build([], CATALOG, INSIDE) == ()


@given(st.builds(RouteSettings, *(st.text(max_size=20) for _ in range(4)), key=st.text(max_size=9)))
def test_any_settings_are_a_route_or_refused(settings: RouteSettings) -> None:
    for model, kind in ((settings.model, settings.kind), (LUNA.model, "openai"), (EMBEDDED_MODEL, "embedded")):
        with contextlib.suppress(RouteSettingsError):
            (route,) = build([attrs.evolve(settings, model=model, kind=kind)], CATALOG, INSIDE)
            assert route.adapter.probe_calls()[0].url.startswith("http")


def test_a_key_is_in_the_text_of_no_route() -> None:
    assert KEY not in repr(build([LUNA], CATALOG, None))
