"""A node's life: it opens its store and listeners, starts its actors and its servers, and takes all down in reverse."""

from __future__ import annotations

import gc
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path

import attrs
import structlog
import trio

from gateway.actors.clock import wall_ms
from gateway.actors.embedded_model import ModelPlace
from gateway.actors.runtime import Event, Runtime, open_runtime
from gateway.actors.store import Committed, Engine, Reason, StoreHealth, StoreRefused
from gateway.actors.store.moves import require_whole
from gateway.back_ends import adapters_of, model_routes_of
from gateway.composition import Parts, start_actors
from gateway.config import Configuration, ConfigurationError
from gateway.errors import Violation
from gateway.http.metrics import Metrics
from gateway.http.models import ModelsPage
from gateway.http.operator import Inside, build_operator_app
from gateway.http.routes import Readiness, build_app
from gateway.http.server import GatewayApp, ServerLimits, bind, serve
from gateway.opening import open_engine
from gateway.operator_token import open_token
from gateway.readiness import faults
from gateway.registry.ai.catalog import CATALOG
from gateway.registry.ai.choice import standing
from gateway.registry.ai.embedded import EmbeddedAdapter
from gateway.registry.ai.listing import Selling
from gateway.selling_log import SellingLog, states_of
from gateway.shared_keys import join_keys
from gateway.shared_terms import join_terms

log = structlog.get_logger(__name__)

ACTOR_GRACE_S = 10.0
OPERATOR_LIMITS = ServerLimits(drain_s=5, max_connections=32)


RECURSION_LIMIT = 1000
"""The interpreter's own."""


def bound_recursion() -> None:
    """Take back what py_ecc does when eth-account imports it: it raises the recursion limit a hundredfold.

    A document of a stranger that is nested deeply enough would then overflow the C stack and kill the node.
    """
    sys.setrecursionlimit(RECURSION_LIMIT)


def assert_coincurve() -> None:
    """Refuse to start on the pure-Python signature backend, which is twenty times slower."""
    from eth_keys.backends import get_backend

    backend = type(get_backend()).__name__
    if backend != "CoinCurveECCBackend":
        raise ConfigurationError("environment", [Violation("", f"eth_keys uses {backend}; install coincurve")])


@attrs.frozen(eq=False)
class Running:
    """A node that serves: where it listens (`operator` is None where it has no such listener), and its parts.

    `damaged` is set once its store is found damaged: it can serve nothing more, and only a new start looks again.
    """

    urls: tuple[str, ...]
    operator: str | None
    runtime: Runtime
    store: Engine
    damaged: trio.Event
    selling: SellingLog


@asynccontextmanager
async def open_node(
    configuration: Configuration, *, stop: trio.Event | None = None, operator: bool = False
) -> AsyncIterator[Running]:
    """Run a node for the length of a block; leaving it drains: nothing in flight is lost.

    `operator` opens the operator's listener too.  Raises `ConfigurationError`, `StoreRefused` or `KeysRefused` where
    the node cannot be started; nothing is left running then.
    """
    import eth_account  # noqa: F401 - slow to import, so before serving
    import web3  # noqa: F401

    assert_coincurve()
    bound_recursion()
    started_at, metrics, damaged = wall_ms(), Metrics(), trio.Event()
    node, stopping = configuration.node, trio.Event() if stop is None else stop
    own = (node.operator_listen,) if operator else ()
    with (
        _bound(configuration, "/node/listen", node.listen) as public,
        _bound(configuration, "/node/operator_listen", own) as private,
    ):
        configuration = _with_ports(configuration, public)
        adapters, place = adapters_of(configuration), ModelPlace()
        models = model_routes_of(configuration, EmbeddedAdapter(place.now) if configuration.ai.embedded else None)
        _prepare(configuration.data_dir)
        async with (
            open_runtime(observe=_observe, grace=ACTOR_GRACE_S) as runtime,
            open_engine(runtime, configuration, observe=partial(_note_damage, damaged)) as store,
        ):
            await require_whole(store, configuration.shown_store)
            keys = await join_keys(store, configuration.keys_dir)
            await join_terms(store, configuration)
            token = open_token(configuration, create=True) if private else ""
            parts = await start_actors(runtime, store, keys, configuration, adapters, models, place, metrics)
            inside = _inside(configuration, runtime, store, parts, metrics, started_at)
            limits = ServerLimits(drain_s=max(node.drain_s, 1), max_connections=node.max_connections)
            async with (
                _serving(build_operator_app(inside, token), private, OPERATOR_LIMITS, trio.Event()) as operator_urls,
                _serving(
                    _public_app(configuration, inside, parts), public, limits, stopping, parts.node.callers.trusts
                ) as urls,
            ):
                log.info("serving", urls=urls, base_url=configuration.base_url, operator=operator_urls)
                selling = SellingLog(partial(states_of, parts))
                yield Running(urls, operator_urls[0] if operator_urls else None, runtime, store, damaged, selling)
            log.info("drained")


