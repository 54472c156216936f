"""What OpenAI's own clients read of an answer: the completion at the top of the body, `error` in a problem.

Where openai-python and openai-node find no `error` member they show the status alone, and they send a request again
on every 408, 409, 429 and 5xx, without an idempotency key, unless `x-should-retry` forbids it (`gateway.http.advice`).
"""

from __future__ import annotations

import copy
from typing import Any

import orjson

from gateway.actors.operations import Ended
from gateway.errors import GatewayError, InvalidRequest
from gateway.http.advice import advice

TOLD = 3
"""Violations that `error.message` tells; all of them stand in `errors`."""

OPENAI_PATHS = ("/v1/chat/completions", "/v1/models")
OPENAI_FOLDERS = ("/v1/models/", "/v1/audio/")


def speaks_openai(path: str) -> bool:
    """Return True for a path, as it was sent, that OpenAI's clients ask; also where it could not be read (empty)."""
    return not path or path in OPENAI_PATHS or path.startswith(OPENAI_FOLDERS)


def completion_body(ended: Ended) -> bytes:
    """Return the stored completion as OpenAI's clients read it, with what the node says of it in `gateway`."""
    completion = dict(ended.output)
    route = completion.pop("route")
    completion["gateway"] = {
        "operationId": ended.operation_id,
        "requestHash": ended.request_hash,
        "receipt": ended.receipt,
        "route": route,
        "replayed": ended.replayed,
        "execution": ended.execution,
    }
    return orjson.dumps(completion, default=dict)


def dressed(failure: GatewayError) -> GatewayError:
    """Return a copy of a failure that these clients can read."""
    told = copy.copy(failure)
    told.extra = dict(failure.extra)
    told.extra["error"] = {
        "message": _message(failure),
        "type": _type(failure),
        "code": failure.code,
        "param": _param(failure),
    }
    return told


def member(pointer: str) -> str | None:
    """Return an RFC 6901 pointer as OpenAI names a parameter, `messages[0].content`; None for the whole body."""
    name = ""
    for token in pointer.split("/")[1:]:
        step = token.replace("~1", "/").replace("~0", "~")
        name += f"[{step}]" if name and step.isdecimal() else f".{step}" if name else step
    return name or None


def _message(failure: GatewayError) -> str:
    """Return all that a person sees of the failure, for these clients print nothing else."""
    if failure.errors and failure.code == InvalidRequest.code:
        told = [_fault(member(each.pointer), each.detail) for each in failure.errors[:TOLD]]
        left = len(failure.errors) - TOLD
        faults = "; ".join(told) + (f"; and {left} more" if left > 0 else "")
        return faults if failure.detail == failure.errors[0].detail else f"{failure.detail} {faults}"
    price = failure.extra.get("price")
    if failure.status == 402 and price:
        return f"{failure.detail}: {price['usd']} USD. {failure.next}"
    return failure.detail


def _fault(param: str | None, detail: str) -> str:
    return detail if param is None else f"{param}: {detail}"


def _param(failure: GatewayError) -> str | None:
    named: Any = failure.extra.get("param")
    if named is not None:
        return str(named)
    return next((param for each in failure.errors if (param := member(each.pointer)) is not None), None)


def _type(failure: GatewayError) -> str:
    if failure.status == 402:
        return "payment_required"
    if failure.status == 429:
        return "rate_limit_error" if advice(failure).unattended else "insufficient_quota"
    return "server_error" if failure.status >= 500 else "invalid_request_error"
