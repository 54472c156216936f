from __future__ import annotations

from pathlib import Path

import attrs
import pytest

from gateway.actors.sandbox import ground
from gateway.actors.sandbox.closed import Closed
from gateway.actors.sandbox.ground import Ground, find_ground
from gateway.actors.sandbox.settings import SandboxSettings
from gateway.sandbox import starter
from gateway.sandbox.host import Machine
from gateway.sandbox.image import Image, verify
from gateway.sandbox.image_lock import Lock
from tests.sandbox.fake_host import a_machine
from tests.sandbox.fake_image import standing_image


@attrs.define(eq=False)
class Scene:
    """A machine with an image on it, and how often that was hashed."""

    image: Path
    machine: Machine
    hashed: int = 0

    def look(self, before: Ground | None = None) -> Ground | Closed:
        settings = SandboxSettings(self.image.parent, "gateway-run-").on(self.machine)
        return find_ground(settings, before.image if before else None, self.machine)

    def found(self, before: Ground | None = None) -> Ground:
        found = self.look(before)
        assert isinstance(found, Ground), found
        return found


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    standing, pins = standing_image(tmp_path)
    scene = Scene(standing, a_machine(tmp_path / "machine", lock=lambda: pins.lock))

    def counted(path: Path, lock: Lock) -> Image:
        scene.hashed += 1
        return verify(path, lock)

    monkeypatch.setattr(ground, "verify", counted)
    monkeypatch.setattr(ground, "closed_to_others", lambda _: None)  # pytest's own directories are
    return scene


def test_a_sound_machine_has_an_image_and_both_filters(here: Scene) -> None:
    found = here.found()
    assert found.image.path == here.image
    assert found.filter.digest != found.single.digest


def test_an_image_that_has_not_changed_is_not_hashed_again(here: Scene) -> None:
    first = here.found()
    assert here.found(first).image is first.image
    assert here.hashed == 1


def test_one_that_has_is(here: Scene) -> None:
    first = here.found()
    here.image.chmod(0o755)
    (here.image / "more").write_text("x")
    (here.image / "more").chmod(0o444)
    here.image.chmod(0o555)
    told = here.look(first)
    assert isinstance(told, Closed)
    assert told.reason == "sandbox.image_digest_mismatch"
    assert "more" in told.detail
    assert "gateway sandbox build" in told.fix
    assert here.hashed == 2


def test_without_an_image_the_fix_is_to_build_one(here: Scene, tmp_path: Path) -> None:
    here.image = tmp_path / "elsewhere" / "none"
    told = here.look()
    assert isinstance(told, Closed)
    assert told.reason == "sandbox.image_missing"


def test_an_image_that_the_users_of_runs_cannot_reach_is_none(here: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ground, "closed_to_others", lambda _: Path("/root"))
    told = here.look()
    assert isinstance(told, Closed)
    assert (told.reason, told.fix) == ("sandbox.image_closed", "`chmod o+x /root`")


def test_a_host_that_lacks_something_is_told_before_anything_is_hashed(here: Scene) -> None:
    here.machine = attrs.evolve(here.machine, bubblewrap=None)
    told = here.look()
    assert isinstance(told, Closed)
    assert told.reason == "sandbox.bwrap_missing"
    assert told.fix
    assert here.hashed == 0


def test_without_the_starter_that_its_digest_names_nothing_is_hashed(
    here: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert here.found().starter == starter.verified(here.machine.arch)
    hashed = here.hashed

    def altered(_: str) -> str:
        raise starter.StarterUnavailable("sandbox.starter_digest_mismatch", "it is sha256:00")

    monkeypatch.setattr(starter, "verified", altered)
    assert here.look() == Closed("sandbox.starter_digest_mismatch", "it is sha256:00")
    assert here.hashed == hashed
