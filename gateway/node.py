"""Composition: opens the store, starts the actors in order, starts the server, and takes all of it down in reverse.

The order in which actors start is the order in which they may be asked (design/architecture, "The runtime").
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import attrs
import structlog
import trio

from gateway.actors.idempotency import idempotency
from gateway.actors.ledger import Posted, ledger
from gateway.actors.operations import Limits, Surroundings, operations
from gateway.actors.prober import prober, reporter
from gateway.actors.quota import Policy, quota
from gateway.actors.runtime import ActorError, Event, Phase, Ref, Runtime, open_runtime
from gateway.actors.search import SearchFamily, search_routes
from gateway.actors.settlement import Chain, Facilitator, SettlementPath, Wanted, settlement
from gateway.actors.store import Engine, Statement, StoreRefused, open_sqlite
from gateway.actors.upstream import Caller, upstream
from gateway.config import Configuration, ConfigurationError, SearchAdapterSection
from gateway.errors import Violation
from gateway.http.pipeline import Node
from gateway.http.request_headers import CallerAddress
from gateway.http.routes import Readiness, build_app
from gateway.http.server import ServerLimits, bind, serve
from gateway.http.validation import structure
from gateway.keys import Keys, KeysRefused, open_keys
from gateway.registry.payment.asset import Asset
from gateway.registry.payment.quote import QuoteSecrets
from gateway.registry.payment.terms import Terms
from gateway.registry.qualification import Proofs, Rules
from gateway.registry.receipts import Signer
from gateway.registry.sealing import Naming, NodeSeal
from gateway.registry.search.adapters import AdapterSettings, AdapterSettingsError, build
from gateway.registry.search.output import Asset as CostAsset
from gateway.registry.table import OPERATIONS, PRICE_VERSION

log = structlog.get_logger(__name__)

ACTOR_GRACE_S = 10.0


def clock_ms() -> int:
    """Return milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def asset_of(configuration: Configuration) -> Asset:
    """Return the token that the node is paid in."""
    payment = configuration.payment
    return Asset(
        network=payment.network,
        chain_id=int(payment.network.partition(":")[2]),
        address=payment.asset,
        name=payment.asset_name,
        version=payment.asset_version,
        decimals=payment.decimals,
    )


def terms_of(configuration: Configuration) -> Terms | None:
    """Return the seller's standing terms, or None where payments are not configured."""
    payment = configuration.payment
    if not payment.configured:
        return None
    realm = urlsplit(configuration.base_url).hostname or "gateway"
    return Terms(asset_of(configuration), payment.pay_to, configuration.base_url, realm, payment.quote_ttl_s)


def policies_of(configuration: Configuration) -> dict[str, Policy]:
    """Return the quota policies by name."""
    section = configuration.quota
    names = ("free_search", "free_ai", "scrape", "audio", "unpaid_quotes", "paid")
    return {name: Policy(name, getattr(section, name)) for name in names}


def adapters_of(sections: Sequence[SearchAdapterSection], base_url: str) -> Any:
    """Return the search adapters in order; raises `ConfigurationError`."""
    settings = []
    for index, section in enumerate(sections):
        key = ""
        if section.key_file:
            try:
                key = Path(section.key_file).expanduser().read_text().strip()
            except OSError as error:
                where = f"/search/adapter/{index}/key_file"
                raise ConfigurationError("search", [Violation(where, f"cannot be read: {error.strerror}")]) from error
        settings.append(
            AdapterSettings(
                kind=section.kind,
                name=section.name,
                base_url=section.base_url,
                key=key,
                cost_atomic=section.cost_atomic,
                simulated=section.simulated,
            )
        )
    try:
        return build(settings, base_url=base_url)
    except AdapterSettingsError as error:
        raise ConfigurationError("search", [Violation("/search/adapter", str(error))]) from error


def assert_coincurve() -> None:
    """Refuse to start on the pure-Python signature backend, which is twenty times slower."""
    from eth_keys.backends import get_backend

    backend = type(get_backend()).__name__
    if backend != "CoinCurveECCBackend":
        raise ConfigurationError("environment", [Violation("", f"eth_keys uses {backend}; install coincurve")])


