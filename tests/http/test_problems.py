"""Facts about problem documents."""

from __future__ import annotations

from typing import ClassVar

import orjson
import pytest

from gateway import errors
from gateway.errors import PROBLEMS, Violation
from gateway.http import problems

BASE = "https://node.example"


class Plain(errors.NotFound):
    """A kind without advice."""

    next: ClassVar[str | None] = None  # type: ignore[assignment]


def test_a_plain_problem_has_the_standard_members() -> None:
    status, headers, body = problems.render(Plain("gone"), base_url=BASE, instance="/v1/x")
    assert status == 404
    assert headers == {
        "Content-Type": "application/problem+json",
        "Cache-Control": "no-store",
        "x-should-retry": "false",
    }
    assert orjson.loads(body) == {
        "type": "https://node.example/problems/not_found",
        "title": "Not found",
        "status": 404,
        "detail": "gone",
        "instance": "/v1/x",
        "code": "not_found",
        "retryable": False,
    }


def test_a_full_problem_says_what_is_known() -> None:
    error = errors.SettlementPending(
        "undecided",
        errors=[Violation("/query", "too long"), Violation("#header/Idempotency-Key", "missing")],
        operation_id="op_1",
        retry_after=1.2,
        extra={"settlement": "unknown"},
        headers={"X-Extra": "1"},
    )
    _, headers, body = problems.render(error, base_url=BASE, instance="/v1/x")
    members = orjson.loads(body)
    assert headers["Retry-After"] == "2"
    assert headers["X-Extra"] == "1"
    assert members["operationId"] == "op_1"
    assert members["errors"] == [
        {"pointer": "/query", "detail": "too long"},
        {"pointer": "#header/Idempotency-Key", "detail": "missing"},
    ]
    assert members["next"] == errors.SettlementPending.next
    assert members["settlement"] == "unknown"


@pytest.mark.parametrize(("seconds", "header"), [(0, "1"), (0.01, "1"), (1, "1"), (59.5, "60"), (-3, "1")])
def test_retry_after_is_whole_seconds_rounded_up_and_never_none(seconds: float, header: str) -> None:
    _, headers, _ = problems.render(errors.QuotaExceeded(retry_after=seconds), base_url=BASE, instance="/")
    assert headers["Retry-After"] == header


def test_an_extension_member_never_replaces_a_standard_one() -> None:
    _, _, body = problems.render(errors.NotFound(extra={"status": 200, "more": 1}), base_url=BASE, instance="/")
    members = orjson.loads(body)
    assert (members["status"], members["more"]) == (404, 1)


@pytest.mark.parametrize("code", sorted(PROBLEMS))
def test_every_problem_is_rendered_and_described(code: str) -> None:
    kind = PROBLEMS[code]
    status, _, body = problems.render(kind(), base_url=BASE, instance="/")
    described = problems.describe(code, base_url=BASE)
    assert orjson.loads(body)["type"] == described["type"] == f"{BASE}/problems/{code}"
    assert status == described["status"] == kind.status
    assert described["description"]
    assert "\n" not in described["description"]


def test_an_unknown_kind_is_not_found() -> None:
    with pytest.raises(errors.NotFound):
        problems.describe_as("*/*", "no_such_problem", base_url=BASE)


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("", "application/json"),
        ("*/*", "application/json"),
        ("application/json", "application/json"),
        ("text/html;q=0.5, application/json", "application/json"),
        ("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", "text/html; charset=utf-8"),
        ("image/png", "application/json"),
        (";;;,,q=", "application/json"),
    ],
)
def test_a_kind_is_described_as_json_unless_a_page_is_preferred(accept: str, kind: str) -> None:
    status, headers, body = problems.describe_as(accept, "quota_exceeded", base_url=BASE)
    assert status == 200
    assert headers["Content-Type"] == kind
    assert headers["Vary"] == "Accept"
    assert b"quota_exceeded" in body


def test_a_page_escapes_what_it_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors.NotFound, "title", "<script>alert(1)</script>")
    _, headers, body = problems.describe_as("text/html", "not_found", base_url=BASE)
    assert b"<script>" not in body
    assert "default-src 'none'" in headers["Content-Security-Policy"]


@pytest.mark.parametrize("reason", ["stalled", "slow", "overloaded", "lease_lost", "crashed"])
def test_a_store_that_stalls_has_one_reason_outside(reason: str) -> None:
    failure = errors.StoreUnavailable(extra={"reason": reason})
    _, _, body = problems.render(failure, base_url="https://node.example", instance="/v1/x")
    assert orjson.loads(body)["reason"] == "store_unavailable"
    assert failure.extra == {"reason": reason}
