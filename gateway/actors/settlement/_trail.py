"""The way back from a spent authorization to the transaction that spent it: a search through the blocks' events.

It goes forward from the block in which the operation was claimed, because whoever settles does so soon after; what was
spent before the claim (by a third party that saw the authorization, or by the payer) is looked for last.  A pass over
the blocks is bounded in calls a look, and goes on where the last look left it, so that a node that comes back after
days still sees every block.
"""

from __future__ import annotations

from typing import Any

import attrs

from gateway.actors.settlement._proof import AUTHORIZATION_CANCELED, AUTHORIZATION_USED, Search, spends, word_of
from gateway.actors.settlement._rpc import ChainUnavailable, EndPoint, Log, Unusable

MARGIN_BLOCKS = 64
"""How far before the claim's block the search begins: more than a reorganisation takes."""
RANGE_BLOCKS = 2_000
SMALLEST_RANGE = 5
CALLS_A_LOOK = 200
EARLIEST_S = 2 * 3600
"""How long before its expiry an authorization may have been spent.  One that is presented expires within minutes
(`EXPIRY_SLACK_S` of the payment checks; earlier releases took an hour); it may have been spent for as long before."""
FIRST_STEP_BACK = 1_024
FARTHEST_STEP_BACK = 2**21


@attrs.define(eq=False)
class Trail:
    """One pass over the blocks in which an authorization may have been spent; `spans` are those not read yet."""

    spans: list[tuple[int, int]]
    earlier: int | None
    """The block before which the rest is to be read, None once that stands in `spans`."""
    size: int = RANGE_BLOCKS

    @classmethod
    def begin(cls, from_block: int | None, head: int) -> Trail:
        """Begin a pass that ends at block `head`; `from_block` is about the block of the claim, where known."""
        if from_block is None:
            return cls([], head + 1)
        first = max(0, min(from_block, head) - MARGIN_BLOCKS)
        return cls([(first, head)], first)

    async def follow(self, end_point: EndPoint, search: Search) -> Log | None:
        """Return the event that spent the authorization, None when the pass has seen every block.

        Raises `ChainUnavailable`, also when the calls of one look are used up; the next call goes on from there.
        """
        topics = _topics(search)
        calls = 0
        while await self._any_left(end_point, search):
            first, last = self.spans[0]
            last_now = min(last, first + self.size - 1)
            if calls == CALLS_A_LOOK:
                raise ChainUnavailable("rpc_search_unfinished")
            calls += 1
            try:
                logs = await end_point.logs(search.asset, topics, first, last_now)
            except Unusable:
                # Every end point has its own idea of a range that is too long.
                if self.size <= SMALLEST_RANGE:
                    raise
                self.size = max(SMALLEST_RANGE, self.size // 4)
                continue
            found = next((log for log in logs if spends(log, search)), None)
            if found is not None:
                return found
            if last_now == last:
                self.spans.pop(0)
            else:
                self.spans[0] = (last_now + 1, last)
        return None

    async def _any_left(self, end_point: EndPoint, search: Search) -> bool:
        if not self.spans and self.earlier:
            first = await _block_before(end_point, self.earlier, search.valid_before - EARLIEST_S)
            self.spans.append((first, self.earlier - 1))
            self.earlier = None
        return bool(self.spans)


async def _block_before(end_point: EndPoint, number: int, moment: int) -> int:
    """Return a block below `number` that is no younger than `moment`, found by ever longer steps back."""
    step, first = FIRST_STEP_BACK, number
    while first > 0:
        first = max(0, number - step)
        if step >= FARTHEST_STEP_BACK or await end_point.timestamp(first) <= moment:
            break
        step *= 2
    return first


def _topics(search: Search) -> list[Any]:
    return [
        ["0x" + AUTHORIZATION_USED.hex(), "0x" + AUTHORIZATION_CANCELED.hex()],
        "0x" + word_of(search.authorizer).hex(),
        "0x" + search.nonce.hex(),
    ]
