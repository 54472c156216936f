from __future__ import annotations

import hmac
import os
import threading
from pathlib import Path

import pytest

from gateway.keys import KINDS, Keys, KeysRefused, differences, open_keys, open_shared_keys, rotate


def refused(directory: Path, *, create: bool = True) -> str:
    with pytest.raises(KeysRefused) as caught:
        open_keys(directory, create=create)
    return str(caught.value)


def test_a_first_start_makes_one_of_each_kind_that_only_the_node_can_read(tmp_path: Path) -> None:
    directory = tmp_path / "deep" / "keys"
    keys = open_keys(directory, create=True)
    assert sorted(path.name for path in directory.iterdir()) == sorted(f"{kind}-1.key" for kind in KINDS)
    assert directory.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in directory.iterdir()} == {0o600}
    made = [keys.current(kind) for kind in KINDS]
    assert {version for version, _ in made} == {1}
    assert len({key for _, key in made}) == len(KINDS)
    assert {len(key) for _, key in made} == {32}


def test_a_second_start_reads_the_same_keys(tmp_path: Path) -> None:
    assert open_keys(tmp_path / "keys", create=True) == open_keys(tmp_path / "keys", create=False)


def test_key_files_are_made_unreadable_to_others_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        open_keys(tmp_path / "keys", create=True)
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "keys").iterdir()} == {0o600}


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_that_is_gone_from_a_used_node_is_named_and_not_made_anew(tmp_path: Path, kind: str) -> None:
    open_keys(tmp_path, create=True)
    (tmp_path / f"{kind}-1.key").unlink()
    told = refused(tmp_path, create=False)
    assert f"no {kind} key" in told
    assert f"restore {kind}-*.key" in told
    assert not (tmp_path / f"{kind}-1.key").exists()


def test_a_directory_that_is_gone_from_a_used_node_is_named(tmp_path: Path) -> None:
    assert "restore it from the backup" in refused(tmp_path / "gone", create=False)
    assert not (tmp_path / "gone").exists()


@pytest.mark.parametrize("size", [0, 31, 33, 1_000_000])
def test_a_key_file_of_another_size_is_refused_without_telling_what_is_in_it(tmp_path: Path, size: int) -> None:
    open_keys(tmp_path, create=True)
    path = tmp_path / "pepper-1.key"
    path.write_bytes(b"s" * size)
    told = refused(tmp_path)
    assert str(path) in told
    assert "32" in told
    assert "ssss" not in told


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o777])
def test_a_key_file_that_others_can_read_is_refused_with_the_fix(tmp_path: Path, mode: int) -> None:
    open_keys(tmp_path, create=True)
    path = tmp_path / "node-1.key"
    path.chmod(mode)
    assert f"chmod 600 {path}" in refused(tmp_path)


@pytest.mark.parametrize("name", ["peper-1.key", "pepper-0.key", "pepper-01.key", "pepper.key", "pepper-1 (copy).key"])
def test_a_key_file_by_an_unknown_name_is_refused_by_name(tmp_path: Path, name: str) -> None:
    open_keys(tmp_path, create=True)
    (tmp_path / name).write_bytes(b"x" * 32)
    (tmp_path / name).chmod(0o600)
    assert name in refused(tmp_path)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    open_keys(tmp_path, create=True)
    (tmp_path / "pepper-2.key").mkdir(mode=0o700)
    assert "pepper-2.key" in refused(tmp_path)
    (tmp_path / "file").write_text("")
    assert "file" in refused(tmp_path / "file")


