"""The operator's pages of routes: what is proved of each now, what became of it lately, and a probe at once.

A qualification id that is on a receipt is looked up in the history: it names the time of its proof, and the spells of
that time say what else was seen of the route.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import attrs
import orjson
import trio
from quart import Response, request

from gateway import errors
from gateway.actors.probe_thinning import spell_of
from gateway.actors.prober import Message as ProberMessage
from gateway.actors.prober import ProbeNow
from gateway.actors.runtime import ActorError, Ref
from gateway.actors.store import Row, Store, Value
from gateway.errors import Violation
from gateway.http import strict_json
from gateway.http.server import GatewayApp
from gateway.registry.ai.adapter import ModelRoute
from gateway.registry.ai.catalog import CATALOG
from gateway.registry.qualification import Evidence, Proofs, State, proof_basis, proved_at
from gateway.registry.receipts import timestamp
from gateway.registry.spells import COARSE_MS, FINE_MS, Spell

RECENT_HOURS = 24
MOST_HOURS = 90 * 24
MOST_SPELLS = 5_000
PROBE_S = 60.0
"""How long a probe is waited for: it, a canary, and one that was under way."""

AROUND_MS = 1_000
"""How far a proof and the spell that it is noted in may seem apart."""

OPEN = frozenset({State.AVAILABLE.value, State.DEGRADED.value})
COUNTS = ("probes", "failedProbes", "calls", "failedCalls")
LIVE = {"Content-Type": "application/json", "Cache-Control": "no-store"}

_NAMES = ", ".join(field.name for field in attrs.fields(Spell))
RECENT = """
    SELECT route, state, reason, SUM(lasted_ms), MIN(began_at), MAX(ended_at), SUM(probes), SUM(failed_probes),
        SUM(calls), SUM(failed_calls)
    FROM probe_history WHERE width = :width AND began_at >= :after GROUP BY route, state, reason
"""
HISTORY = f"""
    SELECT {_NAMES} FROM probe_history WHERE route = :route AND began_at >= :after
    ORDER BY route DESC, began_at DESC, node DESC LIMIT :limit
"""  # noqa: S608 - the names of columns
AROUND = f"""
    SELECT {_NAMES} FROM probe_history WHERE width = :width AND began_at >= :after AND began_at <= :until
    ORDER BY width, began_at
"""  # noqa: S608 - the names of columns


@attrs.frozen(eq=False)
class Registry:
    """What the pages are made of; `models` says of which routes what they are routes to."""

    models: Sequence[ModelRoute]
    proofs: Proofs
    prober: Ref[ProberMessage] | None
    store: Store
    clock_ms: Callable[[], int]

    @property
    def routed(self) -> Mapping[str, ModelRoute]:
        """The routes to models, by their ids."""
        return {each.route_id: each for each in self.models}


def add_models(app: GatewayApp, registry: Registry) -> None:
    """Add the pages to the operator's application."""

    @app.get("/models")
    async def show_models() -> Response:
        told = [shown(each, registry.routed.get(route)) for route, each in registry.proofs.snapshot().items()]
        lately = await _lately(registry)
        for each in told:
            each["recent"] = None if lately is None else recent(lately.get(each["route"], ()))
        return _json({"routes": told, "totals": totals(told)})

    @app.get("/models/history")
    async def show_history() -> Response:
        name, route = request.args.get("qualificationId"), request.args.get("route")
        if name is not None:
            return _json(await _look_up(registry, name))
        if not route:
            raise _refused("#query/route", "is required: the id of a route, or a qualificationId in its place")
        return _json(await _history(registry, route, _hours(request.args.get("hours"))))

    @app.post("/registry/probe")
    async def probe() -> Response:
        wanted = _wanted(await request.get_data(as_text=False), request.mimetype)
        found = await _probe(registry, wanted)
        return _json({"routes": [shown(each, registry.routed.get(each.route_id)) for each in found]})


