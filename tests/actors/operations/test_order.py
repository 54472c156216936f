from __future__ import annotations

from trio.testing import MockClock

from tests.actors.operations.scene import NAMING, order, payment


async def test_an_order_is_known_by_each_of_its_names_for_its_request() -> None:
    made = order("the-first-key-of-all", names=["an-identifier-of-it"])
    assert made.keys == [
        (NAMING.names("the-first-key-of-all", "")[0].hmac, made.request_hash),
        (NAMING.names("an-identifier-of-it", "")[0].hmac, made.request_hash),
    ]


async def test_an_order_shown_in_a_log_shows_neither_request_nor_signature(autojump_clock: MockClock) -> None:
    shown = repr(order(paid_by=payment(), body={"query": "a private question"}))
    assert "private" not in shown
    assert "paymentPayload" not in shown
