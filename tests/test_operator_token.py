from __future__ import annotations

from pathlib import Path

import pytest

from gateway.config import Configuration, ConfigurationError, structure
from gateway.operator_token import open_token, token_path


def configured(data_dir: Path, token_file: Path | None = None) -> Configuration:
    return structure({"node": {"data_dir": str(data_dir), "operator_token_file": str(token_file or "")}})


def test_a_node_makes_its_own_token_once_and_for_its_user_only(tmp_path: Path) -> None:
    first = open_token(configured(tmp_path), create=True)
    assert len(first) >= 32
    assert open_token(configured(tmp_path), create=True) == first
    assert (tmp_path / "operator.token").stat().st_mode & 0o777 == 0o600
    assert [each.name for each in tmp_path.iterdir()] == ["operator.token"]


def test_without_leave_to_make_one_a_missing_token_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read: No such file"):
        open_token(configured(tmp_path), create=False)


def test_a_configured_file_is_read_and_never_made(tmp_path: Path) -> None:
    file = tmp_path / "token"
    with pytest.raises(ConfigurationError, match="/node/operator_token_file"):
        open_token(configured(tmp_path, file), create=True)
    assert not file.exists()
    file.touch(mode=0o600)
    file.write_text("a-token-of-the-operator\n")
    assert open_token(configured(tmp_path, file), create=True) == "a-token-of-the-operator"
    assert token_path(configured(tmp_path, file)) == file


def test_a_token_that_others_can_read_is_refused(tmp_path: Path) -> None:
    open_token(configured(tmp_path), create=True)
    (tmp_path / "operator.token").chmod(0o640)
    with pytest.raises(ConfigurationError, match="run chmod 600"):
        open_token(configured(tmp_path), create=True)


@pytest.mark.parametrize("content", ["", "short", "two words that are long enough", "ein-Wört-das-kein-ASCII-ist"])
def test_what_is_no_token_is_refused(tmp_path: Path, content: str) -> None:
    file = tmp_path / "operator.token"
    file.touch(mode=0o600)
    file.write_text(content)
    with pytest.raises(ConfigurationError, match=r"operator\.token"):
        open_token(configured(tmp_path), create=True)