@pytest.mark.parametrize("breaks_at", ["fsync", "link"])
def test_a_crash_while_writing_leaves_no_half_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, breaks_at: str
) -> None:
    class Killed(BaseException):
        pass

    def killed(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as broken:
        broken.setattr(os, breaks_at, killed)
        broken.setattr(Path, "unlink", lambda _: None)  # what a kill does not do either
        with pytest.raises(Killed):
            open_keys(tmp_path, create=True)
    drafts = [path.name for path in tmp_path.iterdir()]
    assert len(drafts) == 1
    assert drafts[0].startswith(".pepper-1.key.")
    keys = open_keys(tmp_path, create=True)
    assert {len(keys.current(kind)[1]) for kind in KINDS} == {32}


def test_a_full_disk_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert "No space left on device" in refused(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_nodes_that_start_at_once_end_up_with_the_same_keys(tmp_path: Path) -> None:
    found: list[Keys] = []
    gate = threading.Barrier(8)

    def start() -> None:
        gate.wait()
        found.append(open_keys(tmp_path / "keys", create=True))

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert all(keys == found[0] for keys in found)


@pytest.mark.parametrize("kind", KINDS)
def test_rotation_adds_a_key_and_keeps_the_older_ones(tmp_path: Path, kind: str) -> None:
    before = open_keys(tmp_path, create=True).current(kind)
    assert [rotate(tmp_path, kind), rotate(tmp_path, kind)] == [2, 3]
    keys = open_keys(tmp_path, create=False)
    version, key = keys.current(kind)
    assert version == 3
    assert key != before[1]
    assert (tmp_path / f"{kind}-1.key").read_bytes() == before[1]


def test_versions_are_numbers_and_not_text(tmp_path: Path) -> None:
    open_keys(tmp_path, create=True)
    for _ in range(9):
        rotate(tmp_path, "pepper")
    assert open_keys(tmp_path, create=False).current("pepper")[0] == 10


@pytest.mark.parametrize("kind", ["peppers", "", "../pepper"])
def test_only_a_known_kind_is_rotated(tmp_path: Path, kind: str) -> None:
    with pytest.raises(KeysRefused, match="pepper, node, quote, receipt"):
        rotate(tmp_path, kind)


def test_nothing_is_rotated_where_there_is_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeysRefused, match="no pepper key"):
        rotate(tmp_path, "pepper")
    with pytest.raises(KeysRefused, match="no directory"):
        rotate(tmp_path / "gone", "pepper")


def test_keys_are_never_shown(tmp_path: Path) -> None:
    keys = open_keys(tmp_path, create=True)
    assert repr(keys) == "Keys()"


def known_of(directory: Path) -> dict[str, str]:
    return open_keys(directory, create=True).fingerprints()


def test_a_fingerprint_tells_a_key_from_another_and_from_the_same_bytes_of_another_kind(tmp_path: Path) -> None:
    same = {1: b"x" * 32, 2: b"y" * 32}
    prints = Keys(peppers=same, nodes=same, quotes=same, receipts=same).fingerprints()
    assert sorted(prints) == sorted(f"{kind}-{version}" for kind in KINDS for version in (1, 2))
    assert len(set(prints.values())) == len(prints)
    assert {len(value) for value in prints.values()} == {64}


def test_the_fingerprints_of_peppers_are_those_that_older_stores_hold() -> None:
    nothing: dict[int, bytes] = {}
    keys = Keys(peppers={1: b"p" * 32}, nodes=nothing, quotes=nothing, receipts=nothing)
    digest = hmac.digest(b"p" * 32, b"gateway pepper fingerprint", "sha256").hex()
    assert keys.fingerprints() == {"pepper-1": digest}


def test_a_store_that_knows_no_key_gets_fresh_ones_and_learns_all(tmp_path: Path) -> None:
    keys, fresh = open_shared_keys(tmp_path / "keys", {})
    assert fresh == keys.fingerprints()
    assert open_shared_keys(tmp_path / "keys", fresh) == (keys, {})


def test_a_store_that_knows_only_peppers_learns_the_rest(tmp_path: Path) -> None:
    known = known_of(tmp_path)
    _, fresh = open_shared_keys(tmp_path, {"pepper-1": known["pepper-1"]})
    assert sorted(fresh) == ["node-1", "quote-1", "receipt-1"]


def test_keys_of_another_store_are_refused_each_by_its_file_with_the_fix(tmp_path: Path) -> None:
    known = known_of(tmp_path / "a")
    known_of(tmp_path / "b")
    with pytest.raises(KeysRefused) as caught:
        open_shared_keys(tmp_path / "b", known)
    lines = str(caught.value).splitlines()
    assert len(lines) == len(KINDS)
    for kind, follows in {"pepper": "charged twice", "node": "taken over", "receipt": "verified"}.items():
        (line,) = (each for each in lines if f"{tmp_path}/b/{kind}-1.key" in each)
        assert follows in line
        assert "copy it from another node" in line
        assert "from the backup" in line


def test_an_empty_directory_makes_no_keys_of_its_own_for_a_store_that_has_some(tmp_path: Path) -> None:
    known = known_of(tmp_path / "a")
    (tmp_path / "b").mkdir()
    with pytest.raises(KeysRefused, match="copy it from another node"):
        open_shared_keys(tmp_path / "b", known)
    assert list((tmp_path / "b").iterdir()) == []


@pytest.mark.parametrize("kind", ["pepper", "node", "receipt"])
def test_an_older_key_that_the_store_knows_is_needed_still(tmp_path: Path, kind: str) -> None:
    open_keys(tmp_path, create=True)
    rotate(tmp_path, kind)
    known = known_of(tmp_path)
    (tmp_path / f"{kind}-1.key").unlink()
    with pytest.raises(KeysRefused, match=f"{kind}-1.key is missing"):
        open_shared_keys(tmp_path, known)


def test_of_quote_secrets_only_the_newest_is_needed(tmp_path: Path) -> None:
    open_keys(tmp_path, create=True)
    for _ in range(9):
        rotate(tmp_path, "quote")
    known = known_of(tmp_path)
    for version in range(1, 10):
        (tmp_path / f"quote-{version}.key").unlink()
    keys, fresh = open_shared_keys(tmp_path, known)
    assert (list(keys.quotes), fresh) == ([10], {})
    (tmp_path / "quote-10.key").rename(tmp_path / "quote-9.key")
    told = list(differences(open_keys(tmp_path, create=False), known, tmp_path))
    assert [line.partition(" is ")[0] for line in told] == [f"{tmp_path}/quote-10.key", f"{tmp_path}/quote-9.key"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_key_that_was_added_is_fresh_and_one_that_the_store_already_uses_must_be_copied(
    tmp_path: Path, kind: str
) -> None:
    before = known_of(tmp_path)
    rotate(tmp_path, kind)
    keys, fresh = open_shared_keys(tmp_path, before)
    assert list(fresh) == [f"{kind}-2"]
    (tmp_path / f"{kind}-2.key").unlink()
    with pytest.raises(KeysRefused, match=f"{kind}-2.key is missing"):
        open_shared_keys(tmp_path, keys.fingerprints())
