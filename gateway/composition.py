"""How a node is put together: its parts from its configuration, its actors in the order in which they may be asked.

store -> store-watch, clock -> leases -> idempotency, quota, ledger -> upstream -> prober -> settlement -> sandbox
-> operations -> http (design: each asks only what started before it).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import attrs
import structlog
import trio

from gateway.actors.ai import AiFamily, ai_routes
from gateway.actors.clock import NodeClock
from gateway.actors.embedded_model import ModelPlace, WorkerSettings, embedded_model
from gateway.actors.findings import Findings
from gateway.actors.idempotency import idempotency
from gateway.actors.leases import Leases
from gateway.actors.ledger import Posted, ledger
from gateway.actors.operations import Limits, Room, Surroundings, operations
from gateway.actors.operations.actor import Message as OperationsMessage
from gateway.actors.probe_history import ProbeHistory
from gateway.actors.prober import Message as ProberMessage
from gateway.actors.prober import ProbeNow, prober, reporter
from gateway.actors.quota import Policy, quota
from gateway.actors.runtime import ActorError, Ref, Runtime
from gateway.actors.sandbox import ROUTE_ID as SANDBOX_ROUTE
from gateway.actors.sandbox import SandboxFamily, SandboxPlace, SandboxSettings, Standing, sandbox, sandbox_routes
from gateway.actors.search import SearchFamily, search_routes
from gateway.actors.settlement import Chain, Facilitator, SettlementPath, Wanted, settlement
from gateway.actors.settlement import Message as SettlementMessage
from gateway.actors.store import Engine
from gateway.actors.store_watch import StoreWatch
from gateway.actors.switched_off import SwitchedOff
from gateway.actors.upstream import Caller, ClientPlace, upstream
from gateway.config import Configuration
from gateway.http.means import Means
from gateway.http.metrics import MeteredFamily, Metrics
from gateway.http.pipeline import Node
from gateway.http.request_headers import CallerAddress
from gateway.http.validation import structure
from gateway.keys import Keys
from gateway.registry.ai.adapter import ModelRoute
from gateway.registry.ai.catalog import CATALOG
from gateway.registry.execution import Family
from gateway.registry.operation import Operation
from gateway.registry.payment.asset import Asset
from gateway.registry.payment.quote import QuoteSecrets
from gateway.registry.payment.terms import Terms
from gateway.registry.qualification import Proofs, Rules
from gateway.registry.receipts import Signer
from gateway.registry.sealing import Naming, NodeSeal
from gateway.registry.search.adapter import Adapter, budget_of
from gateway.registry.search.output import Asset as CostAsset
from gateway.registry.table import PRICE_VERSION, pinned_names
from gateway.registry.table import operations as operations_table
from gateway.sandbox.host import Machine
from gateway.sandbox_settings import settings_of

log = structlog.get_logger(__name__)

MAILBOX = 1024
DAY_S = 24 * 3600
POLICIES = ("free_search", "free_ai", "scrape", "audio", "unpaid_quotes", "payment_attempts", "paid")


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


def policies_of(
    configuration: Configuration, adapters: Sequence[Adapter] = (), models: Sequence[ModelRoute] = ()
) -> dict[str, Policy]:
    """Return the quota policies by name: the callers' own, and a daily budget for each back end that bills."""
    policies = {name: Policy(name, getattr(configuration.quota, name)) for name in POLICIES}
    for name in (*(budget_of(each) for each in adapters), *(each.budget for each in models)):
        if name is not None:
            policies[name] = Policy(name, configuration.quota.billed_daily, DAY_S)
    return policies


@attrs.frozen(eq=False)
class Parts:
    """The running parts of a node that others look at; `sandbox` is None where it is switched off."""

    clock: NodeClock
    node: Node
    table: Mapping[str, Operation]
    models: Sequence[ModelRoute]
    signer: Signer
    proofs: Proofs
    prober: Ref[ProberMessage]
    path: SettlementPath
    operations: Ref[OperationsMessage]
    sandbox: SandboxPlace | None
    watched: StoreWatch