@attrs.frozen(eq=False)
class Running:
    """A node that serves: where it listens, and its parts for whoever watches."""

    urls: tuple[str, ...]
    runtime: Runtime
    store: Engine


@asynccontextmanager
async def open_node(configuration: Configuration, *, stop: trio.Event | None = None) -> AsyncIterator[Running]:
    """Run a node for the length of a block; leaving it drains: nothing in flight is lost.

    Raises `ConfigurationError`, `StoreRefused` or `KeysRefused` where it cannot be started; nothing is left running
    then.
    """
    import eth_account  # noqa: F401 - slow to import, so before serving
    import web3  # noqa: F401

    assert_coincurve()
    adapters = adapters_of(configuration.search.adapter, configuration.base_url)
    listeners = [bind(address) for address in configuration.node.listen]
    stopping = trio.Event() if stop is None else stop
    try:
        _prepare(configuration.data_dir)
        async with (
            open_runtime(observe=_observe, grace=ACTOR_GRACE_S) as runtime,
            open_sqlite(runtime, configuration.store_path) as store,
        ):
            keys = await _open_keys(configuration, store)
            app = await _start_actors(runtime, store, keys, configuration, adapters)
            limits = ServerLimits(
                drain_s=max(configuration.node.drain_s, 1), max_connections=configuration.node.max_connections
            )
            async with trio.open_nursery() as nursery:
                urls = await nursery.start(partial(serve, app, listeners, limits=limits, stop=stopping))
                log.info("serving", urls=urls, base_url=configuration.base_url)
                try:
                    yield Running(tuple(urls), runtime, store)
                finally:
                    stopping.set()
            log.info("drained")
    finally:
        for listener in listeners:
            listener.close()


async def _start_actors(
    runtime: Runtime, store: Engine, keys: Keys, configuration: Configuration, adapters: Any
) -> Any:
    """Start every actor in order and return the application that asks them."""
    signer, asset, payment = Signer.from_keys(keys.receipts), asset_of(configuration), configuration.payment
    naming, secrets = Naming(keys.peppers), _quote_secrets(keys)
    key_names = await runtime.start("idempotency", partial(idempotency, store=store, clock_ms=clock_ms), capacity=1024)
    quota_ref = await runtime.start(
        "quota", partial(quota, policies=policies_of(configuration), store=store, clock_ms=clock_ms), capacity=1024
    )
    ledger_ref = await runtime.start(
        "ledger", partial(ledger, store=store, signer=signer, clock_ms=clock_ms), capacity=1024
    )
    call = Caller(await runtime.start("upstream", upstream, capacity=1024))
    rules = Rules(interval_s=configuration.search.probe_interval_s)
    proofs = Proofs(trio.current_time)
    prober_ref = await runtime.start(
        "prober",
        partial(
            prober,
            routes=search_routes(adapters, call),
            proofs=proofs,
            utc=_utc,
            jitter=partial(random.uniform, 0.9, 1.1),
            rules=rules,
        ),
        capacity=1024,
    )
    cost = CostAsset(asset.address, asset.decimals)
    families = {"search": SearchFamily(adapters, proofs, call, reporter(prober_ref), _utc, cost)}
    path = SettlementPath()
    settlement_ref = None
    want_path: Callable[[], None] = _nothing
    if payment.configured:
        facilitator = Facilitator(payment.facilitator_url, call, payment.verify_timeout_s, payment.settle_timeout_s)
        chain = Chain(asset.chain_id, payment.rpc_urls, call, payment.confirmations)
        settlement_ref = await runtime.start(
            "settlement",
            partial(settlement, facilitator=facilitator, chain=chain, network=payment.network, path=path),
            capacity=1024,
        )
        want_path = partial(_tell, settlement_ref, Wanted())
    around = Surroundings(
        store=store,
        settlement=settlement_ref,
        families=families,
        seal=NodeSeal(keys.nodes),
        signer=signer,
        asset=asset,
        node=configuration.node.name,
        clock_ms=clock_ms,
        draining=trio.Event(),
        posted=partial(_tell, ledger_ref, Posted()),
        settle_wait_s=payment.settle_wait_s,
        payer_hold_s=payment.payer_hold_s,
        verify_timeout_s=payment.verify_timeout_s,
        settle_timeout_s=payment.settle_timeout_s,
    )
    operations_ref = await runtime.start(
        "operations",
        partial(
            operations,
            around=around,
            table=OPERATIONS,
            structure=structure,
            limits=Limits(unsettled_per_payer=payment.max_unsettled_per_payer, unsettled=payment.max_unsettled),
            head=lambda: path.head,
        ),
        capacity=1024,
    )
    node = Node(
        terms=terms_of(configuration),
        secrets=secrets,
        naming=naming,
        callers=CallerAddress.of(configuration.quota.trusted_proxies),
        price_version=PRICE_VERSION,
        families=families,
        path=path,
        want_path=want_path,
        idempotency=key_names,
        quota=quota_ref,
        operations=operations_ref,
        clock_ms=clock_ms,
    )
    return build_app(
        OPERATIONS,
        node,
        base_url=configuration.base_url,
        key_set=signer.key_set,
        readiness=Readiness(partial(_faults, runtime, store)),
    )


