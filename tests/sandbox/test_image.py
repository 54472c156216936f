from __future__ import annotations

import os
from pathlib import Path

import attrs
import pytest

from gateway.sandbox.image import (
    HOST_LIBRARIES,
    PINNED,
    SHARED,
    Image,
    ImageMismatch,
    ImageMissing,
    ImageUnsafe,
    closed_to_others,
    directory_of_images,
    fingerprint,
    host_link,
    locate,
    manifest_beside,
    unchanged,
    verify,
    warm,
)
from gateway.sandbox.image_building import build
from gateway.sandbox.image_manifest import read_tree
from tests.sandbox.fake_image import NODE, FakePins, fake_pins, standing_image, verified, writable


def test_a_whole_image_is_verified_with_its_digest_kind_and_executables(tmp_path: Path) -> None:
    path, pins = standing_image(tmp_path)
    image = verify(path, pins.lock)
    assert (image.path, image.digest, image.kind) == (path, pins.lock.digest, PINNED)
    assert image.executables == {"/usr/bin/node"}


def test_one_altered_byte_is_found_by_name_though_size_and_times_are_the_same(tmp_path: Path) -> None:
    path, pins = standing_image(tmp_path)
    library = path / "usr/lib/libfake.so.1"
    before = library.stat()
    library.chmod(0o644)
    library.write_bytes(b"A library")
    library.chmod(0o444)
    os.utime(library, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(ImageMismatch) as refused:
        verify(path, pins.lock)
    assert refused.value.where == ("/usr/lib/libfake.so.1: other content",)
    assert refused.value.reason == "sandbox.image_digest_mismatch"


def test_an_extra_a_missing_and_a_renamed_file_are_found(tmp_path: Path) -> None:
    path, pins = standing_image(tmp_path)
    extra = writable(path / "usr/bin/sh")
    extra.write_bytes(b"#!")
    extra.chmod(0o555)
    extra.parent.chmod(0o555)
    writable(path / "etc/hosts").unlink()
    (path / "etc/group").rename(path / "etc/groups")
    (path / "etc").chmod(0o555)
    with pytest.raises(ImageMismatch) as refused:
        verify(path, pins.lock)
    assert set(refused.value.where) == {
        "/usr/bin/sh: extra",
        "/etc/hosts: missing",
        "/etc/group: missing",
        "/etc/groups: extra",
    }


@pytest.mark.parametrize("bits", [0o4000, 0o2000, 0o200])
def test_a_bit_to_become_another_or_to_write_by_is_unsafe(tmp_path: Path, bits: int) -> None:
    path, pins = standing_image(tmp_path)
    (path / "usr/bin/node").chmod(0o555 | bits)
    with pytest.raises(ImageUnsafe, match="/usr/bin/node: mode"):
        verify(path, pins.lock)


@pytest.mark.parametrize("target", ["/usr/lib", "../../../usr/lib"])
def test_a_link_that_leads_out_is_unsafe(tmp_path: Path, target: str) -> None:
    path, pins = standing_image(tmp_path)
    writable(path / "lib64").unlink()
    (path / "lib64").symlink_to(target)
    path.chmod(0o555)
    with pytest.raises(ImageUnsafe, match="/lib64: a link to"):
        verify(path, pins.lock)


def test_an_image_where_anybody_may_write_beside_it_is_unsafe(tmp_path: Path) -> None:
    path, pins = standing_image(tmp_path)
    path.parent.chmod(0o777)
    with pytest.raises(ImageUnsafe, match="anybody may write there"):
        verify(path, pins.lock)


def test_a_link_in_the_place_of_an_image_is_not_followed(tmp_path: Path) -> None:
    path, pins = standing_image(tmp_path)
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")
    with pytest.raises(ImageMismatch, match="cannot be read"):
        verify(path, pins.lock)


def test_a_directory_that_is_not_named_by_its_digest_is_refused(tmp_path: Path) -> None:
    path, pins = standing_image(tmp_path)
    with pytest.raises(ImageMismatch, match="not named by a digest"):
        verify(path.rename(path.with_name("current")), pins.lock)


def test_a_whole_image_of_another_lock_is_refused(tmp_path: Path) -> None:
    path, _ = standing_image(tmp_path)
    with pytest.raises(ImageMismatch, match="not the image that this version of gateway pins"):
        verify(path, fake_pins(tmp_path, version="2.0").lock)


def test_an_altered_image_that_nobody_has_the_manifest_of_is_refused_all_the_same(tmp_path: Path) -> None:
    path, _ = standing_image(tmp_path)
    library = path / "usr/lib/libfake.so.1"
    library.chmod(0o644)
    library.write_bytes(b"A library")
    library.chmod(0o444)
    other = fake_pins(tmp_path, version="2.0").lock
    with pytest.raises(ImageMismatch, match="nobody knows where"):
        verify(path, other)
    manifest_beside(path).write_text('[["/", "d"]]')
    with pytest.raises(ImageMismatch, match="nobody knows where"):
        verify(path, other)


def test_no_image_is_missing_with_the_command_that_builds_it(tmp_path: Path) -> None:
    lock = fake_pins(tmp_path).lock
    with pytest.raises(ImageMissing, match=f"Fix: `gateway sandbox build --images {tmp_path}`"):
        locate(tmp_path, lock)
    with pytest.raises(ImageMissing):
        verify(tmp_path / ("sha256-" + "0" * 64), lock)


class TestOfHostLibraries:
    @pytest.fixture
    def pins(self, tmp_path: Path) -> FakePins:
        return fake_pins(tmp_path)

    @pytest.fixture
    def image(self, tmp_path: Path, pins: FakePins) -> Image:
        return build(tmp_path / "images", pins.lock, host_libraries=True, downloads=pins.downloads).image

    def test_it_says_its_kind_and_has_another_digest(self, image: Image, pins: FakePins) -> None:
        assert image.kind == HOST_LIBRARIES
        assert image.digest != pins.lock.digest

    def test_it_is_located_until_the_pinned_one_stands_there(self, image: Image, pins: FakePins) -> None:
        images = image.path.parent
        assert locate(images, pins.lock) == image.path
        pinned = build(images, pins.lock, downloads=pins.downloads).image
        assert locate(images, pins.lock) == pinned.path != image.path

    def test_it_is_not_located_for_another_lock(self, image: Image, tmp_path: Path) -> None:
        with pytest.raises(ImageMissing):
            locate(image.path.parent, fake_pins(tmp_path, version="2.0").lock)

    def test_its_node_must_be_the_locked_one(self, image: Image, pins: FakePins) -> None:
        node = attrs.evolve(pins.lock.node, third="0" * 64)
        manifest = tuple(node if entry.path == node.path else entry for entry in pins.lock.manifest)
        with pytest.raises(ImageMismatch, match="/usr/bin/node: not the node that this version of gateway pins"):
            verify(image.path, attrs.evolve(pins.lock, manifest=manifest))

    def test_what_was_altered_is_told_by_the_manifest_beside_it(self, image: Image, pins: FakePins) -> None:
        (image.path / "etc/hosts").chmod(0o644)
        (image.path / "etc/hosts").write_text("10.0.0.1 localhost\n")
        (image.path / "etc/hosts").chmod(0o444)
        with pytest.raises(ImageMismatch) as refused:
            verify(image.path, pins.lock)
        assert [line.partition(":")[0] for line in refused.value.where] == ["/etc/hosts"]
        assert refused.value.fix == f"`gateway sandbox build --host-libraries --images {image.path.parent}`"

    def test_a_link_that_leads_elsewhere_is_refused(self, image: Image, pins: FakePins) -> None:
        link = image.path.parent / host_link(pins.lock)
        link.unlink()
        link.symlink_to("../evil")
        with pytest.raises(ImageMismatch, match=r"it leads to '\.\./evil'"):
            locate(image.path.parent, pins.lock)


def test_the_fingerprint_holds_while_nothing_changes_also_when_all_is_read(tmp_path: Path) -> None:
    image, _ = verified(tmp_path)
    warm(image)
    assert fingerprint(image) == image.verified == unchanged(image)


@pytest.mark.parametrize("change", ["content", "mode", "new file", "replaced", "removed"])
def test_any_change_changes_the_fingerprint(tmp_path: Path, change: str) -> None:
    image, _ = verified(tmp_path)
    library = image.path / "usr/lib/libfake.so.1"
    before = library.stat()
    match change:
        case "content":
            library.chmod(0o644)
            library.write_bytes(b"A library")
            library.chmod(0o444)
            os.utime(library, ns=(before.st_atime_ns, before.st_mtime_ns))
        case "mode":
            library.chmod(0o4444)
            library.chmod(0o444)
        case "new file":
            writable(image.path / "etc/new").write_bytes(b"")
        case "replaced":
            writable(library)
            (image.path / "usr/lib/other").write_bytes(b"a library")
            (image.path / "usr/lib/other").replace(library)
        case _:
            writable(image.path / "etc/hosts").unlink()
    assert fingerprint(image) != image.verified
    with pytest.raises(ImageMismatch, match="it changed since it was verified"):
        unchanged(image)


def test_a_tree_that_is_gone_has_no_fingerprint(tmp_path: Path) -> None:
    image, _ = verified(tmp_path)
    image.path.rename(tmp_path / "gone")
    with pytest.raises(ImageMismatch, match="cannot be read"):
        fingerprint(image)


def test_an_image_that_changes_while_it_is_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, pins = standing_image(tmp_path)

    def read_and_touch(root: Path) -> object:
        entries = read_tree(root)
        (root / "etc/hosts").chmod(0o644)
        (root / "etc/hosts").chmod(0o444)
        return entries

    monkeypatch.setattr("gateway.sandbox.image.read_tree", read_and_touch)
    with pytest.raises(ImageMismatch, match="it changed while it was read"):
        verify(path, pins.lock)


def test_warming_reads_every_byte_of_every_file(tmp_path: Path) -> None:
    image, _ = verified(tmp_path)
    assert warm(image) == sum(entry.size for entry in image.members.values() if entry.kind == "f") > NODE.stat().st_size


@pytest.mark.parametrize("name", ["node", "/usr/bin/node", "//usr/bin/./node", "/lib/../bin/node"])
def test_argv0_that_names_an_executable_of_the_image_resolves_to_it(tmp_path: Path, name: str) -> None:
    image, _ = verified(tmp_path)
    assert image.resolves(name) == "/usr/bin/node"


@pytest.mark.parametrize(
    "name",
    [
        *(
            "npx",
            "sh",
            "/bin/sh",
            "/bin/true",
            "",
            ".",
            "..",
            "/",
            "/usr/bin",
            "./node",
            "usr/bin/node",
            "../usr/bin/node",
        ),
        *(
            "node\0",
            "nod\ue000e",
            "\udc80",
            "--version",
            "NODE",
            "/usr/bin/node/",
            "/etc/hosts",
            "/usr/lib/libfake.so.1",
        ),
        "x" * 4096,
    ],
)
def test_argv0_that_names_none_resolves_to_nothing(tmp_path: Path, name: str) -> None:
    image, _ = verified(tmp_path)
    assert image.resolves(name) is None


def test_images_of_root_stand_where_sandboxes_of_other_users_can_enter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert directory_of_images(Path("/root/private")) == SHARED
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert directory_of_images(Path("/home/node")) == Path("/home/node/sandbox-images")


def test_the_directory_that_keeps_others_out_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    inner = tmp_path / "images"
    inner.mkdir(mode=0o755)
    closed = closed_to_others(inner)
    assert closed is not None
    assert closed in {tmp_path, *tmp_path.parents}
    assert closed_to_others(Path("/usr")) is None
