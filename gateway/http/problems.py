"""Problem details (RFC 9457): how a `GatewayError` looks on the wire, and what stands at every problem `type`."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

import orjson
from werkzeug.datastructures import MIMEAccept
from werkzeug.http import parse_accept_header

from gateway.actors.store import SILENCES, UNAVAILABLE
from gateway.errors import PROBLEMS, GatewayError, NotFound, StoreUnavailable
from gateway.http.advice import BY_REASON, Advice, advice

MEDIA_TYPE = "application/problem+json"
SHOULD_RETRY = "x-should-retry"
"""What stops the clients that OpenAI and others generate from sending a request again by themselves."""

Answer = tuple[int, dict[str, str], bytes]
"""Status, headers and body of one response."""


def document(error: GatewayError, told: Advice, *, base_url: str, instance: str) -> dict[str, Any]:
    """Return the problem document: RFC 9457 members, then ours, then the error's own extension members.

    `told` is what the client is told to do, `instance` the path of the request.  An extension member never replaces a
    standard one.
    """
    members: dict[str, Any] = {
        "type": _type(error.code, base_url),
        "title": error.title,
        "status": error.status,
        "detail": error.detail,
        "instance": instance,
        "code": error.code,
        "retryable": told.retryable,
    }
    if error.operation_id is not None:
        members["operationId"] = error.operation_id
    if error.errors:
        members["errors"] = [{"pointer": item.pointer, "detail": item.detail} for item in error.errors]
    if told.next is not None:
        members["next"] = told.next
    extra = error.extra
    if isinstance(error, StoreUnavailable) and extra.get("reason") in SILENCES:
        extra = extra | {"reason": UNAVAILABLE}
    return members | {name: value for name, value in extra.items() if name not in members}


def render(error: GatewayError, *, base_url: str, instance: str) -> Answer:
    """Render the response of a failure, never stored by caches; body and headers say the same of trying again.

    Raises:
        TypeError: an extension member is no JSON value.
    """
    told = advice(error)
    headers = {"Content-Type": MEDIA_TYPE, "Cache-Control": "no-store"} | error.headers
    if told.retry_after is not None:
        headers["Retry-After"] = str(told.retry_after)
    if not told.unattended:
        headers[SHOULD_RETRY] = "false"
    return error.status, headers, orjson.dumps(document(error, told, base_url=base_url, instance=instance))


def describe(code: str, *, base_url: str) -> dict[str, Any]:
    """Return what is known of a kind of problem, for whoever follows the `type` of one.

    Raises:
        NotFound: no problem has this code.
    """
    kind = PROBLEMS.get(code)
    if kind is None:
        raise NotFound("No problem type has this name.")
    described: dict[str, Any] = {
        "type": _type(code, base_url),
        "code": code,
        "status": kind.status,
        "title": kind.title,
        "description": " ".join((kind.__doc__ or kind.title).split()),
        "retryable": kind.retryable,
    }
    if issubclass(kind, BY_REASON):
        described["retryableDependsOn"] = "reason"
    return described if kind.next is None else described | {"next": kind.next}


def describe_as(accept: str, code: str, *, base_url: str) -> Answer:
    """Render `describe(code)` as JSON, or as a page where the `Accept` header prefers one.

    Raises:
        NotFound: no problem has this code.
    """
    described = describe(code, base_url=base_url)
    wanted = parse_accept_header(accept or "*/*", MIMEAccept)
    headers = {"Cache-Control": "public, max-age=3600", "Vary": "Accept"}
    if wanted["text/html"] > wanted["application/json"]:
        policy = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
        headers |= {"Content-Type": "text/html; charset=utf-8", "Content-Security-Policy": policy}
        return 200, headers, _page(described).encode()
    return 200, headers | {"Content-Type": "application/json"}, orjson.dumps(described)


def _type(code: str, base_url: str) -> str:
    return f"{base_url}/problems/{code}"


def _worth(described: Mapping[str, Any]) -> str:
    if "retryableDependsOn" in described:
        return "yes, unless its reason is one that only the operator of the node or another request can lift"
    return "yes" if described["retryable"] else "no"


def _page(described: Mapping[str, Any]) -> str:
    rows = [
        ("Code", described["code"]),
        ("HTTP status", described["status"]),
        ("What it means", described["description"]),
        ("Worth retrying", _worth(described)),
        ("What to do", described.get("next", "Read `detail` of the problem.")),
    ]
    listed = "".join(f"<dt>{escape(name)}</dt><dd>{escape(str(value))}</dd>" for name, value in rows)
    title = escape(described["title"])
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
        '<meta name="viewport" content="width=device-width">'
        "<style>body{font:1rem/1.5 system-ui,sans-serif;max-width:40rem;margin:2rem auto;padding:0 1rem}"
        "dt{font-weight:600}dd{margin:0 0 .75rem}</style>"
        f"<main><h1>{title}</h1><dl>{listed}</dl></main></html>\n"
    )
