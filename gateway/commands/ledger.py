"""`gateway ledger verify`: the books against themselves, against the operations, and against the chain."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import click

from gateway.commands import printing
from gateway.commands.exits import CHECK_FAILED, UNREACHABLE, USAGE, Stop, exit_codes, leave
from gateway.commands.options import CONFIG, JSON

if TYPE_CHECKING:
    from gateway.actors.settlement import Chain
    from gateway.actors.store.protocol import Row, Value
    from gateway.commands.ledger_transfers import Paid
    from gateway.config import Configuration
    from gateway.reading import StoreInReading

CHAIN_AT_ONCE = 8
PAGE = 500
SHOWN_FAULTS = 20

HELD = """
    SELECT operation_id, SUM(amount) FROM ledger_entries WHERE account = 'hold'
    GROUP BY operation_id HAVING SUM(amount) <> 0
"""
OWING = """
    SELECT operation_id, state, amount FROM operations
    WHERE funding = 'paid' AND ((ended_at IS NULL AND state = 'executed') OR state = 'needs_operator')
"""
NEWEST = "SELECT (SELECT MAX(posted_at) FROM ledger_entries), (SELECT MAX(sealed_at) FROM ledger_blocks)"
GONE = """
    SELECT e.operation_id, MAX(e.posted_at) FROM ledger_entries e
    WHERE NOT EXISTS (SELECT 1 FROM operations o WHERE o.operation_id = e.operation_id)
    GROUP BY e.operation_id HAVING MAX(e.posted_at) > :kept_since ORDER BY e.operation_id LIMIT :limit
"""
GONE_SLACK_MS = 2 * 24 * 3600 * 1000
"""By how much an operation may be gone early: time is known to the day (`gateway.actors.store_time`)."""
DAY_BLOCKS = 43_200
FIRST_SALE = "SELECT MIN(block_number) FROM operations WHERE network = :network AND settlement = 'settled'"
KNOWN = "SELECT transaction_hash FROM operations WHERE network = :network AND transaction_hash IS NOT NULL"
BOUND = """
    SELECT 1 FROM authorizations
    WHERE chain_id = :chain_id AND asset = :asset AND authorizer = :authorizer AND nonce = :nonce
"""
SETTLED = """
    SELECT operation_id, network, asset, payer, pay_to, amount, nonce, valid_before, transaction_hash, block_number
    FROM operations WHERE operation_id > :after AND state = 'receipted' AND settlement = 'settled'
    ORDER BY operation_id LIMIT :page
"""


@click.group()
def ledger() -> None:
    """Check the books."""


@ledger.command()
@CONFIG
@click.option("--chain", is_flag=True, help="Look for the transfer of every settled operation on the chain.")
@JSON
def verify(config_path: Path | None, *, chain: bool, as_json: bool) -> None:
    """Check sums, hashes, signatures and chain of blocks, and that what is held is what is open.

    An operation that the ledger names must still be there for 400 days after its last posting.  With --chain, every
    settled operation must have its transfer in its transaction, as the configured end points tell; payments of the
    last week that no operation has are told as well.
    """
    with exit_codes():
        import trio

        from gateway.config import load

        books = trio.run(_verify, load(config_path), chain)
        if as_json:
            printing.document(books.as_json())
        else:
            _print(books)
        if books.faults:
            leave(CHECK_FAILED)


@attrs.define
class Books:
    """What was checked and what does not stand; amounts are atomic units."""

    entries: int
    blocks: int
    unsealed: int
    balances: Mapping[str, int]
    signatures: bool
    faults: list[str]
    transfers: int | None = None
    other_networks: int = 0
    unknown: Sequence[Paid] = ()

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON, amounts as decimal strings."""
        return {
            "ok": not self.faults,
            "entries": self.entries,
            "blocks": self.blocks,
            "unsealed": self.unsealed,
            "balances": {name: str(each) for name, each in self.balances.items()},
            "signaturesChecked": self.signatures,
            "transfersOnChain": self.transfers,
            "otherNetworks": self.other_networks,
            "transfersWithoutOperation": [attrs.asdict(each) | {"amount": str(each.amount)} for each in self.unknown],
            "faults": self.faults,
        }


async def _verify(configuration: Configuration, chain: bool) -> Books:  # noqa: FBT001 - trio.run passes by position
    from gateway.reading import open_store

    if chain and not configuration.payment.rpc_urls:
        raise Stop(USAGE, "--chain needs [payment] rpc_urls")
    key_set = _key_set(configuration.keys_dir)
    with open_store(configuration) as store:
        books = audited(store, key_set)
        if chain:
            await _look_at_chain(configuration, store, books)
    return books


