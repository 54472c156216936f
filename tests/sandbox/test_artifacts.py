"""The artifacts of a run: real files, links, devices and names of every kind in real directories."""

from __future__ import annotations

import hashlib
import os
import stat
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.sandbox import artifacts
from gateway.sandbox.artifacts import Artifact, Bounds, Listing, Skip, listing, shown_name

MIB = 2**20
TIB = 2**40
BOUNDS = Bounds(MIB)


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def listed(directory: Path, bounds: Bounds = BOUNDS) -> Listing:
    opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return listing(opened, bounds)
    finally:
        os.close(opened)


def by_name(directory: Path, bounds: Bounds = BOUNDS) -> dict[str, Artifact]:
    return {each.name: each for each in listed(directory, bounds).artifacts}


def descriptors() -> set[str]:
    return {each.name for each in Path("/proc/self/fd").iterdir()}


@pytest.fixture(autouse=True)
def no_descriptor_is_left_open() -> Iterator[None]:
    before = len(descriptors())
    yield
    assert len(descriptors()) == before


@pytest.fixture
def out(tmp_path: Path) -> Path:
    made = tmp_path / "out"
    made.mkdir()
    return made


# -- files -------------------------------------------------------------------------------------------------------------


def test_an_empty_directory_has_no_artifacts(out: Path) -> None:
    assert listed(out) == Listing((), complete=True)


def test_a_file_is_told_by_name_size_and_digest(out: Path) -> None:
    (out / "a").write_bytes(b"xyz")
    (out / "empty").touch()
    assert listed(out).artifacts == (Artifact("a", 3, sha256(b"xyz")), Artifact("empty", 0, sha256(b"")))
    assert listed(out).total_bytes == 3


def test_a_file_larger_than_one_read_is_read_whole(out: Path) -> None:
    data = os.urandom(artifacts.CHUNK * 3 + 1)
    (out / "a").write_bytes(data)
    assert listed(out).artifacts == (Artifact("a", len(data), sha256(data)),)


def test_files_stand_in_the_order_of_their_names_depth_first(out: Path) -> None:
    for name in ("b", "a/z", "a/b/c", "Z", "é"):
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_bytes(b"")
    assert [each.name for each in listed(out).artifacts] == ["Z", "a/b/c", "a/z", "b", "é"]


def test_directories_are_not_artifacts(out: Path) -> None:
    (out / "a" / "b").mkdir(parents=True)
    assert listed(out) == Listing((), complete=True)


def test_the_same_directory_can_be_listed_again(out: Path) -> None:
    (out / "a").write_bytes(b"x")
    opened = os.open(out, os.O_RDONLY | os.O_DIRECTORY)
    try:
        assert listing(opened, BOUNDS) == listing(opened, BOUNDS)
        assert stat.S_ISDIR(os.fstat(opened).st_mode)
    finally:
        os.close(opened)


def test_a_directory_whose_name_is_gone_is_read_by_its_descriptor(out: Path) -> None:
    (out / "a").write_bytes(b"x")
    opened = os.open(out, os.O_RDONLY | os.O_DIRECTORY)
    try:
        out.rename(out.with_name("elsewhere"))
        assert [each.name for each in listing(opened, BOUNDS).artifacts] == ["a"]
    finally:
        os.close(opened)


def test_an_entry_has_its_published_members(out: Path) -> None:
    assert Artifact("a", 1, "00").as_json() == {"name": "a", "bytes": 1, "sha256": "00", "skipped": None}
    assert Artifact("a", skipped=Skip.FIFO).as_json() == {
        "name": "a",
        "bytes": None,
        "sha256": None,
        "skipped": "fifo",
    }


# -- what is skipped ---------------------------------------------------------------------------------------------------


def test_no_link_is_followed_whatever_it_leads_to(out: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"secret")
    targets = {
        "file": tmp_path / "secret",
        "directory": tmp_path,
        "root": Path("/"),
        "self": Path("self"),
        "up": Path(".."),
        "nothing": Path("nothing-there"),
        "passwd": Path("/etc/passwd"),
        "magic": Path("/proc/self/root"),
    }
    for name, target in targets.items():
        (out / name).symlink_to(target)
    assert by_name(out) == {name: Artifact(name, skipped=Skip.SYMLINK) for name in targets}


