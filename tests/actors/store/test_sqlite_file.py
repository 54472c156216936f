from __future__ import annotations

import os
import random
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from importlib.resources.abc import Traversable
from pathlib import Path

import pytest

from gateway.actors.store import Reason, StoreRefused
from gateway.actors.store.schema import shipped
from gateway.actors.store.sqlite_file import FileUnusable, SqliteFile, statements_of, touch


def now_ms() -> int:
    return 1_700_000_000_000


@contextmanager
def opened(path: Path, migrations: Traversable) -> Iterator[sqlite3.Connection]:
    file = SqliteFile(path, "node-1", now_ms)
    connection = file.open(migrations)
    try:
        yield connection
    finally:
        connection.close()
        file.release()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "gateway.db"


class TestOpening:
    def test_a_new_file_is_made_for_its_owner_alone_and_migrated(self, path: Path, migrations: Path) -> None:
        with opened(path, migrations) as connection:
            assert connection.execute("SELECT version, name, applied_at FROM schema_migrations").fetchall() == [
                (1, "tables", now_ms()),
                (2, "values", now_ms()),
            ]
            modes = {file.name: file.stat().st_mode & 0o777 for file in path.parent.iterdir()}
        assert modes == dict.fromkeys(("gateway.db", "gateway.db-wal", "gateway.db-shm", "gateway.db.lock"), 0o600)

    def test_the_writer_is_set_up_to_survive_power_loss(self, path: Path, migrations: Path) -> None:
        with opened(path, migrations) as connection:
            settings = {
                name: connection.execute(f"PRAGMA {name}").fetchone()[0]
                for name in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout", "wal_autocheckpoint")
            }
        assert settings == {
            "journal_mode": "wal",
            "synchronous": 2,  # FULL
            "foreign_keys": 1,
            "busy_timeout": 5000,
            "wal_autocheckpoint": 4000,
        }

    def test_opening_again_applies_nothing_twice(self, path: Path, migrations: Path) -> None:
        for _ in range(3):
            with opened(path, migrations) as connection:
                assert connection.execute("SELECT count(*) FROM schema_migrations").fetchone() == (2,)

    def test_a_file_in_no_directory_is_refused(self, tmp_path: Path, migrations: Path) -> None:
        with pytest.raises(StoreRefused, match="Make the directory first"):
            SqliteFile(tmp_path / "nowhere" / "gateway.db", "node-1", now_ms).open(migrations)

    def test_a_log_without_its_database_is_refused_and_kept(self, path: Path, migrations: Path) -> None:
        log = path.with_name(path.name + "-wal")
        log.write_bytes(b"acknowledged operations")
        with pytest.raises(StoreRefused, match=r"it is missing and its write-ahead log gateway\.db-wal is there"):
            SqliteFile(path, "node-1", now_ms).open(migrations)
        assert log.read_bytes() == b"acknowledged operations"

    def test_the_database_of_another_program_is_refused_untouched(self, path: Path, migrations: Path) -> None:
        other = sqlite3.connect(path)
        other.execute("CREATE TABLE songs (title TEXT)")
        other.close()
        with pytest.raises(StoreRefused, match="another program's database"):
            SqliteFile(path, "node-1", now_ms).open(migrations)
        other = sqlite3.connect(path)
        assert other.execute("SELECT name FROM sqlite_master").fetchall() == [("songs",)]
        other.close()


class TestClaim:
    def test_a_second_opener_is_refused_by_name(self, path: Path, migrations: Path) -> None:
        with (
            opened(path, migrations),
            pytest.raises(StoreRefused, match=rf"another node \(process {os.getpid()}\) has it open"),
        ):
            SqliteFile(path, "node-1", now_ms).open(migrations)

    def test_a_refused_opener_leaves_the_first_in_peace(self, path: Path, migrations: Path) -> None:
        with opened(path, migrations) as connection:
            for _ in range(3):
                with pytest.raises(StoreRefused):
                    SqliteFile(path, "node-1", now_ms).open(migrations)
            touch(connection)

    def test_a_lock_file_left_by_a_dead_node_is_no_hindrance(self, path: Path, migrations: Path) -> None:
        path.with_name("gateway.db.lock").write_text("99999\n")
        with opened(path, migrations):
            pass

    def test_another_process_is_refused(self, path: Path, migrations: Path) -> None:
        script = (
            "import sys; from pathlib import Path; from gateway.actors.store.sqlite_file import SqliteFile\n"
            "SqliteFile(Path(sys.argv[1]), 'node-1', lambda: 0).open(Path(sys.argv[2]))"
        )
        with opened(path, migrations):
            child = subprocess.run(
                [sys.executable, "-c", script, path, migrations],
                capture_output=True,
                text=True,
                check=False,
                timeout=60,
            )
        assert child.returncode == 1
        assert "another node" in child.stderr

    def test_a_refusal_lets_go_of_the_lock(self, path: Path, migrations: Path) -> None:
        path.write_bytes(b"this is no database, however long it may be" * 100)
        for _ in range(2):
            with pytest.raises(StoreRefused, match="not a database"):
                SqliteFile(path, "node-1", now_ms).open(migrations)


