"""Steps of one shape in one go: a statement each for all of them.

Steps whose statements have the same SQL run together, statement by statement.  That is right only because none of them
can touch what another one reads or writes: on every table some column is pinned to a parameter by all statements, and
its values differ from step to step; no statement frees a unique key that another one may take; no trigger and no
foreign key looks elsewhere.  So any serial order of the steps has the same outcome.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import final

import attrs
from psycopg.pq.abc import PGresult

from gateway.actors.store.postgresql_arrays import Inference
from gateway.actors.store.postgresql_connection import Command, Connection, Outcome
from gateway.actors.store.postgresql_failures import Rejection
from gateway.actors.store.postgresql_spread import Spread, spread
from gateway.actors.store.postgresql_values import TEXT, rows_of
from gateway.actors.store.protocol import Row, Statement, Value

Step = Sequence[Statement]

_FACTS = """
    SELECT c.relkind = 'r' AND NOT c.relhastriggers AND NOT c.relhasrules AND NOT EXISTS (
            SELECT 1 FROM pg_index i WHERE i.indrelid = c.oid AND (i.indisunique AND (0 = ANY (i.indkey)
                OR i.indpred IS NOT NULL) OR i.indisexclusion)),
        a.attname::text
    FROM pg_class c LEFT JOIN (pg_index u JOIN pg_attribute a ON a.attrelid = u.indrelid AND a.attnum = ANY (u.indkey))
        ON u.indrelid = c.oid AND u.indisunique
    WHERE c.oid = to_regclass($1)
