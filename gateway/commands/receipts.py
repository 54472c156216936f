"""`gateway receipts verify`: what was bought, proved without the node and without a network."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from gateway.commands import printing
from gateway.commands.exits import CHECK_FAILED, USAGE, Stop, exit_codes, leave
from gateway.commands.options import JSON

BESIDE = "jwks.json"


@click.group()
def receipts() -> None:
    """Verify receipts offline."""


@receipts.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option(
    "--keys",
    "keys_path",
    type=click.Path(path_type=Path, dir_okay=False),
    help=f"The node's key set, saved from /.well-known/jwks.json; without it, {BESIDE} beside each FILE.",
)
@JSON
def verify(files: tuple[str, ...], keys_path: Path | None, *, as_json: bool) -> None:
    """Verify each FILE, a receipt or a whole answer that holds one (- reads standard input).

    Of a whole answer, the result is checked against the receipt as well.
    """
    with exit_codes():
        judged = [_judge(name, keys_path) for name in files]
        failed = [each for each in judged if each["fault"]]
        if as_json:
            printing.document({"ok": not failed, "receipts": judged})
        else:
            for each in judged:
                click.echo(f"{each['file']}: {_said(each)}")
        if failed:
            leave(CHECK_FAILED)


def _judge(name: str, keys_path: Path | None) -> dict[str, Any]:
    from gateway.registry.canonical import result_hash
    from gateway.registry.receipts import ReceiptInvalid, verify_receipt

    key_set = _key_set(keys_path or (Path() if name == "-" else Path(name).parent) / BESIDE)
    told: dict[str, Any] = {"file": name, "fault": None}
    try:
        document = json.loads(_content(name))
    except ValueError as error:
        return told | {"fault": f"not JSON: {error}"}
    answer = document if isinstance(document, dict) else {}
    receipt = answer.get("receipt") if "signature" not in answer else answer
    if not isinstance(receipt, dict):
        return told | {"fault": "neither a receipt nor an answer that holds one"}
    told |= {member: receipt.get(member) for member in ("receiptId", "operation", "charge", "settlement", "issuedAt")}
    try:
        verify_receipt(receipt, key_set)
        if receipt is not answer:
            bound = {member: answer.get(member) for member in ("operationId", "requestHash")}
            bound["resultHash"] = result_hash(answer.get("output") or {})
            for member, value in bound.items():
                if receipt.get(member) != value:
                    raise ReceiptInvalid(f"{member} of the receipt is {receipt.get(member)}, of the answer {value}")
    except ReceiptInvalid as error:
        told["fault"] = str(error)
    except ValueError as error:  # numbers or text that RFC 8785 has no form for
        told["fault"] = f"no result of a node: {error}"
    return told


def _content(name: str) -> str:
    try:
        with click.open_file(name, encoding="utf-8") as file:
            text: str = file.read()
            return text
    except OSError as error:
        raise Stop(USAGE, f"{name} cannot be read: {error.strerror}") from error


def _key_set(path: Path) -> Mapping[str, Any]:
    try:
        key_set = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise Stop(
            USAGE,
            f"{path} cannot be read: {error.strerror}; save the node's /.well-known/jwks.json and name it with --keys",
        ) from error
    except ValueError as error:
        raise Stop(USAGE, f"{path} is not JSON: {error}") from error
    if not isinstance(key_set, dict) or not isinstance(key_set.get("keys"), list):
        raise Stop(USAGE, f"{path} is no JWK set (RFC 7517): it has no `keys`")
    return key_set


def _said(judged: Mapping[str, Any]) -> str:
    if judged["fault"]:
        return f"FAILED: {judged['fault']}"
    charge = judged["charge"] or {}
    settlement = judged["settlement"] or {}
    paid = f"{charge.get('usd')} USD, transaction {settlement.get('transaction')}"
    free = str(charge.get("amountAtomic")) == "0"
    return f"holds: {judged['operation']}, {'free' if free else paid}, issued {judged['issuedAt']}"
