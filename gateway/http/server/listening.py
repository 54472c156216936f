"""Listening sockets and the life of a server: accept, serve, drain."""

from __future__ import annotations

import errno
import resource
import socket
from collections.abc import Callable, Sequence

import structlog
import trio
from hypercorn.config import Config
from hypercorn.trio.lifespan import Lifespan
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.utils import repr_socket_addr, wrap_app
from structlog.typing import FilteringBoundLogger

from gateway.http.server.app import GatewayApp
from gateway.http.server.connection import Connection, Shared
from gateway.http.server.crowd import Crowd
from gateway.http.server.limits import BodyMemory, ServerLimits
from gateway.registry.sealing import caller_network

_UNUSABLE = {errno.EBADF, errno.EINVAL, errno.ENOTSOCK}  # a listener that will never accept again
_PAUSE_S = 0.1  # after an accept that failed, for want of descriptors or memory


def bind(address: str) -> socket.socket:
    """Return a bound socket for an address like `127.0.0.1:8402` or `[::1]:8402`; port 0 lets the kernel choose.

    Raises:
        ValueError: the address is no host with a port.
        OSError: the address cannot be used.
    """
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{address!r} is not an address of the form host:port")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, int(port)))
    except OSError as error:
        listener.close()
        raise OSError(error.errno, f"cannot listen on {address}: {error.strerror or error}") from error
    listener.setblocking(False)  # noqa: FBT003
    return listener


async def serve(
    app: GatewayApp,
    listeners: Sequence[socket.socket],
    *,
    stop: trio.Event,
    limits: ServerLimits | None = None,
    log: FilteringBoundLogger | None = None,
    shared_by_many: Callable[[str], bool] = lambda _: False,
    task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve HTTP/1.1 on bound sockets until `stop` is set and what was in flight is answered; closes the sockets.

    Reports the URLs it listens on once it does.  On `stop` no connection is accepted any more, idle ones are closed,
    requests in flight have `drain_s` to be answered; what is left then is cancelled.  `shared_by_many` tells which
    peers, such as proxies, bring the requests of many callers; their connections are not counted as one network's.
    """
    bounds = limits or ServerLimits()
    server = _Server(app, bounds, log or structlog.get_logger("gateway.http"), shared_by_many)
    try:
        async with trio.open_nursery() as around:
            lifespan = Lifespan(server.shared.app, server.shared.config, {})
            around.start_soon(lifespan.handle_lifespan)
            await lifespan.wait_for_startup()
            await server.run(listeners, stop, task_status)
            await lifespan.wait_for_shutdown()
            around.cancel_scope.cancel()
    finally:
        for listener in listeners:
            listener.close()


class _Server:
    def __init__(
        self, app: GatewayApp, limits: ServerLimits, log: FilteringBoundLogger, shared_by_many: Callable[[str], bool]
    ) -> None:
        config = Config()
        config.errorlog = None
        config.include_server_header = False
        config.h11_max_incomplete_size = limits.header_bytes
        context = WorkerContext(None)
        memory = BodyMemory(limits.body_memory_bytes)
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._crowd: Crowd[Connection] = Crowd(min(limits.max_connections, max(1, descriptors // 2)))
        self._shared_by_many = shared_by_many
        bare = wrap_app(app, 0, "asgi")
        self.shared = Shared(bare, app, config, context, limits, memory, log, self._crowd)

    async def run(
        self, listeners: Sequence[socket.socket], stop: trio.Event, task_status: trio.TaskStatus[list[str]]
    ) -> None:
        async with trio.open_nursery() as nursery:
            async with trio.open_nursery() as accepting:
                for listener in listeners:
                    listener.setblocking(False)  # noqa: FBT003
                    listener.listen(self.shared.limits.backlog)
                    accepting.start_soon(self._accept, listener, nursery)
                task_status.started(
                    [f"http://{repr_socket_addr(each.family, each.getsockname())}" for each in listeners]
                )
                await stop.wait()
                accepting.cancel_scope.cancel()
            for listener in listeners:
                while self._accept_one(listener, nursery):
                    pass  # whoever was let into the backlog is answered
                listener.close()
            for connection in self._crowd:
                connection.end()
            nursery.cancel_scope.deadline = trio.current_time() + self.shared.limits.drain_s

    async def _accept(self, listener: socket.socket, nursery: trio.Nursery) -> None:
        failing = False
        while True:
            await trio.lowlevel.wait_readable(listener)
            try:
                self._accept_one(listener, nursery)
                failing = False
            except OSError as error:
                if error.errno in _UNUSABLE:
                    raise
                if not failing:  # once for each time of want
                    self.shared.log.warning("http.accept_failed", error=error.strerror)
                failing = True
                await trio.sleep(_PAUSE_S)

    def _accept_one(self, listener: socket.socket, nursery: trio.Nursery) -> bool:
        """Accept a connection that waits; false if none does."""
        try:
            accepted, peer = listener.accept()
        except BlockingIOError:
            return False
        except ConnectionError:
            return True  # it left before it was accepted
        network = "" if self._shared_by_many(peer[0]) else caller_network(peer[0])
        place = self._crowd.place_for(network)
        if place is None:
            accepted.close()
            return True
        accepted.setblocking(False)  # noqa: FBT003
        connection = Connection(accepted, self.shared, network=network, place=place)
        self._crowd.add(connection)
        nursery.start_soon(self._serve, connection)
        return True

    async def _serve(self, connection: Connection) -> None:
        try:
            await connection.run()
        finally:
            self._crowd.remove(connection)