def test_a_fifo_is_skipped_and_nothing_waits_for_its_writer(out: Path) -> None:
    os.mkfifo(out / "a")
    began = time.monotonic()
    assert listed(out).artifacts == (Artifact("a", skipped=Skip.FIFO),)
    assert time.monotonic() - began < 5


def test_a_socket_is_skipped(out: Path) -> None:
    os.mknod(out / "a", stat.S_IFSOCK | 0o600)
    assert listed(out).artifacts == (Artifact("a", skipped=Skip.SOCKET),)


def test_real_devices_are_skipped() -> None:
    told = by_name(Path("/dev"), Bounds(MIB, depth=0))
    assert {told[name].skipped for name in ("null", "zero", "urandom", "tty")} == {Skip.DEVICE}


@pytest.mark.skipif(os.geteuid() != 0 and "CI" not in os.environ, reason="only root can make a device")
def test_devices_among_the_artifacts_are_skipped(out: Path) -> None:
    os.mknod(out / "block", stat.S_IFBLK | 0o600, os.makedev(7, 0))
    os.mknod(out / "null", stat.S_IFCHR | 0o600, os.makedev(1, 3))
    assert {each.skipped for each in listed(out).artifacts} == {Skip.DEVICE}
    assert len(listed(out).artifacts) == 2


def test_another_file_system_is_not_entered() -> None:
    told = by_name(Path("/"), Bounds(0, depth=0))
    assert told["proc"] == Artifact("proc", skipped=Skip.OTHER_FILESYSTEM)


def test_nothing_of_another_file_system_is_read(out: Path) -> None:
    (out / "a").write_bytes(b"x")
    (out / "d").mkdir()
    (out / "d" / "b").write_bytes(b"y")
    opened = os.open(out, os.O_RDONLY | os.O_DIRECTORY)
    try:
        walk = artifacts._Walk(BOUNDS, device=os.fstat(opened).st_dev + 1)
        assert list(walk.entries(opened, b"", 0)) == [
            Artifact("a", skipped=Skip.OTHER_FILESYSTEM),
            Artifact("d", skipped=Skip.OTHER_FILESYSTEM),
        ]
    finally:
        os.close(opened)


def test_a_hard_link_is_counted_once(out: Path) -> None:
    (out / "a").write_bytes(b"x" * 1000)
    (out / "d").mkdir()
    for name in ("b", "d/c"):
        (out / name).hardlink_to(out / "a")
    found = listed(out, Bounds(1000))
    assert found.artifacts == (
        Artifact("a", 1000, sha256(b"x" * 1000)),
        Artifact("b", skipped=Skip.HARD_LINK),
        Artifact("d/c", skipped=Skip.HARD_LINK),
    )
    assert found.total_bytes == 1000


