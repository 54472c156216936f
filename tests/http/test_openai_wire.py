from __future__ import annotations

from typing import Any

import attrs
import orjson
import pytest

from gateway import errors
from gateway.actors.operations import Ended
from gateway.errors import PROBLEMS, GatewayError, Violation
from gateway.http import problems
from gateway.http.openai_wire import completion_body, dressed, member, speaks_openai

COMPLETION: dict[str, Any] = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1,
    "model": "gateway/fast",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "Tides."}, "finish_reason": "stop"}],
    "usage": None,
}
ROUTE = {"routeId": "ai:one", "qualificationId": "qual_1"}
RECEIPT = {"receiptId": "rcpt_1", "funding": "free"}
ENDED = Ended(
    "op_1",
    "chat.completions",
    "sha256:0",
    COMPLETION | {"route": ROUTE},
    {"attempt": 1},
    RECEIPT,
    None,
    None,
    replayed=False,
)


def headers_of(failure: GatewayError) -> dict[str, str]:
    return problems.render(dressed(failure), base_url="https://gateway.example", instance="/v1/x")[1]


def error_of(failure: GatewayError) -> dict[str, Any]:
    found: dict[str, Any] = dressed(failure).extra["error"]
    return found


# -- 200 ---------------------------------------------------------------------------------------------------------------


def test_the_completion_stands_at_the_top_and_what_the_node_says_beside_it() -> None:
    assert orjson.loads(completion_body(ENDED)) == COMPLETION | {
        "gateway": {
            "operationId": "op_1",
            "requestHash": "sha256:0",
            "receipt": RECEIPT,
            "route": ROUTE,
            "replayed": False,
            "execution": {"attempt": 1},
        }
    }


def test_a_replayed_completion_differs_in_replayed_alone() -> None:
    first = orjson.loads(completion_body(ENDED))
    again = orjson.loads(completion_body(attrs.evolve(ENDED, replayed=True)))
    first["gateway"]["replayed"] = True
    assert again == first


def test_the_stored_output_is_left_as_it_is() -> None:
    completion_body(ENDED)
    assert ENDED.output["route"] == ROUTE


# -- failures ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "speaks"),
    [
        ("/v1/chat/completions", True),
        ("/v1/models", True),
        ("/v1/models/gateway%2Ffast", True),
        ("/v1/models/gateway/fast", True),
        ("/v1/audio/transcriptions", True),
        ("/v1/ai/execute", False),
        ("/v1/search/free", False),
        ("/v1/modelsheet", False),
        ("/models", False),
        ("/", False),
        ("", True),
    ],
)
def test_openai_is_spoken_on_its_own_paths(path: str, speaks: bool) -> None:
    assert speaks_openai(path) is speaks


@pytest.mark.parametrize(
    ("pointer", "name"),
    [
        ("", None),
        ("/model", "model"),
        ("/messages/0/content", "messages[0].content"),
        ("/response_format/json_schema/name", "response_format.json_schema.name"),
        ("/0", "0"),
        ("/a~1b/c~0d", "a/b.c~d"),
    ],
)
def test_a_pointer_is_told_as_openai_names_parameters(pointer: str, name: str | None) -> None:
    assert member(pointer) == name


def test_the_message_of_an_invalid_request_tells_its_first_faults() -> None:
    faults = [Violation("", "Idempotency-Key is short"), *(Violation(f"/{name}", "is required") for name in "abc")]
    told = error_of(errors.InvalidRequest("The request has 4 faults.", errors=faults))
    assert told["message"] == (
        "The request has 4 faults. Idempotency-Key is short; a: is required; b: is required; and 1 more"
    )
    assert told["param"] == "a"
    assert told["code"] == "invalid_request"


def test_a_lone_fault_is_told_once() -> None:
    failure = errors.InvalidRequest("at most 1024", errors=[Violation("/max_tokens", "at most 1024")])
    assert error_of(failure)["message"] == "max_tokens: at most 1024"