async def _lately(registry: Registry) -> Mapping[str, Sequence[Row]] | None:
    """Return the rows of `RECENT` by route; None while the store cannot be read."""
    after = registry.clock_ms() - RECENT_HOURS * COARSE_MS
    try:
        rows = await registry.store.fetch(RECENT, {"width": FINE_MS, "after": after})
    except errors.StoreUnavailable:
        return None
    by_route: dict[str, list[Row]] = {}
    for row in rows:
        by_route.setdefault(str(row[0]), []).append(row)
    return by_route


async def _history(registry: Registry, route: str, hours: int) -> dict[str, Any]:
    after = (registry.clock_ms() - hours * COARSE_MS) // COARSE_MS * COARSE_MS
    rows = await registry.store.fetch(HISTORY, {"route": route, "after": after, "limit": MOST_SPELLS})
    if not rows and route not in registry.proofs.snapshot():
        raise errors.NotFound(f"no route is named {route}, and there is no history of one")
    return {"route": route, "hours": hours, "spells": [_spell(spell_of(row)) for row in rows]}


async def _look_up(registry: Registry, name: str) -> dict[str, Any]:
    """Return what the proof of that name was of, when, and what was noted at that time."""
    moment = proved_at(name)
    if moment is None:
        raise _refused("#query/qualificationId", "must be q_ and 20 hex digits, as receipts have it")
    at = int(moment.timestamp() * 1000)
    bound: list[tuple[str, Mapping[str, Value]]] = [
        (AROUND, {"width": width, "after": at - width, "until": at + AROUND_MS}) for width in (FINE_MS, COARSE_MS)
    ]
    spells = [spell_of(row) for rows in await registry.store.fetch_many(bound) for row in rows]
    routes = dict.fromkeys([*registry.proofs.snapshot(), *(each.route for each in spells)])
    for route in routes:
        basis = proof_basis(name, route)
        if basis is not None:
            then = [each for each in spells if each.route == route and each.ended_at >= at - AROUND_MS]
            known = {"qualificationId": name, "provedAt": timestamp(at), "route": route, "basis": basis}
            return known | {"spells": [_spell(each) for each in then]}
    raise errors.NotFound(f"no proof of that name was made of any route known at {timestamp(at)}")


async def _probe(registry: Registry, wanted: str | None) -> Sequence[Evidence]:
    """Have a route, all routes to a model, or everything probed; return what is proved then."""
    if registry.prober is None:
        raise errors.OperationUnavailable("this node proves nothing")
    ids: list[str | None] = [None]
    if wanted is not None:
        routes = dict.fromkeys([*registry.proofs.snapshot(), *registry.routed])
        alias = CATALOG.get(wanted)
        meant = {wanted, *(alias.candidates if alias else ())}
        ids = [each for each in routes if wanted == each or _model(registry.routed.get(each)) in meant]
        if not ids:
            raise errors.NotFound(f"no route is named {wanted}, nor is one configured to a model of that name")
    found: dict[str, Evidence] = {}
    silent: list[ActorError] = []

    async def ask(ref: Ref[ProberMessage], route_id: str | None) -> None:
        try:
            found.update(await ref.ask(ProbeNow(route_id), within=PROBE_S))
        except ActorError as error:
            silent.append(error)

    async with trio.open_nursery() as nursery:
        for each in ids:
            nursery.start_soon(ask, registry.prober, each)
    if silent:
        why = f"the prober does not answer ({type(silent[0]).__name__})"
        raise errors.OperationUnavailable(why, retry_after=1) from silent[0]
    return [found[route_id] for route_id in sorted(found)]


# -- how it is shown ---------------------------------------------------------------------------------------------------


def shown(evidence: Evidence, model: ModelRoute | None = None) -> dict[str, Any]:
    """Return a route with its evidence; `model` where it is one to a model."""
    return {
        "route": evidence.route_id,
        "model": _model(model),
        "kind": model.adapter.kind if model else None,
        "upstreamModel": model.adapter.upstream_model if model else None,
        "billed": model.billed if model else None,
        "simulated": model.simulated if model else None,
        "availability": evidence.state.value,
        "reason": evidence.reason,
        "basis": evidence.basis,
        "qualificationId": evidence.qualification_id,
        "lastProbeAt": _moment(evidence.last_probe_at),
        "validUntil": _moment(evidence.valid_until),
        "p50Ms": evidence.p50_ms,
        "errorRate": evidence.error_rate,
    }


