"""Whole moves: a store goes to PostgreSQL, whatever happens on the way."""

from __future__ import annotations

import random
import secrets
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path

import attrs
import psycopg
import pytest
import trio

from gateway.actors.runtime import open_runtime
from gateway.actors.store import PostgresqlSettings, Statement, StoreRefused, open_postgresql, open_sqlite, schema
from gateway.actors.store.moves import require_whole
from gateway.actors.store.protocol import Row
from gateway.migrating import migrate_server
from gateway.moving import Moved, MoveRefused, Step, Work, move, moving
from gateway.moving.mark import Mark
from gateway.moving.target import Target
from gateway.world.postgresql import PostgresqlServer
from tests.moving.filled import EXTRA, SIGNER, fill
from tests.postgresql import GivenServer

OPERATIONS = 400
OF_THE_MOVE = {"moved-to", "moving-from", "moved-from"}
Rows = dict[str, list[Row]]


@attrs.frozen
class Stopped(Exception):
    """The move is interrupted here."""


@contextmanager
def alone() -> Iterator[None]:
    """Raise what was raised in a nursery without its groups."""
    try:
        yield
    except BaseExceptionGroup as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup):
            (error,) = error.exceptions
        raise error from None


@attrs.frozen
class Scene:
    """A file, and a database to move it to."""

    path: Path
    url: str

    @property
    def settings(self) -> PostgresqlSettings:
        return PostgresqlSettings(self.url)

    def move(self, observe: Callable[[Step], object] = lambda _: None) -> Moved:
        migrate = partial(migrate_server, self.settings, schema.shipped())
        return move(self.path, self.settings, migrate=migrate, key_set=SIGNER.key_set, observe=observe)

    def change_file(self, sql: str) -> None:
        """Change the file as no node does."""
        with closing(sqlite3.connect(self.path)) as connection, connection:
            connection.execute(sql)

    def change_database(self, sql: str) -> None:
        with psycopg.connect(self.url) as connection:
            connection.execute(sql.encode())

    async def use_file(self, *statements: Statement) -> None:
        """Let a node run on the file."""
        with alone():
            await self._use_file(*statements)

    async def _use_file(self, *statements: Statement) -> None:
        async with open_runtime() as runtime, open_sqlite(runtime, self.path) as store:
            await require_whole(store, self.path)
            await store.commit(*statements)

    async def require_database_whole(self) -> None:
        """Open the database as a node does."""
        with alone():
            await self._require_database_whole()

    async def _require_database_whole(self) -> None:
        async with open_runtime() as runtime, open_postgresql(runtime, self.settings, node="node-7") as store:
            await require_whole(store, self.settings.shown)

    def rows_of_file(self) -> Rows:
        """What the file holds, read without anything of the move."""
        with closing(sqlite3.connect(self.path)) as connection:
            names = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            return {name: sorted_rows(connection.execute(f"SELECT * FROM {name}")) for name in names}

    def rows_of_database(self) -> Rows:
        with psycopg.connect(self.url) as connection:
            tables = connection.execute(
                "SELECT table_name FROM information_schema.tables WHERE table_schema = 'public'"
            )
            names = [str(name) for (name,) in tables]
            return {name: sorted_rows(connection.execute(f"SELECT * FROM {name}".encode())) for name in names}

    def require_equal(self) -> None:
        ours, theirs = self.rows_of_file(), self.rows_of_database()
        engines_own = {"nodes", "schema_migrations", "schema_compatibility"}
        assert ours.keys() == theirs.keys()
        for name in ours.keys() - engines_own:
            assert ours[name], name
            assert without_marks(name, ours[name]) == without_marks(name, theirs[name]), name


def sorted_rows(rows: object) -> list[Row]:
    assert isinstance(rows, sqlite3.Cursor | psycopg.Cursor)
    return sorted(map(tuple, rows.fetchall()), key=repr)


def without_marks(table: str, rows: list[Row]) -> list[Row]:
    return [row for row in rows if table != "node_facts" or row[0] not in OF_THE_MOVE]


@pytest.fixture
def scene(tmp_path: Path, postgresql_url: str) -> Scene:
    fill(tmp_path / "gateway.db", OPERATIONS, seed=5)
    return Scene(tmp_path / "gateway.db", postgresql_url)


@pytest.fixture
def other_url(postgresql_server: PostgresqlServer | GivenServer) -> Iterator[str]:
    name = f"test_{secrets.token_hex(6)}"
    yield postgresql_server.create_database(name)
    postgresql_server.drop_database(name)


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moving, "BATCH_ROWS", 100)


def stop_at(wanted: int) -> Callable[[Step], None]:
    """Interrupt the move at its n-th step."""
    left = wanted

    def observe(_: Step) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise Stopped

    return observe


