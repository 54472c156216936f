from __future__ import annotations

import trio

from gateway.actors.operations import Ended
from gateway.errors import ExecutorFailed
from gateway.http.lanes import Lanes, Turn

ENDED = Ended("op_1", "search.free", "sha256:0", {}, {}, {}, None, None, replayed=False)


async def test_a_lane_is_taken_under_every_name_and_left_under_all() -> None:
    lanes = Lanes()
    with lanes.turn([("a", "h"), ("b", "h")], None) as turn:
        assert lanes.ahead([("b", "h"), ("c", "h")]) is turn
        assert lanes.ahead([("c", "h")]) is None
        assert lanes.ahead([("a", "other request")]) is None
        assert not turn.over.is_set()
    assert turn.over.is_set()
    assert lanes.ahead([("a", "h"), ("b", "h")]) is None


async def test_a_request_that_is_cancelled_leaves_its_lane() -> None:
    lanes = Lanes()
    with trio.CancelScope() as scope, lanes.turn([("a", "h")], None) as turn:
        scope.cancel()
        await trio.sleep_forever()
    assert turn.over.is_set()
    assert lanes.ahead([("a", "h")]) is None


def test_a_result_is_a_replay_for_all_behind_it() -> None:
    outcome = Turn("payment", ENDED).shared_with("another payment")
    assert isinstance(outcome, Ended)
    assert outcome.replayed


def test_a_failure_holds_for_the_same_payment_only() -> None:
    failure = ExecutorFailed()
    assert Turn("payment", failure).shared_with("payment") is failure
    assert Turn("payment", failure).shared_with("another payment") is None
    assert Turn(None, failure).shared_with(None) is failure


def test_what_became_of_nothing_is_not_shared() -> None:
    assert Turn("payment").shared_with("payment") is None
