from __future__ import annotations

import json
import logging
import os
import select
import signal
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import attrs
import pytest

from gateway.sandbox.image import (
    HOST_LIBRARIES,
    PINNED,
    Image,
    fingerprint,
    host_link,
    load_lock,
    manifest_beside,
    verify,
)
from gateway.sandbox.image_building import ASIDE, Built, assemble, build, files_of, remove_tree
from gateway.sandbox.image_manifest import digest_of
from gateway.sandbox.image_refusal import ImageMismatch, PinGone, SourceMismatch
from tests.sandbox.fake_image import NODE, FakePins, fake_pins, standing_image, written

ROOT = Path(__file__).parent.parent.parent
KEPT_DOWNLOADS = ROOT / ".gateway" / "sandbox-downloads"
"""The project's scratch: what the real build has downloaded once."""
SLOW_BUILD = """
import json, signal, sys
from pathlib import Path
from gateway.sandbox.image_building import ASIDE, Built, assemble, build, files_of, remove_tree
from gateway.sandbox.image_lock import lock_of

def told(step):
    print(step, flush=True)
    if step.startswith("libraries"):
        signal.pause()

images, lock, downloads = map(Path, sys.argv[1:])
build(images, lock_of(json.loads(lock.read_text()), "x86_64"), downloads=downloads, told=told)
"""


@pytest.fixture
def pins(tmp_path: Path) -> FakePins:
    return fake_pins(tmp_path)


@pytest.fixture
def images(tmp_path: Path) -> Path:
    return tmp_path / "images"


def made(images: Path, pins: FakePins) -> Built:
    return build(images, pins.lock, downloads=pins.downloads)


def left_aside(images: Path) -> list[str]:
    return [path.name for path in images.iterdir() if path.name.startswith(ASIDE)]


