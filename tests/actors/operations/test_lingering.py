from __future__ import annotations

from gateway.actors.operations.lingering import LINGER_BYTES, LINGER_S, Lingering
from gateway.actors.operations.order import Ended


def ended(operation_id: str) -> Ended:
    return Ended(operation_id, "search.free", "sha256:0", {}, {}, {}, None, None, replayed=False)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_result_lingers_as_a_replay() -> None:
    lingering = Lingering(Clock())
    assert lingering.add(ended("op_1"), 10) == []
    found = lingering.get("op_1")
    assert found is not None
    assert found.replayed
    assert lingering.get("op_2") is None


def test_a_result_lingers_for_its_time() -> None:
    clock = Clock()
    lingering = Lingering(clock)
    lingering.add(ended("op_1"), 10)
    clock.now = LINGER_S - 1
    lingering.add(ended("op_2"), 10)
    clock.now = LINGER_S
    assert lingering.get("op_1") is None
    assert lingering.prune() == ["op_1"]
    assert lingering.get("op_2") is not None
    assert lingering.size == 10


def test_the_oldest_make_way_for_the_newest() -> None:
    lingering = Lingering(Clock())
    half = LINGER_BYTES // 2
    assert lingering.add(ended("op_1"), half) == []
    assert lingering.add(ended("op_2"), half) == []
    assert lingering.add(ended("op_3"), 1) == ["op_1"]
    assert lingering.get("op_3") is not None
    assert lingering.size == half + 1
