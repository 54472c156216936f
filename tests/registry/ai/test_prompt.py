"""What a model is asked: what was asked of the sampling, and how long it is."""

from __future__ import annotations

from gateway.registry.ai.prompt import Message, Prompt, ResponseFormat, Sampling


def test_only_what_was_asked_of_the_sampling_counts() -> None:
    assert Sampling().asked == frozenset()
    assert Sampling(temperature=0.0, stop=(), seed=0, reasoning_effort="none").asked == {
        "temperature",
        "seed",
        "reasoning_effort",
    }


def test_characters_are_code_points_of_all_messages() -> None:
    prompt = Prompt("a/b", (Message("system", "é"), Message("user", "\U0001f600\U0001f600")), 16)
    assert prompt.characters == 3


def test_only_a_json_form_needs_a_route_that_enforces_it() -> None:
    assert [ResponseFormat(kind).json for kind in ("text", "json_object", "json_schema")] == [False, True, True]


def test_a_prompt_is_not_shown_where_it_is_printed() -> None:
    prompt = Prompt("a/b", (Message("user", "a secret"),), 16, ResponseFormat("json_schema", schema={"a": "secret"}))
    assert "secret" not in repr(prompt)
    assert "secret" not in repr(prompt.messages[0])
