"""The operator's listener: what happens inside the node, and the decisions that only its operator may take.

It never shares a socket with the public listener.  Every request needs the bearer token, unknown paths too; there is
nothing to be learnt without it.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import orjson
from quart import Response, request

from gateway import __version__, errors
from gateway.actors.operations import Exposure, Resolve
from gateway.actors.operations.actor import Message as OperationsMessage
from gateway.actors.prober import Message as ProberMessage
from gateway.actors.runtime import ActorError, Health, Ref, Runtime
from gateway.actors.sandbox import SandboxPlace
from gateway.actors.settlement import SettlementPath
from gateway.actors.store import Engine
from gateway.actors.switched_off import REASON as SWITCHED_OFF
from gateway.errors import Violation
from gateway.http import metrics as figures
from gateway.http import operator_view as view
from gateway.http import strict_json
from gateway.http.metrics import Endings, Metrics
from gateway.http.operator_models import Registry, add_models, shown
from gateway.http.server import GatewayApp
from gateway.registry.ai.adapter import ModelRoute
from gateway.registry.qualification import Proofs
from gateway.registry.receipts import timestamp

BODY_CAP = 16 * 1024
LIMITS = (50, 1000)
REASON_LENGTH = 1000
TRANSACTION = re.compile(r"0x[0-9a-fA-F]{64}\Z")
LIVE = {"Cache-Control": "no-store"}


@attrs.frozen(eq=False)
class Inside:
    """The parts of a running node that its operator sees; `started_at` is milliseconds since 1970.

    `models` are the routes to models, `sandbox` is where commands run, `prober` is who proves all routes.
    """

    name: str
    base_url: str
    runtime: Runtime
    store: Engine
    proofs: Proofs
    path: SettlementPath
    sells: bool
    operations: Ref[OperationsMessage]
    metrics: Metrics
    clock_ms: Callable[[], int]
    started_at: int
    models: Sequence[ModelRoute] = ()
    sandbox: SandboxPlace | None = None
    prober: Ref[ProberMessage] | None = None


def build_operator_app(inside: Inside, token: str) -> GatewayApp:
    """Return the application of the operator's listener."""
    app = GatewayApp("gateway.http.operator", base_url=inside.base_url, body_cap=lambda _: BODY_CAP)

    async def require_token() -> None:
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), token.encode()):
            raise errors.Unauthorized(headers={"WWW-Authenticate": 'Bearer realm="operator"'})

    app.before_request_funcs.setdefault(None, []).insert(0, require_token)
    _add_status(app, inside)
    _add_operations(app, inside)
    add_models(app, Registry(inside.models, inside.proofs, inside.prober, inside.store, inside.clock_ms))
    _add_sandbox(app, inside)
    _add_metrics(app, inside)
    return app


def _add_status(app: GatewayApp, inside: Inside) -> None:
    @app.get("/")
    async def status() -> Response:
        return _json(await _summary(inside))

    @app.get("/nodes")
    async def nodes() -> Response:
        return _json({"nodes": view.nodes(await inside.store.fetch_many(view.NODES))})

    @app.get("/actors")
    async def actors() -> Response:
        return _json({"actors": [_actor(each) for each in inside.runtime.health()]})


def _add_operations(app: GatewayApp, inside: Inside) -> None:
    @app.get("/operations")
    async def list_operations() -> Response:
        only, limit = _only(request.args.get("state")), _limit(request.args.get("limit"))
        found = await inside.store.fetch_many(view.listing(only, limit))
        return _json({"operations": view.listed(found, limit)})

    @app.get("/operations/<operation_id>")
    async def show_operation(operation_id: str) -> Response:
        shown = view.detailed(await inside.store.fetch_many(view.details(operation_id)))
        if shown is None:
            raise errors.OperationNotFound(operation_id=operation_id)
        return _json(shown)

    @app.post("/operations/<operation_id>/resolve")
    async def resolve_operation(operation_id: str) -> Response:
        why, paid_by = _decision(await request.get_data(as_text=False), request.mimetype)
        try:
            state = await inside.operations.ask(Resolve(operation_id, paid_by, why), within=30)
        except ActorError as error:
            raise errors.StoreUnavailable(
                f"whether the decision was recorded is unknown ({type(error).__name__}); look at the operation",
                operation_id=operation_id,
                retry_after=1,
            ) from error
        return _json({"operationId": operation_id, "state": state.upper()})


def _add_sandbox(app: GatewayApp, inside: Inside) -> None:
    @app.get("/sandbox")
    async def sandbox() -> Response:
        place = inside.sandbox
        return _json({"open": False, "reason": SWITCHED_OFF} if place is None else place.shown())


