"""What the configuration names as back ends, with the secrets read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.back_ends import adapters_of, model_routes_of
from gateway.config import Configuration, ConfigurationError, structure
from gateway.registry.ai.openai import OpenAiAdapter

EMBEDDED = OpenAiAdapter("http://127.0.0.1:1", "embedded", "", "embedded")
LUNA = {"model": "openai/gpt-5.6-luna", "kind": "openai", "upstream_model": "gpt-5.6-luna"}


def configured(**sections: Any) -> Configuration:
    return structure({"node": {"base_url": "https://node.example"}} | sections)


def test_adapters_stand_in_the_operators_order_with_their_keys(tmp_path: Path) -> None:
    key = tmp_path / "brave.key"
    key.write_text("a key\n")
    adapters = [
        {"kind": "brave", "key_file": str(key)},
        {"kind": "searxng", "base_url": "http://127.0.0.1:3", "name": "own"},
    ]
    assert [each.name for each in adapters_of(configured(search={"adapter": adapters}))] == ["brave", "own"]


def test_a_key_file_that_cannot_be_read_is_named() -> None:
    adapters = [{"kind": "index"}, {"kind": "brave", "key_file": "/nowhere/brave.key"}]
    with pytest.raises(ConfigurationError, match=r"/search/adapter/1/key_file: /nowhere/brave\.key cannot be read"):
        adapters_of(configured(search={"adapter": adapters}))


def test_engines_that_cannot_stand_together_are_a_configuration_error() -> None:
    adapters = [{"kind": "index"}, {"kind": "searxng", "base_url": "http://127.0.0.1:3"}]
    with pytest.raises(ConfigurationError, match="/search/adapter: "):
        adapters_of(configured(search={"adapter": adapters}))


def test_without_configuration_there_is_the_embedded_model() -> None:
    (route,) = model_routes_of(configured(), EMBEDDED)
    assert (route.model, route.adapter, route.billed) == ("huggingfacetb/smollm2-135m-instruct", EMBEDDED, False)
    assert model_routes_of(configured(), None) == ()


def test_routes_stand_in_the_operators_order_and_a_key_makes_one_billed(tmp_path: Path) -> None:
    key = tmp_path / "model.key"
    key.write_text("sk-1\n")
    routes = model_routes_of(
        configured(ai={"route": [LUNA | {"key_file": str(key)}, LUNA | {"base_url": "http://127.0.0.1:9"}]}), EMBEDDED
    )
    assert [(each.route_id, each.billed) for each in routes] == [
        ("ai/openai/gpt-5.6-luna", True),
        ("ai/openai/gpt-5.6-luna-2", False),
        ("ai/huggingfacetb/smollm2-135m-instruct", False),
    ]


def test_what_an_upstream_charges_is_configured() -> None:
    rated = LUNA | {"base_url": "http://127.0.0.1:9", "input_rate": 200_000, "output_rate": 1_200_000}
    luna, _ = model_routes_of(configured(ai={"route": [rated]}), EMBEDDED)
    assert luna.rates == (200_000, 1_200_000)


def test_an_embedded_route_that_is_configured_stands_where_it_was_put() -> None:
    embedded = {"model": "gateway/fast", "kind": "embedded"}
    routes = model_routes_of(configured(ai={"route": [embedded, LUNA | {"base_url": "http://127.0.0.1:9"}]}), EMBEDDED)
    assert [each.model for each in routes] == ["gateway/fast", "openai/gpt-5.6-luna"]


def test_a_model_s_key_file_that_cannot_be_read_is_named() -> None:
    with pytest.raises(ConfigurationError, match=r"/ai/route/0/key_file: /nowhere/model\.key cannot be read"):
        model_routes_of(configured(ai={"route": [LUNA | {"key_file": "/nowhere/model.key"}]}), EMBEDDED)


def test_a_route_that_cannot_work_is_named_by_its_place() -> None:
    wrong = LUNA | {"model": "openai/gpt-1"}
    with pytest.raises(ConfigurationError, match=r"/ai/route/1: the catalog has no model 'openai/gpt-1'"):
        model_routes_of(configured(ai={"route": [LUNA | {"base_url": "http://127.0.0.1:9"}, wrong]}), EMBEDDED)
