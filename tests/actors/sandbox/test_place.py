from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import attrs
import pytest

from gateway.actors.sandbox.closed import Closed
from gateway.actors.sandbox.place import SandboxPlace, Seen, Standing
from gateway.errors import OperationUnavailable
from gateway.sandbox.image import Image
from gateway.sandbox.limits import Limits
from gateway.sandbox.seccomp import Filter
from tests.actors.sandbox.scenes import settings_in

STANDING = Standing(
    Image(Path("/images/sha256-5f"), "sha256:5f", frozenset({"/usr/bin/node"})),
    Filter(b"many", "sha256:01", "x86_64"),
    Filter(b"one", "sha256:02", "x86_64"),
    "0.8.0",
    "hybrid",
    "sha256:03",
)


def place() -> SandboxPlace:
    return SandboxPlace.of(settings_in(Path("/images")))


def test_it_is_closed_until_it_is_told_otherwise() -> None:
    here = place()
    assert here.now() == Closed("starting")
    with pytest.raises(OperationUnavailable):
        here.room.admit(Limits())


def test_only_a_change_is_told_on() -> None:
    here, told = place(), list[object]()
    here.changed = lambda: told.append(here.now())
    here.tell(Closed("starting"))
    here.tell(STANDING)
    here.tell(STANDING)
    here.tell(Closed("sandbox.launcher_died"))
    assert told == [STANDING, Closed("sandbox.launcher_died")]


def test_runs_are_let_in_while_it_stands() -> None:
    here = place()
    here.room.open_slots([0])
    here.tell(STANDING)
    here.room.admit(Limits())
    here.tell(Closed("sandbox.canary_inet"))
    with pytest.raises(OperationUnavailable):
        here.room.admit(Limits())


def test_the_filter_is_that_of_the_number_of_processes() -> None:
    assert STANDING.filter_for(Limits(processes=1)).digest == "sha256:02"
    assert STANDING.filter_for(Limits(processes=2)).digest == "sha256:01"


@pytest.mark.parametrize(
    "changed",
    [
        lambda: attrs.evolve(STANDING, image=attrs.evolve(STANDING.image, digest="sha256:60")),
        lambda: attrs.evolve(STANDING, filter=STANDING.single),
        lambda: attrs.evolve(STANDING, single=STANDING.filter),
        lambda: attrs.evolve(STANDING, bubblewrap="0.12.0"),
        lambda: attrs.evolve(STANDING, cgroups="v2"),
        lambda: attrs.evolve(STANDING, starter="sha256:04"),
    ],
)
def test_the_fingerprint_is_of_all_that_a_proof_depends_on(changed: Callable[[], Standing]) -> None:
    assert changed().fingerprint != STANDING.fingerprint
    assert attrs.evolve(STANDING).fingerprint == STANDING.fingerprint


def test_names_are_asked_of_the_image_where_there_is_one() -> None:
    here = place()
    assert here.resolves("bash")
    here.tell(STANDING)
    assert not here.resolves("bash")


def test_an_operator_sees_what_stands_and_what_was_counted() -> None:
    here = place()
    here.room.open_slots([0, 1])
    here.tell(STANDING)
    here.canaries = {
        "inet": Seen(None, 80, datetime(2026, 1, 2, tzinfo=UTC)),
        "pids": Seen("it forked", 90, datetime.now(UTC)),
    }
    here.ended.update(["exited", "exited", "wall_limit"])
    shown = here.shown()
    assert (shown["open"], shown["image"], shown["fingerprint"]) == (True, "sha256:5f", STANDING.fingerprint)
    assert (shown["slots"], shown["running"], shown["queued"], shown["quarantined"]) == (2, 0, 0, [])
    assert shown["runs"] == {"exited": 2, "wall_limit": 1}
    assert shown["canaries"][0] == {
        "name": "inet",
        "ok": True,
        "fault": None,
        "ms": 80,
        "at": "2026-01-02T00:00:00+00:00",
    }
    assert shown["canaries"][1]["ok"] is False


def test_an_operator_sees_why_it_is_closed_and_what_mends_it() -> None:
    here = place()
    here.tell(Closed("sandbox.image_missing", "no image", "build one"))
    shown = here.shown()
    assert (shown["open"], shown["reason"], shown["detail"], shown["fix"]) == (
        False,
        "sandbox.image_missing",
        "no image",
        "build one",
    )
