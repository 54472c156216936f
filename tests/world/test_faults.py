from __future__ import annotations

import pytest

from gateway.world.faults import (
    AI_MODES,
    FACILITATOR_MODES,
    MOST_LATENCY_MS,
    RPC_MODES,
    SEARCH_MODES,
    FaultRefused,
    Faults,
)


def made() -> Faults:
    return Faults(
        {"facilitator": FACILITATOR_MODES, "rpc/eip155:8453": RPC_MODES, "search": SEARCH_MODES, "ai": AI_MODES},
        {"facilitator": ("verify", "settle"), "search": ("search",), "ai": ("completions",)},
    )


def test_everything_is_well_at_first() -> None:
    assert made().state() == {
        "modes": {"facilitator": "ok", "rpc/eip155:8453": "ok", "search": "ok", "ai": "ok"},
        "facilitator": {"verify": 0, "settle": 0},
        "rpc": {"eip155:8453": {}},
        "search": {"search": 0},
        "ai": {"completions": 0},
    }


def test_a_mode_stays_until_the_next() -> None:
    faults = made()
    faults.set("facilitator", "refuse")
    assert faults.mode("facilitator") == "refuse"
    faults.set("facilitator", "ok")
    assert faults.mode("facilitator") == "ok"


def test_calls_count_by_target_and_kind() -> None:
    faults = made()
    for _ in range(3):
        faults.count("rpc/eip155:8453", "eth_call")
    faults.count("facilitator", "verify")
    assert faults.state()["rpc"] == {"eip155:8453": {"eth_call": 3}}
    assert faults.state()["facilitator"] == {"verify": 1, "settle": 0}


@pytest.mark.parametrize("mode", ["hang", "", None, 1, ["ok"]])
def test_an_unknown_mode_is_refused_with_those_there_are(mode: object) -> None:
    with pytest.raises(FaultRefused) as refused:
        made().set("facilitator", mode)
    assert refused.value.allowed == FACILITATOR_MODES


def test_an_unknown_target_is_refused_with_those_there_are() -> None:
    with pytest.raises(FaultRefused) as refused:
        made().set("rpc", "ok")
    assert refused.value.allowed == ("facilitator", "rpc/eip155:8453", "search", "ai")


def test_a_latency_is_in_force_until_the_next_order() -> None:
    faults = made()
    faults.set("ai", "wrong_model", 250)
    assert (faults.latency_ms("ai"), faults.state()["latencyMs"]) == (250, {"ai": 250})
    faults.set("ai", "ok")
    assert faults.latency_ms("ai") == 0
    assert "latencyMs" not in faults.state()


@pytest.mark.parametrize("latency", [-1, MOST_LATENCY_MS + 1, 1.5, "10", None, True])
def test_an_unreasonable_latency_is_refused_and_leaves_all_as_it_is(latency: object) -> None:
    faults = made()
    with pytest.raises(FaultRefused, match="latency"):
        faults.set("ai", "hang", latency)
    assert (faults.mode("ai"), faults.latency_ms("ai")) == ("ok", 0)


def test_a_target_that_is_never_late_is_refused_a_latency() -> None:
    with pytest.raises(FaultRefused, match="never late"):
        made().set("search", "ok", 10)