def audited(store: StoreInReading, key_set: Mapping[str, Any] | None) -> Books:
    """Check a ledger in one snapshot, as it streams by: sums, hashes, chain, postings, and what is held."""
    from gateway.actors.ledger import BLOCKS, ENTRIES, FAULTS_LISTED, UNPOSTED
    from gateway.registry.ledger import REVENUE, Block, Entry, Posting
    from gateway.registry.ledger_audit import audit_in_order

    def postings(rows: Iterator[Row]) -> Iterator[Posting]:
        for row in rows:
            yield Posting(Entry(*row[:7]), str(row[7]), row[8] if isinstance(row[8], int) else None)  # type: ignore[arg-type]  # the schema's types

    with store.snapshot() as read:
        found = audit_in_order(
            postings(read(f"{ENTRIES} WHERE height IS NOT NULL ORDER BY height, entry_id", {})),
            postings(read(f"{ENTRIES} WHERE height IS NULL", {})),
            ((Block(*row[:5]), str(row[5])) for row in read(BLOCKS, {})),  # type: ignore[arg-type]
            key_set,
        )
        unposted = read(UNPOSTED, {"revenue": REVENUE, "limit": FAULTS_LISTED})
        faults = [
            *found.faults,
            *(f"operation {row[0]!s} is receipted and its payment is not posted" for row in unposted),
            *faults_of_holds(list(read(HELD, {})), list(read(OWING, {}))),
            *_gone(read),
        ]
    return Books(found.entries, found.blocks, found.unsealed, found.balances, key_set is not None, faults)


def _gone(read: Callable[[str, Mapping[str, Value]], Iterator[Row]]) -> Iterator[str]:
    """Tell of operations that the ledger names and that were dropped before their time, or by hand.

    Their time is told by how far the store's sweeps have come, on a store without any by the newest in its ledger.
    """
    from gateway.actors.ledger import FAULTS_LISTED
    from gateway.actors.operations.rows import TOMBSTONE_LIFE_MS
    from gateway.actors.store_time import MARK, mark_of
    from gateway.registry.receipts import timestamp

    mark = next((mark_of(value) for (value,) in read(MARK, {})), None)
    newest = max(int(each or 0) for row in read(NEWEST, {}) for each in row)
    kept_since = (newest if mark is None else mark) - TOMBSTONE_LIFE_MS + GONE_SLACK_MS
    for operation, posted_at in read(GONE, {"kept_since": kept_since, "limit": FAULTS_LISTED}):
        at = int(posted_at or 0)
        until = timestamp(at + TOMBSTONE_LIFE_MS)
        yield f"operation {operation!s} is gone: it was posted at {timestamp(at)}, and is to be kept until {until}"


def _key_set(directory: Path) -> Mapping[str, Any] | None:
    """Return the node's own key set; None where its keys are not here (a copy of the store is checked elsewhere)."""
    from gateway.keys import open_keys
    from gateway.registry.receipts import Signer

    if not directory.exists():
        return None
    return Signer.from_keys(open_keys(directory, create=False).receipts).key_set


def faults_of_holds(held: Sequence[Row], owing: Sequence[Row]) -> list[str]:
    """Return where what is held is not what the open operations owe, from the rows of `HELD` and `OWING`."""
    holds = {str(operation): int(total or 0) for operation, total in held}
    faults = []
    for operation, state, amount in owing:
        kept = holds.pop(str(operation), 0)
        nothing_was_owed = state == "needs_operator" and kept == 0  # it stopped before its result was made
        if kept != amount and not nothing_was_owed:
            faults.append(f"operation {operation!s} is {state!s} over {amount!s}, and {kept} is held for it")
    return faults + [
        f"{kept} is held for operation {operation}, which is not open" for operation, kept in holds.items()
    ]


async def _look_at_chain(configuration: Configuration, store: StoreInReading, books: Books) -> None:
    import trio

    from gateway.actors.runtime import open_runtime
    from gateway.actors.settlement import Chain
    from gateway.actors.upstream import Caller, upstream

    payment = configuration.payment
    limiter = trio.CapacityLimiter(CHAIN_AT_ONCE)
    books.transfers = 0
    async with open_runtime() as runtime:
        call = Caller(await runtime.start("upstream", upstream))
        chain = Chain(int(payment.network.partition(":")[2]), payment.rpc_urls, call, payment.confirmations)

        async def one(row: Row) -> None:
            async with limiter:
                fault = await _fault_on_chain(chain, row)
            if fault is None:
                books.transfers = (books.transfers or 0) + 1
            else:
                books.faults.append(fault)

        for page in _pages(store):
            async with trio.open_nursery() as nursery:
                for row in page:
                    if row[1] == payment.network:
                        nursery.start_soon(one, row)
                    else:
                        books.other_networks += 1
        await _look_for_unknown(configuration, store, chain, books)
    books.faults.sort()


