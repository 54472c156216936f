from __future__ import annotations

import trio
from structlog.testing import capture_logs
from trio.testing import MockClock

from gateway.selling_log import DOCTOR, SellingLog, fix_of

ROUTE, OTHER = "search/searxng", "ai/m"


async def test_the_start_is_one_block_and_each_change_after_it_one_line(autojump_clock: MockClock) -> None:
    states: dict[str, str | None] = {"payments": "payment_not_configured"}
    with capture_logs() as told:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(SellingLog(lambda: dict(states)).watch)
            await trio.sleep(1)
            states |= {ROUTE: "not_probed", OTHER: "unreachable"}
            await trio.sleep(1)
            assert told == []
            states[ROUTE] = None
            await trio.sleep(5)
            (block,) = told
            states[ROUTE] = "status_500"
            await trio.sleep(5)
            states |= {ROUTE: None, "payments": None}
            await trio.sleep(5)
            nursery.cancel_scope.cancel()
    assert (block["event"], block["open"]) == ("selling", [ROUTE])
    assert {each["what"]: each["reason"] for each in block["closed"]} == {
        "payments": "payment_not_configured",
        OTHER: "unreachable",
    }
    assert all(each["fix"] for each in block["closed"])
    assert [(each["event"], each["what"], each.get("reason")) for each in told[1:]] == [
        ("closed", ROUTE, "status_500"),
        ("opened", "payments", None),
        ("opened", ROUTE, None),
    ]


async def test_what_stays_unproven_does_not_keep_the_block_back(autojump_clock: MockClock) -> None:
    with capture_logs() as told:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(SellingLog(lambda: {"payments": None, OTHER: "starting"}).watch)
            await trio.sleep(60)
            nursery.cancel_scope.cancel()
    (block,) = told
    assert [each["what"] for each in block["closed"]] == [OTHER]


def test_a_reason_has_its_fix() -> None:
    assert "[payment]" in fix_of("payment_not_configured")
    assert "key_file" in fix_of("status_401")
    assert fix_of("something_else") == DOCTOR
