"""`gateway operations`: what became of every call, and the decisions that only an operator may take."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gateway.commands import printing
from gateway.commands.exits import CHECK_FAILED, USAGE, Stop, exit_codes
from gateway.commands.options import CONFIG, JSON, WIDE

if TYPE_CHECKING:
    from gateway.config import PaymentSection

MOST = 1000
TRANSACTION = re.compile(r"0x[0-9a-fA-F]{64}\Z")
UNITS = {"USD Coin": "USDC"}
"""Symbols of tokens by the name in their EIP-712 domain, where they differ."""
HEADINGS = {
    "operation": "operationId",
    "of": "operation",
    "state": "state",
    "settlement": "settlement",
    "amount": "amountAtomic",
    "claimed": "claimedAt",
    "transaction": "transactionHash",
    "why": "failureCode",
}

LEAST = ("transaction", "claimed", "of")
"""The columns that a narrow terminal goes without, the first of them first."""


@click.group()
def operations() -> None:
    """List, show and decide operations."""


@operations.command("list")
@CONFIG
@click.option("--state", metavar="STATE", help="Only these: a state, or open, settling, stuck.")
@click.option("--limit", type=click.IntRange(1, MOST), default=50, show_default=True, help="At most so many.")
@WIDE
@JSON
def list_operations(config_path: Path | None, *, state: str | None, limit: int, wide: bool, as_json: bool) -> None:
    """List operations: those that wait for a decision, then those not settled, oldest first, then the newest."""
    with exit_codes():
        from gateway.config import load
        from gateway.http.operator_view import FILTERS, listed, listing
        from gateway.reading import open_store

        only = state.lower() if state else None
        if only is not None and only not in FILTERS:
            raise Stop(USAGE, f"no state is named {state!r}; there are {', '.join(FILTERS)}")
        configuration = load(config_path)
        with open_store(configuration) as store:
            found = listed(store.read(listing(only, limit)), limit)
        payment = configuration.payment
    if as_json:
        printing.document({"operations": found})
    elif found:
        rows = [[_cell(each, name, payment) for name in HEADINGS.values()] for each in found]
        printing.table(tuple(HEADINGS), rows, wide=wide, least=LEAST)
    else:
        click.echo("no operations")


@operations.command()
@click.argument("operation_id", metavar="ID")
@CONFIG
@JSON
def show(operation_id: str, config_path: Path | None, *, as_json: bool) -> None:
    """Show an operation with its history, its ledger entries and its receipt."""
    with exit_codes():
        from gateway.config import load
        from gateway.http.operator_view import detailed, details
        from gateway.reading import open_store

        with open_store(load(config_path)) as store:
            shown = detailed(store.read(details(operation_id)))
        if shown is None:
            raise Stop(CHECK_FAILED, f"no operation is named {operation_id}")
    if as_json:
        printing.document(shown)
    else:
        _print(shown)


@operations.command()
@click.argument("operation_id", metavar="ID")
@click.option("--why", required=True, help="The reason, kept in the operation's history.")
@click.option("--paid-by", metavar="TX", help="Hash of the transaction that paid it, where one did.")
@CONFIG
@JSON
def resolve(operation_id: str, config_path: Path | None, *, why: str, paid_by: str | None, as_json: bool) -> None:
    """Record your decision on an operation that waits for one; the running node takes it."""
    with exit_codes():
        from gateway.commands.operator_calling import ask_operator
        from gateway.config import load

        if paid_by is not None and not TRANSACTION.match(paid_by):
            raise Stop(USAGE, "--paid-by takes a transaction hash, 0x and 64 hex digits")
        decision = {"why": why} | ({"paidBy": paid_by} if paid_by else {})
        path = f"/operations/{operation_id}/resolve"
        answer = ask_operator(load(config_path), "POST", path, decision, why="decisions are taken by the running node")
    if as_json:
        printing.document(answer)
    else:
        click.echo(f"{answer['operationId']} is {answer['state']}")


def _cell(shown: Mapping[str, Any], name: str, payment: PaymentSection) -> object:
    """Return a member of an operation as the table shows it: an amount with its unit."""
    if name != "amountAtomic":
        return shown[name]
    if shown["funding"] == "free":
        return None
    from gateway.registry.payment.asset import usd

    return f"{usd(int(shown[name]), payment.decimals)} {UNITS.get(payment.asset_name, payment.asset_name)}"


def _print(shown: Mapping[str, Any]) -> None:
    apart = ("transitions", "ledger", "receipt")
    printing.members({name: value for name, value in shown.items() if name not in apart and value is not None})
    click.echo()
    printing.table(
        ("state", "at", "note"), [[each["state"], each["at"], each["note"]] for each in shown["transitions"]]
    )
    if shown["ledger"]:
        click.echo()
        names = ("step", "account", "amountAtomic", "at", "block")
        printing.table(names, [[each[name] for name in names] for each in shown["ledger"]])
    if shown["receipt"]:
        click.echo(f"\nreceipt {shown['receipt']['receiptId']} (--json prints it)")
