"""Counting by one of several nodes of a store.

Calls of exact policies are decided by the store: all that wait are one step, a row a caller.  Of the policies in shares
(`Policy.share`) a node takes a share at a time and spends it in memory: at most one share a caller and node is held
back, by a node that was killed until the window ends.  Neither kind grants more than the limit in a window, over all
nodes.

A caller over the limit is refused from memory, and has the store asked again once a second.  While the store is away,
calls that it must decide are refused with its `StoreUnavailable`; what was given back waits, no longer than a window.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import final

import attrs
import structlog
import trio

from gateway.actors.quota import counters
from gateway.actors.quota.counters import Taken
from gateway.actors.quota.policy import GiveBack, Message, Policy, Spend
from gateway.actors.quota.windows import Windows
from gateway.actors.runtime import Inbox, Letter
from gateway.actors.store import NodeStore, Reason, Row, Statement, StoreUncertain
from gateway.errors import StoreUnavailable

log = structlog.get_logger(__name__)

BATCH = 256
STEP_CALLERS = 256
"""Callers that one step of the store counts for; the others wait for the next."""

MAX_WAITING = 4_096
"""Calls that wait for the store at once, beyond which more are refused, and gifts, beyond which more are dropped."""

RETRY_S = 0.5
SWEEP_EVERY_S = 30.0
LEAVE_S = 5.0

_Caller = tuple[str, str]
"""The name of a policy, and who is counted on it."""

_Given = tuple[str, str, int | None]
"""The name of a policy, a caller, and `GiveBack.counted_ms`."""

_Line = list[tuple[Letter[Message], Spend]]
"""Those who wait for calls of one caller, in order."""


async def count_in_store(inbox: Inbox[Message], *, policies: Mapping[str, Policy], store: NodeStore) -> None:
    """Count calls; at the end give back what is left of the shares."""
    desk = _Desk(policies, store, Windows(policies))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(desk.keep_asking)
        inbox.ready()
        async for letters in inbox.batches(BATCH):
            for letter in letters:
                message = letter.message
                if isinstance(message, Spend):
                    desk.spend(letter, message)
                else:
                    desk.give_back(message)
        desk.close()
    with trio.move_on_after(LEAVE_S):
        await desk.leave()


@attrs.define(eq=False)
class _Gift:
    calls: int
    until: float  # on trio's clock: by then every window that it may be of has ended


@final
@attrs.define(eq=False)
class _Desk:
    """Those who wait for the store, and what is to be given back to it."""

    policies: Mapping[str, Policy]
    store: NodeStore
    windows: Windows
    waiting: dict[_Caller, _Line] = attrs.field(factory=dict)
    queued: int = 0
    gifts: dict[_Given, _Gift] = attrs.field(factory=dict)
    due: trio.Event = attrs.field(factory=trio.Event)
    closing: bool = False
    away: bool = False

    # -- the mail ------------------------------------------------------------------------------------------------------

    def spend(self, letter: Letter[Message], call: Spend) -> None:
        """Answer a call from memory, or let it wait for the next step of the store."""
        key = call.policy, call.caller
        if key not in self.waiting and self._answered(letter, call, trio.current_time()):
            return
        if self.queued >= MAX_WAITING:
            letter.refuse(_refusal(Reason.OVERLOADED))
            return
        self.waiting.setdefault(key, []).append((letter, call))
        self.queued += 1
        self.due.set()

    def give_back(self, call: GiveBack) -> None:
        """Put a call back into the node's share, or give it to the store with the next step."""
        if not self.windows.keep_back(call, trio.current_time()):
            self._give(call.policy, call.caller, call.counted_ms, 1)

    def close(self) -> None:
        """Take no more mail; who waits is still answered."""
        self.closing = True
        self.due.set()

    # -- the store -----------------------------------------------------------------------------------------------------

    async def keep_asking(self) -> None:
        """Take step after step, each for all that waited meanwhile, until the mail has ended and nobody waits."""
        sweep_at = trio.current_time() + SWEEP_EVERY_S
        while self.waiting or not self.closing:
            await self._until_due(sweep_at)
            await self.step()
            if trio.current_time() >= sweep_at:
                await self._sweep()
                sweep_at = trio.current_time() + SWEEP_EVERY_S

    async def step(self) -> None:
        """Give the store what is given back, and ask it for all who wait and are not to be answered from memory."""
        sent = trio.current_time()
        asked, gifts = self._next_lines(sent), self._next_gifts(sent)
        if not asked and not gifts:
            return
        try:
            results = await self.store.commit(*self._statements(asked, gifts))
        except StoreUnavailable as error:
            self._refuse(asked, error)
            if not isinstance(error, StoreUncertain):  # else it may be there, and is not given twice
                self._keep(gifts)
            return
        self._turn(None)
        for policy, caller, _ in gifts:
            self.windows.returned(policy, caller)
        for rows in results:
            for row in rows:
                self._settle(asked, row, sent)

    async def leave(self) -> None:
        """Give back what is left of the shares, as far as the store takes it."""
        for each in list(self.windows.unspent(trio.current_time())):
            self._give(each.policy, each.caller, each.opened_ms, each.calls)
        while self.gifts:
            await self.step()
            if self.away:
                return

    async def _until_due(self, sweep_at: float) -> None:
        if self.waiting or (self.gifts and not self.away) or self.closing:
            return
        self.due = trio.Event()
        retry_at = trio.current_time() + RETRY_S if self.gifts else math.inf
        with trio.move_on_at(min(sweep_at, retry_at)):
            await self.due.wait()

    def _next_lines(self, now: float) -> dict[_Caller, _Line]:
        """Take the lines that are next, without those whom memory can answer by now and those who have gone."""
        asked: dict[_Caller, _Line] = {}
        for key in list(islice(self.waiting, STEP_CALLERS)):
            line = self.waiting.pop(key)
            self.queued -= len(line)
            line = [(letter, call) for letter, call in line if not self._answered(letter, call, now)]
            if line:
                asked[key] = line
        return asked

    def _next_gifts(self, now: float) -> dict[_Given, _Gift]:
        taken = {given: self.gifts.pop(given) for given in list(islice(self.gifts, STEP_CALLERS))}
        return {given: gift for given, gift in taken.items() if gift.until > now}

    def _statements(self, asked: Mapping[_Caller, _Line], gifts: Mapping[_Given, _Gift]) -> Iterator[Statement]:
        """Change the rows in one order, which is that of all nodes: no two steps ever wait for each other."""
        given: dict[_Caller, list[Statement]] = {}
        for (name, caller, counted_ms), gift in gifts.items():
            back = counters.give_back(self.policies[name], caller, gift.calls, counted_ms)
            given.setdefault((name, caller), []).append(back)
        run: list[tuple[str, int]] = []
        of = ""
        for key in sorted(asked.keys() | given.keys()):
            name, caller = key
            if run and (name != of or key in given):
                yield from counters.take(self.policies[of], run)
                run = []
            of = name
            yield from given.get(key, ())
            if key in asked:
                run.append((caller, self.windows.wanted(self.policies[name], len(asked[key]))))
        if run:
            yield from counters.take(self.policies[of], run)

    def _settle(self, asked: Mapping[_Caller, _Line], row: Row, sent: float) -> None:
        """Answer who waited for a caller's calls; those of who has gone meanwhile are given back."""
        taken, now = Taken.of(row), trio.current_time()
        policy = self.policies[taken.quota]
        line = [each for each in asked[taken.quota, taken.caller] if not _gone(each[0], now)]
        decided = self.windows.decide(policy, taken, len(line), sent=sent, now=now)
        for (letter, call), allowance in zip(line, decided.allowances, strict=True):
            letter.answer(call, allowance)
        if decided.spare:
            self._give(taken.quota, taken.caller, taken.opened_ms, decided.spare)

    def _refuse(self, asked: Mapping[_Caller, _Line], error: StoreUnavailable) -> None:
        self._turn(error)
        for line in asked.values():
            for letter, _ in line:
                letter.refuse(StoreUnavailable(error.detail, extra=error.extra, retry_after=error.retry_after))

    async def _sweep(self) -> None:
        self.windows.sweep(trio.current_time())
        try:
            await self.store.commit(*(counters.sweep(policy) for policy in self.policies.values()))
        except StoreUnavailable as error:
            self._turn(error)

    # -- both ----------------------------------------------------------------------------------------------------------

    def _answered(self, letter: Letter[Message], call: Spend, now: float) -> bool:
        """Answer a call from memory if that can be; one that nobody waits for any more is not counted."""
        if _gone(letter, now):
            return True
        allowance = self.windows.allow(self.policies[call.policy], call.caller, now)
        if allowance is not None:
            letter.answer(call, allowance)
        return allowance is not None

    def _give(self, policy: str, caller: str, counted_ms: int | None, calls: int) -> None:
        given = policy, caller, counted_ms
        if given not in self.gifts and len(self.gifts) >= MAX_WAITING:
            return
        self._keep({given: _Gift(calls, trio.current_time() + self.policies[policy].window_s)})
        self.windows.returned(policy, caller)  # who asks from now on comes after it, in the same step
        self.due.set()

    def _keep(self, gifts: Mapping[_Given, _Gift]) -> None:
        for given, gift in gifts.items():
            gathered = self.gifts.setdefault(given, _Gift(0, gift.until))
            gathered.calls += gift.calls
            gathered.until = max(gathered.until, gift.until)

    def _turn(self, error: StoreUnavailable | None) -> None:
        """Take note that the store is away, or back; said once."""
        if self.away == (error is None):
            self.away = error is not None
            if error is None:
                log.info("quota_store_back")
            else:
                log.warning("quota_store_away", reason=error.detail)


def _gone(letter: Letter[Message], now: float) -> bool:
    """Whether the asker's patience has ended; then the letter is done with."""
    if letter.deadline > now:
        return False
    letter.refuse(_refusal(Reason.STALLED))
    return True


def _refusal(reason: Reason) -> StoreUnavailable:
    story = reason.story
    return StoreUnavailable(
        f"{story[0].upper()}{story[1:]}; nothing was counted.", extra={"reason": reason.value}, retry_after=2
    )
