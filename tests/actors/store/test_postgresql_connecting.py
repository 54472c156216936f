from __future__ import annotations

import datetime as dt
import ipaddress
import os
import pwd
import random
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from gateway.actors.store import PostgresqlSettings, Reason, StoreRefused
from gateway.actors.store.postgresql_connecting import BY_INDEX, Road, attempts
from gateway.actors.store.postgresql_failures import Disconnected
from gateway.doctor._server_seen import look
from gateway.world.postgresql import PostgresqlServer, make_server
from tests.actors.store.postgresql_parts import road, run, run_at


async def named(host: str, _port: None, **_kind: Any) -> list[tuple[Any, ...]]:
    """The addresses of a name."""
    known = {"one": ["10.0.0.1"], "two": ["10.0.0.2", "::2", "10.0.0.2"]}
    if host not in known:
        raise socket.gaierror(-2, "Name or service not known")
    return [(0, 0, 0, "", (address, 0)) for address in known[host]]


async def places(url: str) -> list[tuple[object, object, object]]:
    members = PostgresqlSettings(url).members(server={})
    found = await attempts(members, 1.0, named)
    return [(one.get("host"), one.get("hostaddr"), one.get("port")) for one in found]


async def test_a_name_is_resolved_to_each_of_its_addresses() -> None:
    assert await places("postgresql://two:6432/g") == [("two", "10.0.0.2", "6432"), ("two", "::2", "6432")]


async def test_several_hosts_are_tried_in_turn() -> None:
    assert await places("postgresql://one:1,two:2,10.9.9.9:3/g") == [
        ("one", "10.0.0.1", "1"),
        ("two", "10.0.0.2", "2"),
        ("two", "::2", "2"),
        ("10.9.9.9", "10.9.9.9", "3"),
    ]


async def test_a_host_whose_name_is_not_known_does_not_keep_another_from_being_tried() -> None:
    assert await places("postgresql://missing,one/g") == [("one", "10.0.0.1", None)]
    with pytest.raises(Disconnected, match="the name missing cannot be resolved") as caught:
        await places("postgresql://missing/g")
    assert caught.value.reason is Reason.UNREACHABLE


async def test_a_socket_and_a_given_address_are_not_resolved() -> None:
    assert await places("postgresql:///g?host=/run/postgresql") == [("/run/postgresql", None, None)]
    assert await places("postgresql://missing/g?hostaddr=10.1.1.1") == [("missing", "10.1.1.1", None)]
    assert await places("postgresql:///g") == [(None, None, None)]


async def test_a_name_that_is_not_answered_for_is_unreachable() -> None:
    async def silent(*_asked: Any, **_kind: Any) -> None:
        await trio.sleep_forever()

    with pytest.raises(Disconnected, match="no answer in time"):
        await attempts({"host": "one"}, 0.05, silent)


async def test_numbers_of_hosts_and_ports_that_do_not_match_are_told() -> None:
    with pytest.raises(Disconnected, match="another number of hosts"):
        await attempts({"host": "a,b,c", "port": "1,2"}, 1.0, named)


async def test_a_server_that_does_not_answer_is_given_up(nursery: trio.Nursery) -> None:
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listener.socket.getsockname()[1]
    try:
        with pytest.raises(Disconnected, match="no connection within 1 s") as caught:
            await road(f"postgresql://127.0.0.1:{port}/g", connect_s=1).connect()
        assert caught.value.reason is Reason.STALLED
    finally:
        await listener.aclose()


async def test_failures_are_spaced_out_and_told_at_once_meanwhile(autojump_clock: trio.testing.MockClock) -> None:
    closed = road("postgresql://127.0.0.1:1/g")
    waits = []
    for _ in range(8):
        with pytest.raises(Disconnected, match="refused"):
            await closed.connect()
        waits.append(closed.wait)
        with pytest.raises(Disconnected, match="refused"):
            await closed.connect()
        assert closed.wait == waits[-1]
        await trio.sleep(closed.wait)
    assert 0.05 <= waits[0] <= 0.1
    assert all(wait <= 2.0 for wait in waits)
    assert waits[-1] >= 1.0
    assert len(set(waits)) == 8


