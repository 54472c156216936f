"""One client connection: a reader with one deadline, a task for the request in hand, and an end that is always reached.

Takes the place of hypercorn's `TCPServer`, which restarts a timer task twice a request, shields its writes from every
deadline, and takes a client that has finished sending for one that is gone.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
from collections import deque
from collections.abc import Awaitable, Callable
from math import inf
from typing import Any

import attrs
import trio
from hypercorn.config import Config
from hypercorn.events import Closed, Event, RawData
from hypercorn.trio.task_group import TaskGroup
from hypercorn.typing import AppWrapper, ASGIReceiveEvent, ASGISendEvent, Scope, WorkerContext
from hypercorn.utils import parse_socket_addr
from structlog.typing import FilteringBoundLogger

from gateway import errors
from gateway.http.server.crowd import FRESH_S, PATIENCE_S, Crowd, Place
from gateway.http.server.http11 import Floor, Http11, Phase
from gateway.http.server.limits import BodyMemory, ServerLimits

_READ = 64 * 1024
_WRITE = 64 * 1024
_BODY_PIECE = 8 * 1024  # bytes of a body that must arrive within `body_pace_s`
_KEPT = 128 * 1024  # bytes of further requests that are kept while one is answered
_PROBE_S = 0.25  # between looks at a client that has finished sending
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_ABORT = struct.pack("ii", 1, 0)


@attrs.frozen
class Shared:
    """What all connections of a server have in common."""

    app: AppWrapper
    floor: Floor
    config: Config
    context: WorkerContext
    limits: ServerLimits
    memory: BodyMemory
    log: FilteringBoundLogger
    crowd: Crowd[Connection]


class RequestTasks(TaskGroup):
    """The tasks of one connection: a task a request, so that context variables of one never reach the next."""

    def __init__(self, nursery: trio.Nursery, log: FilteringBoundLogger) -> None:
        super().__init__()
        self._nursery = nursery  # opened by the connection: hypercorn's own way of opening it lets cancellations escape
        self._log = log

    async def spawn_app(
        self,
        app: AppWrapper,
        config: Config,  # noqa: ARG002
        scope: Scope,
        send: Callable[[ASGISendEvent | None], Awaitable[None]],
    ) -> Callable[[ASGIReceiveEvent], Awaitable[None]]:
        """Start the application for one request; what is returned puts messages before it."""
        messages = _Messages()
        self.spawn(self._run, app, scope, messages.get, send)
        return messages.put

    async def _run(self, app: AppWrapper, scope: Scope, receive: Any, send: Any) -> None:
        try:
            await app(scope, receive, send, trio.to_thread.run_sync, trio.from_thread.run)
        except Exception as error:  # noqa: BLE001  # one request's defect is not the server's
            self._log.error("http.defect", exc_info=error, path=scope.get("path"))
        await send(None)


class _Messages:
    """ASGI messages before one application; never more than two."""

    def __init__(self) -> None:
        self._messages: deque[ASGIReceiveEvent] = deque()
        self._arrived: trio.Event | None = None

    async def put(self, message: ASGIReceiveEvent) -> None:
        self._messages.append(message)
        if self._arrived is not None:
            self._arrived.set()

    async def get(self) -> ASGIReceiveEvent:
        while not self._messages:
            self._arrived = trio.Event()
            await self._arrived.wait()
        return self._messages.popleft()


class Connection:
    """One accepted connection, from its first byte to its close; a `Guest` of the crowd."""

    def __init__(
        self, accepted: socket.socket, shared: Shared, *, network: str = "", place: Place = Place.REGULAR
    ) -> None:
        self.network = network
        self.place = place
        self.idle = True
        self.idle_since = trio.current_time()
        self.gives_way_from = self.idle_since + FRESH_S
        self._socket = accepted
        self._stream = trio.SocketStream(trio.socket.from_stdlib_socket(accepted))
        self._shared = shared
        self._limits = shared.limits
        self._life = trio.CancelScope()
        self._waiting: trio.CancelScope | None = None  # of the reader, while it waits for bytes
        self._deadline = self.idle_since + shared.limits.header_timeout_s
        self._body_end = inf  # latest deadline of the body
        self._piece = 0  # bytes of the body since its deadline was set
        self._phase = Phase.IDLE
        self._served = False
        self._ending = False  # no further request is wanted
        self._input_ended = False
        self._answered = False  # the last answer is given
        self._gone = False

    @property
    def held(self) -> int:
        """Bytes of the memory for bodies that it holds."""
        return 0 if self._phase is Phase.IDLE else self._protocol.held

    async def run(self) -> None:
        """Serve the connection until it is closed; a failure here is logged and stays here."""
        with self._life:
            await self._live()

    async def _live(self) -> None:
        try:
            raw = self._stream.socket
            client, server = (parse_socket_addr(raw.family, name) for name in (raw.getpeername(), raw.getsockname()))
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                self._protocol = Http11(
                    self._shared.app,
                    self._shared.config,
                    self._shared.context,
                    RequestTasks(nursery, self._shared.log),
                    (client, server),
                    self._send,
                    floor=self._shared.floor,
                    limits=self._limits,
                    memory=self._shared.memory,
                    turn=self._turn,
                    ending=lambda: self._ending,
                    free_memory=lambda: self._shared.crowd.free_memory(self),
                    spare=self.place is Place.SPARE,
                )
                try:
                    await self._read()
                finally:
                    self._protocol.release()
            if self._answered and not self._gone:
                await self._linger()
        except OSError:
            self._gone = True  # the client left before its address could be read
        except Exception:  # one connection's defect is not the server's
            self._gone = True
            self._shared.log.exception("http.defect")
        finally:
            self._close()

    def end(self) -> None:
        """Close as soon as nothing is in flight: at once when idle, after the answer otherwise."""
        self._ending = True
        if self._phase is Phase.IDLE:
            self._deadline = min(self._deadline, self.idle_since + (0 if self._served else FRESH_S))
            if self._waiting is not None:
                self._waiting.deadline = self._deadline

    def evict(self) -> None:
        """Close at once, since another connection needs the place or the memory; a slow request hears that."""
        if self._phase in {Phase.HEAD, Phase.BODY}:
            why = errors.CapacityExhausted("The request came too slowly while others waited.", retry_after=1)
            self._sent_at_once(self._protocol.refusal(why))
        elif self._phase is Phase.BUSY:
            self._protocol.release()
            self._gone = True
        self._life.cancel()

    def _turn(self, phase: Phase) -> None:
        """Enter a phase, with its deadline."""
        now = trio.current_time()
        self.idle = phase is Phase.IDLE
        self.gives_way_from = inf if phase is Phase.BUSY else now if self.idle else now + PATIENCE_S
        if self.idle:
            self._served = True
            self.idle_since = now
            self._deadline = now if self._ending else now + self._limits.keep_alive_s
        elif phase is Phase.HEAD:
            self._deadline = now + self._limits.header_timeout_s
        elif phase is Phase.BODY:
            self._body_end = now + self._limits.body_timeout_s
            self._pace(_BODY_PIECE)
        else:
            self._deadline = inf
        woken = self._phase is Phase.BUSY and (phase is not Phase.IDLE or self._input_ended)
        self._answered = self._answered or phase is Phase.CLOSED
        self._phase = phase
        if self._waiting is not None:
            self._waiting.deadline = self._deadline
            if woken:
                self._waiting.cancel()  # the reader sleeps, and there is something to do without new bytes

    def _pace(self, size: int) -> None:
        """Note that so many bytes of a body have come, and give it time for the next piece."""
        self._piece += size
        if self._piece >= _BODY_PIECE:
            self._piece = 0
            now = trio.current_time()
            self.gives_way_from = now + PATIENCE_S
            self._deadline = min(self._body_end, now + self._limits.body_pace_s)

    async def _read(self) -> None:
        while self._phase is not Phase.CLOSED:
            data = b""
            with trio.CancelScope(deadline=self._deadline) as waiting:
                self._waiting = waiting
                data = await self._receive()
            self._waiting = None
            if waiting.cancelled_caught:
                if trio.current_time() >= self._deadline:
                    await self._expire()
                else:
                    await self._protocol.advance()
            elif data:
                if self._phase is Phase.BODY:
                    self._pace(len(data))
                await self._protocol.handle(RawData(data))
            elif not self._gone and not self._input_ended:
                self._input_ended = True
                await self._protocol.end_of_input()
            if self._gone:
                self._nursery.cancel_scope.cancel()
                return

    async def _receive(self) -> bytes:
        """Return what has come, b"" at its end; trio's stream would look for it once more before it waits."""
        if self._input_ended:
            await self._watch()
        if self._phase is Phase.BUSY and self._protocol.kept > _KEPT:
            await trio.sleep_forever()
        while True:
            try:
                await trio.lowlevel.wait_readable(self._socket)
                return self._socket.recv(_READ)
            except BlockingIOError:
                continue
            except (OSError, trio.ClosedResourceError):
                self._gone = True
                return b""

    async def _watch(self) -> None:
        """Wait beside the application for news of a client that has finished sending.

        It may want its answer or be gone for good, which looks the same until something is sent to it.  Every client
        must expect a `100 Continue` before the answer (RFC 9110 section 15.2); one that is gone resets.
        """
        protocol = self._protocol
        if self._phase is Phase.BUSY and protocol.wire.their_http_version == b"1.1" and not protocol.answering:
            try:
                await self._stream.socket.send(_CONTINUE)
            except OSError:
                self._gone = True
        poll = select.poll()
        poll.register(self._stream.socket.fileno(), 0)  # errors and hang-ups are always reported
        while not self._gone:
            await trio.sleep(_PROBE_S)
            self._gone = bool(poll.poll(0))

    async def _expire(self) -> None:
        """End what took too long: without a word when nothing was asked, else with the reason."""
        if self._phase is Phase.IDLE:
            self._phase = Phase.CLOSED
        else:
            late = "header section" if self._phase is Phase.HEAD else "body"
            await self._protocol.refuse(errors.RequestTimeout(f"The {late} of the request did not arrive in time."))

    async def _send(self, event: Event) -> None:
        if isinstance(event, RawData):
            await self._write(event.data)
        elif isinstance(event, Closed):
            self._turn(Phase.CLOSED)

    async def _write(self, data: bytes) -> None:
        left = memoryview(data)[self._sent_at_once(data) :]
        if left:
            await self._send_all(left)

    def _sent_at_once(self, data: bytes) -> int:
        """Return how much the kernel took: most answers whole, which spares each of them a turn of the scheduler."""
        try:
            return self._socket.send(data)
        except OSError:
            return 0  # no room, or the client is gone; the stream finds out which

    async def _send_all(self, data: memoryview) -> None:
        whole = True
        try:
            for start in range(0, len(data), _WRITE):
                piece = data[start : start + _WRITE]
                self.gives_way_from = trio.current_time() + PATIENCE_S
                with trio.move_on_after(self._limits.write_timeout_s):
                    whole = False
                    await self._stream.send_all(piece)
                    whole = True
                if not whole:
                    break
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # the client is gone
        finally:
            self._gone = self._gone or not whole
        self.gives_way_from = inf
        if not whole:
            self._nursery.cancel_scope.cancel()
            await trio.sleep_forever()

    async def _linger(self) -> None:
        """Say that nothing more comes, and read on a while: closing over unread bytes would take the answer back."""
        limit = self._limits.linger_s if self._protocol.unread or not self._ending else FRESH_S
        try:
            await self._stream.send_eof()
            if self._input_ended:
                return
            with trio.move_on_after(limit):
                while await self._stream.receive_some(_READ):
                    pass
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self._gone = True

    def _close(self) -> None:
        if self._gone:
            with contextlib.suppress(OSError):
                self._stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORT)
        self._stream.socket.close()
