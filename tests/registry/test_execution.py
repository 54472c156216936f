from __future__ import annotations

import pytest

from gateway.registry.execution import Family, Served, Work


class Echo:
    def admit(self, operation: str, request: object) -> None:
        del operation, request

    def budget(self, operation: str, request: object) -> str | None:
        del operation, request
        return None

    async def execute(self, work: Work) -> Served:
        return Served({"echo": work.request}, {"attempt": work.attempt})


async def test_an_executor_is_whatever_admits_and_executes() -> None:
    family: Family = Echo()
    family.admit("echo", "a")
    assert await family.execute(Work("op_1", "echo", "a", 2, 0.0)) == Served({"echo": "a"}, {"attempt": 2})


def test_work_cannot_be_changed_by_who_does_it() -> None:
    with pytest.raises(AttributeError):
        Work("op_1", "echo", "a", 1, 0.0).attempt = 2  # type: ignore[misc]  # that is the point


def test_what_was_served_is_json_or_nothing() -> None:
    assert Served({"text": "é"}, {"ms": 1}).plain == '{"output":{"text":"é"},"execution":{"ms":1}}'.encode()
    with pytest.raises(TypeError):
        _ = Served({"text": object()}, {}).plain
