"""Counting by the one node of its store: counters live in memory, exactly.

They are flushed to the store every few seconds, so that a restart does not forget them: a clean one nothing, a kill
what was counted since the last flush.  The unpaid path writes nothing else (design/architecture, "The store").
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import attrs
import structlog
import trio

from gateway.actors.quota.policy import Allowance, GiveBack, Message, Policy, Spend
from gateway.actors.runtime import Inbox, Letter
from gateway.actors.store import Statement, Store
from gateway.errors import StoreUnavailable

log = structlog.get_logger(__name__)

FLUSH_EVERY_S = 5.0
FLUSH_AT_ONCE = 2_000
MAX_WINDOWS = 200_000
"""Callers remembered at once; beyond it the oldest windows are let go."""


@attrs.define
class _Window:
    opened_ms: int
    used: int
    dirty: bool = True


@attrs.define(eq=False)
class _Counters:
    policies: Mapping[str, Policy]
    clock_ms: Callable[[], int]
    windows: dict[tuple[str, str], _Window] = attrs.field(factory=dict)

    def serve(self, letter: Letter[Message]) -> None:
        """Answer a letter."""
        message = letter.message
        if isinstance(message, Spend):
            letter.answer(message, self.spend(self.policies[message.policy], message.caller))
        else:
            self.give_back(message)

    def spend(self, policy: Policy, caller: str) -> Allowance:
        """Count a call if the caller's window has room for it."""
        now = self.clock_ms()
        window = self.window(policy, caller, now)
        granted = window.used < policy.limit
        if granted:
            window.used += 1
            window.dirty = True
        left_ms = window.opened_ms + policy.window_s * 1000 - now
        return Allowance(policy, granted, max(policy.limit - window.used, 0), -(-left_ms // 1000), window.opened_ms)

    def window(self, policy: Policy, caller: str, now: int) -> _Window:
        """Return the caller's window of now.  A clock that was put back moves the window along, it opens no new one."""
        window = self.windows.get((policy.name, caller))
        if window is not None and now < window.opened_ms:
            window.opened_ms = now
            window.dirty = True
        if window is None or now - window.opened_ms >= policy.window_s * 1000:
            self.windows.pop((policy.name, caller), None)
            window = self.windows[policy.name, caller] = _Window(now, 0)
            if len(self.windows) > MAX_WINDOWS:
                self.windows.pop(next(iter(self.windows)))
        return window

    def give_back(self, call: GiveBack) -> None:
        """Take one call back, where the window that it was counted in is still open."""
        window = self.windows.get((call.policy, call.caller))
        if window is None or window.used == 0:
            return
        if call.counted_ms is None or window.opened_ms <= call.counted_ms:
            window.used -= 1
            window.dirty = True

    def closed(self, now: int) -> list[tuple[str, str]]:
        """Return the windows that have ended."""
        return [
            key
            for key, window in self.windows.items()
            if now - window.opened_ms >= self.policies[key[0]].window_s * 1000
        ]


async def count_in_memory(
    inbox: Inbox[Message], *, policies: Mapping[str, Policy], store: Store, clock_ms: Callable[[], int]
) -> None:
    """Count calls; flush now and then and once more at the end."""
    counters = _Counters(policies, clock_ms)
    longest_ms = max((policy.window_s for policy in policies.values()), default=60) * 1000
    for name, caller, opened, used in await store.fetch(
        "SELECT quota, caller, window_start, used FROM quota_counters WHERE window_start > :since"
        " ORDER BY window_start",
        {"since": clock_ms() - longest_ms},
    ):
        policy = policies.get(str(name))
        if policy is not None and clock_ms() - int(opened or 0) < policy.window_s * 1000:
            counters.windows[str(name), str(caller)] = _Window(int(opened or 0), int(used or 0), dirty=False)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_keep_flushing, counters, store)
        inbox.ready(at_once=counters.serve)
        async for letter in inbox:
            counters.serve(letter)
        nursery.cancel_scope.cancel()
    with trio.move_on_after(5):
        await _flush(counters, store)


async def _keep_flushing(counters: _Counters, store: Store) -> None:
    while True:
        await trio.sleep(FLUSH_EVERY_S)
        await _flush(counters, store)


async def _flush(counters: _Counters, store: Store) -> None:
    """Write every counter that changed, a bounded number in one step; what could not be written stays due."""
    now = counters.clock_ms()
    ended = counters.closed(now)
    for key in ended:
        del counters.windows[key]
    dirty = [key for key, window in counters.windows.items() if window.dirty]
    steps = [dirty[start : start + FLUSH_AT_ONCE] for start in range(0, len(dirty), FLUSH_AT_ONCE)]
    drops = [_drop(policy, now) for policy in counters.policies.values()]
    for keys in steps or ([[]] if ended else []):
        written = {key: counters.windows[key] for key in keys if key in counters.windows}
        counters_now = [_counter(*key, window) for key, window in written.items()]
        for window in written.values():
            window.dirty = False
        done = False
        try:
            await store.commit(*counters_now, *drops)
            done = True
        except StoreUnavailable as error:
            log.warning("quota_flush_failed", reason=error.detail)
            return
        finally:
            for window in written.values():
                window.dirty = window.dirty or not done


def _drop(policy: Policy, now: int) -> Statement:
    return Statement(
        "DELETE FROM quota_counters WHERE quota = :quota AND window_start <= :oldest",
        {"quota": policy.name, "oldest": now - policy.window_s * 1000},
    )


def _counter(policy: str, caller: str, window: _Window) -> Statement:
    return Statement(
        """
        INSERT INTO quota_counters (quota, caller, window_start, used)
        VALUES (:quota, :caller, :window_start, :used)
        ON CONFLICT (quota, caller) DO UPDATE SET window_start = excluded.window_start, used = excluded.used
        """,
        {"quota": policy, "caller": caller, "window_start": window.opened_ms, "used": window.used},
    )