async def start_actors(
    runtime: Runtime,
    store: Engine,
    keys: Keys,
    configuration: Configuration,
    adapters: Sequence[Adapter],
    models: Sequence[ModelRoute],
    place: ModelPlace,
    metrics: Metrics,
) -> Parts:
    """Start every actor after the store, in order; `place` tells where the embedded model is, if a route goes there."""
    signer, naming = Signer.from_keys(keys.receipts), Naming(keys.peppers)
    start = partial(runtime.start, capacity=MAILBOX)
    watched = StoreWatch(store)
    await start("store-watch", watched.watch)
    clock = NodeClock(store)
    utc = partial(_utc, clock)
    if store.shared:
        await start("clock", clock.watch)
    leases = Leases(store, lease_ms=configuration.store.lease_ms, believed=lambda: clock.believed)
    await start("leases", leases.watch)
    path = SettlementPath()
    key_names = await start(
        "idempotency", partial(idempotency, store=store, chain_ms=lambda: path.block_ms, hold=leases.hold)
    )
    quota_ref = await start(
        "quota", partial(quota, policies=policies_of(configuration, adapters, models), store=store, clock_ms=clock)
    )
    ledger_ref = await start("ledger", partial(ledger, store=store, signer=signer, clock_ms=clock, hold=leases.hold))
    client = ClientPlace()
    call = Caller(await start("upstream", partial(upstream, place=client)), client)
    proofs = Proofs(trio.current_time)
    settings = settings_of(configuration).on(Machine())
    runs = SandboxPlace.of(settings) if configuration.sandbox.enabled else None
    history = ProbeHistory(store, node=configuration.node.name, clock_ms=clock, hold=leases.hold)
    await start("probe-history", history.watch)
    rules = _rules(configuration)
    prober_ref = await start(
        "prober",
        partial(
            prober,
            routes=(
                *search_routes(adapters, call),
                *ai_routes(models, call, rules),
                *(sandbox_routes(runs) if runs is not None else ()),
            ),
            proofs=proofs,
            utc=utc,
            jitter=partial(random.uniform, 0.9, 1.1),
            rules=Rules(interval_s=configuration.search.probe_interval_s),
            findings=Findings(store, leases.hold),
            noted=history.note,
        ),
    )
    await _start_model(start, configuration, models, call, place, prober_ref)
    report, cost_asset = reporter(prober_ref), _cost_asset(configuration)
    families: dict[str, Family] = {
        "search": MeteredFamily(SearchFamily(adapters, proofs, call, report, utc, cost_asset), metrics),
        "ai": MeteredFamily(AiFamily(CATALOG, models, proofs, call, report, utc, cost_asset), metrics),
    }
    table = operations_table(configuration.ai.margin_percent, partial(_resolves, runs, pinned_names()))
    settlement_ref = await _start_settlement(start, configuration, call, path, clock)
    families["sandbox"] = MeteredFamily(
        await _start_sandbox(start, settings, runs, proofs, prober_ref, cost_asset), metrics
    )
    around = _surroundings(configuration, store, keys, signer, clock, families, settlement_ref)
    around = attrs.evolve(around, posted=partial(_tell, ledger_ref, Posted()))
    payment = configuration.payment
    limits = Limits(unsettled_per_payer=payment.max_unsettled_per_payer, unsettled=payment.max_unsettled)
    room = Room()
    operations_ref = await start(
        "operations",
        partial(
            operations,
            around=around,
            table=table,
            structure=structure,
            limits=limits,
            head=lambda: path.head,
            hold=leases.hold,
            room=room,
        ),
    )
    node = Node(
        terms=terms_of(configuration),
        secrets=_quote_secrets(keys),
        naming=naming,
        callers=CallerAddress.of(configuration.quota.trusted_proxies),
        price_version=PRICE_VERSION,
        families=families,
        path=path,
        want_path=_nothing if settlement_ref is None else partial(_tell, settlement_ref, Wanted()),
        idempotency=key_names,
        quota=quota_ref,
        operations=operations_ref,
        settlement=settlement_ref,
        clock_ms=clock,
        clock_skew=lambda: clock.skew_ms,
        means=Means(
            watched.health,
            tuple(
                each for each in (key_names, quota_ref, ledger_ref, settlement_ref, operations_ref) if each is not None
            ),
            room.full,
        ),
    )
    return Parts(clock, node, table, models, signer, proofs, prober_ref, path, operations_ref, runs, watched)


