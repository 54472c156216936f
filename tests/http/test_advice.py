"""What a client is told to do about each failure: the body, `Retry-After` and `x-should-retry` say the same."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from gateway import errors
from gateway.actors import embedded_model
from gateway.actors.runtime import Phase
from gateway.actors.store import Reason
from gateway.errors import PROBLEMS, GatewayError
from gateway.http import problems
from gateway.http.advice import BY_REASON, EXECUTED, OF_THE_OPERATOR, OF_THE_REQUEST, PASSING, Lifted, advice, decided
from gateway.http.openai_wire import dressed
from gateway.sandbox.canaries import CANARIES
from gateway.sandbox.outcome import Outcome

PACKAGE = Path(errors.__file__).parent
KINDS = pytest.mark.parametrize("kind", PROBLEMS.values(), ids=list(PROBLEMS))
REFINED = [kind for kind in PROBLEMS.values() if issubclass(kind, BY_REASON)]
"""Codes whose reason decides."""


def told(failure: GatewayError) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the body and the headers of a failure, which are the same on a route that speaks OpenAI."""
    status, headers, body = problems.render(failure, base_url="https://node.example", instance="/v1/x")
    members = orjson.loads(body)
    status_there, headers_there, body_there = problems.render(
        dressed(failure), base_url="https://node.example", instance="/v1/x"
    )
    members_there = orjson.loads(body_there)
    assert members_there.pop("error")
    assert (status_there, headers_there, members_there) == (status, headers, members)
    return members, headers


def check(failure: GatewayError, *, retryable: bool) -> None:
    """Check that body and headers say of a failure whether it is to be tried again, and when."""
    members, headers = told(failure)
    assert members["retryable"] is retryable
    assert members["next"]
    if not retryable:
        assert "Retry-After" not in headers
        assert headers["x-should-retry"] == "false"
        assert "`Retry-After`" not in members["next"]
    elif failure.status in {409, 429} or failure.status >= 500:
        assert int(headers["Retry-After"]) >= 1
        assert ("x-should-retry" in headers) is (int(headers["Retry-After"]) > 60)


# -- every code --------------------------------------------------------------------------------------------------------


@KINDS
@pytest.mark.parametrize("retry_after", [None, 0, 0.2, 7, 86_000])
def test_a_code_says_the_same_everywhere(kind: type[GatewayError], retry_after: float | None) -> None:
    check(kind(retry_after=retry_after), retryable=kind.retryable)


@KINDS
def test_what_is_said_to_wait_for_is_given(kind: type[GatewayError]) -> None:
    members, headers = told(kind())
    assert ("`Retry-After`" in members["next"]) <= ("Retry-After" in headers)


@KINDS
def test_a_client_is_not_kept_from_paying_and_does_not_pay_by_itself(kind: type[GatewayError]) -> None:
    if kind.status == 402:
        assert told(kind())[1]["x-should-retry"] == "false"


@pytest.mark.parametrize("kind", REFINED, ids=lambda kind: kind.code)
def test_a_code_whose_reason_decides_says_so_and_begins_with_what_became_of_the_money(kind: type[GatewayError]) -> None:
    assert kind.retryable
    assert problems.describe(kind.code, base_url="")["retryableDependsOn"] == "reason"
    assert b"unless its reason" in problems.describe_as("text/html", kind.code, base_url="")[2]
    assert (kind.next or "").startswith(("Nothing was charged. ", "Sign no other payment. "))


@KINDS
def test_a_code_whose_reason_does_not_decide_is_described_as_it_is_told(kind: type[GatewayError]) -> None:
    if kind in REFINED:
        return
    described = problems.describe(kind.code, base_url="")
    assert "retryableDependsOn" not in described
    members, _ = told(kind(extra={"reason": "no_route"}))
    assert (described["retryable"], described["next"]) == (members["retryable"], members["next"])


# -- every reason ------------------------------------------------------------------------------------------------------


def test_a_reason_is_decided_once() -> None:
    assert len(PASSING | OF_THE_REQUEST | OF_THE_OPERATOR) == len(PASSING) + len(OF_THE_REQUEST) + len(OF_THE_OPERATOR)