async def _look_for_unknown(configuration: Configuration, store: StoreInReading, chain: Chain, books: Books) -> None:
    """Look for payments that no operation has, from about a day before the first sale that the store knows.

    They are told and are no fault: the payee may be paid by other services too.
    """
    from gateway.actors.settlement import ChainUnavailable
    from gateway.commands.ledger_transfers import Payee, payments_without

    payment, network = configuration.payment, {"network": configuration.payment.network}
    ((first,),), known = store.read([(FIRST_SALE, network), (KNOWN, network)])
    if not isinstance(first, int):
        return
    counts = Counter(str(transaction) for (transaction,) in known)
    try:
        found = await payments_without(
            chain.end_points(), Payee(payment.asset, payment.pay_to), max(first - DAY_BLOCKS, 0), counts
        )
    except ChainUnavailable as reason:
        raise Stop(UNREACHABLE, f"the chain cannot be read ({reason}); check [payment] rpc_urls") from reason
    of_chain: dict[str, Value] = {
        "chain_id": int(payment.network.partition(":")[2]),
        "asset": payment.asset.lower(),
    }
    bound = store.read([(BOUND, of_chain | {"authorizer": each.authorizer, "nonce": each.nonce}) for each in found])
    books.unknown = [each for each, operation in zip(found, bound, strict=True) if not operation]


def _pages(store: StoreInReading) -> Iterator[list[Row]]:
    after = ""
    while page := store.read([(SETTLED, {"after": after, "page": PAGE})])[0]:
        yield page
        after = str(page[-1][0])


async def _fault_on_chain(chain: Chain, row: Row) -> str | None:
    """Return what is wrong with a settled operation's transfer; None where the chain shows it."""
    from gateway.actors.settlement import ChainUnavailable, Standing
    from gateway.actors.settlement._proof import Search

    operation, _, asset, payer, pay_to, amount, nonce, valid_before, transaction, block = row
    search = Search(
        asset=str(asset),
        authorizer=str(payer),
        pay_to=str(pay_to),
        value=int(amount or 0),
        nonce=bytes.fromhex(str(nonce).removeprefix("0x")),
        valid_before=int(valid_before or 0),
    )
    from_block = block if isinstance(block, int) else None
    try:
        seen = await chain.look(search, from_block=from_block, hints=[str(transaction)])
    except ChainUnavailable as reason:
        raise Stop(UNREACHABLE, f"the chain cannot be read ({reason}); check [payment] rpc_urls") from reason
    if seen.standing not in {Standing.PAID, Standing.SHALLOW}:
        what = f"transaction {transaction!s} does not pay it; its authorization is {seen.standing.value}"
        return f"operation {operation!s}: {what}"
    if seen.transaction != transaction:
        return f"operation {operation!s}: paid by transaction {seen.transaction}, the books say {transaction!s}"
    return None


def _print(books: Books) -> None:
    click.echo(f"{books.entries} entries, {books.blocks} blocks, {books.unsealed} entries not yet sealed")
    for account, balance in sorted(books.balances.items()):
        click.echo(f"  {account}: {balance}")
    if not books.signatures:
        click.echo("signatures of blocks were not checked: the node's keys are not in its keys directory")
    if books.transfers is not None:
        click.echo(f"{books.transfers} transfers found on the chain")
    if books.other_networks:
        click.echo(f"{books.other_networks} settled on networks that are not configured, not looked for")
    for each in books.unknown[:SHOWN_FAULTS]:
        click.echo(f"UNKNOWN  {each.line()}")
    if len(books.unknown) > SHOWN_FAULTS:
        click.echo(f"and {len(books.unknown) - SHOWN_FAULTS} more that are unknown (--json prints all)")
    for fault in books.faults[:SHOWN_FAULTS]:
        click.echo(f"FAULT  {fault}")
    if len(books.faults) > SHOWN_FAULTS:
        click.echo(f"and {len(books.faults) - SHOWN_FAULTS} more (--json prints all)")
    click.echo("the ledger does not stand" if books.faults else "the ledger stands")
