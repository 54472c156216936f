from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.actors.operations import State
from gateway.actors.runtime import open_runtime
from gateway.actors.store import Statement, open_sqlite
from gateway.http import operator_view as view
from gateway.reading import open_file
from tests.store_of_a_node import FREE, SETTLED, SETTLING, WAITING, make_store, operation


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_store(tmp_path_factory.mktemp("data")).path


def listed(path: Path, only: str | None = None, limit: int = 50) -> list[dict[str, Any]]:
    with open_file(path) as store:
        return view.listed(store.read(view.listing(only, limit)), limit)


def test_what_waits_for_the_operator_comes_first_then_what_settles_then_the_newest(path: Path) -> None:
    assert [each["operationId"] for each in listed(path)] == [WAITING, SETTLING, SETTLED, FREE]


def test_a_limit_keeps_what_is_stuck(path: Path) -> None:
    assert [each["operationId"] for each in listed(path, limit=2)] == [WAITING, SETTLING]


@pytest.mark.parametrize(
    ("only", "found"),
    [
        ("receipted", [SETTLED, FREE]),
        ("executed", [SETTLING]),
        ("settling", [SETTLING]),
        ("open", [SETTLING]),
        ("stuck", [WAITING]),
        ("needs_operator", [WAITING]),
        ("failed", []),
    ],
)
def test_a_state_or_a_group_selects(path: Path, only: str, found: list[str]) -> None:
    assert only in view.FILTERS
    assert [each["operationId"] for each in listed(path, only)] == found


def test_every_state_that_an_operation_rests_in_can_be_asked_for() -> None:
    assert set(view.STATES) >= {state.value for state in State if state.ended}
    assert set(view.STATES) <= {state.value for state in State}


def test_a_receipted_operation_whose_settlement_was_taken_back_is_stuck(tmp_path: Path) -> None:
    made = make_store(tmp_path)
    made.change("UPDATE operations SET failure_code = 'operator_needed' WHERE operation_id = :id", id=SETTLED)
    assert [each["operationId"] for each in listed(made.path, "stuck")] == [SETTLED, WAITING]


def test_states_are_upper_case_amounts_are_strings_and_times_are_rfc_3339(path: Path) -> None:
    shown = listed(path, "settling")[0]
    assert (shown["state"], shown["amountAtomic"]) == ("EXECUTED", "6000")
    assert shown["claimedAt"].endswith("Z")
    assert shown["endedAt"] is None


def test_nothing_sealed_is_shown(path: Path) -> None:
    with open_file(path) as store:
        shown = view.detailed(store.read(view.details(SETTLED)))
    assert shown is not None
    assert [name for name in shown if "sealed" in name.lower() or "wrap" in name.lower()] == []


def test_one_operation_is_shown_with_its_history_and_its_ledger_entries(path: Path) -> None:
    with open_file(path) as store:
        shown = view.detailed(store.read(view.details(SETTLED)))
    assert shown is not None
    assert [each["state"] for each in shown["transitions"]] == ["CLAIMED"]
    assert sum(int(each["amountAtomic"]) for each in shown["ledger"]) == 0
    assert len(shown["ledger"]) == 4


def test_an_unknown_operation_is_none(path: Path) -> None:
    with open_file(path) as store:
        assert view.detailed(store.read(view.details("op_none"))) is None


def test_operations_are_counted_by_state(path: Path) -> None:
    with open_file(path) as store:
        assert view.counts(store.read([view.COUNTS])[0]) == {"receipted": 2, "executed": 1, "needs_operator": 1}


async def test_a_node_is_shown_with_its_open_operations_and_what_it_does_for_all(tmp_path: Path) -> None:
    async with open_runtime() as runtime, open_sqlite(runtime, tmp_path / "gateway.db", now=lambda: 7.0) as store:
        await store.commit(
            operation("op_open", 1, node="gone", state="executed", ended_at=None),
            Statement(
                "INSERT INTO nodes VALUES ('gone', 3, 6999, 0, 1000, '0.0.9'), ('late', 2, 7000, 0, 2000, '0.0.9')"
            ),
            Statement("INSERT INTO leases VALUES ('ledger', 'late', 2, 5, 6000), ('prober', 'late', 1, 4, 5000)"),
            Statement("INSERT INTO leases VALUES ('retention', 'gone', 3, 5, 6000)"),
        )
        gone, late, own = view.nodes(await store.fetch_many(view.NODES))
    assert gone == {
        "node": "gone",
        "alive": False,
        "epoch": 3,
        "joinedAt": "1970-01-01T00:00:01.000Z",
        "release": "0.0.9",
        "openOperations": 1,
        "duties": [],
    }
    assert (late["alive"], late["duties"]) == (True, [{"duty": "ledger", "since": "1970-01-01T00:00:06.000Z"}])
    assert (own["node"], own["alive"], own["openOperations"]) == ("node-1", True, 0)