@pytest.mark.parametrize("reason", sorted(OF_THE_OPERATOR))
def test_what_only_the_operator_can_change_is_not_to_be_tried_again(reason: str) -> None:
    for kind in REFINED:
        failure = kind(retry_after=5, extra={"reason": reason})
        of_one_run = reason.startswith("sandbox.") and issubclass(kind, EXECUTED)
        check(failure, retryable=of_one_run)
        assert ("operator" in (advice(failure).next or "")) is not of_one_run


@pytest.mark.parametrize("reason", sorted(PASSING))
def test_what_passes_is_to_be_tried_again(reason: str) -> None:
    for kind in REFINED:
        check(kind(extra={"reason": reason}), retryable=True)


@pytest.mark.parametrize("reason", [*sorted(OF_THE_REQUEST), "status_400", "status_413", "status_422"])
def test_what_one_request_comes_to_asks_for_another_request(reason: str) -> None:
    for kind in (errors.ExecutionFailed, errors.ExecutorFailed):
        failure = kind(retry_after=5, extra={"reason": reason})
        check(failure, retryable=False)
        assert "Change it" in (advice(failure).next or "")


def test_what_one_request_came_to_closes_a_route_for_a_while_only() -> None:
    for reason in OF_THE_REQUEST - {"memory"}:
        check(errors.ModelUnavailable(extra={"reason": reason}), retryable=True)
    check(errors.CapacityExhausted(extra={"reason": "memory"}), retryable=False)


@pytest.mark.parametrize(
    ("reason", "lifted"),
    [
        ("status_400", Lifted.BY_THE_OPERATOR),
        ("status_401", Lifted.BY_THE_OPERATOR),
        ("status_402", Lifted.BY_THE_OPERATOR),
        ("status_403", Lifted.BY_THE_OPERATOR),
        ("status_404", Lifted.BY_THE_OPERATOR),
        ("status_408", Lifted.BY_TIME),
        ("status_429", Lifted.BY_TIME),
        ("status_302", Lifted.BY_TIME),
        ("status_500", Lifted.BY_TIME),
        ("status_529", Lifted.BY_TIME),
        ("rpc_timeout", Lifted.BY_TIME),
        ("rpc_status_401", Lifted.BY_THE_OPERATOR),
        ("facilitator_timeout", Lifted.BY_TIME),
        ("facilitator_garbage", Lifted.BY_TIME),
        ("facilitator_status_403", Lifted.BY_THE_OPERATOR),
        ("health_status_502", Lifted.BY_TIME),
        ("config_status_404", Lifted.BY_THE_OPERATOR),
        ("config_blocked", Lifted.BY_TIME),
        ("config_malformed_answer", Lifted.BY_TIME),
    ],
)
def test_the_status_of_a_back_end_that_is_closed_tells_whose_it_is(reason: str, lifted: Lifted) -> None:
    assert decided(reason, executed=False) is lifted


def test_it_passes_where_one_of_several_back_ends_may_be_back() -> None:
    key_missing: dict[str, Any] = {"reason": "key_missing"}
    both = {"ai/a": "key_missing", "ai/b": "proof_expired"}
    check(errors.ModelUnavailable(extra=key_missing | {"routes": both}), retryable=True)
    check(errors.OperationUnavailable(extra=key_missing | {"routes": {"search/a": "key_missing"}}), retryable=False)
    tried = [{"adapter": "a", "outcome": "blocked", "ms": 1}, {"adapter": "b", "outcome": "status_401", "ms": 1}]
    check(errors.ExecutorFailed(extra={"reason": "status_401", "attempts": tried}), retryable=True)
    check(errors.ExecutorFailed(extra={"reason": "status_401", "attempts": tried[1:]}), retryable=False)
    refused = [{"route": "a", "outcome": "timeout", "ms": 1}, {"route": "b", "outcome": "status_400", "ms": 1}]
    check(errors.ExecutionFailed(extra={"reason": "status_400", "attempts": refused}), retryable=False)


@pytest.mark.parametrize("reason", ["", "status_", "status_x", "rpc_", "what_is_this", None, 7, ["no_route"]])
def test_a_reason_that_nobody_knows_passes(reason: Any) -> None:
    check(errors.ModelUnavailable(extra={"reason": reason}), retryable=True)


# -- none is missing ---------------------------------------------------------------------------------------------------

