"""The catalog: which ids are frozen, what the rows of interface.md 2.5 say, and what no file may say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from importlib.resources import files
from typing import Any

import orjson
import pytest

from gateway.registry.ai.catalog import CATALOG, CatalogError, Rates, load

CANONICAL = (
    "alibaba/qwen-3-235b",
    "alibaba/qwen3-coder",
    "alibaba/qwen3-coder-next",
    "alibaba/qwen3-max",
    "alibaba/qwen3-max-thinking",
    "alibaba/qwen3.5-flash",
    "alibaba/qwen3.5-plus",
    "alibaba/qwen3.6-27b",
    "alibaba/qwen3.6-plus",
    "alibaba/qwen3.7-max",
    "alibaba/qwen3.7-plus",
    "amazon/nova-2-lite",
    "amazon/nova-micro",
    "amazon/nova-pro",
    "anthropic/claude-fable-5",
    "anthropic/claude-haiku-4.5",
    "anthropic/claude-opus-4.5",
    "anthropic/claude-opus-4.6",
    "anthropic/claude-opus-4.7",
    "anthropic/claude-opus-4.8",
    "anthropic/claude-sonnet-4.5",
    "anthropic/claude-sonnet-4.6",
    "anthropic/claude-sonnet-5",
    "arcee-ai/trinity-large-thinking",
    "cohere/command-a",
    "deepseek/deepseek-r1",
    "deepseek/deepseek-v3.2",
    "deepseek/deepseek-v4-flash",
    "deepseek/deepseek-v4-pro",
    "google/gemini-2.5-flash",
    "google/gemini-2.5-flash-lite",
    "google/gemini-2.5-pro",
    "google/gemini-3-flash",
    "google/gemini-3.1-flash-lite",
    "google/gemini-3.1-pro-preview",
    "google/gemini-3.5-flash",
    "google/gemma-4-26b-a4b-it",
    "google/gemma-4-31b-it",
    "huggingfacetb/smollm2-135m-instruct",
    "inception/mercury-2",
    "meta/llama-3.3-70b",
    "meta/llama-4-maverick",
    "meta/llama-4-scout",
    "meta/muse-spark-1.1",
    "minimax/minimax-m2.5",
    "minimax/minimax-m2.7",
    "minimax/minimax-m3",
    "mistral/codestral",
    "mistral/devstral-2",
    "mistral/magistral-medium",
    "mistral/ministral-8b",
    "mistral/mistral-large-3",
    "mistral/mistral-medium-3.5",
    "mistral/mistral-small",
    "moonshotai/kimi-k2-thinking",
    "moonshotai/kimi-k2.5",
    "moonshotai/kimi-k2.6",
    "moonshotai/kimi-k2.7-code",
    "nvidia/nemotron-3-super-120b-a12b",
    "nvidia/nemotron-3-ultra-550b-a55b",
    "openai/gpt-4.1",
    "openai/gpt-4o-mini",
    "openai/gpt-5",
    "openai/gpt-5-mini",
    "openai/gpt-5-nano",
    "openai/gpt-5.2",
    "openai/gpt-5.3-codex",
    "openai/gpt-5.4",
    "openai/gpt-5.4-mini",
    "openai/gpt-5.4-nano",
    "openai/gpt-5.5",
    "openai/gpt-5.6-luna",
    "openai/gpt-5.6-sol",
    "openai/gpt-5.6-terra",
    "openai/gpt-oss-120b",
    "openai/gpt-oss-20b",
    "openai/o3",
    "openai/whisper-tiny.en",
    "stepfun/step-3.7-flash",
    "xai/grok-4.3",
    "xai/grok-4.5",
    "xai/grok-build-0.1",
    "zai/glm-4.7-flash",
    "zai/glm-5.1",
    "zai/glm-5.2",
)
"""Frozen: a release may add an id to these and never take one away."""

ALIASES = ("gateway/fast", "gateway/smart", "gateway/deep", "gateway/code")
PRICED = ("ai.execute", "chat.completions")
LUNA = "openai/gpt-5.6-luna"
WHISPER = "openai/whisper-tiny.en"


def model(model_id: str) -> Any:
    found = CATALOG.get(model_id)
    assert found is not None
    return found


# -- what is frozen ----------------------------------------------------------------------------------------------------


def test_no_canonical_id_was_dropped_or_renamed() -> None:
    assert len(CANONICAL) == len(set(CANONICAL)) == 85
    assert set(CANONICAL) <= {each.id for each in CATALOG.canonical}


def test_the_aliases_are_the_four() -> None:
    assert tuple(each.id for each in CATALOG.aliases) == ALIASES


def test_this_release_lists_85_canonical_ids_and_4_aliases() -> None:
    assert (len(CATALOG.canonical), len(CATALOG.models)) == (85, 89)
    assert CATALOG.version == "2026-07-25.3"


def test_the_list_was_created_on_the_day_of_its_version() -> None:
    assert CATALOG.created == 1_784_937_600  # 2026-07-25T00:00:00Z


# -- the rows of interface.md 2.5 --------------------------------------------------------------------------------------


def test_thirteen_models_are_free_and_answer_with_1024_tokens() -> None:
    free = [each for each in CATALOG.models.values() if each.billing == "free"]
    assert Counter(each.kind for each in free) == {"canonical": 10, "alias": 3}
    assert {(each.price, each.max_output_tokens, each.max_input_characters, each.rates) for each in free} == {
        (0, 1024, None, None)
    }


def test_thirteen_models_are_paid_at_the_seven_prices() -> None:
    paid = [each for each in CATALOG.models.values() if each.billing == "paid"]
    assert Counter(each.kind for each in paid) == {"canonical": 12, "alias": 1}
    assert Counter((each.price, each.max_output_tokens) for each in paid) == {
        (2_000, 4096): 1,
        (5_000, 1024): 1,
        (7_000, 1024): 1,
        (15_000, 4096): 3,
        (18_000, 1024): 2,
        (35_000, 1024): 2,
        (84_000, 4096): 3,
    }
    assert {each.max_input_characters for each in paid} == {20_000}
    assert all(each.rates for each in paid)


def test_the_63_other_ids_have_no_price_and_only_the_speech_model_is_offered() -> None:
    others = [each for each in CATALOG.models.values() if each.billing is None]
    assert len(others) == 63
    assert {(each.price, each.rates, each.max_output_tokens) for each in others} == {(None, None, None)}
    assert [each.id for each in others if each.operations] == [WHISPER]
    assert {each.lifecycle for each in others if not each.operations} == {"preview"}


def test_the_speech_model_hears_and_writes() -> None:
    whisper = model(WHISPER)
    assert whisper.capabilities == {"transcription"}
    assert (whisper.input_modalities, whisper.output_modalities) == (("audio",), ("text",))
    assert whisper.operations == ("audio.transcriptions",)


def test_luna_costs_what_it_cost_on_the_day_of_the_catalog() -> None:
    luna = model(LUNA)
    assert luna.rates == Rates(1_000_000, 6_000_000, 272_000, 200, 150)
    assert (luna.price, luna.context_window, luna.upstream_max_output) == (7_000, 1_050_000, 128_000)
    assert luna.name == "GPT-5.6 Luna"


@pytest.mark.parametrize("operation", PRICED)
def test_luna_stands_first_where_the_26_priced_models_are_offered(operation: str) -> None:
    offered = CATALOG.on(operation)
    assert offered[0].id == LUNA
    assert {each.id for each in offered} == {each.id for each in CATALOG.models.values() if each.billing}
    assert len(offered) == 26


def test_every_model_has_a_name_of_its_own_and_a_source() -> None:
    assert len({each.name for each in CATALOG.models.values()}) == 89
    assert all(each.name and each.source for each in CATALOG.models.values())
    assert all(each.owned_by == each.id.split("/")[0] for each in CATALOG.models.values())


def test_an_unknown_id_has_no_row() -> None:
    assert CATALOG.get("openai/gpt-6-luna") is None
    assert CATALOG.on("search.free") == ()


# -- aliases -----------------------------------------------------------------------------------------------------------


def test_the_aliases_promise_what_the_interface_says() -> None:
    assert model("gateway/fast").capabilities == {"text", "json"}
    assert model("gateway/smart").capabilities == model("gateway/deep").capabilities == {"text", "json", "reasoning"}
    assert "code" in model("gateway/code").capabilities
    assert model("gateway/fast").candidates == ("huggingfacetb/smollm2-135m-instruct",)
    assert {(each.price, each.max_output_tokens) for each in CATALOG.aliases} == {(0, 1024), (15_000, 4096)}


@pytest.mark.parametrize("alias", ALIASES)
def test_every_candidate_keeps_what_its_alias_says(alias: str) -> None:
    row = model(alias)
    for candidate in map(model, row.candidates):
        assert candidate.capabilities >= row.capabilities
        assert candidate.context_window >= row.context_window
        assert (candidate.billing, candidate.price) == (row.billing, row.price)
        assert candidate.max_output_tokens >= row.max_output_tokens
        assert set(candidate.operations) >= set(row.operations)


def test_code_is_not_sold_beneath_the_rates_of_a_candidate() -> None:
    code = model("gateway/code")
    for candidate in map(model, code.candidates):
        assert code.rates.input >= candidate.rates.input
        assert code.rates.output >= candidate.rates.output
        assert candidate.rates.long_over is None


# -- the file ----------------------------------------------------------------------------------------------------------


def changed(change: Callable[[Any], object]) -> bytes:
    document = orjson.loads(files("gateway.registry.ai").joinpath("catalog.json").read_bytes())
    change(document)
    return orjson.dumps(document)


def test_the_file_as_it_stands_is_the_catalog() -> None:
    assert load(changed(lambda _: None)) == CATALOG


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda file: file["models"][0].update(contextWindow="1050000"), "models[0].context_window"),
        (lambda file: file["models"][0].update(contextWindow=True), "models[0].context_window"),
        (lambda file: file["models"][1].update(priceUSD="1.0000"), "priceUSD"),
        (lambda file: file["models"][1].pop("name"), "models[1].name"),
        (lambda file: file["models"][1].update(lifecycle="alive"), "alive"),
        (lambda file: file["models"][1].update(capabilities=["vision"]), "vision"),
        (lambda file: file["models"][0]["rates"].update(input=0), "rates"),
        (lambda file: file["models"][0].update(priceUsd="0.007"), "models[0]"),
        (lambda file: file["models"][0].update(priceUsd=0.007), "models[0].price_usd"),
        (lambda file: file.update(version="latest"), "latest"),
        (lambda file: file["models"].append(file["models"][1]), "stands there twice"),
        (lambda file: file["models"][0].update(id="luna"), "luna: no id"),
        (lambda file: file["models"][0].update(id="openai/GPT"), "openai/GPT: no id"),
        (lambda file: file["models"][0].pop("rates"), f"{LUNA}: rates"),
        (lambda file: file["models"][0].pop("priceUsd"), f"{LUNA}: a price"),
        (lambda file: file["models"][0].update(priceUsd="0.0000"), f"{LUNA}: a price"),
        (lambda file: file["models"][1].update(priceUsd="0.0070"), "a price belongs to every paid row"),
        (lambda file: file["models"][1].pop("maxOutputTokens"), "a limit of output tokens"),
        (lambda file: file["aliases"][0].pop("candidates"), "gateway/fast: candidates"),
        (lambda file: file["models"][0].update(candidates=["openai/o3"]), f"{LUNA}: candidates"),
        (lambda file: file["aliases"][0].update(candidates=["openai/gpt-7"]), "openai/gpt-7 is no canonical id"),
        (lambda file: file["aliases"][0].update(candidates=["gateway/deep"]), "gateway/deep is no canonical id"),
        (lambda file: file["aliases"][0].update(candidates=[LUNA]), "is not billed as the alias is"),
        (lambda file: file["aliases"][1].update(candidates=["meta/llama-3.3-70b"]), "lacks reasoning"),
    ],
)
def test_a_file_that_contradicts_itself_is_refused_and_told_where(change: Callable[[Any], object], told: str) -> None:
    with pytest.raises(CatalogError) as refused:
        load(changed(change))
    assert told in str(refused.value)


def test_what_is_no_json_is_refused() -> None:
    with pytest.raises(CatalogError, match="catalog"):
        load(b"{")


def test_a_release_may_add_an_id() -> None:
    row = {"id": "openai/gpt-7", "name": "GPT-7", "capabilities": ["text"], "contextWindow": None}
    row |= {"upstreamMaxOutput": None, "lifecycle": "preview", "source": "nowhere yet"}
    grown = load(changed(lambda file: file["models"].append(row)))
    assert grown.get("openai/gpt-7") is not None
    assert len(grown.canonical) == 86
