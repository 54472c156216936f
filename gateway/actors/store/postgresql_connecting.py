"""Ways to a server: its names resolved without blocking, its addresses tried in turn, failures spaced out."""

from __future__ import annotations

import ipaddress
import random
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, final

import trio
from psycopg.conninfo import make_conninfo

from gateway.actors.store.errors import Reason
from gateway.actors.store.postgresql_connection import Command, Connection, connect
from gateway.actors.store.postgresql_failures import Disconnected
from gateway.actors.store.postgresql_settings import PostgresqlSettings

_FIRST_DELAY_S, _LONGEST_DELAY_S = 0.1, 2.0

# Rows are found by index whatever the tables held when a plan was made: a plan of a young table, kept for an old one,
# would read it from end to end.  Engines that lack one of these do without.
BY_INDEX = (
    "SET plan_cache_mode = force_generic_plan",
    "SET enable_seqscan = off",
    "SET enable_hashjoin = off",
    "SET enable_mergejoin = off",
    "SET jit = off",
)

Members = Mapping[str, str | int]


@final
class Road:
    """The road to one server, for connections of one kind.

    After a failure the next try waits 0.1 to 2 seconds, with jitter, and whoever asks before that is told at once.
    """

    def __init__(
        self,
        settings: PostgresqlSettings,
        rng: random.Random,
        *,
        name: str,
        server: Mapping[str, str | int],
        wishes: tuple[str, ...] = (),
    ) -> None:
        self._settings = settings
        self._rng = rng
        self._members = settings.members(server=dict(server), application_name=name)
        self._wishes = wishes
        self._failures = 0
        self._closed_until = 0.0
        self._last: Disconnected | None = None

    @property
    def wait(self) -> float:
        """Seconds until the next try makes sense."""
        return max(0.0, self._closed_until - trio.current_time())

    async def connect(self) -> Connection:
        """A new connection.  Raises `Disconnected`."""
        if self._last is not None and self.wait > 0:
            raise Disconnected(self._last.reason, self._last.words)
        try:
            connection = await self._connect()
        except Disconnected as error:
            delay = min(_FIRST_DELAY_S * 2**self._failures, _LONGEST_DELAY_S) * self._rng.uniform(0.5, 1.0)
            self._closed_until = trio.current_time() + delay
            self._failures = min(self._failures + 1, 16)
            self._last = error
            raise
        self._failures, self._last = 0, None
        return connection

    async def _connect(self) -> Connection:
        within = self._settings.connect_timeout_s
        failure = Disconnected(Reason.UNREACHABLE, "no address")
        for members in await attempts(self._members, within):
            try:
                with trio.fail_after(within):
                    connection = await connect(make_conninfo("", **members))
            except Disconnected as error:
                failure = error
            except trio.TooSlowError:
                failure = Disconnected(Reason.STALLED, f"no connection within {within} s")
            else:
                return await self._prepared(connection)
        raise failure

    async def _prepared(self, connection: Connection) -> Connection:
        try:
            for wish in self._wishes:
                await connection.exchange(Command(wish, once=True), within=self._settings.connect_timeout_s)
        except BaseException:
            connection.close()
            raise
        return connection


async def attempts(
    members: Members,
    within: float,
    resolve: Callable[..., Awaitable[Any]] = trio.socket.getaddrinfo,
) -> list[Members]:
    """The members of one attempt for each address that the hosts have.  Raises `Disconnected`."""
    hosts = str(members.get("host", "")).split(",")
    addresses = str(members.get("hostaddr", "")).split(",")
    ports = str(members.get("port", "")).split(",")
    count = max(len(hosts), len(addresses))
    if len({len(each) for each in (hosts, addresses, ports)} - {1, count}) > 0:
        raise Disconnected(Reason.UNREACHABLE, "the URL names another number of hosts than of ports or addresses")
    found: list[Members] = []
    words = ""
    for host, address, port in zip(
        *(each * count if len(each) == 1 else each for each in (hosts, addresses, ports)), strict=True
    ):
        one = {name: value for name, value in members.items() if name not in {"host", "hostaddr", "port"}}
        one |= {name: value for name, value in (("host", host), ("port", port)) if value}
        if address or not host or host.startswith(("/", "@")):
            found.append(one | ({"hostaddr": address} if address else {}))
            continue
        try:
            found += [one | {"hostaddr": each} for each in await _addresses(host, within, resolve)]
        except OSError as error:
            words = f"the name {host} cannot be resolved ({error.strerror or error})"
    if not found:
        raise Disconnected(Reason.UNREACHABLE, words)
    return found


async def _addresses(host: str, within: float, resolve: Callable[..., Awaitable[Any]]) -> list[str]:
    try:
        return [str(ipaddress.ip_address(host))]
    except ValueError:
        pass
    with trio.move_on_after(within):
        found = await resolve(host, None, type=socket.SOCK_STREAM)
        return list(dict.fromkeys(str(address[4][0]) for address in found))
    raise OSError("no answer in time")
