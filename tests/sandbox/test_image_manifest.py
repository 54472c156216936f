from __future__ import annotations

import hashlib
import os
import socket
from pathlib import Path

import pytest

from gateway.sandbox import image_manifest
from gateway.sandbox.image_manifest import Entry, differences, digest_of, read_tree, resolve, unsafe
from gateway.sandbox.image_refusal import ImageUnsafe

FILE = Entry("/usr/bin/node", "f", "0555", 4, hashlib.sha256(b"node").hexdigest())
TREE = (
    Entry("/", "d", "0555", 0, None),
    Entry("/bin", "l", "0777", 7, "usr/bin"),
    Entry("/lib", "l", "0777", 7, "usr/lib"),
    Entry("/loop", "l", "0777", 4, "loop"),
    Entry("/absolute", "l", "0777", 8, "/usr/bin"),
    Entry("/usr", "d", "0555", 0, None),
    Entry("/usr/bin", "d", "0555", 0, None),
    Entry("/usr/lib", "d", "0555", 0, None),
    FILE,
)
MEMBERS = {entry.path: entry for entry in TREE}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    (root / "usr/bin").mkdir(parents=True)
    (root / "usr/bin/node").write_bytes(b"node")
    (root / "lib").symlink_to("usr/bin")
    return root


def test_a_tree_is_read_as_sorted_entries(tree: Path) -> None:
    (tree / "usr/bin/node").chmod(0o555)
    for directory in (tree, tree / "usr", tree / "usr/bin"):
        directory.chmod(0o755)
    assert [entry.as_json() for entry in read_tree(tree)] == [
        ["/", "d", "0755", 0, None],
        ["/lib", "l", "0777", 7, "usr/bin"],
        ["/usr", "d", "0755", 0, None],
        ["/usr/bin", "d", "0755", 0, None],
        ["/usr/bin/node", "f", "0555", 4, hashlib.sha256(b"node").hexdigest()],
    ]


def test_the_digest_is_the_sha256_of_the_canonical_json_in_any_order() -> None:
    two = [Entry("/b", "l", "0777", 1, "a"), Entry("/a", "d", "0555", 0, None)]
    expected = b'[["/a","d","0555",0,null],["/b","l","0777",1,"a"]]'
    assert digest_of(two) == "sha256:" + hashlib.sha256(expected).hexdigest()


@pytest.mark.parametrize("name", ["new\nline", "\u202egnp.exe", b"\xff".decode(errors="surrogateescape"), "a b"])
def test_a_name_that_could_deceive_is_no_name_of_an_image(tree: Path, name: str) -> None:
    (tree / name).write_bytes(b"")
    with pytest.raises(ImageUnsafe, match="a file is called") as refused:
        read_tree(tree)
    assert str(refused.value).isascii()


def test_a_fifo_and_a_socket_are_refused_without_being_opened(tree: Path) -> None:
    os.mkfifo(tree / "fifo")
    with pytest.raises(ImageUnsafe, match="/fifo: neither file, directory nor link"):
        read_tree(tree)
    (tree / "fifo").unlink()
    with socket.socket(socket.AF_UNIX) as listener:
        here = os.open(tree, os.O_RDONLY)
        listener.bind(f"/proc/self/fd/{here}/socket")
        os.close(here)
        with pytest.raises(ImageUnsafe, match="/socket: neither file, directory nor link"):
            read_tree(tree)