class TestAMove:
    def test_every_row_of_every_table_goes_along(self, scene: Scene) -> None:
        moved = scene.move()
        scene.require_equal()
        assert not moved.before
        assert moved.copied == sum(each.rows[0] for each in moved.tables)
        sold = next(each for each in moved.tables if each.table == "operations")
        assert sold.rows == (OPERATIONS + EXTRA, OPERATIONS + EXTRA)
        assert moved.ledger is not None
        assert (moved.ledger.entries, moved.ledger.blocks, moved.ledger.signatures) == (4 * OPERATIONS, 2, True)

    async def test_then_the_file_is_refused_and_the_database_serves(self, scene: Scene) -> None:
        moved = await trio.to_thread.run_sync(scene.move)
        with pytest.raises(StoreRefused, match=f"moved to {scene.url} at {moved.at}"):
            await scene.use_file()
        await scene.require_database_whole()

    def test_what_is_asked_again_is_answered_and_nothing_is_done(self, scene: Scene) -> None:
        first = scene.move()
        scene.change_database("INSERT INTO node_facts VALUES ('later', 'written by a node')")
        again = scene.move()
        assert again == Moved(scene.path, scene.url, first.at, before=True)

    def test_a_password_is_nowhere_in_the_file(self, scene: Scene) -> None:
        with_password = scene.url.replace("@", ":hush@", 1)
        Scene(scene.path, with_password).move()
        told = [value for name, value in scene.rows_of_file()["node_facts"] if name == "moved-to"]
        assert scene.url in str(told[0])
        assert "hush" not in str(told[0])

    def test_a_ledger_that_does_not_stand_is_not_moved(self, scene: Scene) -> None:
        scene.change_file("UPDATE ledger_entries SET amount = 1 WHERE rowid = 1")
        with pytest.raises(MoveRefused, match=r"its ledger does not stand.*gateway ledger verify.*nothing was moved"):
            scene.move()
        assert scene.rows_of_database() == {}

    def test_a_database_with_rows_of_another_store_is_left_as_it_was(self, scene: Scene) -> None:
        migrate_server(scene.settings, schema.shipped())
        scene.change_database("INSERT INTO payer_holds VALUES ('0xabc', 1, 'op_1')")
        before = scene.rows_of_database()
        with pytest.raises(MoveRefused, match="payer_holds holds rows of another store"):
            scene.move()
        assert scene.rows_of_database() == before

    def test_a_second_store_does_not_go_where_a_first_one_went(self, scene: Scene, tmp_path: Path) -> None:
        fill(tmp_path / "other.db", 1, seed=6)
        scene.move()
        with pytest.raises(MoveRefused, match="filled from another store"):
            Scene(tmp_path / "other.db", scene.url).move()

    def test_a_store_that_was_moved_does_not_go_elsewhere_as_well(self, scene: Scene, other_url: str) -> None:
        scene.move()
        elsewhere = Scene(scene.path, other_url)
        with pytest.raises(MoveRefused, match=f"moved to {scene.url} already"):
            elsewhere.move()
        assert elsewhere.rows_of_database() == {}

    def test_a_copy_of_the_file_from_before_is_told_from_it(self, scene: Scene, tmp_path: Path) -> None:
        with pytest.raises(Stopped):
            scene.move(stop_at(0))
        shutil.copy(scene.path, tmp_path / "backup.db")
        scene.move()
        with pytest.raises(MoveRefused, match=r"an old copy.*Keep it away from every node"):
            Scene(tmp_path / "backup.db", scene.url).move()


