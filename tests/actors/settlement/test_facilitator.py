from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson
import pytest

from gateway.actors.settlement import Facilitator, Submission, Verdict, Verification
from gateway.registry.http_call import (
    AnswerTooLarge,
    HttpAnswer,
    HttpCall,
    UpstreamBroken,
    UpstreamFailed,
    UpstreamTimeout,
    UpstreamUnreachable,
)

NETWORK = "eip155:8453"
KIND = {"x402Version": 2, "scheme": "exact", "network": NETWORK}
PAYER = "0x70997970C51812dc3A010C7d01b50e0d17dc79C8"
BODY = {"x402Version": 2, "paymentPayload": {}, "paymentRequirements": {}}
HASH = "0x" + "Ab" * 32


def facilitator(answer: object, *, status: int = 200, url: str = "http://facilitator.example/v2/") -> Facilitator:
    """Return one that answers every call so: bytes as they are, a failure raised, anything else as JSON."""
    calls: list[HttpCall] = []

    async def call(wanted: HttpCall) -> HttpAnswer:
        calls.append(wanted)
        if isinstance(answer, UpstreamFailed):
            raise answer
        return HttpAnswer(status, {}, answer if isinstance(answer, bytes) else orjson.dumps(answer), 1)

    made = Facilitator(url, call, 10, 20)
    CALLS[id(made)] = calls
    return made


CALLS: dict[int, list[HttpCall]] = {}

FAULTS: list[tuple[object, int, str, bool]] = [
    (b"", 200, "garbage", True),
    (b"<!doctype html>", 200, "garbage", True),
    (b"[" * 100_000, 200, "garbage", True),
    (b'{"isValid":NaN}', 200, "garbage", True),
    ([], 200, "garbage", True),
    (None, 200, "garbage", True),
    ("ok", 200, "garbage", True),
    ({"isValid": True, "success": True, "kinds": [KIND]}, 302, "status_302", True),
    ({"isValid": True, "success": True, "kinds": [KIND]}, 201, "status_201", True),
    ({"success": False, "error": "bad request"}, 400, "status_400", True),
    (b"<!doctype html>", 400, "status_400", True),
    ({"isValid": True, "success": True, "kinds": [KIND]}, 400, "status_400", True),
    ({"isValid": False}, 401, "status_401", True),
    ({"isValid": False}, 429, "status_429", True),
    ({"isValid": False}, 500, "status_500", True),
    (UpstreamUnreachable("facilitator"), 0, "unreachable", False),
    (UpstreamTimeout("facilitator"), 0, "timeout", True),
    (UpstreamBroken("facilitator"), 0, "connection_broken", True),
    (AnswerTooLarge("facilitator"), 0, "answer_too_large", True),
]


@pytest.mark.parametrize(("answer", "status", "reason", "sent"), FAULTS)
async def test_a_fault_says_nothing_of_the_payment(answer: object, status: int, reason: str, sent: bool) -> None:
    faulty = facilitator(answer, status=status)
    assert await faulty.verify(BODY, PAYER) == Verification(Verdict.UNAVAILABLE, reason)
    assert await faulty.settle(BODY) == Submission(None, reason, sent)
    assert await faulty.supports(NETWORK) == f"facilitator_{reason}"


@pytest.mark.parametrize("status", [200, 400, 402, 412, 422])
async def test_a_refusal_is_one_at_any_status_that_a_facilitator_refuses_with(status: int) -> None:
    refusing = facilitator({"isValid": False, "invalidReason": "insufficient_funds", "payer": PAYER}, status=status)
    assert await refusing.verify(BODY, PAYER) == Verification(Verdict.INVALID, "insufficient_funds")
    refusing = facilitator({"success": False, "errorReason": "insufficient_funds"}, status=status)
    assert await refusing.settle(BODY) == Submission(None, "insufficient_funds", sent=True, refused=True)


async def test_each_call_has_its_path_and_its_time() -> None:
    asked = facilitator({"kinds": [KIND], "isValid": True, "success": True})
    await asked.supports(NETWORK)
    await asked.verify(BODY, PAYER)
    await asked.settle(BODY)
    calls = CALLS[id(asked)]
    assert [(call.method, call.url.removeprefix("http://facilitator.example"), call.timeout_s) for call in calls] == [
        ("GET", "/v2/supported", 5),
        ("POST", "/v2/verify", 10),
        ("POST", "/v2/settle", 20),
    ]
    assert orjson.loads(calls[2].content) == BODY
    assert {call.target for call in calls} == {"facilitator"}


