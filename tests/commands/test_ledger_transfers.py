from __future__ import annotations

import pytest

from gateway.actors.settlement import ChainUnavailable
from gateway.commands.ledger_transfers import RANGE_BLOCKS, WINDOW_BLOCKS, Payee, payments_without
from tests.actors.settlement.toy_chain import (
    ASSET,
    PAYEE,
    PAYER,
    PRICE,
    START,
    STRANGER,
    ToyChain,
    ToyEndPoint,
    nonce_of,
    said,
    through,
    transfer,
    used,
)

OURS, THEIRS = nonce_of(1), nonce_of(2)
TO_US = Payee(ASSET, PAYEE)


async def unknown(*end_points: ToyEndPoint, first: int = START, **known: int) -> list[tuple[str, str, int]]:
    found = await payments_without(through(*end_points).end_points(), TO_US, first, known)
    return [(each.transaction, each.nonce, each.amount) for each in found]


async def test_a_payment_that_no_operation_has_is_told() -> None:
    toy = ToyChain()
    sold = toy.include(used(OURS), transfer())
    lost = toy.include(used(THEIRS), transfer())
    found = await payments_without(through(ToyEndPoint(toy)).end_points(), TO_US, START, {sold: 1})
    (paid,) = found
    assert (paid.transaction, paid.authorizer, paid.amount) == (lost, PAYER.lower(), PRICE)
    assert paid.line() == (
        f"transaction {lost} in block {toy.head}: {PAYER.lower()} paid {PRICE} by authorization 0x{THEIRS.hex()},"
        " and no operation has it"
    )


async def test_of_two_payments_in_one_transaction_each_counts() -> None:
    toy = ToyChain()
    both = toy.include(used(OURS), transfer(), used(THEIRS), transfer())
    assert [nonce for _, nonce, _ in await unknown(ToyEndPoint(toy), **{both: 1})] == [
        "0x" + OURS.hex(),
        "0x" + THEIRS.hex(),
    ]
    assert await unknown(ToyEndPoint(toy), **{both: 2}) == []


async def test_gifts_and_payments_to_others_are_no_business_of_the_books() -> None:
    toy = ToyChain()
    toy.include(transfer())
    toy.include(used(OURS), transfer(to=STRANGER))
    toy.include(used(OURS, authorizer=STRANGER), transfer(sender=STRANGER, to=STRANGER), transfer())
    toy.include(used(OURS), transfer(), succeeded=False)
    assert await unknown(ToyEndPoint(toy)) == []


async def test_what_was_before_the_first_sale_or_the_window_is_not_looked_for() -> None:
    toy = ToyChain()
    toy.include(used(OURS), transfer())
    assert await unknown(ToyEndPoint(toy), first=toy.head + 1) == []
    toy.mine(WINDOW_BLOCKS + 1)
    assert await unknown(ToyEndPoint(toy)) == []


async def test_ranges_are_made_shorter_for_an_end_point_that_refuses_long_ones() -> None:
    toy = ToyChain()
    lost = toy.include(used(OURS), transfer())
    toy.mine(2 * RANGE_BLOCKS)
    assert [name for name, _, _ in await unknown(ToyEndPoint(toy, range_limit=300))] == [lost]


async def test_another_end_point_is_asked_where_one_cannot_tell() -> None:
    toy = ToyChain()
    lost = toy.include(used(OURS), transfer())
    broken = ToyEndPoint(toy, http=said(200, b"<html>"))
    assert [name for name, _, _ in await unknown(broken, ToyEndPoint(toy))] == [lost]
    with pytest.raises(ChainUnavailable):
        await unknown(broken)