async def _faults(runtime: Runtime, store: Engine) -> list[dict[str, str]]:
    """Return what keeps the node from serving: the store not writable, an actor not up."""
    found = []
    health = await store.probe()
    if not health.writable:
        found.append({"part": "store", "reason": str(health.reason or "unwritable")})
    found += [
        {"part": each.actor, "reason": each.phase.value} for each in runtime.health() if each.phase is not Phase.READY
    ]
    return found


async def _open_keys(configuration: Configuration, store: Engine) -> Keys:
    """Open the keys; a store that knows peppers which are not there is refused, it would charge twice."""
    known = await store.fetch("SELECT name, value FROM node_facts WHERE name LIKE 'pepper-%'")
    keys = open_keys(configuration.data_dir / "keys", create=not known)
    fingerprints = {f"pepper-{version}": value for version, value in Naming(keys.peppers).fingerprints().items()}
    for name, value in ((str(name), value) for name, value in known):
        if fingerprints.get(name) != value:
            raise KeysRefused(
                f"{configuration.data_dir / 'keys'}: {name} is missing or another one than the store was filled with;"
                " restore it from the backup: without it old keys are not recognised and would be charged twice"
            )
    fresh = [
        Statement(
            "INSERT INTO node_facts (name, value) VALUES (:name, :value) ON CONFLICT DO NOTHING",
            {"name": name, "value": value},
        )
        for name, value in fingerprints.items()
    ]
    await store.commit(*fresh)
    return keys


def _quote_secrets(keys: Keys) -> QuoteSecrets:
    version, _ = keys.current("quote")
    return QuoteSecrets({str(each): secret for each, secret in keys.quotes.items()}, str(version))


def _prepare(data_dir: Path) -> None:
    try:
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StoreRefused(data_dir, f"cannot be made: {error.strerror}", "Configure [node] data_dir.") from error


def _tell(ref: Ref[Any], message: Any) -> None:
    try:
        ref.tell(message)
    except ActorError as error:
        log.debug("not_told", message=type(message).__name__, error=type(error).__name__)


def _nothing() -> None:
    return


def _utc() -> datetime:
    return datetime.now(UTC)


def _observe(event: Event) -> None:
    level = log.warning if event.cause is not None else log.debug
    level("actor", actor=event.actor, phase=event.phase.value, cause=repr(event.cause) if event.cause else None)


async def stop_on_signal(stop: trio.Event, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
    """Set `stop` at the first SIGTERM or SIGINT; a second one ends the process as usual."""
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as received:
        task_status.started()
        async for number in received:
            log.info("stopping", signal=signal.Signals(number).name)
            stop.set()
            return


async def run_node(configuration: Configuration) -> None:
    """Serve until SIGTERM or SIGINT, then drain."""
    stop = trio.Event()
    async with trio.open_nursery() as nursery:
        await nursery.start(stop_on_signal, stop)
        async with open_node(configuration, stop=stop):
            await stop.wait()