async def _start_model(
    start: Callable[..., Any],
    configuration: Configuration,
    models: Sequence[ModelRoute],
    call: Caller,
    place: ModelPlace,
    prober_ref: Ref[ProberMessage],
) -> None:
    """Start the embedded model where a route goes to it; the prober looks there whenever it came or went."""
    routes = [each.route_id for each in models if each.adapter.kind == "embedded"]
    if not routes:
        return

    def look() -> None:
        for route_id in routes:
            _tell(prober_ref, ProbeNow(route_id))

    place.changed = look
    ai = configuration.ai
    settings = WorkerSettings(threads=ai.embedded_threads, memory_mib=ai.embedded_memory_mib)
    await start("embedded-model", partial(embedded_model, place=place, call=call, settings=settings))


async def _start_sandbox(
    start: Callable[..., Any],
    settings: SandboxSettings,
    place: SandboxPlace | None,
    proofs: Proofs,
    prober_ref: Ref[ProberMessage],
    asset: CostAsset,
) -> Family:
    """Start the sandbox's supervisor; the prober looks there whenever it opened or closed."""
    if place is None:
        return SwitchedOff("sandboxed commands")
    place.changed = partial(_tell, prober_ref, ProbeNow(SANDBOX_ROUTE))
    ref = await start("sandbox", partial(sandbox, place=place, settings=settings))
    return SandboxFamily(place, ref, proofs, reporter(prober_ref), asset)


def _resolves(place: SandboxPlace | None, pinned: Callable[[str], object], name: str) -> object:
    """Return what the sandbox's image would run for an argv[0]; while there is no image, what the pinned one would."""
    state = None if place is None else place.now()
    return state.image.resolves(name) if isinstance(state, Standing) else pinned(name)


def _rules(configuration: Configuration) -> Rules:
    """Return how models are proved: the first call that shows a route at fault closes it until somebody has looked."""
    ai = configuration.ai
    return Rules(interval_s=ai.probe_interval_s, failures_to_close=1, canary_interval_s=ai.canary_interval_s)


def _cost_asset(configuration: Configuration) -> CostAsset:
    asset = asset_of(configuration)
    return CostAsset(asset.address, asset.decimals)


async def _start_settlement(
    start: Callable[..., Any], configuration: Configuration, call: Caller, path: SettlementPath, clock: NodeClock
) -> Ref[SettlementMessage] | None:
    payment = configuration.payment
    if not payment.configured:
        return None
    calling = partial(call, stops=True)  # the settlement actor sees each of its calls to the end
    facilitator = Facilitator(payment.facilitator_url, calling, payment.verify_timeout_s, payment.settle_timeout_s)
    chain = Chain(
        asset_of(configuration).chain_id,
        payment.rpc_urls,
        calling,
        payment.confirmations,
        utc_s=lambda: clock() / 1000,
    )
    body = partial(settlement, facilitator=facilitator, chain=chain, network=payment.network, path=path)
    ref: Ref[SettlementMessage] = await start("settlement", body)
    return ref


def _surroundings(
    configuration: Configuration,
    store: Engine,
    keys: Keys,
    signer: Signer,
    clock: NodeClock,
    families: Mapping[str, Family],
    settlement_ref: Ref[SettlementMessage] | None,
) -> Surroundings:
    payment = configuration.payment
    return Surroundings(
        store=store,
        settlement=settlement_ref,
        families=families,
        seal=NodeSeal(keys.nodes),
        signer=signer,
        asset=asset_of(configuration),
        node=configuration.node.name,
        clock_ms=clock,
        draining=trio.Event(),
        posted=_nothing,
        settle_wait_s=payment.settle_wait_s,
        payer_hold_s=payment.payer_hold_s,
        verify_timeout_s=payment.verify_timeout_s,
        settle_timeout_s=payment.settle_timeout_s,
    )


def _quote_secrets(keys: Keys) -> QuoteSecrets:
    version, _ = keys.current("quote")
    return QuoteSecrets({str(each): secret for each, secret in keys.quotes.items()}, str(version))


def _tell(ref: Ref[Any], message: Any) -> None:
    try:
        ref.tell(message)
    except ActorError as error:
        log.debug("not_told", message=type(message).__name__, error=type(error).__name__)


def _nothing() -> None:
    return


def _utc(clock: NodeClock) -> datetime:
    return datetime.fromtimestamp(clock() / 1000, UTC)