async def test_a_second_host_is_used_where_the_first_is_down(postgresql_url: str) -> None:
    host, _, database = postgresql_url.rpartition("/")
    prefix, _, place = host.rpartition("@")
    found = await run_at(f"{prefix}@127.0.0.1:1,{place}/{database}", "SELECT 1")
    assert found == [[(1,)]]


async def test_wishes_that_a_server_does_not_know_are_done_without(postgresql_url: str) -> None:
    connection = await road(postgresql_url, wishes=("SET no_such_setting = 1", *BY_INDEX)).connect()
    try:
        assert await run(connection, "SHOW enable_seqscan") == [[("off",)]]
    finally:
        connection.close()


# -- TLS and passwords -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tls_server() -> Iterator[tuple[PostgresqlServer, Path]]:
    """A server that wants TLS and a password, and the certificate that it is known by."""
    with make_server() as server:
        certificate = self_signed(server)
        (server.data / "pg_hba.conf").write_text(
            "local all all trust\nhost all postgres 127.0.0.1/32 trust\nhostssl all node 127.0.0.1/32 scram-sha-256\n"
        )
        server.start(
            {"ssl": "on", "ssl_cert_file": str(certificate), "ssl_key_file": str(server.directory / "key.pem")}
        )
        yield server, certificate


def certificate_of(key: ec.EllipticCurvePrivateKey) -> bytes:
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    return certificate.public_bytes(serialization.Encoding.PEM)


def self_signed(server: PostgresqlServer) -> Path:
    key = ec.generate_private_key(ec.SECP256R1())
    path = server.directory / "certificate.pem"
    path.write_bytes(certificate_of(key))
    private = server.directory / "key.pem"
    plain = serialization.NoEncryption()
    private.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain))
    private.chmod(0o600)
    if server.user is not None:
        owner = pwd.getpwnam(server.user)
        os.chown(private, owner.pw_uid, owner.pw_gid)
    return path


async def test_tls_is_verified_and_the_password_taken_from_beside_the_url(
    tls_server: tuple[PostgresqlServer, Path],
) -> None:
    server, certificate = tls_server
    await run_at(server.url(), "CREATE ROLE node LOGIN PASSWORD 'geheim ''x'")
    url = f"{server.url(user='node')}?sslmode=verify-full&sslrootcert={certificate}"

    def way(password: str, url: str = url) -> Road:
        return Road(PostgresqlSettings(url, password=password), random.Random(1), name="x", server={})

    connection = await way("geheim 'x").connect()
    try:
        assert await run(connection, "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()") == [[(1,)]]
        long = "x" * 300_000
        assert await run(connection, f"SELECT '{long}'") == [[(long,)]]
    finally:
        connection.close()
    with pytest.raises(Disconnected) as caught:
        await way("wrong").connect()
    assert caught.value.reason is Reason.LOGIN_REFUSED
    assert "wrong" not in caught.value.words
    with pytest.raises(Disconnected) as caught:
        await way("geheim 'x", server.url(user="node") + "?sslmode=disable").connect()
    assert caught.value.reason is Reason.LOGIN_REFUSED


async def test_a_server_that_does_not_prove_who_it_is_is_told_as_that(
    tls_server: tuple[PostgresqlServer, Path], tmp_path: Path
) -> None:
    server, certificate = tls_server
    other = tmp_path / "other-ca.pem"
    other.write_bytes(certificate_of(ec.generate_private_key(ec.SECP256R1())))
    by_name = server.url().replace("127.0.0.1", "localhost")
    for url, told in (
        (f"{server.url()}?sslmode=verify-full&sslrootcert={other}", "certificate verify failed"),
        (f"{by_name}?sslmode=verify-full&sslrootcert={certificate}", "does not match host name"),
        (f"{server.url()}?sslmode=verify-full&sslrootcert={tmp_path / 'none.pem'}", "does not exist"),
    ):
        with pytest.raises(Disconnected, match=told) as caught:
            await Road(PostgresqlSettings(url), random.Random(1), name="x", server={}).connect()
        assert caught.value.reason is Reason.TLS_FAILED
        with pytest.raises(StoreRefused, match=r"does not prove who it is.*let sslrootcert name") as refused:
            look(PostgresqlSettings(url), "node-1")  # as the doctor does
        assert told in refused.value.what
