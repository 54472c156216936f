from __future__ import annotations

import pytest

from gateway.world.faults import FACILITATOR_MODES, RPC_MODES, SEARCH_MODES, FaultRefused, Faults


def made() -> Faults:
    return Faults(
        {"facilitator": FACILITATOR_MODES, "rpc/eip155:8453": RPC_MODES, "search": SEARCH_MODES},
        {"facilitator": ("verify", "settle"), "search": ("search",)},
    )


def test_everything_is_well_at_first() -> None:
    assert made().state() == {
        "modes": {"facilitator": "ok", "rpc/eip155:8453": "ok", "search": "ok"},
        "facilitator": {"verify": 0, "settle": 0},
        "rpc": {"eip155:8453": {}},
        "search": {"search": 0},
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
    assert refused.value.allowed == ("facilitator", "rpc/eip155:8453", "search")
