from __future__ import annotations

import base64
import hashlib
from importlib import metadata
from pathlib import Path

import attrs
import pytest

from gateway.sandbox import image_sources
from gateway.sandbox.image_lock import Lock, load_lock
from gateway.sandbox.image_refusal import BuildFailed, PinGone, SourceMismatch, ToolMissing
from gateway.sandbox.image_sources import (
    installed_node,
    libraries_listed,
    libraries_of_host,
    libraries_of_packages,
    node_of,
    package_archive,
    sha256_of,
)
from tests.sandbox.fake_image import DISTRIBUTION, NODE, FakePins, fake_package, fake_pins, fake_wheel, sha256


@pytest.fixture
def pins(tmp_path: Path) -> FakePins:
    return fake_pins(tmp_path)


@pytest.fixture
def work(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


def silent(step: str) -> None:
    del step


class TestTheInstalledWheel:
    @pytest.fixture
    def installed(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """A site directory with the distribution in it; returns its node."""
        site = tmp_path / "site"
        node = site / "standing/bin/node"
        node.parent.mkdir(parents=True)
        node.write_bytes(NODE.read_bytes())
        about = site / f"{DISTRIBUTION.replace('-', '_')}-1.0.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {DISTRIBUTION}\nVersion: 1.0\n")
        self.record(site, node.read_bytes())
        monkeypatch.syspath_prepend(str(site))
        return node

    @staticmethod
    def record(site: Path, node: bytes) -> None:
        digest = base64.urlsafe_b64encode(hashlib.sha256(node).digest()).rstrip(b"=").decode()
        (record,) = site.glob("*.dist-info")
        (record / "RECORD").write_text(f"standing/bin/node,sha256={digest},{len(node)}\n")

    def test_gives_its_node_when_version_record_lock_and_bytes_agree(self, pins: FakePins, installed: Path) -> None:
        assert installed_node(pins.lock) == installed

    def test_is_passed_over_when_a_byte_was_altered(self, pins: FakePins, installed: Path) -> None:
        installed.write_bytes(NODE.read_bytes() + b"!")
        assert installed_node(pins.lock) is None

    def test_is_passed_over_when_its_record_was_altered_with_it(self, pins: FakePins, installed: Path) -> None:
        installed.write_bytes(NODE.read_bytes() + b"!")
        self.record(installed.parents[2], installed.read_bytes())
        assert installed_node(pins.lock) is None

    def test_is_passed_over_when_its_record_says_otherwise(self, pins: FakePins, installed: Path) -> None:
        self.record(installed.parents[2], b"another node")
        assert installed_node(pins.lock) is None

    def test_is_passed_over_when_it_is_of_another_version(self, tmp_path: Path, installed: Path) -> None:
        assert installed.exists()
        assert installed_node(fake_pins(tmp_path, version="2.0").lock) is None

    def test_is_passed_over_when_there_is_none(self, pins: FakePins) -> None:
        assert installed_node(pins.lock) is None

    def test_of_these_tests_is_the_locked_one(self) -> None:
        lock = load_lock("x86_64")
        if metadata.version(lock.wheel.distribution) != lock.wheel.version:
            pytest.skip("another version of node is installed")
        node = installed_node(lock)
        assert node is not None
        assert sha256_of(node) == lock.node.third


class TestTheWheel:
    @pytest.fixture
    def index(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """What pip finds wheels in, and nothing else."""
        index = tmp_path / "index"
        index.mkdir()
        monkeypatch.setenv("PIP_NO_INDEX", "1")
        monkeypatch.setenv("PIP_FIND_LINKS", str(index))
        return index

    @pytest.fixture
    def downloads(self, tmp_path: Path) -> Path:
        (tmp_path / "fresh").mkdir()
        return tmp_path / "fresh"

    def test_is_downloaded_by_pip_and_kept(self, pins: FakePins, index: Path, downloads: Path, work: Path) -> None:
        (pins.downloads / "standing_in_for_node-1.0-py3-none-any.whl").rename(
            index / "standing_in_for_node-1.0-py3-none-any.whl"
        )
        heard: list[str] = []
        node = node_of(pins.lock, downloads, work, heard.append)
        assert node.read_bytes() == NODE.read_bytes()
        assert node.is_relative_to(work)
        assert [sha256_of(each) for each in downloads.iterdir()] == [pins.lock.wheel.sha256]
        assert heard == [f"node: downloading {DISTRIBUTION} 1.0"]

    def test_is_not_downloaded_again(self, pins: FakePins, index: Path, work: Path) -> None:
        assert list(index.iterdir()) == []
        heard: list[str] = []
        assert node_of(pins.lock, pins.downloads, work, heard.append).read_bytes() == NODE.read_bytes()
        assert heard == [f"node: from the wheel standing_in_for_node-1.0-py3-none-any.whl in {pins.downloads}"]

    def test_with_another_hash_is_refused(self, pins: FakePins, index: Path, downloads: Path, work: Path) -> None:
        fake_wheel(index, "1.0", b"another node")
        with pytest.raises(SourceMismatch, match=f"{DISTRIBUTION}==1.0 is not what the lock pins"):
            node_of(pins.lock, downloads, work, silent)
        assert list(downloads.iterdir()) == []

    def test_that_was_kept_and_altered_is_not_taken(self, pins: FakePins, index: Path, work: Path) -> None:
        assert list(index.iterdir()) == []
        fake_wheel(pins.downloads, "1.0", b"another node")
        with pytest.raises(PinGone):
            node_of(pins.lock, pins.downloads, work, silent)

    def test_that_the_index_has_not_is_gone(self, pins: FakePins, index: Path, downloads: Path, work: Path) -> None:
        fake_wheel(index, "2.0")
        with pytest.raises(PinGone, match="No matching distribution found") as refused:
            node_of(pins.lock, downloads, work, silent)
        assert "update gateway" in refused.value.fix
        assert "--host-libraries" not in refused.value.fix


class TestDebianPackages:
    def test_give_their_libraries_by_name_links_followed_inside(self, pins: FakePins, work: Path) -> None:
        found = libraries_of_packages(pins.lock, pins.downloads, work, silent)
        assert {name: path.read_bytes() for name, path in found.items()} == {"libfake.so.1": b"a library"}

    def test_that_the_mirror_has_not_are_gone_with_both_ways_on(self, pins: FakePins, work: Path) -> None:
        with pytest.raises(PinGone) as refused:
            libraries_of_packages(self.renamed(pins.lock, "no-such-package-anywhere"), pins.downloads, work, silent)
        assert "no-such-package-anywhere=1.0 cannot be downloaded: E: " in str(refused.value)
        assert "`apt-get update` as root" in refused.value.fix
        assert "`gateway sandbox build --host-libraries`" in refused.value.fix

    def test_with_another_hash_are_refused(self, pins: FakePins, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """As of a mirror that serves another file under the same version."""
        (pins.downloads / "libfake_1.0_amd64.deb").unlink()
        other = fake_package(work, "1.0-other", b"another library")
        programs = work / "programs"
        programs.mkdir()
        (programs / "apt-get").write_text(f"#!/bin/sh\nexec cp {other} libfake_1.0_amd64.deb\n")
        (programs / "apt-get").chmod(0o755)
        monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
        with pytest.raises(SourceMismatch, match=f"libfake_1.0_amd64.deb: sha256 {sha256(other.read_bytes())}"):
            package_archive(pins.lock.packages[0], pins.downloads, work, silent)

    def test_without_a_library_of_the_lock_are_refused(self, pins: FakePins, work: Path) -> None:
        package = attrs.evolve(pins.lock.packages[0], libraries=("usr/lib/libother.so.1",))
        with pytest.raises(SourceMismatch, match=r"usr/lib/libother\.so\.1: not in it"):
            libraries_of_packages(attrs.evolve(pins.lock, packages=(package,)), pins.downloads, work, silent)

    def test_whose_library_leads_out_of_them_are_refused(self, pins: FakePins, work: Path) -> None:
        (work / "unpacked/usr/lib").mkdir(parents=True)
        (work / "unpacked/usr/lib/libevil.so.1").symlink_to("/etc/passwd")
        package = attrs.evolve(pins.lock.packages[0], libraries=("usr/lib/libevil.so.1",))
        with pytest.raises(SourceMismatch, match=r"usr/lib/libevil\.so\.1: not in it"):
            libraries_of_packages(attrs.evolve(pins.lock, packages=(package,)), pins.downloads, work, silent)

    def test_need_debians_tools(self, pins: FakePins, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PATH", str(work))
        with pytest.raises(ToolMissing, match=r"dpkg-deb is needed .* Fix: build on Debian or Ubuntu, or .*--host-lib"):
            libraries_of_packages(pins.lock, pins.downloads, work, silent)
        with pytest.raises(ToolMissing, match="apt-get is needed"):
            libraries_of_packages(self.renamed(pins.lock, "libother"), pins.downloads, work, silent)

    @staticmethod
    def renamed(lock: Lock, name: str) -> Lock:
        return attrs.evolve(lock, packages=(attrs.evolve(lock.packages[0], name=name),))


class TestLibrariesOfThisMachine:
    def test_are_those_that_its_loader_gives_to_node_and_the_loader(self, pins: FakePins) -> None:
        found = libraries_of_host(NODE, pins.lock)
        assert {"libc.so.6", pins.lock.interpreter} <= found.keys()
        assert all(path.is_file() and not path.is_symlink() for path in found.values())

    def test_are_not_chosen_by_the_environment(
        self, pins: FakePins, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        evil = tmp_path / "libc.so.6"
        evil.write_bytes(libraries_of_host(NODE, pins.lock)["libc.so.6"].read_bytes())
        monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
        assert libraries_of_host(NODE, pins.lock)["libc.so.6"] != evil.resolve()

    def test_cannot_be_had_without_glibc(self, pins: FakePins) -> None:
        with pytest.raises(ToolMissing, match="glibc"):
            libraries_of_host(NODE, attrs.evolve(pins.lock, interpreter="ld-other.so.2"))

    def test_cannot_be_had_for_what_is_no_program(self, pins: FakePins, tmp_path: Path) -> None:
        (tmp_path / "text").write_text("text")
        with pytest.raises(BuildFailed, match="lacks a library of node"):
            libraries_of_host(tmp_path / "text", pins.lock)

    def test_are_read_from_what_the_loader_lists(self) -> None:
        told = (
            "\tlinux-vdso.so.1 (0x00007f9be59e1000)\n"
            "\tlibnone.so.9 => /nonexistent/libnone.so.9 (0x00007f9be59cb000)\n"
            "\t/lib64/ld-linux-x86-64.so.2 (0x00007f9be59e3000)\n"
        )
        assert libraries_listed(told) == {"libnone.so.9": Path("/nonexistent/libnone.so.9")}


def test_a_program_that_does_not_end_is_ended(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_sources, "DOWNLOAD_S", 0.2)
    with pytest.raises(BuildFailed, match=r"has not ended within 0\.2 s"):
        image_sources._run(["sleep", "30"], work)
