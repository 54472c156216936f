"""No statement of a node looks at more the longer the node has lived: how both engines carry each of them out.

The statements are those that a node was heard to ask in its own tests (`tests.heard`), and every statement that the
source has must be among them.  A new one is planned here without being listed anywhere; what reads a whole store on
purpose is named below.
"""

from __future__ import annotations

import secrets
import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any

import psycopg
import pytest

from gateway.actors.ledger import BLOCKS, ENTRIES, UNPOSTED
from gateway.actors.store import Value
from gateway.actors.store.schema import shipped
from gateway.actors.store.sqlite_file import SqliteFile
from gateway.world.postgresql import PostgresqlServer
from tests.heard import Asked, hear, one_line, written
from tests.past import Past, Trace, fill_postgresql, fill_sqlite, make_schema
from tests.plans import (
    AS_THE_NODE_ASKS,
    SESSIONS,
    Plan,
    postgresql_plan,
    postgresql_plan_of_many,
    sqlite_plan,
    with_clock,
)
from tests.postgresql import GivenServer

NOW = time.time_ns() // 1_000_000
COUNT = 10_000
OPEN = 1_000
TOGETHER = 64
ROWS_ON_THE_ROAD, ROWS_AT_MOST = 15, 2_500
STEPS_A_ROW = 12
"""What statements may look at: on the road of a call a few rows, beside it at most what is open now and was just done.

On SQLite that is counted in instructions.
"""

OFF_THE_ROAD = (
    "actors/store/",
    "commands/",
    "doctor/",
    "migrating.py",
    "moving/",
    "reading",
    "registry/search/index.py",
    "world/",
)
"""Source of what no running node asks of its store: the engines' own tables, and programs that read a store."""

WHOLE_BOOKS = {one_line(each) for each in (ENTRIES, BLOCKS, UNPOSTED)}
"""What `gateway ledger verify` reads from one end to the other."""

SMALL = {"nodes", "n", "node_facts", "leases", "l", "findings", "quota_counters"}
"""Tables that do not grow with the operations, and how statements abbreviate them: reading them whole is no fault."""


KNOWN = (
    "GROUP BY state",  # an operator's counts are of all there is
)
"""What is known to look at more than it should."""


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Asked]:
    return hear(tmp_path_factory.mktemp("heard"))


@pytest.fixture(scope="module")
def past() -> Past:
    return Past(COUNT, NOW)


@pytest.fixture(scope="module")
def sqlite(tmp_path_factory: pytest.TempPathFactory, past: Past) -> Iterator[sqlite3.Connection]:
    file = SqliteFile(tmp_path_factory.mktemp("sqlite") / "past.db", "node-1", lambda: NOW)
    with closing(file.open(shipped())) as connection:
        fill_sqlite(connection, past, open_now=OPEN)
        yield connection
    file.release()


@pytest.fixture(scope="module")
def postgresql(postgresql_server: PostgresqlServer | GivenServer, past: Past) -> Iterator[psycopg.Connection[Any]]:
    name = f"plans_{secrets.token_hex(6)}"
    with psycopg.connect(postgresql_server.create_database(name)) as connection:
        make_schema(connection)
        fill_postgresql(connection, past, open_now=OPEN)
        yield connection
    postgresql_server.drop_database(name)


def test_every_statement_of_the_source_was_heard(asked: Mapping[str, Asked]) -> None:
    missed = [
        f"{each.place}: {each.pattern.pattern}"
        for each in written()
        if not each.place.startswith(OFF_THE_ROAD)
        and not any(each.pattern.search(sql) for sql in WHOLE_BOOKS | set(asked))
    ]
    assert missed == []


def test_what_is_known_to_look_at_more_is_still_asked(asked: Mapping[str, Asked]) -> None:
    assert [known for known in KNOWN if not any(known in sql for sql in asked)] == []


# -- what would be found -----------------------------------------------------------------------------------------------

WHOLE = (
    "SELECT * FROM operations WHERE pay_to = :payer",
    "SELECT * FROM operations WHERE ended_at IS NOT NULL AND pay_to = :payer ORDER BY operation_id",
)
SEEN = Asked({"payer": "", "operation_id": ""}, on_the_road=True)


