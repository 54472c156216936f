from __future__ import annotations

import time

import pytest

from gateway.actors.store import StoreHealth
from gateway.actors.store.errors import Failure, Reason, StatementFailed
from gateway.actors.store.pulse import HELD_S, Committed, Pulse


def test_a_store_is_well_until_a_write_fails_and_again_once_one_succeeds() -> None:
    heard: list[Committed | StoreHealth] = []
    pulse = Pulse(heard.append, lambda: 7.0)
    fresh = [pulse.fresh]
    for failure in (Failure(Reason.DISK_FULL), Failure(Reason.DISK_FULL), None):
        pulse.feel(failure)
        fresh.append(pulse.fresh)
    assert fresh == [True, False, False, True]
    assert heard == [
        StoreHealth(writable=False, reason=Reason.DISK_FULL, since=7.0),
        StoreHealth(writable=True, reason=None, since=7.0),
    ]


def test_damage_is_not_forgotten_whoever_found_it() -> None:
    pulse = Pulse(lambda _: None)
    pulse.read_failed(Failure(Reason.IO_ERROR))
    assert pulse.health.writable
    pulse.read_failed(Failure(Reason.CORRUPT))
    pulse.feel(None)
    assert pulse.damaged
    assert pulse.health.reason is Reason.CORRUPT


def test_a_refused_statement_is_told_of_for_a_while_whatever_else_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    heard: list[Committed | StoreHealth] = []
    pulse = Pulse(heard.append, lambda: 7.0)
    for _ in range(5):
        pulse.refused(StatementFailed(0, "permission denied for table leases", Reason.PERMISSION_DENIED))
        pulse.feel(None)
        clock[0] += HELD_S / 2
        assert (pulse.health.writable, pulse.health.name) == (False, "store_permission_denied")
    clock[0] += HELD_S
    assert pulse.health.writable
    assert [each.name for each in heard if isinstance(each, StoreHealth)] == ["store_permission_denied", ""]


def test_refused_values_tell_nothing_of_the_store() -> None:
    pulse = Pulse(lambda _: None)
    pulse.refused(StatementFailed(0, "duplicate key", code="23505"))
    pulse.refused(StatementFailed(0, "UNIQUE constraint failed", code="SQLITE_CONSTRAINT_UNIQUE"))
    assert pulse.health.writable


def test_an_observer_that_fails_is_logged_and_does_no_harm(caplog: pytest.LogCaptureFixture) -> None:
    def fail(_: object) -> None:
        raise ValueError("an observer's own trouble")

    pulse = Pulse(fail)
    pulse.feel(Failure(Reason.LOCKED))
    pulse.tell(Committed(1, 0, 0.1))
    assert len(caplog.records) == 2
    assert pulse.health.reason is Reason.LOCKED
