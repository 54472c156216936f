"""Chain truth: has this authorization paid?

`authorizationState(authorizer, nonce)` alone proves nothing, because a cancellation sets it too.  Paid means: in one
successful transaction the token emitted `AuthorizationUsed(authorizer, nonce)` and the matching
`Transfer(authorizer, payTo, value)`, `confirmations` deep.  That is believed of any end point that serves the right
chain, for it carries its proof.  That something is *not* so (unused, expired, gone) is believed only of one that is not
behind what has been seen already, and where it would end an operation, only if no other end point knows better.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from enum import Enum
from functools import partial
from typing import TypeVar

import attrs
import trio

from gateway.actors.clock import CLOCK_SKEW
from gateway.actors.settlement._proof import (
    AUTHORIZATION_CANCELED,
    Finding,
    Search,
    balance_call,
    read,
    state_call,
)
from gateway.actors.settlement._rpc import ChainUnavailable, EndPoint, Head, Receipt, Unusable
from gateway.actors.settlement._together import together
from gateway.actors.settlement._trail import Trail
from gateway.registry.http_call import HttpAnswer, HttpCall

T = TypeVar("T")

HINTS_READ = 4
EXPIRY_MARGIN_S = 30
"""How far the chain must be past an expiry before it counts: a reorganisation may replace its last blocks by ones with
earlier times."""
OLDEST_HEAD_S = 300
"""How old the latest block may be before its end point is taken to have stopped following the chain."""
NEWEST_HEAD_S = 300
"""How far the latest block may be ahead of this node's clock before that is taken to be wrong."""
SEEN_FOR_S = 60.0
"""How long the highest block seen binds; after that a lower one is believed (a test chain was rolled back)."""
COOL_OFF_S = 15.0
"""How long an end point that failed is asked after the others."""
TRAILS_KEPT = 1_024
READ_TOGETHER = 64
"""How many words of one block are read beside each other."""


class Expiring(ChainUnavailable):
    """The authorization was unused when it expired a moment ago; a reorganisation may still make room for it."""


class Standing(Enum):
    """What the chain says of an authorization."""

    PAID = "paid"
    SHALLOW = "paid, not yet deep enough"
    UNUSED = "unused and still valid"
    EXPIRED = "unused and no longer valid"
    CANCELLED = "cancelled"
    DIVERTED = "spent on another transfer than the one asked for"
    UNTRACED = "spent, and its transaction cannot be found"


BELIEVED_FIRST = (
    Standing.PAID,
    Standing.SHALLOW,
    Standing.DIVERTED,
    Standing.CANCELLED,
    Standing.UNTRACED,
    Standing.UNUSED,
    Standing.EXPIRED,
)
"""Which standing counts where end points disagree: what is proved by a transaction, then what does least harm."""
SETTLES_IT = frozenset({Standing.PAID, Standing.SHALLOW, Standing.UNUSED})
"""With these no second end point is asked; `UNUSED` ends nothing."""


@attrs.frozen
class Sighting:
    """One look: where the authorization stands, seen at block `head`; the transaction where it is known."""

    standing: Standing
    head: int
    transaction: str | None = None
    block_number: int | None = None
    block_hash: str | None = None


@attrs.frozen
class Funds:
    """A payer's balance, and which of some authorizations are used or cancelled, all at one block; nonces 0x-hex."""

    balance: int
    used: frozenset[str]


@attrs.define(eq=False)
class _Memory:
    """What earlier looks leave behind: the end points' failures, the highest block, passes that are not finished."""

    end_points: tuple[EndPoint, ...]
    height: int = 0
    timestamp: int = 0
    seen_at: float = float("-inf")
    trails: dict[tuple[EndPoint, Search], Trail] = attrs.field(factory=dict)

    def in_order(self) -> list[EndPoint]:
        """The end points as configured, those that failed lately last."""
        now = trio.current_time()
        return sorted(self.end_points, key=lambda each: now - each.failed_at < COOL_OFF_S)

    def saw(self, head: Head) -> None:
        """Remember the highest block of the last while."""
        now = trio.current_time()
        if head.number >= self.height or now - self.seen_at > SEEN_FOR_S:
            self.height, self.timestamp, self.seen_at = head.number, head.timestamp, now


