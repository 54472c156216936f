"""How the catalog is shown in `GET /v1/models`: what each row says, and what is proved of it now.

Times are RFC 3339 UTC with milliseconds, money is a decimal string in USD, unknown is null.  Source: spec/readings
"catalog gateway object of a model", interface.md 2.4.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import attrs

from gateway.registry.ai.catalog import Catalog, Model, Rates
from gateway.registry.ai.choice import Standing
from gateway.registry.ai.pricing import LEAST, MOST
from gateway.registry.payment.asset import usd
from gateway.registry.payment.terms import Terms
from gateway.registry.qualification import State
from gateway.registry.search.page import rfc3339

INTERFACE_VERSION = "2026-07-29.1"
CAPABILITIES = ("text", "json", "reasoning", "code", "transcription")
"""In the order in which they are listed."""
PROTOCOLS = ("x402", "mpp")
EXECUTE = "ai.execute"
NOT_OFFERED = "not_offered"
"""Why an id without an operation is closed, whatever routes there are."""
PAYMENT_NOT_CONFIGURED = "payment_not_configured"
MINUTE_S = 60


@attrs.frozen
class Selling:
    """What is the same for all models at a moment.

    Attributes:
        base_url: public origin of the node, without a slash at the end.
        terms: how it is paid; None where payments are not configured.
        settlement: the machine word for why nothing can be claimed or settled now; None while it can.
        free_per_minute: free AI calls a minute and caller.
        margin_percent: of the catalog's rates, what `ai.execute` is sold at.
    """

    base_url: str
    terms: Terms | None
    settlement: str | None
    free_per_minute: int
    margin_percent: int = 100

    @property
    def closed(self) -> str | None:
        """The machine word for why nothing can be sold now; None while paid calls are."""
        return PAYMENT_NOT_CONFIGURED if self.terms is None else self.settlement


def model_list(catalog: Catalog, standings: Sequence[Standing], selling: Selling) -> dict[str, Any]:
    """Return the whole list, in the order of `standings`."""
    data = [model_object(catalog, each, selling) for each in standings]
    return {"object": "list", "data": data, "gateway": _commercial(catalog, data, selling)}


def model_object(catalog: Catalog, standing: Standing, selling: Selling) -> dict[str, Any]:
    """Return one item of the list: OpenAI's members, and what this node says of the model in `gateway`."""
    model = standing.model
    if not model.operations:
        standing = Standing(model, State.UNAVAILABLE, NOT_OFFERED, None, None, None)
    return {
        "id": model.id,
        "object": "model",
        "created": catalog.created,
        "owned_by": model.owned_by,
        "gateway": _described(model) | _proved(standing) | _sold(standing, selling),
    }


def _described(model: Model) -> dict[str, Any]:
    """Return what the row says by itself."""
    return {
        "identityKind": model.kind,
        "name": model.name,
        "capabilities": [each for each in CAPABILITIES if each in model.capabilities],
        "inputModalities": list(model.input_modalities),
        "outputModalities": list(model.output_modalities),
        "contextWindow": model.context_window,
        "limits": {"maxInputCharacters": model.max_input_characters, "maxOutputTokens": model.max_output_tokens},
        "lifecycle": model.lifecycle,
    }


def _proved(standing: Standing) -> dict[str, Any]:
    """Return what the evidence says of the route that a call would take now."""
    state, evidence = standing.state, standing.evidence
    at = None if evidence is None else evidence.last_probe_at
    until = None if evidence is None else evidence.valid_until
    told: dict[str, Any] = {
        "availability": state.value,
        "availabilityReason": standing.reason,
        "health": {
            "state": state.value,
            "lastProbeAt": None if at is None else rfc3339(at),
            "validUntil": None if until is None else rfc3339(until),
            "p50Ms": None if evidence is None else evidence.p50_ms,
            "errorRate": None if evidence is None else evidence.error_rate,
        },
    }
    if standing.model.kind == "alias":
        told["aliasFor"] = standing.target
    if standing.route is not None and standing.route.simulated:
        told["simulated"] = True
    return told


