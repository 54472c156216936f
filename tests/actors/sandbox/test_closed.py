from __future__ import annotations

from gateway.actors.sandbox.closed import Closed


def test_a_caller_is_told_the_reason_and_not_what_was_found_on_the_host() -> None:
    refusal = Closed("sandbox.image_missing", "no image in /srv/images", "build one").refusal()
    assert (refusal.code, refusal.status, refusal.extra) == (
        "operation_unavailable",
        503,
        {"reason": "sandbox.image_missing"},
    )
    assert "/srv" not in refusal.detail
    assert refusal.retry_after is not None
