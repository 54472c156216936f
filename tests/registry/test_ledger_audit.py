from __future__ import annotations

import random
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import pytest

from gateway.registry.ledger import HOLD, REVENUE, Audit, Block, Entry, Posting, audit, move, seal_block
from gateway.registry.ledger_audit import audit_in_order
from gateway.registry.receipts import BLOCK_TYPE, Signer

SIGNER = Signer.from_keys({1: b"1" * 32})
TOKEN = {"network": "eip155:8453", "asset": "0xToken"}
SEEDS = range(60)


@attrs.define
class Books:
    """A ledger of random operations, sealed in blocks of random size that cut steps in two."""

    postings: list[Posting]
    blocks: list[Block]
    signatures: list[str]

    @classmethod
    def kept(cls, rng: random.Random) -> Books:
        entries: list[Entry] = []
        for number in range(rng.randrange(1, 30)):
            one = {"operation_id": f"op_{number:03d}", "amount": rng.randrange(1, 10_000), "at": 1000 + number}
            payer = f"payer:0x{rng.randrange(4)}"
            entries += move(**one, step="executed.1", debit=payer, credit=HOLD, **TOKEN)  # type: ignore[arg-type]
            if rng.random() < 0.7:
                entries += move(**one, step="receipted", debit=HOLD, credit=REVENUE, **TOKEN)  # type: ignore[arg-type]
        rng.shuffle(entries)
        books = cls([], [], [])
        while entries and rng.random() < 0.9:
            size = rng.randrange(1, 12)
            books.seal(sorted(entries[:size], key=lambda each: each.entry_id))
            entries = entries[size:]
        books.postings += [Posting(each, each.entry_hash, None) for each in entries]
        return books

    def seal(self, entries: list[Entry]) -> None:
        previous = self.blocks[-1] if self.blocks else None
        block = seal_block(previous, [each.entry_hash for each in entries], 2000 + len(self.blocks))
        self.blocks.append(block)
        self.signatures.append(SIGNER.jws(block.head, BLOCK_TYPE))
        self.postings += [Posting(each, each.entry_hash, block.height) for each in entries]

    def streamed(self, key_set: Any = SIGNER.key_set) -> Audit:
        sealed = [each for each in self.postings if each.height is not None]
        sealed.sort(key=lambda each: (each.height or 0, each.entry.entry_id))
        unsealed = (each for each in self.postings if each.height is None)
        return audit_in_order(iter(sealed), unsealed, zip(self.blocks, self.signatures, strict=True), key_set)

    def whole(self, key_set: Any = SIGNER.key_set) -> Audit:
        return audit(self.postings, self.blocks, self.signatures, key_set)

    def alter(self, rng: random.Random, **changes: Any) -> None:
        at = rng.randrange(len(self.postings))
        self.postings[at] = attrs.evolve(self.postings[at], **changes)


def same(one: Audit, other: Audit) -> bool:
    return attrs.evolve(one, faults=tuple(sorted(one.faults))) == attrs.evolve(
        other, faults=tuple(sorted(other.faults))
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_books_that_were_kept_stand_in_a_stream_too(seed: int) -> None:
    books = Books.kept(random.Random(seed))
    assert books.streamed().faults == ()
    assert same(books.streamed(), books.whole())


def altered_amount(books: Books, rng: random.Random) -> None:
    at = rng.randrange(len(books.postings))
    posting = books.postings[at]
    books.postings[at] = attrs.evolve(posting, entry=attrs.evolve(posting.entry, amount=posting.entry.amount + 1))


def altered_amount_and_hash(books: Books, rng: random.Random) -> None:
    at = rng.randrange(len(books.postings))
    entry = attrs.evolve(books.postings[at].entry, amount=0)
    books.postings[at] = Posting(entry, entry.entry_hash, books.postings[at].height)


def altered_hash(books: Books, rng: random.Random) -> None:
    books.alter(rng, stored_hash="sha256:x")


def another_block(books: Books, rng: random.Random) -> None:
    books.alter(rng, height=rng.randrange(-1, len(books.blocks) + 3))


def unsealed_again(books: Books, rng: random.Random) -> None:
    books.alter(rng, height=None)


def a_lost_entry(books: Books, rng: random.Random) -> None:
    del books.postings[rng.randrange(len(books.postings))]


def a_lost_block(books: Books, rng: random.Random) -> None:
    if books.blocks:
        at = rng.randrange(len(books.blocks))
        del books.blocks[at]
        del books.signatures[at]


def an_altered_block(books: Books, rng: random.Random) -> None:
    if books.blocks:
        at = rng.randrange(len(books.blocks))
        change = rng.choice([{"sealed_at": 1}, {"block_hash": "sha256:x"}, {"entries": 99}, {"previous_hash": "x"}])
        books.blocks[at] = attrs.evolve(books.blocks[at], **change)  # type: ignore[arg-type]


def another_signature(books: Books, rng: random.Random) -> None:
    if books.blocks:
        at = rng.randrange(len(books.blocks))
        books.signatures[at] = rng.choice(["", "x.y.z", SIGNER.jws(b"{}", BLOCK_TYPE)])


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    "change",
    [
        altered_amount,
        altered_amount_and_hash,
        altered_hash,
        another_block,
        unsealed_again,
        a_lost_entry,
        a_lost_block,
        an_altered_block,
        another_signature,
    ],
)
def test_a_stream_shows_the_same_faults_as_the_whole(seed: int, change: Callable[[Books, random.Random], None]) -> None:
    rng = random.Random(seed)
    books = Books.kept(rng)
    for _ in range(rng.randrange(1, 3)):
        if books.postings:
            change(books, rng)
    assert same(books.streamed(), books.whole())


@pytest.mark.parametrize("change", [altered_amount, altered_hash, a_lost_entry])
def test_what_was_altered_is_a_fault(change: Callable[[Books, random.Random], None]) -> None:
    for seed in SEEDS:
        rng = random.Random(seed)
        books = Books.kept(rng)
        change(books, rng)
        assert books.streamed().faults


def test_without_a_key_set_no_signature_is_checked() -> None:
    books = Books.kept(random.Random(3))
    books.signatures = ["x"] * len(books.blocks)
    assert books.streamed(key_set=None).faults == ()
    assert len(books.streamed().faults) == len(books.blocks) > 0


def test_an_empty_ledger_stands() -> None:
    assert audit_in_order([], [], [], SIGNER.key_set) == Audit(0, 0, 0, {}, ())


def test_of_many_entries_no_more_are_kept_than_one_at_a_time() -> None:
    alive: weakref.WeakSet[Posting] = weakref.WeakSet()
    most = 0

    def entries() -> Iterator[Posting]:
        nonlocal most
        for number in range(500):
            one = {"operation_id": f"op_{number:06d}", "amount": 5, "at": 1}
            for entry in move(**one, step="executed.1", debit="payer:0x1", credit=HOLD, **TOKEN):  # type: ignore[arg-type]
                posting = Posting(entry, entry.entry_hash, 1 + number // 50)
                alive.add(posting)
                yield posting
                most = max(most, len(alive))

    assert audit_in_order(entries(), [], []).entries == 1000
    assert most <= 3
