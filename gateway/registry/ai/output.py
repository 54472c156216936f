"""The `output` of an answered chat, in the node's own form and in OpenAI's, and the route it came over.

`model` is the id that was asked for (interface.md 2.2, spec/outputs.md): a canonical id is never answered by another,
and which one answered for an alias stands in the route.  Token counts are the upstream's own, or null.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import attrs

from gateway.registry.ai.adapter import Completion, ModelRoute, Usage
from gateway.registry.search.output import Asset

ROUTE_PREFIX = "ai/"
MICRO = 10**6


@attrs.frozen
class Answered:
    """A chat that a route answered.

    Attributes:
        operation_id: `op_` and the id proper.
        model: the id that was asked for.
        qualification: the proof that it was sold on.
        fallback: another route than the preferred one answered.
        lost: a billed call before it failed after it was sent, at a cost that nobody told.
    """

    operation_id: str
    model: str
    completion: Completion
    route: ModelRoute
    qualification: str
    at: datetime
    asset: Asset
    degraded: bool = False
    fallback: bool = False
    lost: bool = False


def executed(answered: Answered) -> dict[str, Any]:
    """Return the output of `ai.execute`."""
    completion = answered.completion
    return {
        "model": answered.model,
        "message": {"role": "assistant", "content": completion.content},
        "finishReason": completion.finish_reason,
        "usage": own_usage(completion.usage),
        "route": told_route(answered),
    }


def chat_completion(answered: Answered) -> dict[str, Any]:
    """Return the output of `chat.completions`: OpenAI's `chat.completion` object, and `route`."""
    completion = answered.completion
    return {
        "id": f"chatcmpl-{answered.operation_id.removeprefix('op_')}",
        "object": "chat.completion",
        "created": int(answered.at.timestamp()),
        "model": answered.model,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": completion.content, "refusal": None},
                "finish_reason": completion.finish_reason,
                "logprobs": None,
            }
        ],
        "usage": _openai_usage(completion.usage),
        "system_fingerprint": None,
        "route": told_route(answered),
    }


def own_usage(usage: Usage | None) -> dict[str, Any] | None:
    """Return the upstream's count of tokens in the node's own form, None where it told none."""
    if usage is None:
        return None
    return {
        "inputTokens": usage.input_tokens,
        "outputTokens": usage.output_tokens,
        "reasoningTokens": usage.reasoning_tokens,
    }


def _openai_usage(usage: Usage | None) -> dict[str, Any] | None:
    if usage is None:
        return None
    told: dict[str, Any] = {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
    }
    if usage.cached_tokens is not None:
        told["prompt_tokens_details"] = {"cached_tokens": usage.cached_tokens}
    if usage.reasoning_tokens is not None:
        told["completion_tokens_details"] = {"reasoning_tokens": usage.reasoning_tokens}
    return told


def told_route(answered: Answered) -> dict[str, Any]:
    """Return the route object.

    `model` stands in it where the id behind an alias answered, `simulated` only where a stand-in of the local world
    did.
    """
    route = answered.route
    told: dict[str, Any] = {
        "routeId": route.route_id,
        "qualificationId": answered.qualification,
        "servingAdapters": [route.route_id.removeprefix(ROUTE_PREFIX)],
        "degraded": answered.degraded,
        "fallback": answered.fallback,
        "cost": _cost(answered),
    }
    if route.model != answered.model:
        told["model"] = route.model
    if route.simulated:
        told["simulated"] = True
    return told


def _cost(answered: Answered) -> dict[str, Any]:
    """Return what the call costs the operator, as far as the upstream's rates and its own count of tokens tell."""
    asset = answered.asset
    atomic, basis = _spent(answered)
    return {
        "asset": asset.symbol,
        "amountAtomic": None if atomic is None else str(atomic),
        "usd": None if atomic is None else asset.usd(atomic),
        "basis": basis,
    }


def _spent(answered: Answered) -> tuple[int | None, str]:
    route, usage = answered.route, answered.completion.usage
    if answered.lost:
        return None, "unknown"
    if not route.billed:
        return 0, "no_charge_per_call"
    if route.rates is None or usage is None:
        return None, "unknown"
    input_rate, output_rate = route.rates  # micro-USD per million tokens
    spent = usage.input_tokens * input_rate + usage.output_tokens * output_rate
    return -(-spent * 10**answered.asset.decimals // (MICRO * MICRO)), "upstream_rates"