def totals(told: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return how many routes there are of each kind, and to how many models."""
    open_ = [each for each in told if each["availability"] in OPEN]
    return {
        "routes": len(told),
        "open": len(open_),
        "closed": len(told) - len(open_),
        "billed": sum(each["billed"] is True for each in told),
        "simulated": sum(each["simulated"] is True for each in told),
        "models": len({each["model"] for each in told} - {None}),
        "openModels": len({each["model"] for each in open_} - {None}),
        "reasons": dict(Counter(each["reason"] for each in told if each["reason"])),
    }


def recent(rows: Iterable[Row]) -> dict[str, Any]:
    """Return what rows of `RECENT` tell of a route: its share of time in use, and every state that it was in."""
    states: list[dict[str, Any]] = []
    for _, state, reason, *numbers in rows:
        lasted, began, ended, *counted = (int(each or 0) for each in numbers)
        told = {"availability": state, "reason": reason, "seconds": lasted // 1000}
        between = {"from": timestamp(began), "to": timestamp(ended)}
        states.append(told | between | dict(zip(COUNTS, counted, strict=True)))
    states.sort(key=lambda each: (each["from"], each["to"]))
    whole = sum(each["seconds"] for each in states)
    in_use = sum(each["seconds"] for each in states if each["availability"] in OPEN)
    return {
        "hours": RECENT_HOURS,
        "openShare": round(in_use / whole, 6) if whole else None,
        **{name: sum(each[name] for each in states) for name in COUNTS},
        "states": states,
    }


def _spell(spell: Spell) -> dict[str, Any]:
    return {
        "route": spell.route,
        "node": spell.node,
        "from": timestamp(spell.began_at),
        "to": timestamp(spell.ended_at),
        "seconds": round(spell.lasted_ms / 1000, 3),
        "availability": spell.state,
        "reason": spell.reason,
        "qualificationId": spell.qualification_id,
        "probes": spell.probes,
        "failedProbes": spell.failed_probes,
        "calls": spell.calls,
        "failedCalls": spell.failed_calls,
        "p50Ms": spell.p50_ms,
    }


def _model(route: ModelRoute | None) -> str | None:
    return route.model if route else None


def _moment(moment: datetime | None) -> str | None:
    return timestamp(int(moment.timestamp() * 1000)) if moment else None


# -- what is asked -----------------------------------------------------------------------------------------------------


def _hours(given: str | None) -> int:
    if given is None:
        return RECENT_HOURS
    if not re.fullmatch(r"[0-9]{1,6}", given) or not 1 <= int(given) <= MOST_HOURS:
        raise _refused("#query/hours", f"must be 1 to {MOST_HOURS}")
    return int(given)


def _wanted(content: bytes | str, media_type: str) -> str | None:
    """Return the id that a body names; None: everything.  Raises `InvalidRequest` with every violation."""
    if not content:
        return None
    if media_type != "application/json":
        raise errors.UnsupportedMediaType("send the body as application/json")
    body = strict_json.parse(content.encode() if isinstance(content, str) else content)
    if not isinstance(body, dict):
        raise _refused("", "the body must be an object")
    found = [Violation(f"/{name}", "is not a member of this request") for name in body if name != "id"]
    wanted = body.get("id")
    if wanted is not None and (not isinstance(wanted, str) or not wanted):
        found.append(Violation("/id", "must be the id of a route or of a model"))
    if found:
        raise errors.InvalidRequest(f"{found[0].pointer} {found[0].detail}", errors=found)
    return wanted


def _refused(pointer: str, detail: str) -> errors.InvalidRequest:
    return errors.InvalidRequest(f"{pointer} {detail}".strip(), errors=[Violation(pointer, detail)])


def _json(document: Mapping[str, Any]) -> Response:
    return Response(orjson.dumps(document), status=200, headers=LIVE)