def test_relative_places_are_of_where_the_build_was_started(
    pins: FakePins, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    built = build(Path("images"), pins.lock, downloads=pins.downloads.relative_to(tmp_path))
    assert built.image.path.parent == tmp_path / "images"


def test_a_build_puts_the_locked_image_in_place_with_its_manifest_beside_it(images: Path, pins: FakePins) -> None:
    built = made(images, pins)
    assert (built.made, built.image.kind, built.image.digest) == (True, PINNED, pins.lock.digest)
    assert built.image.path.name == pins.lock.digest.replace(":", "-")
    assert json.loads(manifest_beside(built.image.path).read_bytes()) == pins.document["x86_64"]["manifest"]
    assert left_aside(images) == []


def test_nothing_in_an_image_can_be_written_and_root_owns_what_root_built(images: Path, pins: FakePins) -> None:
    path = made(images, pins).image.path
    everything = [path, *path.rglob("*")]
    assert all(stat.S_IMODE(each.lstat().st_mode) & 0o222 == 0 for each in everything if not each.is_symlink())
    assert {stat.S_IMODE(each.stat().st_mode) for each in everything if each.is_dir()} == {0o555}
    assert {each.lstat().st_uid for each in everything} == {os.geteuid()}


def test_the_umask_of_the_builder_changes_nothing(images: Path, pins: FakePins) -> None:
    before = os.umask(0o077)
    try:
        built = made(images, pins)
    finally:
        os.umask(before)
    assert built.image.digest == pins.lock.digest
    assert stat.S_IMODE(images.stat().st_mode) == 0o755


def test_a_second_build_touches_nothing_and_asks_for_nothing(images: Path, pins: FakePins, tmp_path: Path) -> None:
    first = made(images, pins)
    heard: list[str] = []
    second = build(images, pins.lock, downloads=tmp_path / "no downloads", told=heard.append)
    assert (second.made, second.image.verified) == (False, first.image.verified)
    assert heard == []


def test_a_damaged_image_is_replaced_whole_and_a_run_that_has_it_open_keeps_it(images: Path, pins: FakePins) -> None:
    path = made(images, pins).image.path
    (path / "etc/hosts").chmod(0o644)
    (path / "etc/hosts").write_text("damaged\n")
    (path / "etc").chmod(0o755)
    (path / "etc/extra").write_text("extra")
    (path / "etc/extra").chmod(0o444)
    (path / "etc/hosts").chmod(0o444)
    (path / "etc").chmod(0o555)
    heard: list[str] = []
    with (path / "etc/hosts").open() as open_in_a_run:
        built = build(images, pins.lock, downloads=pins.downloads, told=heard.append)
        assert open_in_a_run.read() == "damaged\n"
    assert (built.made, built.image.path) == (True, path)
    assert any("replaced" in step and "/etc/extra: extra" in step for step in heard)
    assert left_aside(images) == []
    assert verify(path, pins.lock) == built.image


@pytest.mark.parametrize("what", ["file", "link", "empty directory"])
def test_what_stands_in_the_place_of_an_image_gives_way(
    images: Path, pins: FakePins, tmp_path: Path, what: str
) -> None:
    images.mkdir()
    final = images / pins.lock.digest.replace(":", "-")
    kept = tmp_path / "kept"
    kept.mkdir()
    match what:
        case "file":
            final.write_text("a file")
        case "link":
            final.symlink_to(kept)
        case _:
            final.mkdir()
    assert made(images, pins).made
    assert kept.is_dir()


def test_what_does_not_come_out_as_locked_is_not_put_in_place(images: Path, pins: FakePins) -> None:
    other = attrs.evolve(pins.lock, digest="sha256:" + "0" * 64)
    altered = attrs.evolve(other, manifest=tuple(each for each in other.manifest if each.path != "/etc/hosts"))
    with pytest.raises(SourceMismatch) as refused:
        build(images, altered, downloads=pins.downloads)
    assert refused.value.where == ("/etc/hosts: extra",)
    assert [path.name for path in images.iterdir()] == [".builders"]


def test_a_pin_that_has_gone_ends_the_build_with_nothing_built(images: Path, pins: FakePins) -> None:
    gone = attrs.evolve(pins.lock, packages=(attrs.evolve(pins.lock.packages[0], name="no-such-package-anywhere"),))
    with pytest.raises(PinGone):
        build(images, gone, downloads=pins.downloads)
    assert [path.name for path in images.iterdir()] == [".builders"]


def test_host_libraries_make_another_image_only_when_asked_for(images: Path, pins: FakePins) -> None:
    pinned = made(images, pins).image
    host = build(images, pins.lock, host_libraries=True, downloads=pins.downloads).image
    assert (host.kind, json.loads((host.path / "etc/image.json").read_text())["kind"]) == (
        HOST_LIBRARIES,
        HOST_LIBRARIES,
    )
    assert host.digest != pinned.digest
    assert (host.path / "usr/lib/libc.so.6").is_file()
    assert (images / host_link(pins.lock)).readlink() == Path(host.path.name)
    again = build(images, pins.lock, host_libraries=True, downloads=pins.downloads)
    assert (again.made, again.image.verified) == (False, host.verified)


def test_the_same_libraries_from_the_host_are_still_another_digest(pins: FakePins, tmp_path: Path) -> None:
    """The kind is part of the image."""
    digests = set()
    for kind in (PINNED, HOST_LIBRARIES):
        (tmp_path / kind).mkdir()
        digests.add(digest_of(assemble(tmp_path / kind, files_of(pins.lock, kind, NODE, {"libc.so.6": NODE}))))
    assert len(digests) == 2


def test_builders_at_once_make_one_image_and_all_are_given_it(images: Path, pins: FakePins) -> None:
    with ThreadPoolExecutor(6) as pool:
        built = list(pool.map(lambda _: made(images, pins), range(6)))
    assert [each.made for each in built].count(True) == 1
    assert len({each.image.verified for each in built}) == 1
    assert left_aside(images) == []


def test_a_builder_that_waits_says_so_and_goes_on_when_the_other_is_killed(
    images: Path, pins: FakePins, tmp_path: Path
) -> None:
    lock = written(pins, tmp_path / "lock.json")
    command = [sys.executable, "-c", SLOW_BUILD, str(images), str(lock), str(pins.downloads)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as other:
        assert other.stdout is not None
        try:
            while not (line := other.stdout.readline()).startswith("libraries"):
                assert line, "the other builder ended early"
            heard_of_it, hear = os.pipe()
            with ThreadPoolExecutor(1) as pool:
                waiting = pool.submit(
                    build,
                    images,
                    pins.lock,
                    downloads=pins.downloads,
                    told=lambda step: os.write(hear, f"{step}\n".encode()),
                )
                assert select.select([heard_of_it], [], [], 20)[0]
                assert os.read(heard_of_it, 100) == b"waiting for another build in the same directory\n"
                assert left_aside(images) != []
                other.send_signal(signal.SIGKILL)
                assert waiting.result(20).made
            os.close(heard_of_it)
            os.close(hear)
        finally:
            other.kill()
    assert left_aside(images) == []


def test_what_a_killed_builder_has_left_is_removed_read_only_as_it_is(
    images: Path, pins: FakePins, tmp_path: Path
) -> None:
    path, _ = standing_image(tmp_path, version="2.0")
    path.rename(images / f"{ASIDE}left")
    (images / f"{ASIDE}link").symlink_to("nowhere")
    assert made(images, pins).made
    assert left_aside(images) == []


def test_a_tree_is_removed_without_what_its_links_lead_to(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/link").symlink_to(tmp_path / "kept")
    (tmp_path / "tree/closed/inner").mkdir(parents=True)
    (tmp_path / "tree/closed").chmod(0)
    (tmp_path / "tree").chmod(0o555)
    remove_tree(tmp_path / "tree")
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Image:
    """The pinned image; where a registry has dropped a pin, the one from this machine's libraries, and a warning."""
    images, lock = tmp_path_factory.mktemp("images"), load_lock("x86_64")
    try:
        return build(images, lock, downloads=KEPT_DOWNLOADS).image
    except PinGone as gone:
        logging.getLogger(__name__).warning("%s; tools/lock_sandbox_image.py moves the pins", gone)
        return build(images, lock, host_libraries=True, downloads=KEPT_DOWNLOADS).image


class TestTheRealImage:
    def test_comes_out_of_registry_packages_with_the_locked_digest(self, real: Image) -> None:
        assert (real.digest == load_lock("x86_64").digest) is (real.kind == PINNED)

    def test_runs_node_on_its_own_libraries_alone(self, real: Image) -> None:
        libraries = real.path / "usr/lib"
        loader = libraries / "ld-linux-x86-64.so.2"
        script = "console.log(process.version, JSON.stringify(process.report.getReport().sharedObjects))"
        told = subprocess.run(
            [
                *("/usr/bin/env", "-i", str(loader), "--inhibit-cache", "--library-path", str(libraries)),
                *(str(real.path / "usr/bin/node"), "-e", script),
            ],
            check=True,
            capture_output=True,
            text=True,
            timeout=60,
        )
        version, _, objects = told.stdout.partition(" ")
        assert version == f"v{load_lock('x86_64').wheel.version}"
        loaded = [Path(path) for path in json.loads(objects) if path.startswith("/")]
        assert {"libc.so.6", "libstdc++.so.6"} <= {path.name for path in loaded}
        assert [path for path in loaded if not path.is_relative_to(real.path)] == []

    def test_has_no_program_but_node(self, real: Image) -> None:
        assert real.executables == {"/usr/bin/node"}
        runnable = [path.name for path in real.path.rglob("*") if path.is_file() and path.stat().st_mode & 0o111]
        assert sorted({*runnable}) == ["ld-linux-x86-64.so.2", "node"]

    def test_with_one_altered_bit_of_node_is_refused(self, real: Image) -> None:
        seen = fingerprint(real)
        self.flip_the_middle_bit(real.path / "usr/bin/node")
        try:
            with pytest.raises(ImageMismatch, match="/usr/bin/node: other content"):
                verify(real.path, load_lock("x86_64"))
            assert fingerprint(real) != seen
        finally:
            self.flip_the_middle_bit(real.path / "usr/bin/node")
        assert verify(real.path, load_lock("x86_64")).digest == real.digest

    @staticmethod
    def flip_the_middle_bit(path: Path) -> None:
        path.chmod(0o755)
        with path.open("r+b") as file:
            middle = path.stat().st_size // 2
            file.seek(middle)
            (byte,) = file.read(1)
            file.seek(middle)
            file.write(bytes([byte ^ 1]))
        path.chmod(0o555)

    def test_is_locked_again_byte_for_byte_by_the_tool(self, real: Image, tmp_path: Path) -> None:
        if real.kind != PINNED:
            pytest.skip("a registry has dropped a pin, so that the lock cannot be made again as it is")
        command = [sys.executable, str(ROOT / "tools/lock_sandbox_image.py"), "--machine", "x86_64"]
        command += ["--downloads", str(KEPT_DOWNLOADS), "--lock", str(tmp_path / "lock.json")]
        subprocess.run(command, check=True, capture_output=True, timeout=300, cwd=ROOT)
        assert (tmp_path / "lock.json").read_text() == (ROOT / "gateway/sandbox/image_lock.json").read_text()
