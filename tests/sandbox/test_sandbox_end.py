"""The end of a sandbox is told once, when nothing of it lives, or when nothing more is waited for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway.sandbox import sandbox_end
from gateway.sandbox.sandbox_end import EMPTY_WITHIN_S, KILL_AGAIN_S, REMOVED_WITHIN_S, SandboxEnd, remove_group


class Clock:
    """Stands for the loop and for the time that it goes by."""

    def __init__(self) -> None:
        self.now = 0.0
        self.next: Callable[[], None] | None = None

    def monotonic(self) -> float:
        return self.now

    def after(self, _: float, call: Callable[[], None]) -> Any:
        self.next = call
        return SimpleNamespace(cancel=lambda: setattr(self, "next", None))

    def go_on(self, now: float) -> None:
        self.now, call, self.next = now, self.next, None
        assert call is not None
        call()


class Sandbox:
    """Stands for a sandbox and its group: dead when it is told to be."""

    def __init__(self) -> None:
        self.dead = False
        self.killed = 0
        self.left: tuple[Path, ...] = ()
        self.group = SimpleNamespace(kill=self._kill_again, remove=lambda within: self.left)
        self.again = 0

    def kill(self) -> None:
        self.killed += 1

    def _kill_again(self, within: float) -> None:
        assert within == KILL_AGAIN_S
        self.again += 1


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(sandbox_end, "time", made)
    return made


def test_it_is_killed_at_once_and_told_of_once(clock: Clock) -> None:
    sandbox, told = Sandbox(), list[float]()
    end = SandboxEnd(cast("Any", sandbox), cast("Any", clock), lambda: told.append(clock.now))
    assert (sandbox.killed, told) == (1, [])
    end.look()
    assert (told, end.all_dead) == ([], False)
    sandbox.dead = True
    clock.go_on(0.1)
    end.look()
    assert (told, clock.next, sandbox.again, end.all_dead) == ([0.1], None, 0, True)


def test_what_does_not_die_is_killed_again_and_not_waited_for_without_end(clock: Clock) -> None:
    sandbox, told = Sandbox(), list[float]()
    end = SandboxEnd(cast("Any", sandbox), cast("Any", clock), lambda: told.append(clock.now))
    end.look()
    clock.go_on(KILL_AGAIN_S)
    assert (sandbox.again, told) == (1, [])
    clock.go_on(EMPTY_WITHIN_S)
    assert (told, end.all_dead) == ([EMPTY_WITHIN_S], False)


def test_a_group_that_stands_is_removed_again_for_a_second_and_then_told(clock: Clock) -> None:
    sandbox, told = Sandbox(), list[tuple[Path, ...]]()
    sandbox.left = (Path("/a"),)
    remove_group(cast("Any", sandbox), cast("Any", clock), told.append)
    clock.go_on(REMOVED_WITHIN_S / 2)
    assert told == []
    clock.go_on(REMOVED_WITHIN_S)
    assert told == [(Path("/a"),)]


def test_one_without_a_group_has_nothing_to_be_removed(clock: Clock) -> None:
    told = list[tuple[Path, ...]]()
    remove_group(cast("Any", SimpleNamespace(group=None)), cast("Any", clock), told.append)
    assert told == [()]
