from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.registry.ledger import (
    GENESIS,
    HOLD,
    REVENUE,
    Audit,
    Block,
    Entry,
    Posting,
    audit,
    move,
    payer_account,
    seal_block,
)
from gateway.registry.receipts import BLOCK_TYPE, Signer

SIGNER = Signer.from_keys({1: b"1" * 32})
PAYER = payer_account("0xAB")
TOKEN = {"network": "eip155:8453", "asset": "0xToken"}


def moved(operation_id: str = "op_1", step: str = "executed.1", amount: int = 6000) -> tuple[Entry, Entry]:
    return move(operation_id=operation_id, step=step, debit=PAYER, credit=HOLD, amount=amount, at=1000, **TOKEN)


@attrs.define
class Books:
    """A ledger of three sealed blocks of one operation each and one operation that is not sealed yet."""

    postings: list[Posting]
    blocks: list[Block]
    signatures: list[str]

    @classmethod
    def kept(cls) -> Books:
        postings: list[Posting] = []
        blocks: list[Block] = []
        for height in (1, 2, 3):
            entries = sorted(moved(f"op_{height}"), key=lambda each: each.entry_id)
            block = seal_block(blocks[-1] if blocks else None, [each.entry_hash for each in entries], 2000 + height)
            postings += [Posting(each, each.entry_hash, height) for each in entries]
            blocks.append(block)
        postings += [Posting(each, each.entry_hash, None) for each in moved("op_4")]
        return cls(postings, blocks, [SIGNER.jws(block.head, BLOCK_TYPE) for block in blocks])

    def audit(self) -> Audit:
        return audit(self.postings, self.blocks, self.signatures, SIGNER.key_set)

    def alter(self, at: int, *, rehashed: bool = False, **changes: Any) -> None:
        posting = self.postings[at]
        entry = attrs.evolve(posting.entry, **changes)
        stored = entry.entry_hash if rehashed else posting.stored_hash
        self.postings[at] = Posting(entry, stored, posting.height)


def test_a_move_takes_from_one_account_what_it_gives_to_the_other() -> None:
    debit, credit = moved()
    assert (debit.account, debit.amount) == ("payer:0xab", -6000)
    assert (credit.account, credit.amount) == (HOLD, 6000)
    assert debit.asset == credit.asset == "0xtoken"


@pytest.mark.parametrize("amount", [0, -1])
def test_only_a_positive_amount_is_moved(amount: int) -> None:
    with pytest.raises(ValueError, match="positive"):
        moved(amount=amount)


def test_a_step_done_twice_has_the_same_entry_ids() -> None:
    assert [each.entry_id for each in moved()] == [each.entry_id for each in moved(amount=7000)]
    assert {each.entry_id for each in moved()}.isdisjoint(each.entry_id for each in moved(step="executed.2"))


@pytest.mark.parametrize("member", [field.name for field in attrs.fields(Entry)])
def test_an_entry_s_hash_covers_every_member(member: str) -> None:
    entry = moved()[1]
    change: dict[str, Any] = {member: 7 if isinstance(getattr(entry, member), int) else "other"}
    changed = attrs.evolve(entry, **change)
    assert changed.entry_hash != entry.entry_hash


def test_blocks_follow_each_other_from_the_genesis_hash() -> None:
    first = seal_block(None, ["sha256:a"], 1)
    second = seal_block(first, ["sha256:b", "sha256:c"], 2)
    assert (first.height, first.previous_hash, first.entries) == (1, GENESIS, 1)
    assert (second.height, second.previous_hash, second.entries) == (2, first.block_hash, 2)
    assert seal_block(first, ["sha256:c", "sha256:b"], 2).block_hash != second.block_hash


def test_books_that_were_kept_stand() -> None:
    assert Books.kept().audit() == Audit(8, 3, 2, {"payers": -24000, HOLD: 24000}, ())