def _add_metrics(app: GatewayApp, inside: Inside) -> None:
    endings = Endings(inside.store, inside.metrics, inside.clock_ms, inside.name)

    @app.get("/metrics")
    async def show_metrics() -> Response:
        gauges = [
            *figures.actor_gauges(inside.runtime.health()),
            *figures.route_gauges(inside.proofs.snapshot(), inside.clock_ms() / 1000),
            figures.settlement_gauge(is_open=inside.sells and inside.path.closed is None),
            figures.store_gauge(writable=(await inside.store.probe()).writable),
        ]
        counts, exposed = await _counts(inside), await _exposure(inside)
        if counts is not None:
            await endings.look()
            gauges.append(figures.operations_gauge(counts))
        nodes = await _nodes(inside)
        if nodes is not None:
            gauges.append(figures.nodes_gauge(sum(each["alive"] for each in nodes)))
        if exposed is not None:
            gauges.append(figures.exposure_gauge(sum(exposed.values())))
        page = inside.metrics.page(gauges)
        return Response(page, status=200, headers={"Content-Type": figures.MEDIA_TYPE, **LIVE})


async def _summary(inside: Inside) -> dict[str, Any]:
    health, exposed, path = await inside.store.probe(), await _exposure(inside), inside.path
    now, models = inside.clock_ms(), {each.route_id: each for each in inside.models}
    return {
        "version": __version__,
        "node": inside.name,
        "baseUrl": inside.base_url,
        "startedAt": timestamp(inside.started_at),
        "uptimeSeconds": (now - inside.started_at) // 1000,
        "store": {
            "writable": health.writable,
            "reason": health.name or None,
            "since": timestamp(int(health.since * 1000)),
            "shared": inside.store.shared,
        },
        "nodes": await _nodes(inside),
        "settlement": {
            "configured": inside.sells,
            "open": inside.sells and path.closed is None,
            "reason": path.closed if inside.sells else "payment_not_configured",
            "head": path.head,
        },
        "exposure": None
        if exposed is None
        else {"unsettledAtomic": str(sum(exposed.values())), "payers": len(exposed)},
        "operations": await _counts(inside),
        "routes": [shown(each, models.get(route)) for route, each in inside.proofs.snapshot().items()],
        "actors": [_actor(each) for each in inside.runtime.health()],
    }


async def _counts(inside: Inside) -> dict[str, int] | None:
    """Return how many operations there are by state; None while the store cannot be read."""
    try:
        return view.counts(await inside.store.fetch(*view.COUNTS))
    except errors.StoreUnavailable:
        return None


async def _nodes(inside: Inside) -> list[dict[str, Any]] | None:
    """Return the nodes of the store; None while it cannot be read."""
    try:
        return view.nodes(await inside.store.fetch_many(view.NODES))
    except errors.StoreUnavailable:
        return None


async def _exposure(inside: Inside) -> dict[str, int] | None:
    """Return what is unsettled by payer; None while the operations actor does not answer."""
    try:
        return dict(await inside.operations.ask(Exposure(), within=2))
    except ActorError:
        return None


def _actor(health: Health) -> dict[str, Any]:
    return {
        "actor": health.actor,
        "phase": health.phase.value,
        "mailbox": {"depth": health.depth, "capacity": health.capacity, "longestWaitMs": round(health.waited * 1000)},
        "held": health.held,
        "oldestHeldMs": round(health.oldest * 1000),
        "handled": health.handled,
        "withdrawn": health.withdrawn,
        "overloaded": health.overloaded,
        "unanswered": health.unanswered,
        "crashes": health.crashes,
        "lastError": health.last_error,
    }


def _only(given: str | None) -> str | None:
    if given is None:
        return None
    if given.lower() not in view.FILTERS:
        raise _refused("#query/state", f"must be one of {', '.join(view.FILTERS)}")
    return given.lower()


def _limit(given: str | None) -> int:
    usual, most = LIMITS
    if given is None:
        return usual
    if not re.fullmatch(r"[0-9]{1,6}", given) or not 1 <= int(given) <= most:
        raise _refused("#query/limit", f"must be 1 to {most}")
    return int(given)


def _decision(content: bytes | str, media_type: str) -> tuple[str, str | None]:
    """Return the reason and the transaction of a decision; raises `InvalidRequest` with every violation."""
    if media_type != "application/json":
        raise errors.UnsupportedMediaType("send the body as application/json")
    body = strict_json.parse(content.encode() if isinstance(content, str) else content)
    if not isinstance(body, dict):
        raise _refused("", "the body must be an object")
    found = [Violation(f"/{name}", "is not a member of this request") for name in body if name not in {"why", "paidBy"}]
    why, paid_by = body.get("why"), body.get("paidBy")
    if not isinstance(why, str) or not why.strip() or len(why) > REASON_LENGTH or "\0" in why:
        found.append(Violation("/why", f"must be the reason, 1 to {REASON_LENGTH} characters"))
    if paid_by is not None and not (isinstance(paid_by, str) and TRANSACTION.match(paid_by)):
        found.append(Violation("/paidBy", "must be a transaction hash, 0x and 64 hex digits"))
    if found:
        raise errors.InvalidRequest(f"{found[0].pointer} {found[0].detail}", errors=found)
    return str(why).strip(), paid_by.lower() if isinstance(paid_by, str) else None


def _refused(pointer: str, detail: str) -> errors.InvalidRequest:
    return errors.InvalidRequest(f"{pointer} {detail}".strip(), errors=[Violation(pointer, detail)])


def _json(document: dict[str, Any]) -> Response:
    return Response(orjson.dumps(document), status=200, headers={"Content-Type": "application/json", **LIVE})
