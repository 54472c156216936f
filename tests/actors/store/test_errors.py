from __future__ import annotations

import pytest

from gateway.actors.store.errors import Conflict, Failure, Reason, StatementFailed, StoreRefused, StoreUncertain
from gateway.errors import PROBLEMS, StoreUnavailable


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_has_a_story_and_is_named_in_the_problem(reason: Reason) -> None:
    error = Failure(reason).error()
    assert type(error) is StoreUnavailable
    assert error.extra == {"reason": reason.value}
    assert error.detail.endswith("; nothing was stored.")
    assert reason.story in error.detail[0].lower() + error.detail[1:]


def test_an_unknown_outcome_is_told_apart_and_is_the_same_problem_to_a_client() -> None:
    error = Failure(Reason.IO_ERROR, uncertain=True).error()
    assert isinstance(error, StoreUncertain)
    assert "outcome is unknown" in error.detail
    assert PROBLEMS[error.code] is StoreUnavailable


def test_each_asker_gets_an_exception_of_its_own() -> None:
    failure = Failure(Reason.DISK_FULL)
    assert failure.error() is not failure.error()


def test_a_refusal_says_where_what_and_what_to_do() -> None:
    assert str(StoreRefused("/srv/gateway.db", "it is damaged", "Restore a backup")) == (
        "/srv/gateway.db: it is damaged. Restore a backup"
    )


def test_a_conflict_says_which_statement_found_what() -> None:
    assert str(Conflict(2, 0, 1)) == "statement 2 found 0 rows, not 1"


def test_a_rejected_statement_is_named_where_it_is_known() -> None:
    assert str(StatementFailed(1, "no such table: x")) == "statement 1 was rejected: no such table: x"
    assert str(StatementFailed(None, "FOREIGN KEY constraint failed")) == (
        "the step was rejected: FOREIGN KEY constraint failed"
    )
