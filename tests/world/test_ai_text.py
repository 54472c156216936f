from __future__ import annotations

import json
import random
from typing import Any

import attrs
import pytest

from gateway.world.ai_text import DEPTH, REASONING_TOKENS, Asked, count, made_up, of_schema

ASKED = Asked("gpt-5.6-luna", ("You are brief.", "Why is the sky blue?"), 200)


def test_the_same_question_has_the_same_answer() -> None:
    assert made_up(ASKED) == made_up(ASKED)
    assert made_up(ASKED).text != made_up(attrs.evolve(ASKED, model="gpt-5-nano")).text
    assert made_up(ASKED).text != made_up(attrs.evolve(ASKED, texts=("Why is the sky red?",))).text


def test_an_answer_is_of_the_last_turn() -> None:
    answer = made_up(ASKED)
    assert "Why is the sky blue?" in answer.text
    assert answer.finish == "stop"


def test_tokens_are_counted() -> None:
    answer = made_up(ASKED)
    assert answer.output_tokens == count(answer.text) > 10
    assert answer.input_tokens == count("You are brief.") + count("Why is the sky blue?") + 8
    assert answer.reasoning_tokens == 0


@pytest.mark.parametrize("most", [1, 2, 7])
def test_an_answer_ends_where_its_tokens_end(most: int) -> None:
    whole, cut = made_up(ASKED), made_up(attrs.evolve(ASKED, most_tokens=most))
    assert whole.text.startswith(cut.text)
    assert (count(cut.text), cut.output_tokens, cut.finish) == (most, most, "length")


def test_reasoning_takes_its_tokens_first() -> None:
    cut = made_up(attrs.evolve(ASKED, reasons=True, most_tokens=16))
    assert (count(cut.text), cut.output_tokens, cut.reasoning_tokens) == (16 - REASONING_TOKENS, 16, REASONING_TOKENS)


def test_a_stop_text_ends_an_answer_and_is_not_in_it() -> None:
    whole = made_up(ASKED).text
    cut = made_up(attrs.evolve(ASKED, stop=("sky", "never said")))
    assert (cut.text, cut.finish) == (whole.partition("sky")[0].rstrip(), "stop")


def test_text_of_any_script_is_counted_and_answered() -> None:
    asked = attrs.evolve(ASKED, texts=("日本語 \ud83d\ude00 Überraschung",), json=True)
    answer = made_up(asked)
    assert json.loads(answer.text)["topic"].endswith("Überraschung")


def test_json_is_json_and_says_that_it_is_simulated() -> None:
    assert json.loads(made_up(attrs.evolve(ASKED, json=True)).text)["simulated"] is True


SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "size": {"type": "integer", "minimum": 40},
        "share": {"type": ["number", "null"]},
        "kind": {"enum": ["a", "b"]},
        "version": {"const": 3},
        "ok": {"type": "BOOLEAN"},
        "either": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "many": {"type": "array", "items": {"type": "integer"}, "minItems": 3},
    },
}


def test_a_schema_is_followed() -> None:
    told = json.loads(made_up(attrs.evolve(ASKED, json=True, schema=SCHEMA)).text)
    assert set(told) == set(SCHEMA["properties"])
    assert isinstance(told["name"], str)
    assert 40 <= told["size"] < 50
    assert isinstance(told["share"], float)
    assert told["kind"] in {"a", "b"}
    assert (told["version"], type(told["ok"]), type(told["either"]), len(told["many"])) == (3, bool, str, 3)


@pytest.mark.parametrize(
    "schema", [None, 3, {"type": 3}, {"enum": 3}, {"type": "array"}, {"properties": 3}, {"anyOf": 3}, {"type": []}]
)
def test_a_schema_that_is_none_is_answered_all_the_same(schema: Any) -> None:
    json.dumps(of_schema(schema, random.Random(1)))


def test_a_deep_schema_is_followed_so_far() -> None:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(3 * DEPTH):
        schema = {"type": "array", "items": schema}
    assert json.dumps(of_schema(schema, random.Random(1))).count("[") == DEPTH + 1
