"""Topics between nodes, over LISTEN and NOTIFY: a speed-up, for whoever waits looks again by itself."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import final

import orjson
import trio

from gateway.actors.store.postgresql_connecting import Road
from gateway.actors.store.postgresql_connection import Command, Connection, Notification
from gateway.actors.store.postgresql_failures import Disconnected, Rejection
from gateway.actors.store.topics import Topics

CHANNEL = "gateway_topics"
_PAYLOAD_BYTES = 7900
_MOST_WAITING = 10_000
_PING_S = 10.0
_WITHIN_S = 5.0
_WITHOUT_S = 300.0

_LISTEN = Command(f"LISTEN {CHANNEL}", once=True)
_PING = Command("SELECT 1")
_NOTIFY = "SELECT pg_notify($1, $2)"

_log = logging.getLogger(__name__)


class _NotOffered(Exception):
    """The server knows no LISTEN or NOTIFY."""


@final
class Courier:
    """Carries topics to the other nodes and theirs to this one, over a connection of its own."""

    def __init__(self, road: Road, topics: Topics) -> None:
        self._road = road
        self._topics = topics
        self._waiting: dict[str, None] = {}
        self._told = trio.Event()
        self._warned = False

    def tell(self, topics: Sequence[str]) -> None:
        """Wake who hears of the topics here, and soon elsewhere."""
        self._topics.wake(topics)
        if len(self._waiting) < _MOST_WAITING:
            self._waiting.update(dict.fromkeys(topics))
            self._told.set()

    async def carry(self) -> None:
        """Carry until cancelled."""
        while True:
            try:
                await self._connected()
            except Disconnected as error:
                _log.info("topics wait for polling alone: %s", error)
                await trio.sleep(self._road.wait + 0.05)
            except _NotOffered as error:
                if not self._warned:
                    self._warned = True
                    _log.warning("this server carries no topics between nodes (%s); they are polled for", error)
                await trio.sleep(_WITHOUT_S)

    async def _connected(self) -> None:
        connection = await self._road.connect()
        try:
            await self._ask(connection, _LISTEN)
            self._topics.wake_all()  # what was told meanwhile is not known
            while True:
                await self._wait(connection)
                waiting, self._waiting, self._told = list(self._waiting), {}, trio.Event()
                payloads = [
                    Command(_NOTIFY, [CHANNEL.encode(), payload], (0, 0), (0, 0)) for payload in chunks(waiting)
                ]
                await self._ask(connection, *(payloads or [_PING]))
        finally:
            connection.close()

    async def _wait(self, connection: Connection) -> None:
        """Take in what comes until there is something to tell, or nothing to tell for a while."""
        with trio.move_on_after(_PING_S):
            while not self._told.is_set():
                async with trio.open_nursery() as nursery:
                    for wait in (connection.readable, self._told.wait):
                        nursery.start_soon(_first, wait, nursery.cancel_scope)
                connection.look()
                self._wake(connection, connection.heard())

    async def _ask(self, connection: Connection, *commands: Command) -> None:
        for outcome in await connection.exchange(*commands, within=_WITHIN_S):
            if isinstance(outcome, Rejection):
                if outcome.reason is None:
                    raise _NotOffered(outcome.words)
                raise Disconnected(outcome.reason, outcome.words)
        self._wake(connection, connection.heard())

    def _wake(self, connection: Connection, notifications: Sequence[Notification]) -> None:
        for _channel, payload, teller in notifications:
            if teller != connection.pid:
                self._topics.wake(topics_of(payload))


async def _first(wait: Callable[[], Awaitable[object]], scope: trio.CancelScope) -> None:
    await wait()
    scope.cancel()


def chunks(topics: Sequence[str]) -> Iterator[bytes]:
    """The payloads that tell the topics, each within what NOTIFY carries (8000 bytes); a longer topic is left out."""
    chunk: list[str] = []
    size = 2
    for topic in topics:
        length = len(orjson.dumps(topic)) + 1
        if size + length > _PAYLOAD_BYTES and chunk:
            yield orjson.dumps(chunk)
            chunk, size = [], 2
        if size + length <= _PAYLOAD_BYTES:
            chunk.append(topic)
            size += length
    if chunk:
        yield orjson.dumps(chunk)


def topics_of(payload: str) -> list[str]:
    """The topics that a payload tells; none where it is not of a node's making."""
    try:
        topics = orjson.loads(payload)
    except orjson.JSONDecodeError:
        return []
    return [topic for topic in topics if isinstance(topic, str)] if isinstance(topics, list) else []
