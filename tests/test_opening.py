from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.actors.runtime import open_runtime
from gateway.actors.store import Statement, StoreRefused
from gateway.config import Configuration, ConfigurationError, structure
from gateway.opening import open_engine, settings_of

URL = "postgresql://gateway@db.example/gateway"


def configured(**store: Any) -> Configuration:
    return structure({"store": {"url": URL} | store})


def password_file(tmp_path: Path, content: bytes, mode: int = 0o600) -> str:
    path = tmp_path / "password"
    path.write_bytes(content)
    path.chmod(mode)
    return str(path)


def refused(file: str) -> str:
    with pytest.raises(ConfigurationError) as caught:
        settings_of(configured(password_file=file))
    (violation,) = caught.value.violations
    assert violation.pointer == "/store/password_file"
    assert file in violation.detail
    return violation.detail


def test_every_setting_of_the_store_reaches_the_engine(tmp_path: Path) -> None:
    numbers = {"readers": 7, "lease_ms": 900, "connect_timeout_s": 2, "statement_timeout_s": 3}
    settings = settings_of(configured(password_file=password_file(tmp_path, b"p w\xc3\xa9\n"), **numbers))
    assert (settings.url, settings.password) == (URL, "p w\u00e9")
    assert {name: getattr(settings, name) for name in numbers} == numbers


def test_the_defaults_of_the_configuration_are_those_of_the_engine() -> None:
    settings = settings_of(configured())
    assert settings == type(settings)(url=URL)


@pytest.mark.parametrize("content", [b"secret", b"secret\n", b"secret\r\n"])
def test_the_password_is_one_line(tmp_path: Path, content: bytes) -> None:
    assert settings_of(configured(password_file=password_file(tmp_path, content))).password == "secret"


@pytest.mark.parametrize(
    "content", [b"", b"\n", b"s3cret\nmore", b"s3cret\n\n", b"s3c\0ret", b"s3cret" * 1000, b"s3c\rret"]
)
def test_what_is_not_one_line_is_refused_without_telling_it(tmp_path: Path, content: bytes) -> None:
    told = refused(password_file(tmp_path, content))
    assert "one line" in told
    assert "s3c" not in told


def test_a_password_that_is_no_text_is_refused(tmp_path: Path) -> None:
    assert "UTF-8" in refused(password_file(tmp_path, b"\xff\xfe"))


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o666])
def test_a_password_that_others_can_read_is_refused_with_the_fix(tmp_path: Path, mode: int) -> None:
    file = password_file(tmp_path, b"secret", mode)
    assert f"chmod 600 {file}" in refused(file)


def test_a_password_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    assert "No such file" in refused(str(tmp_path / "gone"))


async def test_a_file_is_opened_where_no_server_is_named(tmp_path: Path) -> None:
    configuration = structure({"node": {"data_dir": str(tmp_path), "name": "node-7"}})
    async with open_runtime() as runtime, open_engine(runtime, configuration) as store:
        await store.commit(Statement("INSERT INTO node_facts VALUES ('a', 'b')"))
        assert not store.shared
        assert store.membership.node == "node-7"
    assert (tmp_path / "gateway.db").exists()


async def test_a_server_is_joined_under_the_name_of_the_node(postgresql_url: str) -> None:
    configuration = structure({"node": {"name": "node-7"}, "store": {"url": postgresql_url}})
    async with open_runtime() as runtime, open_engine(runtime, configuration) as store:
        await store.commit(Statement("INSERT INTO node_facts VALUES ('a', 'b')"))
        assert store.shared
        assert store.membership.node == "node-7"
        assert await store.fetch("SELECT node FROM nodes WHERE lease_until >= :store_ms") == [("node-7",)]


async def test_a_server_that_cannot_be_reached_is_told_without_the_password(tmp_path: Path) -> None:
    file = password_file(tmp_path, b"s3cret\n")
    configuration = structure({"store": {"url": "postgresql://gateway@127.0.0.1:1/x", "password_file": file}})
    async with open_runtime() as runtime:
        with pytest.raises(StoreRefused) as caught:
            async with open_engine(runtime, configuration):
                pass
    assert "s3cret" not in str(caught.value)
    assert "127.0.0.1:1" in str(caught.value)


@pytest.mark.parametrize("engine", ["sqlite", "postgresql"])
async def test_observers_hear_of_groups(request: pytest.FixtureRequest, tmp_path: Path, engine: str) -> None:
    heard: list[object] = []
    url = request.getfixturevalue("postgresql_url") if engine == "postgresql" else ""
    configuration = structure({"node": {"data_dir": str(tmp_path)}, "store": {"url": url}})
    async with open_runtime() as runtime, open_engine(runtime, configuration, observe=heard.append) as store:
        await store.commit(Statement("INSERT INTO node_facts VALUES ('a', 'b')"))
    assert heard


async def test_what_is_no_store_is_refused(tmp_path: Path) -> None:
    (tmp_path / "gateway.db").write_bytes(b"no database" * 100)
    configuration = structure({"node": {"data_dir": str(tmp_path)}})
    async with open_runtime() as runtime:
        with pytest.raises(StoreRefused):
            async with open_engine(runtime, configuration):
                pass