def test_a_file_of_another_owner_is_refused(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() == 0:
        os.chown(tree / "usr/bin/node", 4711, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 4711)
    with pytest.raises(ImageUnsafe, match="owned by uid"):
        read_tree(tree)


def test_a_file_with_capabilities_is_refused(tree: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root may give a file capabilities")
    version_2_with_net_raw = bytes.fromhex("01000002002000000000000000000000 00000000".replace(" ", ""))
    os.setxattr(tree / "usr/bin/node", "security.capability", version_2_with_net_raw)
    with pytest.raises(ImageUnsafe, match="/usr/bin/node: it has file capabilities"):
        read_tree(tree)


def test_a_tree_too_deep_or_too_full_is_given_up(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tree.joinpath(*"abcdefghijkl")
    deep.mkdir(parents=True)
    with pytest.raises(ImageUnsafe, match="deeper than any image"):
        read_tree(tree)
    monkeypatch.setattr(image_manifest, "MOST_ENTRIES", 3)
    with pytest.raises(ImageUnsafe, match="more than 3 entries"):
        read_tree(tree)


def test_a_link_is_never_followed_out_of_the_tree(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret/key").write_bytes(b"key")
    (tree / "out").symlink_to(tmp_path / "secret")
    assert not [entry for entry in read_tree(tree) if "key" in entry.path]


@pytest.mark.parametrize("target", ["/etc", "../../etc", "usr/../../etc", "..", "nowhere", "loop"])
def test_a_link_that_may_lead_out_or_nowhere_is_unsafe(target: str) -> None:
    link = Entry("/link", "l", "0777", len(target), target)
    assert [line.partition(":")[0] for line in unsafe((*MEMBERS.values(), link)) if "/link" in line] == ["/link"]


def test_links_that_only_descend_are_safe() -> None:
    assert unsafe([entry for entry in TREE if entry.path not in {"/loop", "/absolute"}]) == []


@pytest.mark.parametrize("mode", ["4555", "2555", "1555", "0755", "0575", "0557"])
def test_a_mode_by_which_one_may_write_or_become_another_is_unsafe(mode: str) -> None:
    assert unsafe([Entry("/usr/bin/node", "f", mode, 4, "")]) == [f"/usr/bin/node: mode {mode}"]
    assert unsafe([Entry("/usr", "d", mode, 0, None)]) == [f"/usr: mode {mode}"]


def test_differences_name_every_entry_and_what_is_wrong_with_it() -> None:
    found = [
        Entry("/", "d", "0755", 0, None),
        Entry("/extra", "d", "0555", 0, None),
        Entry("/usr", "l", "0777", 3, "lib"),
        Entry("/usr/bin/node", "f", "0555", 4, "0" * 64),
        Entry("/usr/lib/a", "f", "0444", 5, "0" * 64),
    ]
    expected = [
        Entry("/", "d", "0555", 0, None),
        Entry("/etc", "d", "0555", 0, None),
        Entry("/usr", "d", "0555", 0, None),
        FILE,
        Entry("/usr/lib/a", "f", "0444", 4, "0" * 64),
    ]
    assert differences(expected, found) == [
        "/: mode 0755 instead of 0555",
        "/etc: missing",
        "/extra: extra",
        "/usr: type l instead of d",
        "/usr/bin/node: other content",
        "/usr/lib/a: 5 bytes instead of 4",
    ]
    assert differences(expected, expected) == []


@pytest.mark.parametrize(
    ("path", "real"),
    [
        ("/usr/bin/node", "/usr/bin/node"),
        ("/bin/node", "/usr/bin/node"),
        ("/absolute/node", "/usr/bin/node"),
        ("//usr/./bin//node", "/usr/bin/node"),
        ("/lib/../bin/node", "/usr/bin/node"),
        ("/../../usr/bin/node", "/usr/bin/node"),
        ("/", "/"),
        ("/usr/bin/", "/usr/bin"),
        ("/usr/bin/node/", None),
        ("/usr/bin/node/..", None),
        ("/nowhere/../usr/bin/node", None),
        ("/loop", None),
        ("/usr/bin/no\0de", None),
        ("usr/bin/node", None),
        ("", None),
        ("/" * 4096 + "usr/bin/node", None),
    ],
)
def test_a_path_is_resolved_as_the_kernel_would_with_the_image_as_root(path: str, real: str | None) -> None:
    assert resolve(MEMBERS, path) == real