def _sold(standing: Standing, selling: Selling) -> dict[str, Any]:
    """Return what a call of it costs, and whether one can be made now."""
    model = standing.model
    paid = model.billing == "paid"
    closed = None if standing.open else standing.reason or standing.state.value
    if closed is None and paid:
        closed = selling.closed
    return {
        "billing": model.billing,
        "pricing": _pricing(model, selling),
        "commerce": {
            "callable": closed is None,
            "purchasable": paid and closed is None,
            "reason": closed,
            "operations": list(model.operations),
            "protocols": list(PROTOCOLS) if paid and selling.terms is not None else [],
            "replaySafe": bool(model.operations),
        },
    }


def _pricing(model: Model, selling: Selling) -> dict[str, Any] | None:
    if model.price is None:
        return None
    told: dict[str, Any] = {"usd": usd(model.price, 6), "unit": "request"}
    if model.rates is not None and EXECUTE in model.operations:
        told["aiExecute"] = _rates(model.rates, selling.margin_percent)
    return told


def _rates(rates: Rates, margin_percent: int) -> dict[str, Any]:
    """Return all that the price of an `ai.execute` call is made from, the margin included."""
    told: dict[str, Any] = {
        "inputUsdPerMillionTokens": _rate(rates.input, margin_percent),
        "outputUsdPerMillionTokens": _rate(rates.output, margin_percent),
        "minimumUsd": usd(LEAST, 6),
        "maximumUsd": usd(MOST, 6),
        "longContext": None,
    }
    if rates.long_over is not None:
        told["longContext"] = {
            "overInputTokens": rates.long_over,
            "inputUsdPerMillionTokens": _rate(rates.input, margin_percent, rates.long_input_percent),
            "outputUsdPerMillionTokens": _rate(rates.output, margin_percent, rates.long_output_percent),
        }
    return told


def _rate(micro_usd: int, *percents: int) -> str:
    """Return a rate after its percentages, exactly: `6`, `0.05`."""
    rate = Decimal(micro_usd).scaleb(-6)
    for percent in percents:
        rate *= Decimal(percent).scaleb(-2)
    return f"{rate.normalize():f}"


def _commercial(catalog: Catalog, data: Sequence[dict[str, Any]], selling: Selling) -> dict[str, Any]:
    """Return the commercial metadata of the whole catalog."""
    said = [each["gateway"] for each in data]
    terms, base_url = selling.terms, selling.base_url
    payment: dict[str, Any] = {"open": selling.closed is None, "reason": selling.closed, "protocols": []}
    if terms is not None:
        payment |= {
            "protocols": list(PROTOCOLS),
            "network": terms.asset.network,
            "asset": terms.asset.address,
            "decimals": terms.asset.decimals,
            "payTo": terms.pay_to,
            "quoteTtlSeconds": terms.quote_ttl_s,
        }
    return {
        "catalogVersion": catalog.version,
        "interfaceVersion": INTERFACE_VERSION,
        "counts": {
            "canonical": sum(each["identityKind"] == "canonical" for each in said),
            "aliases": sum(each["identityKind"] == "alias" for each in said),
            "free": sum(each["billing"] == "free" for each in said),
            "paid": sum(each["billing"] == "paid" for each in said),
            "callable": sum(each["commerce"]["callable"] for each in said),
            "purchasable": sum(each["commerce"]["purchasable"] for each in said),
        },
        "currency": "USD",
        "payment": payment,
        "quotas": {"freeAi": {"limit": selling.free_per_minute, "windowSeconds": MINUTE_S, "per": "caller"}},
        "links": {
            "self": f"{base_url}/v1/models",
            "model": f"{base_url}/v1/models/{{urlEncodedModelId}}",
            "aiExecute": f"{base_url}/v1/ai/execute",
            "chatCompletions": f"{base_url}/v1/chat/completions",
            "problems": f"{base_url}/problems",
        },
    }
