"""Where a launcher cannot work it says why, with the fix, before anybody asks it for a run."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gateway.sandbox.cgroups import ROOT, Bounds, find
from gateway.sandbox.launcher_messages import Unfit, Up
from tests.sandbox import launcher_driver
from tests.sandbox.in_groups import a_prefix, standing, unavailable
from tests.sandbox.launcher_driver import MIB, launcher, none_alive

NOBODY_S = 64499
UNPRIVILEGED = ["setpriv", f"--reuid={NOBODY_S}", f"--regid={NOBODY_S}", "--clear-groups"]
WITHOUT_NAMESPACES = [sys.executable, str(Path(__file__).with_name("without_namespaces.py"))]


def unfit(image: Path, *, bubblewrap: str = "", before: list[str] | None = None) -> Unfit:
    """What a launcher says that cannot work; it must have ended by itself, with nothing left."""
    with launcher(image, bubblewrap=bubblewrap, before=before or []) as driver:
        assert isinstance(driver.up, Unfit)
        assert driver.gone() == 1
        assert standing(ROOT, driver.prefix) == []
        assert none_alive()
        return driver.up


def program(place: Path, script: str) -> str:
    path = place / "bwrap"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def need(name: str) -> None:
    if shutil.which(name) is None:
        unavailable(f"{name} is not here")


def test_without_bubblewrap(image_of_runs: Path, tmp_path: Path) -> None:
    told = unfit(image_of_runs, bubblewrap=str(tmp_path / "bwrap"))
    assert told.reason == "sandbox.bwrap_missing"
    assert "apt-get install bubblewrap" in told.fix


def test_with_something_else_in_its_place(image_of_runs: Path) -> None:
    assert unfit(image_of_runs, bubblewrap="/bin/true").reason == "sandbox.bwrap_missing"


@pytest.fixture
def open_place() -> Iterator[Path]:
    """A directory that everybody may enter, as pytest's own may not be."""
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o755)
        yield Path(place)


def test_with_an_old_bubblewrap(image_of_runs: Path, open_place: Path) -> None:
    told = unfit(image_of_runs, bubblewrap=program(open_place, "echo bubblewrap 0.7.0"))
    assert told.reason == "sandbox.bwrap_too_old"


def test_with_a_bubblewrap_that_takes_rights(image_of_runs: Path, open_place: Path) -> None:
    path = program(open_place, "echo bubblewrap 0.8.0")
    Path(path).chmod(0o4755)
    assert unfit(image_of_runs, bubblewrap=path).reason == "sandbox.bwrap_setuid"


def test_with_a_bubblewrap_that_only_says_so(image_of_runs: Path, open_place: Path) -> None:
    told = unfit(image_of_runs, bubblewrap=program(open_place, "echo bubblewrap 0.8.0"))
    assert (told.reason, told.detail) == (
        "sandbox.bwrap_failed",
        "bubblewrap 0.8.0: bubblewrap ended with 0 before the release: bubblewrap 0.8.0",
    )


def test_with_a_bubblewrap_that_the_slot_s_user_may_not_run(image_of_runs: Path) -> None:
    with tempfile.TemporaryDirectory() as place:
        told = unfit(image_of_runs, bubblewrap=program(Path(place), "echo bubblewrap 0.8.0"))
    assert told.reason == "sandbox.bwrap_missing"
    assert "Permission denied" in told.detail


def test_without_an_image(image_of_runs: Path, tmp_path: Path) -> None:
    told = unfit(tmp_path / "none")
    assert (told.reason, told.fix) == ("sandbox.image_missing", "gateway sandbox build")


def test_with_an_image_that_the_slot_s_user_may_not_enter(image_of_runs: Path, tmp_path: Path) -> None:
    (tmp_path / "usr").mkdir()
    tmp_path.chmod(0o700)
    told = unfit(tmp_path)
    assert told.reason == "sandbox.bwrap_failed"
    assert "Permission denied" in told.detail


def test_where_user_namespaces_are_denied(image_of_runs: Path) -> None:
    told = unfit(image_of_runs, before=WITHOUT_NAMESPACES)
    assert told.reason == "sandbox.userns_denied"
    assert "user.max_user_namespaces" in told.fix


def test_where_root_cannot_become_another_user(image_of_runs: Path) -> None:
    need("unshare")
    told = unfit(image_of_runs, before=["unshare", "--map-root-user"])
    assert told.reason == "sandbox.launcher_root_uid"


def test_where_slots_would_be_root(image_of_runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher_driver, "FIRST_UID", 0)
    assert unfit(image_of_runs).reason == "sandbox.launcher_root_uid"


def test_without_privilege_and_without_a_tree_of_its_own(image_of_runs: Path) -> None:
    need("setpriv")
    told = unfit(image_of_runs, before=UNPRIVILEGED)
    assert told.reason in {"sandbox.cgroup_not_writable", "sandbox.cgroup_not_delegated"}
    assert "Delegate=yes" in told.fix


@contextmanager
def handed_over() -> Iterator[list[str]]:
    """Give a part of each tree to a user, and a command that starts another one in there as that user."""
    name, bounds = a_prefix(), Bounds(memory_bytes=1 << 30, tasks=300)
    cgroups = find()
    group = cgroups.make(name, bounds)
    places = {*group.places.values()}
    try:
        for place in places:
            for each in (place, *(place / door for door in ("cgroup.procs", "tasks", "cgroup.subtree_control"))):
                if each.exists():
                    os.chown(each, NOBODY_S, NOBODY_S)
        joins = " ".join(str(place / "cgroup.procs") for place in places)
        yield ["/bin/sh", "-c", f'for at in {joins}; do echo 0 > $at; done; exec "$@"', "sh", *UNPRIVILEGED]
    finally:
        group.kill()
        group.remove()


def test_without_privilege_there_is_one_slot_under_its_own_user(image_of_runs: Path) -> None:
    need("setpriv")
    with handed_over() as before, launcher(image_of_runs, slots=2, before=before) as driver:
        assert isinstance(driver.up, Up)
        assert driver.up.slots == 1
        run = driver.spawn(["node", "-e", "console.log(process.getuid())"])
        assert run.ready is not None
        pids = Path(run.ready.places["memory" if "memory" in run.ready.places else "unified"]) / "cgroup.procs"
        assert {Path(f"/proc/{pid}").stat().st_uid for pid in pids.read_text().split()} == {NOBODY_S}
        driver.release(run)
        assert driver.ended(run).exit_code == 0
        assert run.stdout == b"65534\n"
        cleared = driver.clear(run)
        assert (cleared.mounts, cleared.cgroups) == (0, 0)
        assert driver.failed(driver.begin(["node"], slot=1)).reason == "sandbox.spawn_refused"


def test_what_an_earlier_launcher_left_is_swept(image_of_runs: Path) -> None:
    prefix = a_prefix()
    find().make(f"{prefix}-old-run", Bounds(memory_bytes=64 * MIB, tasks=16))
    with launcher(image_of_runs, prefix=prefix) as driver:
        assert isinstance(driver.up, Up)
        assert driver.up.swept == 1
        assert standing(ROOT, prefix) == []
