from __future__ import annotations

import pytest

from gateway.actors.store import StoreHealth
from gateway.actors.store.errors import Failure, Reason
from gateway.actors.store.pulse import Committed, Pulse


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


def test_an_observer_that_fails_is_logged_and_does_no_harm(caplog: pytest.LogCaptureFixture) -> None:
    def fail(_: object) -> None:
        raise ValueError("an observer's own trouble")

    pulse = Pulse(fail)
    pulse.feel(Failure(Reason.LOCKED))
    pulse.tell(Committed(1, 0, 0.1))
    assert len(caplog.records) == 2
    assert pulse.health.reason is Reason.LOCKED