def test_a_scan_is_told_from_a_look_up_on_sqlite(sqlite: sqlite3.Connection, past: Past) -> None:
    one = "SELECT * FROM operations WHERE operation_id = :operation_id"
    found = {sql: sqlite_plan(sqlite, sql, with_names(sql, SEEN, past)) for sql in (one, *WHOLE)}
    assert [bool(faults(plan, SEEN)) for plan in found.values()] == [False, True, True]
    assert sqlite.execute(one, with_names(one, SEEN, past)).fetchall() != []


def test_a_scan_is_told_from_a_look_up_on_postgresql(postgresql: psycopg.Connection[Any], past: Past) -> None:
    one = "SELECT * FROM operations WHERE operation_id = :operation_id"
    for session in SESSIONS:
        found = [postgresql_plan(postgresql, sql, with_names(sql, SEEN, past), session) for sql in (one, *WHOLE)]
        assert [bool(faults(plan, SEEN)) for plan in found] == [False, True, True]
        assert found[0].looked_at == 1


# -- what is found -----------------------------------------------------------------------------------------------------


def test_no_statement_looks_at_more_in_a_long_past_on_sqlite(
    sqlite: sqlite3.Connection, past: Past, asked: Mapping[str, Asked]
) -> None:
    told = [
        fault_of(sql, each, sqlite_plan(sqlite, sql, with_names(sql, each, past)), "sqlite")
        for sql, each in asked.items()
    ]
    assert not any(told), "\n\n".join(filter(None, told))


def test_no_statement_looks_at_more_in_a_long_past_on_postgresql(
    postgresql: psycopg.Connection[Any], past: Past, asked: Mapping[str, Asked]
) -> None:
    told = [
        fault_of(sql, each, postgresql_plan(postgresql, sql, with_names(sql, each, past), session), session)
        for session in SESSIONS
        for sql, each in asked.items()
    ]
    assert not any(told), "\n\n".join(filter(None, told))


def test_no_statement_for_many_callers_looks_at_more_in_a_long_past_on_postgresql(
    postgresql: psycopg.Connection[Any], past: Past, asked: Mapping[str, Asked]
) -> None:
    found = {}
    for sql, each in asked.items():
        traces = past.traces if sql.startswith("SELECT") else past.opened
        rows = [with_names(sql, each, past, trace) for trace in traces[-TOGETHER:]]
        plan = postgresql_plan_of_many(postgresql, sql, rows) if each.on_the_road else None
        if plan is not None:
            found[sql] = fault_of(sql, each, plan, f"{TOGETHER} together", of=TOGETHER)
    assert len(found) >= 10
    assert not any(found.values()), "\n\n".join(filter(None, found.values()))


def test_a_new_store_on_postgresql_begins_with_plans_that_serve_a_full_one(
    postgresql_url: str, asked: Mapping[str, Asked]
) -> None:
    with psycopg.connect(postgresql_url) as connection:
        make_schema(connection)
        told = [
            fault_of(sql, each, postgresql_plan(connection, sql, with_clock(each.parameters, NOW), AS_THE_NODE_ASKS))
            for sql, each in asked.items()
            if each.on_the_road
        ]
    assert not any(told), "\n\n".join(filter(None, told))


def found_by(sql: str, past: Past) -> Trace:
    """What a statement looks up is an operation of the past; what it changes, one that is open now."""
    return past.opened[-1] if sql.startswith("UPDATE") else past.traces[-1]


def with_names(sql: str, asked: Asked, past: Past, trace: Trace | None = None) -> Mapping[str, Value]:
    """The parameters that a statement was heard with, about another operation and at its times."""
    if sql.startswith("INSERT"):
        return with_clock(asked.parameters, NOW)
    known = (trace or found_by(sql, past)).names | {"now": NOW, "since": NOW - 20_000, "oldest": NOW - 600_000}
    return with_clock({name: known.get(name, value) for name, value in asked.parameters.items()}, NOW)


def faults(plan: Plan, asked: Asked, of: int = 1) -> list[str]:
    found = [f"scans {table}" for table in plan.scanned if table not in SMALL]
    most = of * ROWS_ON_THE_ROAD if asked.on_the_road else ROWS_AT_MOST
    if plan.looked_at > most * (1 if plan.in_rows else STEPS_A_ROW):
        found.append(f"looks at {plan.looked_at}")
    return found


def fault_of(sql: str, asked: Asked, plan: Plan, how: str = "", of: int = 1) -> str | None:
    found = [] if any(known in sql for known in KNOWN) else faults(plan, asked, of)
    return f"{sql}\n{how}: {', '.join(found)}\n{plan.text}" if found else None
