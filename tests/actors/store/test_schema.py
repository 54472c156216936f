from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from gateway.actors.store import StoreRefused, schema
from gateway.actors.store.schema import Applied, Migration


def ours(*checksums: str) -> list[Migration]:
    return [Migration(number, f"m{number}", checksum, "") for number, checksum in enumerate(checksums, 1)]


def theirs(*checksums: str) -> list[Applied]:
    return [Applied(number, f"m{number}", checksum) for number, checksum in enumerate(checksums, 1)]


class TestLoading:
    def test_migrations_come_by_number_with_the_checksum_of_their_file(self, tmp_path: Path) -> None:
        (tmp_path / "0002_b.sql").write_text("B")
        (tmp_path / "0001_a.sql").write_text("A")
        loaded = schema.load(tmp_path, "sqlite")
        assert [(one.version, one.name, one.sql) for one in loaded] == [(1, "a", "A"), (2, "b", "B")]
        assert loaded[0].checksum == hashlib.sha256(b"A").hexdigest()

    def test_an_engine_gets_its_own_half_of_a_pair(self, tmp_path: Path) -> None:
        (tmp_path / "0001_a.sqlite.sql").write_text("S")
        (tmp_path / "0001_a.postgresql.sql").write_text("P")
        assert [one.sql for one in schema.load(tmp_path, "sqlite")] == ["S"]
        assert [one.sql for one in schema.load(tmp_path, "postgresql")] == ["P"]

    @pytest.mark.parametrize(
        "names",
        [
            [],
            ["0002_b.sql"],
            ["0001_a.sql", "0003_c.sql"],
            ["0001_a.sql", "0001_b.sql"],
            ["0001_a.sql", "0001_a.sqlite.sql"],
            ["0001_a.sql", "2_b.sql"],
            ["0001_a.sql", "0002_b.oracle.sql"],
            ["0001_a.postgresql.sql"],
        ],
        ids=" ".join,
    )
    def test_a_gap_a_double_or_a_misnamed_file_is_refused(self, tmp_path: Path, names: list[str]) -> None:
        for name in names:
            (tmp_path / name).write_text("")
        with pytest.raises(StoreRefused, match="Reinstall the release"):
            schema.load(tmp_path, "sqlite")

    def test_a_directory_that_is_not_there_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(StoreRefused):
            schema.load(tmp_path / "nowhere", "sqlite")

    def test_other_files_are_passed_over(self, tmp_path: Path) -> None:
        (tmp_path / "0001_a.sql").write_text("")
        (tmp_path / "README.md").write_text("")
        assert len(schema.load(tmp_path, "sqlite")) == 1

    @pytest.mark.parametrize("dialect", schema.DIALECTS)
    def test_what_this_release_ships_loads_for_every_engine(self, dialect: str) -> None:
        assert schema.load(schema.shipped(), dialect)[0].name == "operations"


class TestPending:
    def test_an_empty_database_needs_all(self) -> None:
        assert list(schema.pending(ours("a", "b"), [], "db")) == ours("a", "b")

    def test_an_older_database_needs_the_rest(self) -> None:
        assert list(schema.pending(ours("a", "b", "c"), theirs("a"), "db")) == ours("a", "b", "c")[1:]

    def test_a_current_database_needs_nothing(self) -> None:
        assert list(schema.pending(ours("a"), theirs("a"), "db")) == []

    def test_a_newer_schema_is_refused(self) -> None:
        with pytest.raises(StoreRefused, match=r"db: its schema is version 2 and this release knows 1.*newer release"):
            schema.pending(ours("a"), theirs("a", "b"), "db")

    def test_a_changed_migration_is_refused(self) -> None:
        with pytest.raises(StoreRefused, match=r"migration 1 .* was applied with other contents"):
            schema.pending(ours("a", "b"), theirs("x"), "db")

    def test_a_gap_in_the_history_is_refused(self) -> None:
        with pytest.raises(StoreRefused, match="gaps"):
            schema.pending(ours("a", "b"), [Applied(2, "m2", "b")], "db")
