"""How an engine carries a statement out: its plan, and how much it looks at, as the engine itself tells."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import attrs
import psycopg
from psycopg import sql as pg

from gateway.actors.store.postgresql_connecting import BY_INDEX
from gateway.actors.store.postgresql_lookups import lateral
from gateway.actors.store.postgresql_spread import spread
from gateway.actors.store.postgresql_sql import spoken
from gateway.actors.store.protocol import STORE_CLOCK, Value

AS_THE_NODE_ASKS = "as the node asks"
SESSIONS: Mapping[str, Sequence[str]] = {
    AS_THE_NODE_ASKS: BY_INDEX,
    "one plan for all": ("SET plan_cache_mode = force_generic_plan",),
    "a plan each time": ("SET plan_cache_mode = force_custom_plan",),
}
"""How a server may be asked to plan: as the engine asks, and in the two ways of one that does without its wishes."""

_SCANS = re.compile(r"SCAN (\w+)$")
_STEPS_AT_ONCE = 50
_TYPES = {int: "bigint", bytes: "bytea"}


@attrs.frozen
class Plan:
    """How a statement was carried out.

    `looked_at` is rows on PostgreSQL (`in_rows`) and instructions of the virtual machine on SQLite, some to a row;
    `scanned` are the tables, by the names that the statement has for them, that are read from one end to the other.
    """

    text: str
    looked_at: int
    scanned: tuple[str, ...]
    in_rows: bool


def sqlite_plan(connection: sqlite3.Connection, sql: str, parameters: Mapping[str, Value]) -> Plan:
    """Plan a statement, run it and undo it."""
    lines = [str(row[3]) for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}", parameters)]
    steps = 0

    def count() -> int:
        nonlocal steps
        steps += _STEPS_AT_ONCE
        return 0

    connection.execute("BEGIN")
    connection.set_progress_handler(count, _STEPS_AT_ONCE)
    try:
        connection.execute(sql, parameters).fetchall()
    except sqlite3.IntegrityError:
        pass  # the row is there already
    finally:
        connection.set_progress_handler(None, 0)
        connection.execute("ROLLBACK")
    scanned = tuple(match[1] for line in lines for match in _SCANS.finditer(line))
    return Plan("\n".join(lines), steps, scanned, in_rows=False)


def postgresql_plan(
    connection: psycopg.Connection[Any], sql: str, parameters: Mapping[str, Value], session: str
) -> Plan:
    """Prepare a statement as the engine does, plan it in one of `SESSIONS`, run it and undo it."""
    said = spoken(sql)
    values = [parameters[name] for name in said.names]
    with _session(connection, session):
        types = [_TYPES.get(type(value), "unknown") for value in values]
        return _explained(connection, said.sql, types, values)


def postgresql_plan_of_many(
    connection: psycopg.Connection[Any], sql: str, rows: Sequence[Mapping[str, Value]]
) -> Plan | None:
    """The same of a look-up, an update or a delete as the engine asks it for many callers at once.

    None where it asks for each by itself, or inserts, which looks at nothing.
    """
    said, many = spoken(sql), spread(sql)
    looks_up = said.verb == "select" and bool(said.names)
    if not looks_up and (many is None or many.kind == "insert"):
        return None
    with _session(connection, AS_THE_NODE_ASKS):
        sent = ", ".join(_TYPES.get(type(rows[0][name]), "unknown") for name in said.names)
        connection.execute(f"PREPARE one({sent}) AS {said.sql}".encode())
        ((types,),) = connection.execute("SELECT parameter_types::text[] FROM pg_prepared_statements").fetchall()
        inferred = dict(zip(said.names, types, strict=True))
        names = said.names if many is None else many.names
        kinds = [inferred[name] for name in names]
        spelled = lateral(sql, names, kinds) if many is None else many.sql(kinds)
        return _explained(
            connection, spelled, [f"{each}[]" for each in kinds], [[row[name] for row in rows] for name in names]
        )


@contextmanager
def _session(connection: psycopg.Connection[Any], session: str) -> Iterator[None]:
    try:
        for wish in SESSIONS[session]:
            connection.execute(wish.replace("SET", "SET LOCAL", 1).encode())
        yield
    finally:
        connection.rollback()
        connection.execute("DEALLOCATE ALL")
        connection.rollback()


def _explained(connection: psycopg.Connection[Any], sql: str, types: Sequence[str], values: Sequence[object]) -> Plan:
    given = pg.SQL("({})").format(pg.SQL(", ").join(map(pg.Literal, values))) if values else pg.SQL("")
    execute = pg.SQL("EXECUTE heard") + given
    typed = f"({', '.join(types)})" if types else ""
    connection.execute(f"PREPARE heard{typed} AS {sql}".encode())
    try:
        with connection.transaction():
            found = connection.execute(pg.SQL("EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) ") + execute).fetchall()
    except psycopg.errors.UniqueViolation:  # the row is there already
        found = connection.execute(pg.SQL("EXPLAIN (FORMAT JSON) ") + execute).fetchall()
    nodes = list(_nodes(found[0][0][0]["Plan"]))
    return Plan(
        "\n".join(_line(depth, node) for depth, node in nodes),
        sum(_looked_at(node) for _, node in nodes),
        tuple(str(node["Relation Name"]) for _, node in nodes if node["Node Type"] == "Seq Scan"),
        in_rows=True,
    )


def with_clock(parameters: Mapping[str, Value], now_ms: int) -> dict[str, Value]:
    """Return parameters with the store's clock, which engines bind themselves."""
    return {**parameters, STORE_CLOCK: now_ms}


def _nodes(node: Mapping[str, Any], depth: int = 0) -> Iterator[tuple[int, Mapping[str, Any]]]:
    yield depth, node
    for each in node.get("Plans", ()):
        yield from _nodes(each, depth + 1)


def _looked_at(node: Mapping[str, Any]) -> int:
    if "Relation Name" not in node or "Scan" not in node["Node Type"]:
        return 0
    rows = sum(node.get(name, 0) for name in ("Actual Rows", "Rows Removed by Filter", "Rows Removed by Index Recheck"))
    return int(rows * node.get("Actual Loops", 0))


def _line(depth: int, node: Mapping[str, Any]) -> str:
    told = [str(node[name]) for name in ("Relation Name", "Index Name") if name in node]
    told += [f"{name}: {node[name]}" for name in ("Index Cond", "Filter", "Sort Key") if name in node]
    seen = f"rows {node.get('Actual Rows', '?')} x {node.get('Actual Loops', '?')}"
    return f"{'  ' * depth}{node['Node Type']} ({'; '.join([*told, seen])})"