@pytest.mark.parametrize(
    ("answer", "verification"),
    [
        ({"isValid": True}, Verification(Verdict.VALID)),
        ({"isValid": True, "payer": PAYER.lower()}, Verification(Verdict.VALID)),
        ({"isValid": True, "payer": None}, Verification(Verdict.VALID)),
        ({"isValid": True, "payer": "0x" + "11" * 20}, Verification(Verdict.UNAVAILABLE, "wrong_payer")),
        ({"isValid": True, "payer": ["x"]}, Verification(Verdict.UNAVAILABLE, "wrong_payer")),
        (
            {"isValid": False, "invalidReason": "insufficient_funds"},
            Verification(Verdict.INVALID, "insufficient_funds"),
        ),
        ({"isValid": False}, Verification(Verdict.INVALID, "unspecified")),
        ({"isValid": False, "invalidReason": "<script>"}, Verification(Verdict.INVALID, "unspecified")),
        ({"isValid": False, "invalidReason": "x" * 101}, Verification(Verdict.INVALID, "unspecified")),
        ({"isValid": False, "invalidReason": {"a": 1}}, Verification(Verdict.INVALID, "unspecified")),
        ({"isValid": False, "invalidReason": "a\n"}, Verification(Verdict.INVALID, "unspecified")),
        ({"isValid": 1}, Verification(Verdict.UNAVAILABLE, "garbage")),
        ({"isValid": "true"}, Verification(Verdict.UNAVAILABLE, "garbage")),
        ({"isValid": 0}, Verification(Verdict.UNAVAILABLE, "garbage")),
        ({"valid": True}, Verification(Verdict.UNAVAILABLE, "garbage")),
        ({}, Verification(Verdict.UNAVAILABLE, "garbage")),
    ],
)
async def test_a_verdict_is_taken_from_a_boolean_alone(answer: object, verification: Verification) -> None:
    assert await facilitator(answer).verify(BODY, PAYER) == verification


@pytest.mark.parametrize(
    ("answer", "submission"),
    [
        ({"success": True, "transaction": HASH}, Submission(HASH.lower(), "success", True)),
        ({"success": True, "transaction": ""}, Submission(None, "success", True)),
        ({"success": True}, Submission(None, "success", True)),
        ({"success": True, "transaction": HASH + "\n"}, Submission(None, "success", True)),
        ({"success": True, "transaction": HASH[:-1]}, Submission(None, "success", True)),
        ({"success": True, "transaction": 7}, Submission(None, "success", True)),
        ({"success": True, "transaction": [HASH]}, Submission(None, "success", True)),
        (
            {"success": False, "errorReason": "settlement_pending", "transaction": HASH},
            Submission(HASH.lower(), "settlement_pending", True),
        ),
        (
            {"success": False, "errorReason": "settle_exact_evm_transaction_confirmation_timed_out"},
            Submission(None, "settle_exact_evm_transaction_confirmation_timed_out", True),
        ),
        (
            {"success": False, "errorReason": "insufficient_funds"},
            Submission(None, "insufficient_funds", True, refused=True),
        ),
        ({"success": False, "errorReason": "a b"}, Submission(None, "unspecified", True, refused=True)),
        ({"success": "yes"}, Submission(None, "unspecified", True)),
        ({}, Submission(None, "unspecified", True)),
    ],
)
async def test_a_submission_is_a_hint_and_no_more(answer: object, submission: Submission) -> None:
    assert await facilitator(answer).settle(BODY) == submission


@pytest.mark.parametrize(
    ("kinds", "reason"),
    [
        ([KIND], None),
        ([None, 7, "x", {"network": NETWORK}, KIND], None),
        ([KIND | {"extra": {"a": 1}}], None),
        ([], "facilitator_does_not_support_network"),
        ([KIND | {"x402Version": 1}], "facilitator_does_not_support_network"),
        ([KIND | {"x402Version": "2"}], "facilitator_does_not_support_network"),
        ([KIND | {"network": "eip155:1"}], "facilitator_does_not_support_network"),
        ([KIND | {"scheme": "upto"}], "facilitator_does_not_support_network"),
        ([KIND | {"network": {}}], "facilitator_does_not_support_network"),
        ({"0": KIND}, "facilitator_garbage"),
        (None, "facilitator_garbage"),
    ],
)
async def test_support_is_a_kind_with_version_scheme_and_network(kinds: object, reason: str | None) -> None:
    assert await facilitator({"kinds": kinds}).supports(NETWORK) == reason


@pytest.mark.parametrize("method", ["verify", "settle"])
async def test_nothing_of_the_payment_is_in_what_is_told_of_a_failure(method: str) -> None:
    body: dict[str, Any] = BODY | {"paymentPayload": {"signature": "0xsecret"}}
    faulty = facilitator(UpstreamBroken("facilitator"))
    ask: Callable[..., Any] = getattr(faulty, method)
    assert "secret" not in repr(await ask(body, *([PAYER] if method == "verify" else [])))