def test_what_may_not_be_opened_is_told_so(out: Path) -> None:
    (out / "a").write_bytes(b"x")
    (out / "a").chmod(0)
    (out / "d").mkdir(mode=0)
    me = os.geteuid()
    opened = os.open(out, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if me == 0:
            os.seteuid(65534)  # root may open everything
        found = listing(opened, BOUNDS).artifacts
    finally:
        os.seteuid(me)
        os.close(opened)
    assert found == (Artifact("a", skipped=Skip.UNREADABLE), Artifact("d", skipped=Skip.UNREADABLE))


# -- how much is read --------------------------------------------------------------------------------------------------


def test_files_fit_up_to_the_last_byte_of_the_limit(out: Path) -> None:
    (out / "a").write_bytes(b"x" * 6)
    (out / "b").write_bytes(b"y" * 4)
    assert [each.skipped for each in listed(out, Bounds(10)).artifacts] == [None, None]
    assert listed(out, Bounds(9)).artifacts[1] == Artifact("b", 4, skipped=Skip.TOO_LARGE)


def test_a_file_after_one_that_is_too_large_may_still_fit(out: Path) -> None:
    (out / "a").write_bytes(b"x" * 100)
    (out / "b").write_bytes(b"y")
    assert [each.skipped for each in listed(out, Bounds(10)).artifacts] == [Skip.TOO_LARGE, None]


def bytes_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    lengths: list[int] = []
    real = os.read

    def read(file: int, most: int) -> bytes:
        data = real(file, most)
        lengths.append(len(data))
        return data

    monkeypatch.setattr(os, "read", read)
    return lengths


def test_nothing_of_a_sparse_file_of_1_tib_is_read(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (out / "a").open("wb") as file:
        file.truncate(TIB)
    lengths = bytes_read(monkeypatch)
    assert listed(out, Bounds(10 * MIB)).artifacts == (Artifact("a", TIB, skipped=Skip.TOO_LARGE),)
    assert lengths == []


def test_many_sparse_files_are_read_no_further_than_the_limit_of_all_together(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(40):
        with (out / f"{number:02}").open("wb") as file:
            file.truncate(MIB)
    lengths = bytes_read(monkeypatch)
    found = listed(out, Bounds(3 * MIB))
    assert [each.skipped for each in found.artifacts] == [None] * 3 + [Skip.TOO_LARGE] * 37
    assert sum(lengths) == found.total_bytes == 3 * MIB
    assert max(lengths) <= artifacts.CHUNK


def test_a_directory_at_the_bound_of_depth_is_told_and_not_entered(out: Path) -> None:
    deep = out.joinpath(*"abc")
    deep.mkdir(parents=True)
    (deep / "file").write_bytes(b"x")
    assert [each.name for each in listed(out, Bounds(MIB, depth=3)).artifacts] == ["a/b/c/file"]
    assert listed(out, Bounds(MIB, depth=2)).artifacts == (Artifact("a/b/c", skipped=Skip.TOO_DEEP),)


def test_many_nested_directories_hold_no_more_descriptors_than_the_bound_of_depth(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = os.open(out, os.O_RDONLY | os.O_DIRECTORY)
    for _ in range(100):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY | os.O_DIRECTORY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    most, real, before = 0, os.scandir, len(descriptors())

    def scandir(directory: int) -> Any:
        nonlocal most
        most = max(most, len(descriptors()) - before)
        return real(directory)

    monkeypatch.setattr(os, "scandir", scandir)
    (entry,) = listed(out).artifacts
    assert entry == Artifact("/".join("d" * 9), skipped=Skip.TOO_DEEP)
    assert most <= 1 + BOUNDS.depth


def test_a_listing_has_no_more_entries_than_its_bound_and_says_that_there_are_more(out: Path) -> None:
    for number in range(5):
        (out / str(number)).write_bytes(b"")
    assert listed(out, Bounds(MIB, listed=5)).complete
    cut = listed(out, Bounds(MIB, listed=4))
    assert ([each.name for each in cut.artifacts], cut.complete) == (["0", "1", "2", "3"], False)


def test_names_that_are_no_artifacts_count_against_the_bound_of_what_is_seen(out: Path) -> None:
    for number in range(5):
        (out / f"d{number}").mkdir()
    assert listed(out, Bounds(MIB, seen=5)).complete
    assert not listed(out, Bounds(MIB, seen=4)).complete


def test_what_is_seen_counts_over_all_directories(out: Path) -> None:
    for name in ("a/1", "a/2", "b/1", "b/2"):
        (out / name).parent.mkdir(exist_ok=True)
        (out / name).write_bytes(b"")
    assert listed(out, Bounds(MIB, seen=6)).complete
    cut = listed(out, Bounds(MIB, seen=5))
    assert not cut.complete
    assert [each.name for each in cut.artifacts[:2]] == ["a/1", "a/2"]
    assert len(cut.artifacts) == 3


def test_no_more_names_are_read_than_are_to_be_seen(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(200):
        (out / str(number)).write_bytes(b"")
    asked: list[str] = []
    real = os.stat

    def told(name: Any, **how: Any) -> os.stat_result:
        asked.append(name)
        return real(name, **how)

    monkeypatch.setattr(os, "stat", told)
    listed(out, Bounds(MIB, seen=10))
    assert len(asked) == 10


# -- what changes under the reader's hands -----------------------------------------------------------------------------


def swapped(monkeypatch: pytest.MonkeyPatch, *changes: Callable[[], object]) -> None:
    """Let something change between the look at an entry and its opening."""
    real = os.stat

    def told(name: Any, **how: Any) -> os.stat_result:
        status = real(name, **how)
        for change in changes:
            change()
        return status

    monkeypatch.setattr(os, "stat", told)


def test_a_file_that_becomes_a_link_is_not_followed(out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secret").write_bytes(b"xyz")
    (out / "a").write_bytes(b"abc")
    swapped(monkeypatch, (out / "a").unlink, partial((out / "a").symlink_to, tmp_path / "secret"))
    assert listed(out).artifacts == (Artifact("a", skipped=Skip.UNREADABLE),)


def test_a_directory_that_becomes_a_link_is_not_followed(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "b").write_bytes(b"xyz")
    (out / "a").mkdir()
    swapped(monkeypatch, (out / "a").rmdir, partial((out / "a").symlink_to, tmp_path / "secret"))
    assert listed(out).artifacts == (Artifact("a", skipped=Skip.UNREADABLE),)


def test_a_file_that_becomes_another_of_the_same_size_has_no_digest(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other").write_bytes(b"xyz")
    (out / "a").write_bytes(b"abc")
    swapped(monkeypatch, partial((tmp_path / "other").rename, out / "a"))
    assert listed(out).artifacts == (Artifact("a", skipped=Skip.UNREADABLE),)


def test_a_file_that_becomes_a_fifo_blocks_nothing(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (out / "a").write_bytes(b"abc")
    swapped(monkeypatch, (out / "a").unlink, partial(os.mkfifo, out / "a"))
    assert listed(out).artifacts == (Artifact("a", skipped=Skip.UNREADABLE),)


@pytest.mark.parametrize("size", [0, 2, 4, TIB])
def test_a_file_that_grows_or_shrinks_has_no_digest_and_is_read_no_further(
    out: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    (out / "a").write_bytes(b"abc")
    lengths = bytes_read(monkeypatch)
    swapped(monkeypatch, partial(os.truncate, out / "a", size))
    assert listed(out).artifacts == (Artifact("a", skipped=Skip.UNREADABLE),)
    assert sum(lengths) <= 4


def test_a_file_that_is_gone_is_unreadable(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (out / "a").write_bytes(b"abc")
    swapped(monkeypatch, (out / "a").unlink)
    assert listed(out).artifacts == (Artifact("a", skipped=Skip.UNREADABLE),)


# -- names -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        (b"a b.txt", "a b.txt"),
        ("é€😀漢".encode(), "é€😀漢"),
        (b"a\nb", "a%0Ab"),
        ("a\u202eb".encode(), "a%E2%80%AEb"),
        ("\u2066x\u2069\u200b\ufeff\u2028".encode(), "%E2%81%A6x%E2%81%A9%E2%80%8B%EF%BB%BF%E2%80%A8"),
        (b"\x1b[31m\x7f\r\t", "%1B[31m%7F%0D%09"),
        (b"\xc2\x9b\xc2\xa0", "%C2%9B%C2%A0"),
        (b"\xff\xfe", "%FF%FE"),
        (b"\xc3", "%C3"),
        (b"100%", "100%25"),
        (b"%0A", "%250A"),
        (b"\\n\"'<>", "\\n\"'<>"),
    ],
)
def test_a_name_is_shown_safely_and_comes_back(out: Path, name: bytes, shown: str) -> None:
    (out / os.fsdecode(name)).write_bytes(b"")
    (entry,) = listed(out).artifacts
    assert entry.name == shown
    assert entry.name.isprintable()
    assert unquote_to_bytes(entry.name) == name


def test_the_escaped_name_of_one_file_is_never_the_name_of_another(out: Path) -> None:
    names = [b"\n", b"%0A", b"%250A", b"%", b"%25"]
    for name in names:
        (out / os.fsdecode(name)).write_bytes(b"")
    assert {unquote_to_bytes(each.name) for each in listed(out).artifacts} == set(names)


@given(st.binary(max_size=40) | st.text(max_size=20).map(str.encode))
def test_every_path_is_printable_and_comes_back(path: bytes) -> None:
    shown = shown_name(path)
    assert shown.isprintable()
    assert unquote_to_bytes(shown) == path
    shown.encode()