"""
_FEWEST = 2

Shape = tuple[tuple[str, int | None], ...]
"""The SQL of each statement of a step, and how many rows it must change."""


class Again(Exception):
    """What was done is to be undone, and tried in another way."""


@attrs.frozen
class _Table:
    """What the catalog knows of a table: whether its rows stand for themselves, and its columns that are unique."""

    stands_alone: bool
    unique: frozenset[str]


@attrs.frozen
class _Run:
    """Statements that follow each other in a step and have the same SQL, from number `first` to before `end`."""

    spread: Spread
    sql: str
    first: int
    end: int
    rows: int | None


@final
@attrs.frozen(eq=False)
class Batch:
    """Steps of one shape, the commands that store them, and how their outcomes are read."""

    steps: Sequence[tuple[int, Step]]
    commands: Sequence[Command]
    _runs: Sequence[_Run]
    _owners: Sequence[Sequence[int]]

    def results(self, outcomes: Sequence[Outcome]) -> dict[int, list[list[Row]]]:
        """The rows of each step by its place.  Raises Again where not every statement did exactly what it must."""
        for run, owners, outcome in zip(self._runs, self._owners, outcomes, strict=True):
            if outcome is None or isinstance(outcome, Rejection) or not self._right(run, owners, outcome):
                raise Again
        return {place: [[] for _ in step] for place, step in self.steps}

    def _right(self, run: _Run, owners: Sequence[int], outcome: PGresult) -> bool:
        if run.spread.kind == "insert":
            return outcome.command_tuples == len(owners)
        if run.rows is None:
            return True
        changed = sorted(row[0] for row in rows_of(outcome))  # type: ignore[type-var]
        return changed == (list(range(1, len(owners) + 1)) if run.rows else [])


@final
class Planner:
    """Finds the batches in a group; what it learns of statements and tables holds for one connection."""

    def __init__(self) -> None:
        self._connection: Connection | None = None
        self._runs: dict[Shape, Sequence[_Run] | None] = {}
        self._tables: dict[str, _Table] = {}
        self._inference = Inference()

    async def batches(
        self, connection: Connection, steps: Sequence[tuple[int, Step]], within: float
    ) -> tuple[list[Batch], list[tuple[int, Step]]]:
        """The batches, and the steps that are to be run one by one after them.  Raises `Disconnected`."""
        if connection is not self._connection:
            self._connection = connection
            self._runs.clear()
            self._tables.clear()
            self._inference.forget()
        found, left = [], []
        shapes: dict[Shape, list[tuple[int, Step]]] = {}
        for place, step in steps:
            shapes.setdefault(tuple((each.sql, each.rows) for each in step), []).append((place, step))
        for shape, alike in shapes.items():
            batch = await self._batch(connection, shape, alike, within) if len(alike) >= _FEWEST else None
            if batch is None:
                left += alike
            else:
                found.append(batch)
                placed = {place for place, _ in batch.steps}
                left += [one for one in alike if one[0] not in placed]
        return found, left

    async def _batch(
        self, connection: Connection, shape: Shape, alike: Sequence[tuple[int, Step]], within: float
    ) -> Batch | None:
        if shape not in self._runs:
            self._runs[shape] = await self._compiled(connection, shape, within)
        runs = self._runs[shape]
        if runs is None:
            return None
        steps = _apart(runs, alike)
        if len(steps) < _FEWEST:
            return None
        commands, owners = [], []
        for run in runs:
            spread_ = await self._spread(connection, run, steps, within)
            if spread_ is None:
                return None
            commands.append(spread_[0])
            owners.append(spread_[1])
        return Batch(steps, commands, runs, owners)

    async def _compiled(self, connection: Connection, shape: Shape, within: float) -> Sequence[_Run] | None:
        """The runs of a shape; None where its steps cannot be batched."""
        runs: list[_Run] = []
        for place, (sql, rows) in enumerate(shape):
            found = spread(sql)
            if found is None or rows not in ({None, 1} if found.kind == "insert" else {None, 0, 1}):
                return None
            last = runs[-1] if runs else None
            if last is not None and found.kind == "insert" and (last.sql, last.rows) == (sql, rows):
                runs[-1] = attrs.evolve(last, end=place + 1)
            else:
                runs.append(_Run(found, sql, place, place + 1, rows))
        for table in {run.spread.table for run in runs}:
            here = [run.spread for run in runs if run.spread.table == table]
            facts = await self._facts(connection, table, within)
            if not facts.stands_alone or not _pinned_by_all(here):
                return None
            if any(each.kind == "update" and each.sets & facts.unique for each in here):
                return None
            if {"insert", "delete"} <= {each.kind for each in here}:
                return None
        return runs

    async def _facts(self, connection: Connection, table: str, within: float) -> _Table:
        if table not in self._tables:
            asked = Command(_FACTS, [table.encode()], (TEXT,), (0,))
            (outcome,) = await connection.exchange(asked, within=within)
            rows = [] if outcome is None or isinstance(outcome, Rejection) else rows_of(outcome)
            alone = bool(rows) and all(row[0] == 1 for row in rows)
            self._tables[table] = _Table(alone, frozenset(str(row[1]) for row in rows))
        return self._tables[table]

    async def _spread(
        self, connection: Connection, run: _Run, steps: Sequence[tuple[int, Step]], within: float
    ) -> tuple[Command, Sequence[int]] | None:
        """The command of a run over all steps, and the step of each of its rows; None where the values are unfit."""
        owned = [(place, step[index].parameters) for place, step in steps for index in range(run.first, run.end)]
        pins = tuple(run.spread.pins.values())
        with suppress(TypeError):  # values of several types, which do not go into arrays anyway
            # Nodes that write the same rows lock them in the same order.
            owned.sort(key=lambda one: [_sortable(one[1][name]) for name in pins])
        rows = [parameters for _, parameters in owned]
        columns = await self._inference.columns(connection, run.sql, run.spread.names, rows, within)
        if columns is None:
            return None
        return columns.command(run.spread.sql(columns.types)), [place for place, _ in owned]


def _pinned_by_all(here: Sequence[Spread]) -> frozenset[str]:
    """The columns of a table that all statements on it pin."""
    return frozenset.intersection(*(frozenset(each.pins) for each in here))


def _apart(runs: Sequence[_Run], alike: Sequence[tuple[int, Step]]) -> Sequence[tuple[int, Step]]:
    """The steps that cannot meet: each of them differs from all others in a pinned column of every table."""
    for table in sorted({run.spread.table for run in runs}):
        here = [run for run in runs if run.spread.table == table]
        best: Sequence[tuple[int, Step]] = ()
        for column in sorted(_pinned_by_all([run.spread for run in here])):
            best = max(best, _differing(column, here, alike), key=len)
        alike = best
    return alike


def _differing(column: str, here: Sequence[_Run], alike: Sequence[tuple[int, Step]]) -> Sequence[tuple[int, Step]]:
    seen: set[str | bytes] = set()
    kept = []
    for place, step in alike:
        values = {
            _alike(step[index].parameters[run.spread.pins[column]])
            for run in here
            for index in range(run.first, run.end)
        }
        if seen.isdisjoint(values):
            kept.append((place, step))
            seen |= values
    return kept


def _alike(value: Value) -> str | bytes:
    """The same for all values that the server may take for equal, such as 1 and '1'."""
    return value if isinstance(value, bytes) else str(value)


def _sortable(value: Value) -> tuple[bool, Value]:
    return value is not None, value
