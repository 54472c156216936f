from __future__ import annotations

from typing import Any

import attrs
import pytest

from gateway.actors.idempotency import Shown
from gateway.actors.operations import State
from gateway.http.operation_view import view

SHOWN = Shown(
    operation_id="op_1",
    operation="search.paid",
    state=State.RECEIPTED,
    funding="paid",
    attempt=1,
    request_hash="sha256:0",
    settlement="settled",
    transaction="0xab",
    network="eip155:8453",
    failure_code=None,
    receipt={"receiptId": "rcpt_1"},
    transitions=[{"state": "CLAIMED", "at": "2026-11-28T00:00:00.000Z"}],
    kept=True,
    output=None,
    execution=None,
)


def test_a_stranger_sees_where_it_stands_and_no_output() -> None:
    document = view(SHOWN)
    assert document["settlement"] == {"status": "settled", "transaction": "0xab", "network": "eip155:8453"}
    assert (document["state"], document["receipt"]) == ("RECEIPTED", {"receiptId": "rcpt_1"})
    assert not document.keys() & {"output", "execution", "failure"}


def test_who_has_the_key_sees_the_output() -> None:
    document = view(attrs.evolve(SHOWN, output={"results": []}, execution={"attempt": 1}))
    assert (document["output"], document["execution"]) == ({"results": []}, {"attempt": 1})


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize(
    ("settlement", "told"),
    [("none", "not_required"), ("settled", "settled"), ("not_settled", "not_settled"), ("unknown", "unknown")],
)
def test_the_settlement_is_told_and_every_state_says_what_is_next(state: State, settlement: str, told: str) -> None:
    document = view(attrs.evolve(SHOWN, state=state, settlement=settlement))
    assert document["settlement"]["status"] == told
    assert document["state"] == state.name
    assert document["next"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "get the result again"),
        ({"kept": False}, "past its retention"),
        (
            {"state": State.FAILED, "failure_code": "executor_failed", "settlement": "not_settled"},
            "Nothing was charged",
        ),
        ({"state": State.FAILED, "failure_code": "execution_reconciliation"}, "fresh Idempotency-Key"),
        ({"state": State.FAILED, "failure_code": "executor_failed", "settlement": "settled"}, "no other payment"),
        ({"state": State.FAILED, "failure_code": "settlement_pending", "settlement": "unknown"}, "Do not sign another"),
        ({"state": State.NEEDS_OPERATOR, "settlement": "unknown"}, "Do not sign another payment"),
        ({"state": State.EXECUTED, "settlement": "unknown"}, "Do not sign another payment"),
        ({"state": State.CLAIMED, "settlement": "not_settled"}, "In progress"),
    ],
)
def test_next_says_what_a_client_does_now(changes: dict[str, Any], words: str) -> None:
    assert words in view(attrs.evolve(SHOWN, **changes))["next"]


def test_a_failure_is_named_by_its_problem() -> None:
    failed = attrs.evolve(SHOWN, state=State.FAILED, failure_code="executor_failed")
    assert view(failed)["failure"] == {"code": "executor_failed", "title": "The executor failed closed"}
    assert view(attrs.evolve(failed, failure_code="forgotten"))["failure"]["title"] == "forgotten"
