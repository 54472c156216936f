"""The settlement actor: owns the facilitator, the chain and what is known of the path from a signature to a receipt.

`SettlementPath` is the last proof that payments can be verified, settled and looked up; it expires.  While it does
not stand, nothing paid is quoted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs
import trio

from gateway.actors.clock import CLOCK_SKEW
from gateway.actors.failpoints import failpoint
from gateway.actors.payment import Payment
from gateway.actors.runtime import Ask, Inbox, Letter
from gateway.actors.settlement._chain import Chain, Funds, Sighting
from gateway.actors.settlement._facilitator import Facilitator, Submission, Verification
from gateway.actors.settlement._proof import Search
from gateway.actors.settlement._rpc import ChainUnavailable

PROBE_INTERVAL_S = 15.0
PROBE_RETRY_S = 1.0
PROOF_LIFE_S = 45.0
CLOSING_FAILURES = 2
"""One failed probe in a row is tolerated while the last proof lives, but not a wrong clock."""
START_PATIENCE_S = 5.0
"""How long the actor's start waits for its first proof."""


@attrs.frozen
class Verify(Ask[Verification]):
    """Ask the facilitator's `/verify`."""

    payment: Payment


@attrs.frozen
class Settle(Ask[Submission]):
    """Ask the facilitator's `/settle`; the answer is a hint, the chain decides."""

    payment: Payment


@attrs.frozen
class Look(Ask[Sighting]):
    """Ask the chain where the payment stands; refused with `ChainUnavailable`."""

    payment: Payment
    from_block: int | None = None
    hints: Sequence[str] = ()


@attrs.frozen
class ReadBalance(Ask[int]):
    """Ask for a payer's balance of the token at the latest block; refused with `ChainUnavailable`."""

    asset: str
    payer: str


@attrs.frozen
class ReadFunds(Ask[Funds]):
    """Ask for a payer's balance and which of its authorizations are used, at one block.

    Refused with `ChainUnavailable`.
    """

    asset: str
    payer: str
    nonces: Sequence[str]


@attrs.frozen
class StillStands(Ask[bool]):
    """Ask whether a settled transaction is still in the block it was seen in; refused with `ChainUnavailable`."""

    transaction: str
    block_hash: str


@attrs.frozen
class BlockTime(Ask[int]):
    """Ask when a block was made, in seconds since 1970; refused with `ChainUnavailable`."""

    number: int


@attrs.frozen
class HasCode(Ask[bool]):
    """Ask whether an account has code, so that its key alone signs nothing; refused with `ChainUnavailable`."""

    address: str


@attrs.frozen
class Wanted:
    """Somebody met a closed path: probe again soon."""


Message = Verify | Settle | Look | ReadBalance | ReadFunds | StillStands | BlockTime | HasCode | Wanted


@attrs.define
class SettlementPath:
    """What is proven of the settlement path now.  Read by anyone in the loop, written by the settlement actor alone.

    `head` is the number of the latest block; `block_ms` is its time in milliseconds since 1970, None where no block was
    seen for a minute.
    """

    clock: Callable[[], float] = trio.current_time
    proven_until: float = float("-inf")
    reason: str = "unproven"
    failures: int = 0
    probed_at: float = float("-inf")
    head: int | None = None
    block_ms: int | None = None

    @property
    def closed(self) -> str | None:
        """None while the proof stands, else the machine reason why not."""
        if self.clock() < self.proven_until:
            return None
        return self.reason


def search_of(payment: Payment) -> Search:
    """Return what the chain is asked for a payment."""
    return Search(
        payment.asset,
        payment.payer,
        payment.pay_to,
        payment.amount,
        bytes.fromhex(payment.nonce[2:]),
        payment.valid_before,
    )


@attrs.define(eq=False)
class _Desk:
    facilitator: Facilitator
    chain: Chain
    network: str
    path: SettlementPath
    wanted: trio.Event = attrs.field(factory=trio.Event)

    async def probe(self) -> None:
        """Look once whether payments can be verified, settled and looked up."""
        path = self.path
        path.probed_at = trio.current_time()
        reason = await self.facilitator.supports(self.network)
        if reason is None:
            try:
                await self.chain.usable()
            except ChainUnavailable as error:
                reason = str(error)
        path.head, path.block_ms = self.chain.height or path.head, self.chain.block_ms
        if reason is None:
            path.failures, path.reason = 0, "proof_expired"
            path.proven_until = trio.current_time() + PROOF_LIFE_S
            return
        path.failures += 1
        path.reason = reason
        if path.failures >= CLOSING_FAILURES or reason == CLOCK_SKEW:
            path.proven_until = float("-inf")

    async def keep_proven(self) -> None:
        """Probe regularly, sooner after failures, and soon when somebody met a closed path."""
        path = self.path
        while True:
            pause = PROBE_INTERVAL_S
            if path.closed or path.failures:
                pause = min(PROBE_RETRY_S * 2.0 ** min(max(path.failures - 1, 0), 10), PROBE_INTERVAL_S)
            with trio.move_on_after(pause):
                await self.wanted.wait()
                await trio.sleep_until(path.probed_at + PROBE_RETRY_S)
            self.wanted = trio.Event()
            await self.probe()

    async def serve(self, letter: Letter[Message]) -> None:
        """Answer one letter."""
        message = letter.message
        try:
            match message:
                case Verify(payment):
                    letter.answer(message, await self.facilitator.verify(payment.body, payment.payer))
                case Settle(payment):
                    failpoint("settle.before")
                    submission = await self.facilitator.settle(payment.body)
                    failpoint("settle.after")
                    letter.answer(message, submission)
                case Wanted():
                    self.wanted.set()
                case _:
                    await self.read(letter)
        except ChainUnavailable as reason:
            letter.refuse(reason)

    async def read(self, letter: Letter[Message]) -> None:
        """Answer one letter that asks the chain."""
        message = letter.message
        match message:
            case Look(payment, from_block, hints):
                letter.answer(message, await self.look(payment, from_block, hints))
            case ReadBalance(asset, payer):
                letter.answer(message, await self.chain.balance(asset, payer))
            case ReadFunds(asset, payer, nonces):
                letter.answer(message, await self.chain.funds(asset, payer, nonces))
            case StillStands(transaction, block_hash):
                letter.answer(message, await self.chain.still_stands(transaction, block_hash))
            case BlockTime(number):
                letter.answer(message, await self.chain.timestamp(number))
            case HasCode(address):
                letter.answer(message, await self.chain.has_code(address))

    async def look(self, payment: Payment, from_block: int | None, hints: Sequence[str]) -> Sighting:
        """Look at the chain and remember how far it was seen."""
        failpoint("look.before")
        sighting = await self.chain.look(search_of(payment), from_block=from_block, hints=hints)
        failpoint("look.after")
        self.path.head, self.path.block_ms = self.chain.height or sighting.head, self.chain.block_ms
        return sighting


async def settlement(
    inbox: Inbox[Message], *, facilitator: Facilitator, chain: Chain, network: str, path: SettlementPath
) -> None:
    """Serve verify, settle and look, each in a task of its own; keep the path's proof fresh."""
    desk = _Desk(facilitator, chain, network, path)
    with trio.move_on_after(START_PATIENCE_S):
        await desk.probe()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(desk.keep_proven)
        async with trio.open_nursery() as calls:

            def begin(letter: Letter[Message]) -> None:
                calls.start_soon(desk.serve, letter)

            inbox.ready(at_once=begin)
            async for letter in inbox:
                begin(letter)
        nursery.cancel_scope.cancel()
