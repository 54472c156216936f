from __future__ import annotations

import pytest

from gateway.actors.store import Reason
from gateway.actors.store.postgresql_failures import Disconnected, code_of_refused_connection, reason_of, remedy


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("08006", Reason.UNREACHABLE),
        ("25006", Reason.READ_ONLY),
        ("28P01", Reason.REFUSED),
        ("3D000", Reason.REFUSED),
        ("53100", Reason.DISK_FULL),
        ("53200", Reason.OUT_OF_MEMORY),
        ("53300", Reason.TOO_MANY_CONNECTIONS),
        ("53400", Reason.OVERLOADED),
        ("55P03", Reason.SLOW),
        ("57014", Reason.SLOW),
        ("57P01", Reason.SHUTTING_DOWN),
        ("57P03", Reason.STARTING),
        ("58030", Reason.IO_ERROR),
        ("XX001", Reason.CORRUPT),
        ("23505", None),
        ("42601", None),
        ("22003", None),
        ("XX000", None),
    ],
)
def test_a_code_has_the_reason_that_operators_know(code: str, reason: Reason | None) -> None:
    assert reason_of(code) is reason


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ('connection to server at "::1", port 1 failed: Connection refused', Reason.UNREACHABLE),
        ("FATAL:  sorry, too many clients already", Reason.TOO_MANY_CONNECTIONS),
        ('FATAL:  too many connections for role "node"', Reason.TOO_MANY_CONNECTIONS),
        ("FATAL:  remaining connection slots are reserved", Reason.TOO_MANY_CONNECTIONS),
        ("FATAL:  the database system is starting up", Reason.STARTING),
        ("FATAL:  the database system is in recovery mode", Reason.STARTING),
        ("FATAL:  the database system is shutting down", Reason.SHUTTING_DOWN),
        ('FATAL:  password authentication failed for user "node"', Reason.REFUSED),
        ('FATAL:  no pg_hba.conf entry for host "10.0.0.1"', Reason.REFUSED),
        ('FATAL:  database "gateway" does not exist', Reason.REFUSED),
        ('FATAL:  role "node" does not exist', Reason.REFUSED),
        ("SSL error: certificate verify failed", Reason.REFUSED),
        ("session is read-only", Reason.READ_ONLY),
        ("server closed the connection unexpectedly", Reason.UNREACHABLE),
    ],
)
def test_the_words_of_a_refused_connection_have_their_reason(words: str, reason: Reason) -> None:
    assert reason_of(code_of_refused_connection(words)) is reason


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_has_a_remedy(reason: Reason) -> None:
    assert remedy(reason)


def test_a_lost_connection_is_unavailability_to_askers() -> None:
    error = Disconnected(Reason.SHUTTING_DOWN, "bye").failure.error()
    assert error.extra == {"reason": "shutting_down"}