@pytest.mark.usefixtures("small_batches")
class TestInterrupted:
    def test_at_any_step_it_goes_on_and_nothing_is_doubled_or_lost(self, scene: Scene) -> None:
        rng, rows = random.Random(7), [0]
        for _ in range(12):
            with pytest.raises(Stopped):
                scene.move(stop_at(rng.randrange(2, 12)))
            rows.append(copied_so_far(scene))
        moved = scene.move()
        everything = sum(each.rows[0] for each in moved.tables)
        assert rows == sorted(rows)
        assert 0 < rows[1] < rows[-1] < everything
        assert moved.copied == everything - rows[-1]
        scene.require_equal()

    async def test_while_it_is_unfinished_the_file_serves_and_the_database_is_refused(self, scene: Scene) -> None:
        with pytest.raises(Stopped):
            await trio.to_thread.run_sync(scene.move, stop_at(20))
        with pytest.raises(StoreRefused, match=r"a move is still filling it.*gateway migrate --to"):
            await scene.require_database_whole()
        await scene.use_file()

    async def test_a_node_that_ran_meanwhile_has_all_its_rows_moved(self, scene: Scene) -> None:
        with pytest.raises(Stopped):
            await trio.to_thread.run_sync(scene.move, partial(stop_when, Work.COMPARING))
        await scene.use_file(
            Statement("UPDATE operations SET failure_detail = 'later' WHERE rowid = 1", rows=1),
            Statement("DELETE FROM payer_holds WHERE rowid = 3", rows=1),
            Statement("INSERT INTO payer_holds VALUES ('!', 1, 'op')", rows=1),
        )
        moved = await trio.to_thread.run_sync(scene.move)
        assert moved.copied == sum(each.rows[0] for each in moved.tables)
        scene.require_equal()

    async def test_between_closing_the_file_and_opening_the_database_neither_serves_and_it_goes_on(
        self, scene: Scene, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def stop(*_: object) -> None:
            raise Stopped

        with monkeypatch.context() as patched:
            patched.setattr(Target, "declare_whole", stop)
            with pytest.raises(Stopped):
                await trio.to_thread.run_sync(scene.move)
        with pytest.raises(StoreRefused, match="was moved to"):
            await scene.use_file()
        with pytest.raises(StoreRefused, match="still filling it"):
            await scene.require_database_whole()
        moved = await trio.to_thread.run_sync(scene.move)
        assert (moved.before, moved.copied) == (False, 0)
        await scene.require_database_whole()
        scene.require_equal()

    @pytest.mark.parametrize(
        ("change", "found"),
        [
            (
                "UPDATE operations SET amount = amount + 1 WHERE state = 'receipted'",
                "operations has 440 rows here and 440",
            ),
            ("DELETE FROM payer_holds WHERE hold_until = 0", "payer_holds has 40 rows here"),
            (
                "INSERT INTO node_facts VALUES ('aaa', 'foreign')",
                r'node_facts has 4\d rows .* first difference at \["aaa"\]',
            ),
            (
                "UPDATE ledger_blocks SET block_hash = 'x' WHERE height = 2",
                "the ledger's head is sha256:.* and x there",
            ),
        ],
    )
    async def test_a_row_that_was_altered_after_it_was_copied_is_found_and_the_file_stays_the_store(
        self, scene: Scene, change: str, found: str
    ) -> None:
        with pytest.raises(Stopped):
            await trio.to_thread.run_sync(scene.move, partial(stop_when, Work.COMPARING))
        scene.change_database(change)
        with pytest.raises(MoveRefused, match=found):
            await trio.to_thread.run_sync(scene.move)
        with pytest.raises(StoreRefused, match="still filling it"):
            await scene.require_database_whole()
        await scene.use_file()

    def test_by_a_server_that_hangs_up_it_goes_on(self, scene: Scene) -> None:
        left = 15

        def hang_up(_: Step) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                scene.change_database(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'gateway migrate'"
                )

        with pytest.raises(StoreRefused, match="is shutting down"):
            scene.move(hang_up)
        before = copied_so_far(scene)
        moved = scene.move()
        assert before > 0
        assert moved.copied + before == sum(each.rows[0] for each in moved.tables)
        scene.require_equal()

    async def test_a_node_on_the_database_keeps_the_file_open(self, scene: Scene) -> None:
        with pytest.raises(Stopped):
            await trio.to_thread.run_sync(scene.move, partial(stop_when, Work.COMPARING))
        async with open_runtime() as runtime, open_postgresql(runtime, scene.settings, node="node-7"):
            with pytest.raises(MoveRefused, match="node node-7 runs on it"):
                await trio.to_thread.run_sync(scene.move)
        await scene.use_file()


def stop_when(work: Work, step: Step) -> None:
    if step.work is work:
        raise Stopped


def copied_so_far(scene: Scene) -> int:
    with psycopg.connect(scene.url) as connection:
        found = connection.execute("SELECT value FROM node_facts WHERE name = 'moving-from'").fetchone()
    return Mark.of(str(found[0])).rows if found else 0


KILLS = 10
MOMENTS = (
    "moving",
    "checking",
    "copying idempotency_callers",
    "copying ledger_entries",
    "copying node_facts",
    "copying operation_events",
    "copying operations",
    "comparing authorizations",
    "comparing operations",
)


def test_killed_at_any_moment_it_goes_on_and_nothing_is_doubled_or_lost(tmp_path: Path, postgresql_url: str) -> None:
    """Each run is killed a few milliseconds after it said that it had come to some point."""
    fill(tmp_path / "gateway.db", 2500, seed=8)
    (tmp_path / "gateway.toml").write_text(f'[node]\ndata_dir = "{tmp_path}"\n')
    scene = Scene(tmp_path / "gateway.db", postgresql_url)
    rng, copied = random.Random(9), [0]
    for _ in range(KILLS):
        child = started(tmp_path / "gateway.toml", scene.url)
        kill_after(child, rng.choice(MOMENTS), rng.uniform(0, 0.03))
        copied.append(copied_so_far_if_any(scene))
        if child.returncode == 0:
            break
    child = started(tmp_path / "gateway.toml", scene.url)
    _, words = child.communicate(timeout=120)
    assert child.returncode == 0, words
    assert any(rows > 0 for rows in copied)
    scene.require_equal()
    with pytest.raises(StoreRefused, match="was moved to"):
        trio.run(scene.use_file)
    trio.run(scene.require_database_whole)


def started(config: Path, url: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "gateway", "migrate", "--config", config, "--to", url],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def kill_after(child: subprocess.Popen[str], moment: str, seconds: float) -> None:
    assert child.stderr is not None
    with child.stderr as lines:
        for line in lines:
            if line.startswith(moment):
                break
        with suppress(subprocess.TimeoutExpired):
            child.wait(seconds)
        child.kill()
        child.wait()


def copied_so_far_if_any(scene: Scene) -> int:
    try:
        return copied_so_far(scene)
    except psycopg.errors.UndefinedTable:
        return 0
