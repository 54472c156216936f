from __future__ import annotations

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.registry.ai.dialect import dialect_of, same_name, without_sampling
from gateway.registry.ai.prompt import Message, Prompt, ResponseFormat, Sampling

OPENAI = "https://api.openai.com/v1"
OPENROUTER = "https://openrouter.ai/api/v1"
OLLAMA = "http://127.0.0.1:11434"
PROMPT = Prompt("m", (Message("user", "hi"),), 16)


def asking(**wishes: object) -> Prompt:
    return attrs.evolve(PROMPT, sampling=Sampling(**wishes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("base_url", "root"),
    [
        ("https://api.openai.com", "https://api.openai.com/v1"),
        ("https://api.openai.com/v1/", "https://api.openai.com/v1"),
        ("http://127.0.0.1:11434", "http://127.0.0.1:11434/v1"),
        ("https://openrouter.ai/api", "https://openrouter.ai/api/v1"),
        ("https://api.z.ai/api/paas/v4", "https://api.z.ai/api/paas/v4"),
        ("https://g.example/v1beta/openai", "https://g.example/v1beta/openai"),
        ("https://vendor.example/vllm", "https://vendor.example/vllm/v1"),
    ],
)
def test_an_address_is_taken_with_or_without_its_version(base_url: str, root: str) -> None:
    assert dialect_of(base_url, "m").root == root


@pytest.mark.parametrize(
    ("base_url", "model", "limit"),
    [
        (OPENAI, "gpt-4o", "max_completion_tokens"),
        (OPENAI, "gpt-5.6-luna", "max_completion_tokens"),
        ("https://proxy.example/v1", "gpt-5.6-luna", "max_completion_tokens"),
        ("https://proxy.example/v1", "openai/o3-mini", "max_completion_tokens"),
        (OPENROUTER, "openai/gpt-5.6-luna", "max_tokens"),
        (OLLAMA, "gpt-oss:20b", "max_tokens"),
        (OLLAMA, "llama3.3", "max_tokens"),
        ("https://openai.com.evil.example/v1", "m", "max_tokens"),
    ],
)
def test_the_limit_has_the_name_that_is_neither_refused_nor_ignored(base_url: str, model: str, limit: str) -> None:
    assert dialect_of(base_url, model).limit == limit


@pytest.mark.parametrize(
    ("model", "efforts"),
    [
        ("o3-mini", {"low", "medium", "high"}),
        ("gpt-5-nano", {"minimal", "low", "medium", "high"}),
        ("gpt-5.1", {"none", "low", "medium", "high"}),
        ("gpt-5.4-2026-03-05", {"none", "low", "medium", "high", "xhigh"}),
        ("openai/gpt-5.6-luna", {"none", "low", "medium", "high", "xhigh", "max"}),
        ("gpt-oss:20b", {"low", "medium", "high"}),
        ("gpt-5-chat-latest", set()),
        ("gpt-4o", set()),
        ("gpt-50", set()),
        ("llama3.3", set()),
        ("foo1", set()),
    ],
)
def test_an_effort_goes_only_to_models_that_know_it(model: str, efforts: set[str]) -> None:
    dialect = dialect_of(OLLAMA, model)
    assert dialect.efforts == efforts
    for effort in ("none", "minimal", "low", "medium", "high", "xhigh", "max"):
        expected = None if effort in efforts else "reasoning_effort_unsupported"
        assert dialect.lacks(asking(reasoning_effort=effort)) == expected


@pytest.mark.parametrize(
    ("wish", "word"),
    [
        ({"temperature": 0}, "temperature_unsupported"),
        ({"temperature": 0.7}, "temperature_unsupported"),
        ({"temperature": 1}, None),
        ({"top_p": 0.5}, "top_p_unsupported"),
        ({"top_p": 1.0}, None),
        ({"stop": ("x",)}, "stop_unsupported"),
        ({"presence_penalty": 0}, None),
        ({"presence_penalty": 1}, "presence_penalty_unsupported"),
        ({"frequency_penalty": -1}, "frequency_penalty_unsupported"),
        ({"seed": 3}, None),
    ],
)
def test_openais_reasoning_models_honour_the_default_sampling_only(wish: dict[str, object], word: str | None) -> None:
    assert dialect_of(OPENAI, "gpt-5.6-luna").lacks(asking(**wish)) == word
    assert dialect_of(OPENAI, "gpt-4o").lacks(asking(**wish)) is None
    assert dialect_of(OLLAMA, "gpt-5.6-luna").lacks(asking(**wish)) is None


def test_openai_wants_json_mentioned_where_no_schema_says_it() -> None:
    wanting = attrs.evolve(PROMPT, response_format=ResponseFormat("json_object"))
    mentioned = attrs.evolve(wanting, messages=(Message("system", "Answer in JSON."), *PROMPT.messages))
    by_schema = attrs.evolve(PROMPT, response_format=ResponseFormat("json_schema", schema={}))
    assert dialect_of(OPENAI, "gpt-4o").lacks(wanting) == "json_not_mentioned"
    assert dialect_of(OPENAI, "gpt-4o").lacks(mentioned) is None
    assert dialect_of(OPENAI, "gpt-4o").lacks(by_schema) is None
    assert dialect_of(OLLAMA, "llama3.3").lacks(wanting) is None


def test_nothing_asked_is_nothing_lacking() -> None:
    assert without_sampling(Sampling()) is None


@pytest.mark.parametrize(
    ("told", "asked"),
    [
        ("llama3.3", "llama3.3"),
        ("llama3.3:latest", "llama3.3"),
        ("llama3.3", "llama3.3:latest"),
        ("/models/qwen3-8b.gguf", "qwen3-8b"),
        ("./qwen3-8b.gguf", "qwen3-8b"),
        ("qwen3-8b.gguf", "qwen3-8b"),
        ("/models/qwen3-8b", "qwen3-8b"),
        ("C:\\models\\qwen3-8b.gguf", "qwen3-8b.gguf"),
        ("/root/.cache/Qwen/qwen3-8b.gguf", "Qwen/qwen3-8b"),
    ],
)
def test_a_local_servers_word_for_a_model_is_its_name(told: str, asked: str) -> None:
    assert same_name(told, asked)


@pytest.mark.parametrize(
    ("told", "asked"),
    [
        ("llama3.3:70b", "llama3.3"),
        ("evil/gpt-5.6-luna", "gpt-5.6-luna"),
        ("gpt-5.6-luna", "openai/gpt-5.6-luna"),
        ("/models/qwen3-4b.gguf", "qwen3-8b"),
        ("/models/qwen3-8b-q2.gguf", "qwen3-8b"),
        ("deepseek-r1", "deepseek-r1:free"),
        ("/models/", "qwen3-8b"),
        ("", "m"),
    ],
)
def test_another_models_name_is_not(told: str, asked: str) -> None:
    assert not same_name(told, asked)


@given(st.text(max_size=40), st.text(max_size=40))
def test_any_names_can_be_compared(told: str, asked: str) -> None:
    assert isinstance(same_name(told, asked), bool)
    assert same_name(asked, asked)
    assert dialect_of(OLLAMA, asked).root == f"{OLLAMA}/v1"