TELLS = {
    "Attempt": 1,
    "ChainUnavailable": 0,
    "Closed": 0,
    "Expiring": 0,
    "Failed": 1,
    "ModelFailed": 0,
    "SetupFailed": 0,
    "Unusable": 0,
    "_Fault": 0,
    "_full": 0,
    "_never": 1,
    "fail": 0,
    "failed": 1,
    "never_ran": 0,
}
"""What is called with a machine reason, and where among its arguments that stands."""
NAMES = frozenset({"reason", "refusal", "canary_refusal", "closed"})
"""What a reason is called where it is an argument, a member, a variable or an attribute."""
RETURNERS = frozenset({"_reason", "closed", "supports"})
"""Functions that return one."""
ELSEWHERE = ("world", "doctor", "commands")
"""Rooms whose reasons no caller sees."""
NO_REASON = frozenset(
    {
        "served",
        "reason",
        "ready",
        "waiting",
        "extensions",
        "gateway.refusal",
        "sandbox.execute",
        "success",
        "unspecified",
        "fix",  # members of a line of the log
        "what",
    }
)
PUT_TOGETHER = frozenset({"error", "execution_failed", "execution_reconciliation"})
"""What follows `rpc_`, and codes that stand in for a reason."""


def modules() -> Iterator[ast.Module]:
    for path in sorted(PACKAGE.rglob("*.py")):
        if path.relative_to(PACKAGE).parts[0] not in ELSEWHERE:
            yield ast.parse(path.read_text())


def constants() -> dict[str, str]:
    """Return the text constants of all modules by name."""
    return {
        target.id: node.value.value
        for tree in modules()
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def words(node: ast.AST | None, known: dict[str, str]) -> Iterator[str]:
    """Yield the texts that an expression may come to; what is put together is not among them."""
    match node:
        case None | ast.JoinedStr() | ast.Compare():
            return
        case ast.Constant(value=str(text)):
            yield text
        case ast.Name(id=name) if name in known:
            yield known[name]
        case _:
            for each in ast.iter_child_nodes(node):
                yield from words(each, known)


def told_in(tree: ast.AST, known: dict[str, str]) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=given, keywords=named):
                if name in TELLS and len(given) > TELLS[name]:
                    yield from words(given[TELLS[name]], known)
                for each in named:
                    yield from words(each.value, known) if each.arg in NAMES else ()
            case ast.Dict(keys=keys, values=values):
                for key, value in zip(keys, values, strict=True):
                    yield from words(value, known) if isinstance(key, ast.Constant) and key.value == "reason" else ()
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if name in NAMES:
                yield from words(value, known)
            case ast.AnnAssign(target=ast.Name(id=name), value=value) if name in NAMES:
                yield from words(value, known)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) if name in RETURNERS:
                for inner in ast.walk(node):
                    yield from words(inner.value, known) if isinstance(inner, ast.Return) else ()
            case ast.Constant(value=str(text)) if re.fullmatch(r"sandbox\.[a-z_]+", text):
                yield text


def reasons() -> set[str]:
    """Return every machine reason that stands in the source, and those that are put together."""
    known = constants()
    found = {word for tree in modules() for word in told_in(tree, known)}
    found |= {each.value for each in Reason} | {each.value for each in Phase}
    found |= {each.value for each in Outcome if not each.charged}
    found |= {each.reason for each in CANARIES}
    found |= {f"{what}_{how}" for what in ("probe", "canary") for how in ("crashed", "timeout")}
    found |= {value for name, value in vars(embedded_model).items() if name.isupper() and isinstance(value, str)}
    return {each for each in found if re.fullmatch(r"[a-z_.]{3,}", each)} - NO_REASON


def test_every_reason_in_the_source_is_decided() -> None:
    assert sorted(each for each in reasons() if decided(each, executed=False) is None) == []


def test_the_search_for_reasons_finds_them() -> None:
    assert reasons() >= {"no_route", "switched_off", "disk_full", "payment_not_configured", "rpc_wrong_chain"}
    assert reasons() >= {"key_missing", "embedded_model_busy", "sandbox.image_missing", "model_not_installed"}
    assert reasons() >= {"unreachable", "timeout", "tool_call", "not_json", "result_too_large", "facilitator_garbage"}


def test_the_table_holds_no_reason_that_nobody_gives() -> None:
    assert sorted((PASSING | OF_THE_REQUEST | OF_THE_OPERATOR) - reasons() - PUT_TOGETHER) == []
