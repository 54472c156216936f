from __future__ import annotations

from pathlib import Path

import pytest

from gateway.config import default_data_dir, structure


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("", "{data_dir}/gateway.db"),
        ("sqlite:///{data_dir}/a.db", "{data_dir}/a.db"),
        ("sqlite:////var/lib/a.db", "/var/lib/a.db"),
    ],
)
def test_the_store_is_where_its_url_says(tmp_path: Path, url: str, path: str) -> None:
    configuration = structure({"node": {"data_dir": str(tmp_path)}, "store": {"url": url}})
    assert configuration.store_path == Path(path.replace("{data_dir}", str(tmp_path)))


def test_the_keys_are_in_the_data_directory_unless_told_otherwise(tmp_path: Path) -> None:
    node = {"data_dir": str(tmp_path)}
    assert structure({"node": node}).keys_dir == tmp_path / "keys"
    assert structure({"node": node | {"keys_dir": "/etc/gateway/keys"}}).keys_dir == Path("/etc/gateway/keys")


@pytest.mark.parametrize("scheme", ["postgresql", "postgres"])
def test_a_store_on_postgresql_may_be_shared_and_is_no_file(scheme: str) -> None:
    url = f"{scheme}://gateway@db.example:6432/gateway?sslmode=verify-full"
    configuration = structure({"store": {"url": url}})
    assert configuration.shared_store
    assert configuration.shown_store == url
    with pytest.raises(ValueError, match="no file"):
        _ = configuration.store_path


def test_a_file_is_not_shared() -> None:
    configuration = structure({"node": {"data_dir": "/var/lib/gateway"}})
    assert not configuration.shared_store
    assert configuration.shown_store == "sqlite:////var/lib/gateway/gateway.db"


@pytest.mark.parametrize("url", ["postgresql://u:s3cret@h/d", "postgresql://u@h/d?password=s3cret&sslmode=require"])
def test_a_password_in_the_url_is_never_shown(url: str) -> None:
    configuration = structure({"store": {"url": url}})
    assert configuration.store.url == url
    assert "s3cret" not in configuration.shown_store + repr(configuration)
    assert "@h/d" in configuration.shown_store


@pytest.mark.parametrize(
    ("base_url", "found"),
    [
        ("https://node.example", "https://node.example"),
        ("https://node.example/", "https://node.example"),
        ("https://node.example:8443/pay//", "https://node.example:8443/pay"),
        ("", "http://127.0.0.1:8402"),
    ],
)
def test_the_base_url_has_no_slash_at_its_end(base_url: str, found: str) -> None:
    assert structure({"node": {"base_url": base_url}}).base_url == found


def test_the_data_directory_follows_xdg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert default_data_dir() == tmp_path / "gateway"
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_data_dir() == tmp_path / ".local" / "share" / "gateway"
