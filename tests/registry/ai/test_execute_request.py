"""The `ai.execute` request: what its schema cannot say, and what it costs."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from gateway.errors import ContextLengthExceeded, GatewayError, InvalidRequest, ModelNotFound, RequestTooLarge
from gateway.http.validation import BodyValidator
from gateway.registry.ai.catalog import CATALOG
from gateway.registry.ai.execute_request import EXAMPLE, LUNA, ExecuteRequest, check, price, schema
from gateway.registry.table import ai_execute_operation

OPERATION = ai_execute_operation(100)
VALIDATOR = BodyValidator.of(OPERATION)


def body(*contents: str, model: str = LUNA, tokens: int = 16, **members: Any) -> dict[str, Any]:
    chat = {
        "kind": "chat",
        "messages": [{"role": "user", "content": content} for content in contents or ("hi",)],
        "responseFormat": "text",
        "stream": False,
    }
    return {"model": model, "input": chat | members, "maximumOutputTokens": tokens}


def request(*contents: str, **members: Any) -> ExecuteRequest:
    valid: ExecuteRequest = VALIDATOR.validate(body(*contents, **members)).request
    return valid


def refused(asked: dict[str, Any]) -> GatewayError:
    with pytest.raises(GatewayError) as caught:
        VALIDATOR.validate(asked)
    return caught.value


def test_the_models_offered_are_those_of_the_catalog_and_luna_is_the_first_and_the_default() -> None:
    model = schema()["properties"]["model"]
    assert model["enum"] == [each.id for each in CATALOG.on("ai.execute")]
    assert (model["enum"][0], model["default"]) == (LUNA, LUNA)
    assert {each.id for each in CATALOG.models.values() if each.billing} == set(model["enum"])


def test_the_example_is_valid_and_paid() -> None:
    assert OPERATION.sells(VALIDATOR.validate(dict(EXAMPLE)).request)


def test_a_model_that_is_not_offered_is_not_found() -> None:
    problem = refused(body(model="openai/gpt-4.1"))
    assert isinstance(problem, ModelNotFound)
    assert (problem.status, problem.extra["param"], problem.errors[0].pointer) == (400, "model", "/model")


@pytest.mark.parametrize(
    "asked",
    [
        body(stream=True),
        body(responseFormat="json"),
        body(kind="completion"),
        body(temperature=0),
        body(tokens=0),
        body(tokens=16_385),
        body("a" * 100_001),
        body(*["a"] * 129),
        {"model": LUNA, "maximumOutputTokens": 16},
        body() | {"extra": 1},
    ],
)
def test_the_schema_is_strict(asked: dict[str, Any]) -> None:
    assert refused(asked).status == 400


def test_the_prompt_is_the_messages_of_the_user() -> None:
    prompt = request("a", "b", tokens=7).prompt
    assert [(each.role, each.content) for each in prompt.messages] == [("user", "a"), ("user", "b")]
    assert (prompt.model, prompt.max_output_tokens, prompt.response_format.json) == (LUNA, 7, False)


def test_the_price_is_the_formula_over_bytes_messages_and_output() -> None:
    # luna: 1.00 and 6.00 USD a million; "hi" is 2 bytes, and 16 a message.
    assert price(request("hi", tokens=16)) == 18 + 16 * 6
    assert price(request("é", "hi", tokens=1)) == 2 + 2 + 32 + 6
    assert price(request("hi", tokens=16), margin_percent=150) == 171
    assert price(request("hi", model="gateway/fast")) == 0


def test_a_free_model_answers_with_1024_tokens_at_most() -> None:
    assert check(request(model="gateway/fast", tokens=1024)) is None
    problem = check(request(model="gateway/fast", tokens=1025))
    assert isinstance(problem, InvalidRequest)
    assert [each.pointer for each in problem.errors] == ["/maximumOutputTokens"]
    assert check(request(tokens=16_384)) is None


def test_what_does_not_fit_into_the_context_is_refused_before_it_is_priced() -> None:
    luna = CATALOG.models[LUNA]
    assert luna.context_window is not None
    fitting, tokens = luna.context_window - 16_384 - 16 * 128, 16_384
    fill = ["a" * 8_000] * 128
    fill[0] = "a" * (fitting - 127 * 8_000)
    assert check(request(*fill, tokens=tokens)) is None
    fill[0] += "a"
    assert isinstance(check(request(*fill, tokens=tokens)), ContextLengthExceeded)


def test_a_price_over_the_published_maximum_is_refused_never_clamped() -> None:
    luna = CATALOG.models[LUNA]
    wide = attrs.evolve(CATALOG, models={**CATALOG.models, LUNA: attrs.evolve(luna, context_window=None)})
    most = request(*["a" * 100_000] * 14)
    problem = check(most, catalog=wide)
    assert isinstance(problem, RequestTooLarge)
    assert problem.status == 400
    assert check(request(*["a" * 100_000] * 12), catalog=wide) is None