async def run_node(configuration: Configuration) -> None:
    """Serve until SIGTERM or SIGINT, then drain; a signal that comes while the node starts ends the start.

    A node whose store is found damaged drains too, and raises `StoreRefused`: its supervisor starts it again, and the
    check at the start tells whether anything can be served from the store.
    """
    stop, started, damaged = trio.Event(), trio.Event(), False
    async with trio.open_nursery() as nursery:
        await nursery.start(stop_on_signal, stop)
        with trio.CancelScope() as starting:
            nursery.start_soon(_give_up, stop, started, starting)
            async with open_node(configuration, stop=stop, operator=True) as running:
                gc.collect()
                gc.freeze()  # what the start made lives as long as the process: no collection need look at it again
                started.set()
                nursery.start_soon(_stop_when, running.damaged, stop)
                nursery.start_soon(running.selling.watch)
                await stop.wait()
                damaged = running.damaged.is_set()
        nursery.cancel_scope.cancel()
    if damaged:
        raise StoreRefused(
            configuration.shown_store, "it was found damaged while the node ran", "Keep it and restore a backup"
        )


async def stop_on_signal(stop: trio.Event, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
    """Set `stop` at the first SIGTERM or SIGINT; a second one ends the process as usual."""
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as received:
        task_status.started()
        async for number in received:
            log.info("stopping", signal=signal.Signals(number).name)
            stop.set()
            return


async def _stop_when(event: trio.Event, stop: trio.Event) -> None:
    await event.wait()
    log.critical("store_damaged", consequence="the node ends")
    stop.set()


def _note_damage(damaged: trio.Event, heard: Committed | StoreHealth) -> None:
    if isinstance(heard, StoreHealth) and heard.reason is Reason.CORRUPT:
        damaged.set()


async def _give_up(stop: trio.Event, started: trio.Event, starting: trio.CancelScope) -> None:
    await stop.wait()
    if not started.is_set():
        starting.cancel()


# -- listeners ---------------------------------------------------------------------------------------------------------


@contextmanager
def _bound(configuration: Configuration, pointer: str, addresses: Sequence[str]) -> Iterator[list[socket.socket]]:
    """Hold sockets bound to addresses for the length of a block; raises `ConfigurationError`."""
    held: list[socket.socket] = []
    try:
        for address in addresses:
            try:
                held.append(bind(address))
            except (OSError, ValueError) as error:
                why = getattr(error, "strerror", None) or str(error)
                what = f"{why}; stop the program that uses it (another node, perhaps) or name another address"
                raise ConfigurationError(configuration.source, [Violation(pointer, what)]) from error
        yield held
    finally:
        for each in held:
            each.close()


def _with_ports(configuration: Configuration, listeners: Sequence[socket.socket]) -> Configuration:
    """Return the configuration with the ports that the kernel chose in place of 0."""
    node = configuration.node
    listen = tuple(
        f"{address.rpartition(':')[0]}:{each.getsockname()[1]}"
        for address, each in zip(node.listen, listeners, strict=True)
    )
    return attrs.evolve(configuration, node=attrs.evolve(node, listen=listen))


@asynccontextmanager
async def _serving(
    app: GatewayApp,
    listeners: Sequence[socket.socket],
    limits: ServerLimits,
    stop: trio.Event,
    shared_by_many: Callable[[str], bool] = lambda _: False,
) -> AsyncIterator[tuple[str, ...]]:
    """Serve an application for the length of a block, and drain at its end; nothing where there are no listeners."""
    if not listeners:
        yield ()
        return
    async with trio.open_nursery() as nursery:
        serving = partial(serve, app, listeners, limits=limits, stop=stop, shared_by_many=shared_by_many)
        urls: list[str] = await nursery.start(serving)
        try:
            yield tuple(urls)
        finally:
            stop.set()


def _public_app(configuration: Configuration, inside: Inside, parts: Parts) -> GatewayApp:
    app = build_app(
        parts.table,
        parts.node,
        base_url=configuration.base_url,
        key_set=parts.signer.key_set,
        readiness=Readiness(partial(faults, parts.watched, inside.runtime.health, parts.node.clock_skew)),
        models=_models_page(configuration, parts),
    )
    inside.metrics.watch(app, parts.table)
    return app


def _models_page(configuration: Configuration, parts: Parts) -> ModelsPage:
    def selling() -> Selling:
        return Selling(
            base_url=configuration.base_url,
            terms=parts.node.terms,
            settlement=parts.path.closed or parts.node.means.closed,
            free_per_minute=configuration.quota.free_ai,
            margin_percent=configuration.ai.margin_percent,
        )

    return ModelsPage(CATALOG, partial(standing, CATALOG, parts.models, parts.proofs.of), selling)


def _inside(
    configuration: Configuration,
    runtime: Runtime,
    store: Engine,
    parts: Parts,
    metrics: Metrics,
    started_at: int,
) -> Inside:
    return Inside(
        name=configuration.node.name,
        base_url=configuration.base_url,
        runtime=runtime,
        store=store,
        proofs=parts.proofs,
        path=parts.path,
        sells=configuration.payment.configured,
        operations=parts.operations,
        metrics=metrics,
        clock_ms=parts.clock,
        started_at=started_at,
        models=parts.models,
        sandbox=parts.sandbox,
        prober=parts.prober,
    )


# -- what lies on the disk ---------------------------------------------------------------------------------------------


def _prepare(data_dir: Path) -> None:
    try:
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StoreRefused(data_dir, f"cannot be made: {error.strerror}", "Configure [node] data_dir.") from error


def _observe(event: Event) -> None:
    level = log.warning if event.cause is not None else log.debug
    level("actor", actor=event.actor, phase=event.phase.value, cause=repr(event.cause) if event.cause else None)
