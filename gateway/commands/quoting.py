"""`gateway quote`: what a call would cost, without paying for it."""

from __future__ import annotations

import json
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gateway.commands import printing
from gateway.commands.exits import CHECK_FAILED, USAGE, Stop, exit_codes
from gateway.commands.options import CONFIG, JSON

if TYPE_CHECKING:
    from gateway.http.validation import Valid
    from gateway.registry.operation import Operation


@click.command()
@click.argument("operation")
@click.argument("body", type=click.File("rb"), metavar="BODY.json")
@CONFIG
@click.option("--node", metavar="URL", help="Address of the node; without it, where the configuration listens.")
@JSON
def quote(operation: str, body: Any, config_path: Path | None, *, node: str | None, as_json: bool) -> None:
    """Ask the running node what OPERATION would cost for the body in BODY.json (- reads standard input).

    Nothing is paid and nothing is executed.
    """
    with exit_codes():
        from gateway.registry.table import OPERATIONS

        entry = OPERATIONS.get(operation)
        if entry is None:
            raise Stop(USAGE, f"no operation is named {operation!r}; there are {', '.join(OPERATIONS)}")
        request = _body(body.read(), getattr(body, "name", "standard input"))
        valid = _valid(entry, request)
        sold = entry.paid if valid is None else entry.sells(valid.request)
        told = _priced(entry, request, _address(node, config_path)) if sold or valid is None else _free(entry, valid)
        if as_json:
            printing.document(told)
        else:
            printing.members({name: value for name, value in told.items() if value is not None})


def _body(content: bytes, name: str) -> Any:
    from gateway.errors import InvalidJson
    from gateway.http import strict_json

    try:
        return strict_json.parse(content)
    except InvalidJson as error:
        raise Stop(USAGE, f"{name}: {error.detail}") from error


def _address(node: str | None, config_path: Path | None) -> str:
    from gateway.addresses import reachable
    from gateway.config import load

    return node.rstrip("/") if node else f"http://{reachable(load(config_path).node.listen[0])}"


def _valid(entry: Operation, request: Any) -> Valid | None:
    """Return a valid request; None for an empty one, which a paid operation is quoted an example for.

    What only the node can judge of a request that is to be paid for (its margin, its limits) is left to the node.
    """
    from gateway.errors import GatewayError, OperationNotCallable
    from gateway.http.validation import BodyValidator

    if entry.paid and request == {}:
        return None
    try:
        if not entry.callable:
            raise OperationNotCallable
        valid = BodyValidator.of(entry).validate(request)
        problem = None if entry.sells(valid.request) else entry.check(valid.request)
        if problem is not None:
            raise problem
    except GatewayError as refused:
        lines = [f"{refused.code}: {refused.detail}", *(f"  {each.pointer}: {each.detail}" for each in refused.errors)]
        raise Stop(CHECK_FAILED, "\n".join(lines)) from refused
    return valid


def _free(entry: Operation, valid: Valid) -> dict[str, Any]:
    """Return what a free call costs: nothing is asked of the node, for it would answer the call."""
    return {
        "operation": entry.id,
        "funding": "free",
        "amountAtomic": "0",
        "usd": "0",
        "quota": entry.quota,
        "requestHash": valid.request_hash,
        "expiresAt": None,
    }


def _priced(entry: Operation, request: Any, node: str) -> dict[str, Any]:
    from gateway.commands.calling import ask, problem_of

    key = f"quote-{secrets.token_hex(16)}"
    answer = ask("POST", f"{node}{entry.path}", headers={"Idempotency-Key": key}, json=request)
    if answer.status_code != 402:
        raise Stop(CHECK_FAILED, problem_of(answer))
    try:
        challenge = answer.json()
        price, bound = challenge["price"], challenge["quote"]
        return {
            "operation": entry.id,
            "funding": "paid",
            "amountAtomic": price["amountAtomic"],
            "usd": price["usd"],
            "asset": price["asset"],
            "network": price["network"],
            "payTo": price["payTo"],
            "quoteId": bound["quoteId"],
            "requestHash": bound["requestHash"],
            "expiresAt": bound["expiresAt"],
            "example": bound.get("example", False) or None,
        }
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise Stop(CHECK_FAILED, f"{node} answered 402 without a quote of this release ({error!r})") from error
