from __future__ import annotations

import pytest

from gateway.actors.store import Reason
from gateway.actors.store.postgresql_failures import (
    Disconnected,
    Rejection,
    code_of_refused_connection,
    reason_of,
    refusal_of,
    remedy,
)
from gateway.errors import StoreUnavailable


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("08006", Reason.UNREACHABLE),
        ("25006", Reason.READ_ONLY),
        ("28P01", Reason.LOGIN_REFUSED),
        ("3D000", Reason.DATABASE_MISSING),
        ("57P04", Reason.DATABASE_MISSING),
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
        ('FATAL:  password authentication failed for user "node"', Reason.LOGIN_REFUSED),
        ('FATAL:  no pg_hba.conf entry for host "10.0.0.1"', Reason.LOGIN_REFUSED),
        ('FATAL:  database "gateway" does not exist', Reason.DATABASE_MISSING),
        ('FATAL:  role "node" does not exist', Reason.LOGIN_REFUSED),
        ('FATAL:  permission denied for database "gateway"', Reason.PERMISSION_DENIED),
        ("SSL error: certificate verify failed", Reason.TLS_FAILED),
        ('server certificate for "db-1" does not match host name "db.example"', Reason.TLS_FAILED),
        ('root certificate file "/etc/ca.crt" does not exist', Reason.TLS_FAILED),
        ("server does not support SSL, but SSL was required", Reason.TLS_FAILED),
        ('FATAL:  no pg_hba.conf entry for host "10.0.0.1", user "node", SSL off', Reason.LOGIN_REFUSED),
        ('FATAL:  certificate authentication failed for user "node"', Reason.LOGIN_REFUSED),
        ("SSL SYSCALL error: EOF detected", Reason.UNREACHABLE),
        ("FATAL:  unsupported startup parameter: options", Reason.POOLED),
        ("session is read-only", Reason.READ_ONLY),
        ("server closed the connection unexpectedly", Reason.UNREACHABLE),
    ],
)
def test_the_words_of_a_refused_connection_have_their_reason(words: str, reason: Reason) -> None:
    assert refusal_of(code_of_refused_connection(words)).reason is reason


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("42501", "store_permission_denied"),
        ("42P01", "store_schema_missing"),
        ("42703", "store_schema_missing"),
        ("3D000", "store_database_missing"),
        ("28P01", "store_login_refused"),
        ("42P17", "store_refused_42p17"),
        ("P0001", "store_refused_p0001"),
        ("23505", "store_refused_23505"),
        ("53100", "disk_full"),
    ],
)
def test_every_code_has_a_name(code: str, name: str) -> None:
    assert refusal_of(code).name == name
    error = Rejection(code, "its words").failed(2)
    assert isinstance(error, StoreUnavailable)
    assert (error.extra["reason"], error.index, str(error)) == (name, 2, "statement 2 was rejected: its words")
    assert "its words" not in error.detail


@pytest.mark.parametrize(("code", "of_store"), [("42501", True), ("P0001", True), ("23505", False), ("42601", False)])
def test_a_refusal_of_values_or_of_sql_tells_nothing_of_the_store(code: str, of_store: bool) -> None:
    assert Rejection(code, "").failed(0).of_store is of_store


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_has_a_remedy(reason: Reason) -> None:
    assert remedy(reason)


def test_a_lost_connection_is_unavailability_to_askers() -> None:
    error = Disconnected(Reason.SHUTTING_DOWN, "bye").failure.error()
    assert error.extra == {"reason": "shutting_down"}