def test_an_empty_ledger_stands() -> None:
    assert audit([], [], [], SIGNER.key_set) == Audit(0, 0, 0, {}, ())


def test_the_order_in_which_a_store_hands_out_entries_does_not_matter() -> None:
    books = Books.kept()
    books.postings.reverse()
    assert books.audit().faults == ()


def altered_amount(books: Books) -> None:
    books.alter(0, amount=-1)


def altered_amount_and_hash(books: Books) -> None:
    books.alter(2, rehashed=True, amount=-1)


def altered_account_and_hash(books: Books) -> None:
    books.alter(3, rehashed=True, account=REVENUE)


def entry_gone(books: Books) -> None:
    del books.postings[3]


def step_gone(books: Books) -> None:
    del books.postings[2:4]


def entry_moved_to_another_block(books: Books) -> None:
    books.postings[0] = attrs.evolve(books.postings[0], height=2)


def unsealed_entry_slipped_into_a_block(books: Books) -> None:
    books.postings[6] = attrs.evolve(books.postings[6], height=3)


def sealed_entry_taken_out_of_its_block(books: Books) -> None:
    books.postings[4] = attrs.evolve(books.postings[4], height=None)


def blocks_swapped(books: Books) -> None:
    books.blocks[0], books.blocks[1] = books.blocks[1], books.blocks[0]


def first_block_gone(books: Books) -> None:
    del books.blocks[0], books.signatures[0]


def last_block_gone(books: Books) -> None:
    del books.blocks[-1], books.signatures[-1]


def all_blocks_gone(books: Books) -> None:
    books.blocks.clear()
    books.signatures.clear()


def block_backdated(books: Books) -> None:
    books.blocks[1] = attrs.evolve(books.blocks[1], sealed_at=1)


def signature_missing(books: Books) -> None:
    books.signatures[1] = ""


def signature_of_another_block(books: Books) -> None:
    books.signatures[1] = books.signatures[0]


def chain_written_anew(books: Books) -> None:
    """Somebody with the store and without the key changes an amount and recomputes every hash after it."""
    books.alter(0, rehashed=True, amount=-1)
    books.alter(1, rehashed=True, amount=1)
    blocks: list[Block] = []
    for block in books.blocks:
        hashes = [each.stored_hash for each in books.postings if each.height == block.height]
        blocks.append(seal_block(blocks[-1] if blocks else None, hashes, block.sealed_at))
    books.blocks = blocks


@pytest.mark.parametrize(
    "tamper",
    [
        altered_amount,
        altered_amount_and_hash,
        altered_account_and_hash,
        entry_gone,
        step_gone,
        entry_moved_to_another_block,
        unsealed_entry_slipped_into_a_block,
        sealed_entry_taken_out_of_its_block,
        blocks_swapped,
        first_block_gone,
        last_block_gone,
        all_blocks_gone,
        block_backdated,
        signature_missing,
        signature_of_another_block,
        chain_written_anew,
    ],
    ids=lambda tamper: tamper.__name__,
)
def test_tampering_is_found(tamper: Callable[[Books], None]) -> None:
    books = Books.kept()
    tamper(books)
    assert books.audit().faults != ()


def test_only_the_signatures_tell_a_chain_that_was_written_anew() -> None:
    books = Books.kept()
    chain_written_anew(books)
    assert audit(books.postings, books.blocks).faults == ()
    assert all("signature" in fault for fault in books.audit().faults)


@settings(max_examples=100, derandomize=True, deadline=None)
@given(
    at=st.integers(0, 5),
    member=st.sampled_from(["operation_id", "step", "account", "network", "asset", "amount", "posted_at"]),
    rehashed=st.booleans(),
)
def test_no_member_of_a_sealed_entry_can_be_changed(at: int, member: str, rehashed: bool) -> None:
    books = Books.kept()
    books.alter(at, rehashed=rehashed, **{member: 7 if member in {"amount", "posted_at"} else "other"})
    assert books.audit().faults != ()