@attrs.frozen(eq=False)
class Chain:
    """One chain through one or more end points.

    Attributes:
        chain_id: EIP-155.
        urls: end points, asked in order until one answers.
        call: makes an `HttpCall`; raises `UpstreamFailed`.
        confirmations: how many blocks a payment must have, its own included.
        timeout_s: for one request to an end point.
        utc_s: wall clock, seconds since 1970.
    """

    chain_id: int
    urls: Sequence[str]
    call: Callable[[HttpCall], Awaitable[HttpAnswer]]
    confirmations: int = 1
    timeout_s: float = 5.0
    utc_s: Callable[[], float] = time.time
    _memory: _Memory = attrs.field(
        init=False, default=attrs.Factory(lambda self: _Memory(self.end_points()), takes_self=True)
    )

    def end_points(self) -> tuple[EndPoint, ...]:
        """Return fresh end points for the addresses."""
        return tuple(EndPoint.at(url, self.call, self.timeout_s) for url in self.urls)

    @property
    def height(self) -> int | None:
        """The highest block seen lately, None before the first."""
        return self._memory.height or None

    @property
    def block_ms(self) -> int | None:
        """The time of that block, in milliseconds since 1970, None unless it was seen in the last minute."""
        memory = self._memory
        return memory.timestamp * 1000 if trio.current_time() - memory.seen_at <= SEEN_FOR_S else None

    async def usable(self) -> None:
        """Find out whether looks would be answered, and by a right clock; raises `ChainUnavailable`."""

        async def one(end_point: EndPoint) -> None:
            head, _ = await self._head_and(end_point)
            self._must_be_fresh(head)
            if head.timestamp > self.utc_s() + NEWEST_HEAD_S:
                raise ChainUnavailable(CLOCK_SKEW)
            await end_point.reads_at(head.block_hash)

        await self._first(one)

    async def look(self, search: Search, *, from_block: int | None, hints: Sequence[str]) -> Sighting:
        """Say where an authorization stands.

        `from_block` is a block that was there before it can have been settled by this node, where known; `hints` are
        transactions to look into first.  Raises `ChainUnavailable` where that cannot be told now.
        """
        seen: list[Sighting] = []
        reason = ChainUnavailable("rpc_not_configured")
        for end_point in self._memory.in_order():
            try:
                sighting = await self._look(end_point, search, from_block, hints)
            except ChainUnavailable as error:
                end_point.failed_at, reason = trio.current_time(), error
                continue
            seen.append(sighting)
            if sighting.standing in SETTLES_IT:
                break
        if not seen:
            raise reason
        return min(seen, key=lambda each: BELIEVED_FIRST.index(each.standing))

    async def balance(self, asset: str, payer: str) -> int:
        """Return a payer's balance at the latest block, in one call; raises `ChainUnavailable`."""
        return await self._first(lambda end_point: end_point.word_at(asset, balance_call(payer), None))

    async def funds(self, asset: str, payer: str, nonces: Sequence[str]) -> Funds:
        """Return a payer's balance and which of its authorizations are used; raises `ChainUnavailable`."""

        async def one(end_point: EndPoint) -> Funds:
            known = self._memory.height
            head, _ = await self._head_and(end_point)
            self._must_follow(head, known, 0)
            self._must_be_fresh(head)
            calls = [balance_call(payer), *(state_call(payer, bytes.fromhex(nonce[2:])) for nonce in nonces)]
            words: list[int] = []
            for first in range(0, len(calls), READ_TOGETHER):
                async with together() as asked:
                    replies = [
                        asked.ask(partial(end_point.word_at, asset, call, head.block_hash))
                        for call in calls[first : first + READ_TOGETHER]
                    ]
                words += [reply.answer for reply in replies]
            balance, *states = words
            return Funds(balance, frozenset(nonce for nonce, state in zip(nonces, states, strict=True) if state))

        return await self._first(one)

    async def still_stands(self, transaction: str, block_hash: str) -> bool:
        """Return False if a reorganisation took the transaction's block away; raises `ChainUnavailable`."""

        async def one(end_point: EndPoint) -> bool:
            if _is_in(await _hinted(end_point, transaction), block_hash):
                return True  # and on the right chain: no other has a block of that hash
            known = self._memory.height
            head, (receipt,) = await self._head_and(end_point, partial(end_point.receipt, transaction))
            if _is_in(receipt, block_hash):
                return True
            self._must_follow(head, known, 0)
            self._must_be_fresh(head)
            return False

        return await self._first(one)

    async def has_code(self, address: str) -> bool:
        """Return True if an account has code, a delegation (EIP-7702) included; raises `ChainUnavailable`."""

        async def one(end_point: EndPoint) -> bool:
            head, _ = await self._head_and(end_point)
            return bool(await end_point.code(address, head.block_hash))

        return await self._first(one)

    async def timestamp(self, number: int) -> int:
        """Return the time of a block, in seconds since 1970; raises `ChainUnavailable`."""

        async def one(end_point: EndPoint) -> int:
            await self._head_and(end_point)
            return await end_point.timestamp(number)

        return await self._first(one)

    async def _first(self, ask: Callable[[EndPoint], Awaitable[T]]) -> T:
        """Return the first answer that an end point gives."""
        reason = ChainUnavailable("rpc_not_configured")
        for end_point in self._memory.in_order():
            try:
                return await ask(end_point)
            except ChainUnavailable as error:
                end_point.failed_at, reason = trio.current_time(), error
        raise reason

    async def _head_and(
        self, end_point: EndPoint, *receipts: Callable[[], Awaitable[Receipt | None]]
    ) -> tuple[Head, list[Receipt | None]]:
        """Return the latest block of an end point that serves the right chain, and receipts asked for beside it.

        A receipt may be from beyond that block, and then is not deep; its end point is asked again.
        """
        async with together() as asked:
            chain_id, latest = asked.ask(end_point.chain_id), asked.ask(end_point.head)
            found = [asked.ask(each) for each in receipts]
        if chain_id.answer != self.chain_id:
            raise ChainUnavailable("rpc_wrong_chain")
        head = latest.answer
        self._memory.saw(head)
        return head, [each.answer for each in found]

    async def _look(
        self, end_point: EndPoint, search: Search, from_block: int | None, hints: Sequence[str]
    ) -> Sighting:
        hinted = [partial(_hinted, end_point, each) for each in hints[-HINTS_READ:]]
        known = self._memory.height
        head, receipts = await self._head_and(end_point, *hinted)
        for receipt in receipts:
            if receipt is not None and read(receipt, search) is Finding.PAID:
                return self._paid(receipt, head)
        self._must_follow(head, known, from_block or 0)
        if not await end_point.word_at(search.asset, search.state_call, head.block_hash):
            return self._unused(search, head)
        return await self._spent(end_point, search, from_block, head)

    def _unused(self, search: Search, head: Head) -> Sighting:
        """Tell `UNUSED` from `EXPIRED`: no block whose time is `valid_before` or later can take the authorization."""
        if head.timestamp >= search.valid_before + EXPIRY_MARGIN_S:
            return Sighting(Standing.EXPIRED, head.number)
        if head.timestamp >= search.valid_before:
            raise Expiring("authorization_expiring")
        self._must_be_fresh(head)
        return Sighting(Standing.UNUSED, head.number)

    async def _spent(self, end_point: EndPoint, search: Search, from_block: int | None, head: Head) -> Sighting:
        """Find the transaction that spent the authorization, and read what it did."""
        trails = self._memory.trails
        trail = trails.pop((end_point, search), None) or Trail.begin(from_block, head.number)
        try:
            log = await trail.follow(end_point, search)
        except ChainUnavailable:
            trails[end_point, search] = trail
            if len(trails) > TRAILS_KEPT:
                trails.pop(next(iter(trails)))
            raise
        if log is None:
            return Sighting(Standing.UNTRACED, head.number)
        if log.topics[0] == AUTHORIZATION_CANCELED:
            return self._unpaid(Standing.CANCELLED, log.transaction, log.block_number, head)
        receipt = await end_point.receipt(log.transaction)
        match receipt and read(receipt, search):
            case Finding.PAID if receipt is not None:
                return self._paid(receipt, head)
            case Finding.DIVERTED if receipt is not None:
                return self._unpaid(Standing.DIVERTED, receipt.transaction, receipt.block_number, head)
            case Finding.UNCLEAR:
                return Sighting(Standing.UNTRACED, head.number)
        raise ChainUnavailable("rpc_contradiction")  # the event is known, and its transaction is not, or is without it

    def _paid(self, receipt: Receipt, head: Head) -> Sighting:
        return Sighting(
            Standing.PAID if self._is_deep(receipt.block_number, head) else Standing.SHALLOW,
            head.number,
            receipt.transaction,
            receipt.block_number,
            receipt.block_hash,
        )

    def _unpaid(self, standing: Standing, transaction: str, number: int, head: Head) -> Sighting:
        """Return that the authorization was spent without the payment, once that is as deep as a payment has to be."""
        if not self._is_deep(number, head):
            return Sighting(Standing.UNTRACED, head.number)
        return Sighting(standing, head.number, transaction, number)

    def _is_deep(self, number: int, head: Head) -> bool:
        return head.number - number + 1 >= self.confirmations

    def _must_follow(self, head: Head, known: int, from_block: int) -> None:
        """Refuse an end point that does not know `known`, the highest block seen before it was asked, or `from_block`.

        What other looks have seen since is nothing that it ought to have known; a lower chain is believed in the end.
        """
        if head.number < max(min(known, self._memory.height), from_block):
            raise ChainUnavailable("rpc_behind")

    def _must_be_fresh(self, head: Head) -> None:
        """Refuse an end point whose latest block is old."""
        if head.timestamp < self.utc_s() - OLDEST_HEAD_S:
            raise ChainUnavailable("rpc_stale")


async def _hinted(end_point: EndPoint, hint: str) -> Receipt | None:
    """Return the receipt of a hint, None where there is none to be had: the facilitator chose it, and may lie."""
    try:
        return await end_point.receipt(hint)
    except Unusable:
        return None


def _is_in(receipt: Receipt | None, block_hash: str) -> bool:
    return receipt is not None and receipt.block_hash == block_hash.lower()