def test_a_particular_problem_keeps_its_own_words() -> None:
    faults = [Violation("/tools", "is not a member of this request")]
    failure = errors.UnsupportedParameter("`tools` is not supported", errors=faults, extra={"param": "tools"})
    assert error_of(failure) == {
        "message": "`tools` is not supported",
        "type": "invalid_request_error",
        "code": "unsupported_parameter",
        "param": "tools",
    }


def test_the_message_of_a_402_tells_the_price_and_what_to_do() -> None:
    failure = errors.PaymentRequired(extra={"price": {"usd": "0.007000"}})
    told = error_of(failure)
    assert told["message"].startswith("Payment required: 0.007000 USD. Sign one of `accepts`")
    assert told["type"] == "payment_required"
    assert told["param"] is None


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        (errors.InvalidJson(), "invalid_request_error"),
        (errors.NotFound(), "invalid_request_error"),
        (errors.OperationInProgress(), "invalid_request_error"),
        (errors.QuoteExpired(), "payment_required"),
        (errors.QuotaExceeded(retry_after=7), "rate_limit_error"),
        (errors.QuotaExceeded(retry_after=86_000), "insufficient_quota"),
        (errors.ModelUnavailable(), "server_error"),
        (errors.InternalError(), "server_error"),
    ],
)
def test_the_type_is_one_of_openais(failure: GatewayError, kind: str) -> None:
    assert error_of(failure)["type"] == kind


@pytest.mark.parametrize(
    "failure",
    [
        errors.InvalidRequest(),
        errors.PaymentRequired(),
        errors.NotFound(),
        errors.MethodNotAllowed(),
        errors.IdempotencyKeyReused(),
        errors.QuoteConflict(),
        errors.ContentTooLarge(),
        errors.UnsupportedMediaType(),
        errors.QuotaExceeded(retry_after=61),
        errors.OperationNotCallable(),
        errors.CapabilityUnavailable(),
        errors.ModelUnavailable(retry_after=2, extra={"reason": "no_route"}),
        errors.ModelUnavailable(retry_after=2, extra={"reason": "not_offered"}),
        errors.SettlementUnavailable(retry_after=2, extra={"reason": "payment_not_configured"}),
        errors.ModelUnavailable(retry_after=300, extra={"reason": "probe_failed"}),
    ],
    ids=lambda failure: f"{failure.code}-{failure.retry_after}",
)
def test_a_client_is_stopped_where_its_retry_cannot_help(failure: GatewayError) -> None:
    assert headers_of(failure)["x-should-retry"] == "false"


@pytest.mark.parametrize(
    "failure",
    [
        errors.RequestTimeout(),
        errors.OperationInProgress(retry_after=2),
        errors.QuotaExceeded(retry_after=60),
        errors.InternalError(),
        errors.ExecutionFailed(retry_after=2),
        errors.ModelUnavailable(retry_after=2, extra={"reason": "probe_failed"}),
        errors.CapacityExhausted(retry_after=2),
        errors.SettlementPending(retry_after=2),
    ],
    ids=lambda failure: failure.code,
)
def test_a_client_may_try_again_where_time_heals(failure: GatewayError) -> None:
    assert "x-should-retry" not in headers_of(failure)


@pytest.mark.parametrize("code", PROBLEMS)
def test_every_problem_can_be_dressed_and_rendered(code: str) -> None:
    status, _, body = problems.render(dressed(PROBLEMS[code]()), base_url="https://gateway.example", instance="/v1/x")
    told = orjson.loads(body)
    assert status == PROBLEMS[code].status
    assert told["error"].keys() == {"message", "type", "code", "param"}
    assert told["error"]["code"] == told["code"] == code
    assert told["error"]["message"]


def test_what_is_dressed_is_a_copy() -> None:
    failure = errors.ModelUnavailable("down", retry_after=3, headers={"RateLimit": "x"}, extra={"reason": "no_route"})
    told = dressed(failure)
    assert failure.extra == {"reason": "no_route"}
    assert failure.headers == {"RateLimit": "x"}
    assert told.headers["RateLimit"] == "x"
    assert told.extra["reason"] == "no_route"
    assert "error" in told.extra
    assert (type(told), told.detail, told.retry_after) == (errors.ModelUnavailable, "down", 3)