class TestDamage:
    @pytest.fixture
    def damaged(self, path: Path, migrations: Path) -> Path:
        with opened(path, migrations) as connection:
            connection.execute("BEGIN")
            for number in range(2000):
                connection.execute("INSERT INTO accounts VALUES (?, 1)", (f"account {number:050}",))
            connection.execute("COMMIT")
        size = path.stat().st_size
        rng = random.Random(7)
        with path.open("r+b") as file:
            for offset in range(8192, size - 4096, 4096):
                file.seek(offset + rng.randrange(100))
                file.write(rng.randbytes(200))
        return path

    def test_a_damaged_file_is_refused_with_what_to_do(self, damaged: Path, migrations: Path) -> None:
        with pytest.raises(StoreRefused, match=r"(damaged|malformed).*restore a backup"):
            SqliteFile(damaged, "node-1", now_ms).open(migrations)

    def test_a_truncated_file_is_refused(self, path: Path, migrations: Path) -> None:
        with opened(path, migrations) as connection:
            for number in range(500):
                connection.execute("INSERT INTO accounts VALUES (?, 1)", (f"account {number:050}",))
        os.truncate(path, path.stat().st_size // 2 // 4096 * 4096)
        with pytest.raises(StoreRefused, match=r"(damaged|malformed)"):
            SqliteFile(path, "node-1", now_ms).open(migrations)

    def test_a_log_cut_in_the_middle_of_a_commit_is_recovered(
        self, path: Path, migrations: Path, tmp_path: Path
    ) -> None:
        copy = tmp_path / "copy"
        copy.mkdir()
        with opened(path, migrations) as connection:
            for number in range(50):
                connection.execute("INSERT INTO counters VALUES (?, 1)", (f"{number}",))
            for name in ("gateway.db", "gateway.db-wal"):
                shutil.copy(path.with_name(name), copy / name)
        log = copy / "gateway.db-wal"
        os.truncate(log, log.stat().st_size - 100)
        with opened(copy / "gateway.db", migrations) as connection:
            assert connection.execute("SELECT count(*) FROM counters").fetchone() == (49,)


class TestMigrating:
    def test_a_newer_schema_is_refused(self, path: Path, migrations: Path, tmp_path: Path) -> None:
        with opened(path, migrations):
            pass
        older = tmp_path / "older"
        older.mkdir()
        shutil.copy(migrations / "0001_tables.sql", older)
        with pytest.raises(StoreRefused, match="its schema is version 2 and this release knows 1"):
            SqliteFile(path, "node-1", now_ms).open(older)

    def test_a_migration_changed_after_it_was_applied_is_refused(
        self, path: Path, migrations: Path, tmp_path: Path
    ) -> None:
        with opened(path, migrations):
            pass
        changed = shutil.copytree(migrations, tmp_path / "changed")
        with (changed / "0001_tables.sql").open("a") as file:
            file.write("-- one more comment\n")
        with pytest.raises(StoreRefused, match=r"migration 1 \(tables\) was applied with other contents"):
            SqliteFile(path, "node-1", now_ms).open(changed)

    def test_a_migration_that_fails_leaves_nothing_of_itself(
        self, path: Path, migrations: Path, tmp_path: Path
    ) -> None:
        extended = shutil.copytree(migrations, tmp_path / "extended")
        broken = extended / "0003_broken.sql"
        broken.write_text("CREATE TABLE fine (a TEXT); INSERT INTO fine VALUES ('x'); CREATE TABLE kept (b TEXT);")
        with pytest.raises(StoreRefused, match=r"migration 3 \(broken\) failed and was undone"):
            SqliteFile(path, "node-1", now_ms).open(extended)
        broken.write_text("CREATE TABLE fine (a TEXT)")
        with opened(path, extended) as connection:
            assert connection.execute("SELECT count(*) FROM fine").fetchone() == (0,)

    @pytest.mark.parametrize(
        ("script", "statements"),
        [
            ("SELECT 1; SELECT 2;", ["SELECT 1;", " SELECT 2;"]),
            ("SELECT ';'; SELECT 2", ["SELECT ';';", " SELECT 2"]),
            ("-- a; b\nSELECT 1;\n", ["-- a; b\nSELECT 1;"]),
            (
                "CREATE TRIGGER t AFTER INSERT ON a BEGIN DELETE FROM b; DELETE FROM c; END;\nSELECT 1;",
                ["CREATE TRIGGER t AFTER INSERT ON a BEGIN DELETE FROM b; DELETE FROM c; END;", "\nSELECT 1;"],
            ),
        ],
    )
    def test_a_script_is_cut_at_the_end_of_each_statement(self, script: str, statements: list[str]) -> None:
        assert list(statements_of(script)) == statements


READ_ONLY_SCRIPT = """
import os, sys
from pathlib import Path
from gateway.actors.store import StoreRefused
from gateway.actors.store.sqlite_file import SqliteFile
import gateway.actors.store.schema, sqlite3
if os.geteuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
try:
    SqliteFile(Path(sys.argv[1]), 'node-1', lambda: 0).open(Path(sys.argv[2]))
except StoreRefused as refusal:
    print(refusal)
"""


class TestReadOnly:
    @pytest.fixture
    def shared(self, migrations: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
        """A directory that the unprivileged child can reach: pytest's own are closed to other users."""
        directory = Path("/tmp") / f"gateway-store-{os.getpid()}"
        directory.mkdir(mode=0o755)
        shutil.copytree(migrations, directory / "migrations")
        with opened(directory / "gateway.db", migrations):
            pass
        (directory / "gateway.db.lock").unlink()
        yield directory
        directory.chmod(0o755)
        shutil.rmtree(directory)

    def refusal(self, directory: Path) -> str:
        child = subprocess.run(
            [sys.executable, "-c", READ_ONLY_SCRIPT, directory / "gateway.db", directory / "migrations"],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert child.returncode == 0, child.stderr
        return child.stdout

    def test_a_directory_that_cannot_be_written_is_refused(self, shared: Path) -> None:
        shared.chmod(0o555)
        assert "Give the node's user write access" in self.refusal(shared)

    def test_a_file_that_cannot_be_written_is_refused(self, shared: Path) -> None:
        shared.chmod(0o777)
        (shared / "gateway.db").chmod(0o444)
        assert "Give the node's user write access" in self.refusal(shared)


class TestReplacement:
    def test_a_file_deleted_under_the_node_is_noticed(self, path: Path, migrations: Path) -> None:
        file = SqliteFile(path, "node-1", now_ms)
        connection = file.open(migrations)
        file.require_unmoved()
        path.unlink()
        for look in (file.require_unmoved, file.reader, file.writer):
            with pytest.raises(FileUnusable) as caught:
                look()
            assert caught.value.failure.reason is Reason.FILE_REPLACED
        connection.close()
        file.release()

    def test_a_log_deleted_under_the_node_is_noticed(self, path: Path, migrations: Path) -> None:
        file = SqliteFile(path, "node-1", now_ms)
        connection = file.open(migrations)
        path.with_name("gateway.db-wal").unlink()
        with pytest.raises(FileUnusable):
            file.require_unmoved()
        connection.close()
        file.release()

    def test_a_reader_cannot_write(self, path: Path, migrations: Path) -> None:
        file = SqliteFile(path, "node-1", now_ms)
        connection = file.open(migrations)
        reader = file.reader()
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            reader.execute("DELETE FROM accounts")
        reader.close()
        connection.close()
        file.release()


class TestMoved:
    def moved_away(self, path: Path) -> None:
        with closing(sqlite3.connect(path)) as connection, connection:
            left = '{"url": "postgresql://db/gateway", "at": "2026-01-01T00:00:00.000Z"}'
            connection.execute("INSERT INTO node_facts VALUES ('moved-to', ?)", [left])

    def test_a_store_that_was_moved_away_is_not_joined_and_not_held(self, path: Path) -> None:
        with opened(path, shipped()) as connection:
            before = connection.execute("SELECT * FROM nodes").fetchall()
        self.moved_away(path)
        for _ in range(2):
            with pytest.raises(StoreRefused, match=r"moved to postgresql://db/gateway at 2026-01-01T00:00:00\.000Z"):
                SqliteFile(path, "node-1", now_ms).open(shipped())
        with closing(sqlite3.connect(path)) as reader:
            assert reader.execute("SELECT * FROM nodes").fetchall() == before

    def test_who_serves_nothing_from_it_takes_it_all_the_same_and_joins_nothing(self, path: Path) -> None:
        with opened(path, shipped()):
            pass
        self.moved_away(path)
        file = SqliteFile(path, "migrate", now_ms)
        with closing(file.take(shipped())) as connection:
            assert connection.execute("SELECT node FROM nodes").fetchall() == [("node-1",)]
        file.release()

    def test_a_node_that_let_go_of_the_lock_meanwhile_does_not_write_again(self, path: Path) -> None:
        file = SqliteFile(path, "node-1", now_ms)
        file.open(shipped()).close()
        file.release()
        self.moved_away(path)
        file.claim()
        with pytest.raises(StoreRefused, match="moved to"):
            file.writer()
        file.release()
