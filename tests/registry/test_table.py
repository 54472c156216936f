"""The table of operations: what every entry must hold, whoever adds one."""

from __future__ import annotations

import pytest

from gateway.actors.quota import Policy
from gateway.composition import policies_of
from gateway.config import Configuration
from gateway.errors import CommandNotFound
from gateway.http.validation import BodyValidator
from gateway.registry.operation import Operation
from gateway.registry.table import OPERATIONS, operations, pinned_names


@pytest.fixture(params=list(OPERATIONS.values()), ids=list(OPERATIONS))
def operation(request: pytest.FixtureRequest) -> Operation:
    assert isinstance(request.param, Operation)
    return request.param


def test_the_operations_are_those_of_the_readings() -> None:
    assert {name: each.path for name, each in OPERATIONS.items()} == {
        "search.free": "/v1/search/free",
        "search.paid": "/v1/search/paid",
        "ai.execute": "/v1/ai/execute",
        "chat.completions": "/v1/chat/completions",
        "agent.fast-call": "/v1/agent/fast-call",
        "sandbox.execute": "/v1/sandbox/execute",
    }


def test_an_example_is_accepted_and_sold_where_the_operation_is(operation: Operation) -> None:
    valid = BodyValidator.of(operation).validate(dict(operation.example))
    assert operation.check(valid.request) is None
    assert operation.sells(valid.request) is operation.paid
    assert operation.amount(valid.request, 6) == operation.price(valid.request)


def test_a_free_call_is_counted_on_a_quota_that_there_is(operation: Operation) -> None:
    policies: dict[str, Policy] = policies_of(Configuration())
    assert operation.quota in policies


def test_body_caps_and_deadlines_are_those_of_the_readings() -> None:
    assert {name: (each.body_cap, each.deadline_s) for name, each in OPERATIONS.items()} == {
        "search.free": (64 * 1024, 12),
        "search.paid": (64 * 1024, 12),
        "ai.execute": (16 * 2**20, 60),
        "chat.completions": (256 * 1024, 60),
        "agent.fast-call": (32_768, 30),
        "sandbox.execute": (4 * 2**20, 75),
    }


def test_a_sandboxed_run_may_take_its_wall_limit_and_15_seconds() -> None:
    entry = OPERATIONS["sandbox.execute"]
    asked = {"command": ["node"], "limits": {"wallTimeMs": 2500}}
    assert entry.time_for(BodyValidator.of(entry).validate(asked).request) == 17.5


def test_argv_0_is_told_by_the_image_that_the_table_was_made_for() -> None:
    request = BodyValidator.of(OPERATIONS["sandbox.execute"]).validate({"command": ["npx", "cowsay"]}).request
    assert isinstance(OPERATIONS["sandbox.execute"].check(request), CommandNotFound)
    assert operations(resolves=lambda name: name == "npx")["sandbox.execute"].check(request) is None


def test_where_no_image_is_pinned_nothing_is_told_of_argv_0() -> None:
    assert pinned_names("riscv64")("npx")
    assert not pinned_names("x86_64")("npx")


def test_only_the_price_of_ai_execute_knows_a_margin() -> None:
    dearer = operations(150)
    for name, each in OPERATIONS.items():
        request = BodyValidator.of(each).validate(dict(each.example)).request
        times = 3 if name == "ai.execute" else 2
        assert dearer[name].price(request) * 2 == each.price(request) * times
