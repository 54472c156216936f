from __future__ import annotations

from typing import Any

import pytest

from gateway.world.chain import Transfer
from gateway.world.tally import tally


def line(**changes: Any) -> dict[str, Any]:
    return {
        "step": "search over x402",
        "operation": "search.paid",
        "protocol": "x402",
        "status": 200,
        "operationId": "op_1",
        "price": "6000",
        "charged": "6000",
        "transaction": "0xaa",
        "replayed": False,
        "proved": True,
        "ms": 10,
    } | changes


FREE = line(step="free search", protocol="free", price=None, charged="0", transaction=None)
AGAIN = line(step="search over x402, again", replayed=True)
PAID = Transfer("0x1", "0x2", 6000, "0xaa", 3)


def test_a_round_that_adds_up_holds() -> None:
    found = tally([FREE, line(), AGAIN], [PAID], 3)
    assert (found.holds, found.complete, found.transfers) == (True, True, 1)
    assert [row.settled for row in found.rows] == [False, True, True]


@pytest.mark.parametrize(
    ("lines", "transfers", "reason"),
    [
        ([FREE, line(), AGAIN], [], "no such transfer"),
        ([FREE, line(), AGAIN], [Transfer("0x1", "0x2", 5999, "0xaa", 3)], "no such transfer"),
        ([FREE, line(), AGAIN | {"replayed": False}], [PAID], "not replayed"),
        ([FREE, line(replayed=True), AGAIN], [PAID], "was replayed"),
        ([FREE, line(proved=False), AGAIN], [PAID], "receipt"),
        ([FREE | {"charged": "1"}, line(), AGAIN], [PAID], "was charged"),
        ([FREE, line(price="5999"), AGAIN], [PAID], "6000 was charged and 5999 asked"),
        ([FREE, line(price=None), AGAIN], [PAID], "6000 was charged and None asked"),
        ([FREE, line(status=402, charged="0", transaction=None, detail="too poor"), AGAIN], [PAID], "too poor"),
        ([FREE, line(status=503, charged="0", transaction=None, code="settlement_pending"), AGAIN], [PAID], "pending"),
    ],
)
def test_a_step_that_does_not_hold_fails_the_round(
    lines: list[dict[str, Any]], transfers: list[Transfer], reason: str
) -> None:
    found = tally(lines, transfers, 3)
    assert not found.holds
    assert any(reason in row.reason for row in found.rows if row.verdict == "failed")


JOINED = line(step="taken over", replayed=True, joined=True, node="node-2")


def test_a_request_that_joined_one_in_flight_bought_it_whoever_answers() -> None:
    again = line(step="taken over, again", replayed=True, node="node-1")
    found = tally([JOINED, again], [PAID], 2)
    assert (found.complete, found.transfers) == (True, 1)
    assert [(row.node, row.replayed) for row in found.rows] == [("node-2", False), ("node-1", True)]


def test_a_request_that_joined_one_in_flight_must_be_paid_and_proved() -> None:
    assert not tally([JOINED], [], 1).holds
    assert not tally([JOINED | {"proved": False}], [PAID], 1).holds


def test_a_second_transfer_fails_the_round() -> None:
    found = tally([FREE, line(), AGAIN], [PAID, Transfer("0x1", "0x2", 6000, "0xbb", 4)], 3)
    assert not found.holds
    assert found.faults == ("1 purchases, 2 transfers on the chain",)


def test_a_round_that_ends_early_fails() -> None:
    assert not tally([FREE], [], 3).holds


@pytest.mark.parametrize("code", ["operation_unavailable", "capability_unavailable", "model_unavailable"])
def test_a_closed_family_is_no_failure_unless_asked_for(code: str) -> None:
    closed = FREE | {"status": 503, "code": code, "detail": "no adapter", "proved": False}
    found = tally([closed, line(), AGAIN], [PAID], 3)
    assert (found.holds, found.complete) == (True, False)
    assert (found.rows[0].verdict, found.rows[0].reason) == ("closed", "no adapter")


def test_who_answered_is_told_and_whether_it_was_simulated() -> None:
    chat = line(answeredBy="openai/gpt-5.6-luna", simulated=True)
    found = tally([FREE, FREE | {"answeredBy": "index", "simulated": False}, chat], [PAID], 3)
    assert [row.by for row in found.rows] == ["", "index", "openai/gpt-5.6-luna, simulated"]
    assert [row.price for row in found.rows] == [None, None, 6000]
