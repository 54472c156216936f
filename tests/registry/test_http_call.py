from __future__ import annotations

import pytest

from gateway.registry.http_call import (
    AnswerTooLarge,
    HttpCall,
    UpstreamBroken,
    UpstreamFailed,
    UpstreamTimeout,
    UpstreamUnreachable,
)

FAILURES = (UpstreamUnreachable, UpstreamTimeout, UpstreamBroken, AnswerTooLarge)


def test_only_a_call_that_never_left_says_so() -> None:
    assert [failure for failure in (UpstreamFailed, *FAILURES) if not failure.sent] == [UpstreamUnreachable]


def test_each_failure_has_a_machine_word_of_its_own() -> None:
    words = {failure.reason for failure in FAILURES}
    assert words == {"unreachable", "timeout", "connection_broken", "answer_too_large"}


@pytest.mark.parametrize("failure", FAILURES)
def test_every_failure_is_caught_as_one(failure: type[UpstreamFailed]) -> None:
    with pytest.raises(UpstreamFailed, match="facilitator"):
        raise failure("facilitator")


def test_a_call_is_bounded_unless_told_otherwise() -> None:
    call = HttpCall("GET", "http://127.0.0.1/")
    assert (call.timeout_s, call.max_bytes, call.content) == (10.0, 2**20, b"")
