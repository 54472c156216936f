"""The counters that nodes share, as rows of the store: every count is one atomic statement by the store's clock.

A row is a caller's window under a policy: when it opened, and how many calls of it nodes have `used`, those they only
reserved among them.  The SQL is the same on every engine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache

import attrs

from gateway.actors.quota.policy import Policy
from gateway.actors.store import Row, Statement, Value

_SIZES = (64, 32, 16, 8, 4, 2, 1)
"""How many callers one statement counts for: few sizes, so that engines know the statements they are sent."""

_ENDED = """
    quota_counters.window_start NOT BETWEEN
        excluded.window_start - :window_ms + 1 AND excluded.window_start + :window_ms
"""
"""A window far in the future is one of a clock that was put back; it must block nobody for ever."""

_BACK = """
    UPDATE quota_counters SET used = CASE WHEN used > :calls THEN used - :calls ELSE 0 END
    WHERE quota = :quota AND caller = :caller AND window_start <= :counted_ms AND window_start > :store_ms - :window_ms
"""
_SWEEP = "DELETE FROM quota_counters WHERE quota = :quota AND window_start <= :store_ms - :kept_ms"

_ANY_TIME = 2**62


@attrs.frozen
class Taken:
    """What a caller was given: `calls` of the window that opened at `opened_ms`, of which `used` are used now.

    Times are by the store's clock, which said `now_ms` at the count.
    """

    quota: str
    caller: str
    opened_ms: int
    used: int
    calls: int
    now_ms: int

    @classmethod
    def of(cls, row: Row) -> Taken:
        """Read a row that a statement of `take` returned."""
        quota, caller, *numbers = row
        return cls(str(quota), str(caller), *(int(number or 0) for number in numbers))


def take(policy: Policy, wanted: Sequence[tuple[str, int]]) -> Iterator[Statement]:
    """Take for each caller as many of the calls it wants, at most `limit`, as its window has room for.

    Callers are distinct and counted in the order given; the statements return a row a caller, see `Taken`.
    """
    start = 0
    for size in _SIZES:
        while len(wanted) - start >= size:
            yield _take(policy, wanted[start : start + size])
            start += size


def _take(policy: Policy, wanted: Sequence[tuple[str, int]]) -> Statement:
    parameters: dict[str, Value] = {
        "quota": policy.name,
        "limit": policy.limit,
        "window_ms": policy.window_s * 1000,
    }
    for index, (caller, calls) in enumerate(wanted):
        parameters[f"caller_{index}"] = caller
        parameters[f"calls_{index}"] = calls
    return Statement(_take_sql(len(wanted)), parameters, rows=len(wanted))


@cache
def _take_sql(size: int) -> str:
    rows = ", ".join(f"(:quota, :caller_{n}, :store_ms, :calls_{n}, :calls_{n})" for n in range(size))
    return f"""
    INSERT INTO quota_counters (quota, caller, window_start, used, taken) VALUES {rows}
    ON CONFLICT (quota, caller) DO UPDATE SET
        window_start = CASE WHEN {_ENDED} THEN excluded.window_start ELSE quota_counters.window_start END,
        used = CASE
            WHEN {_ENDED} THEN excluded.used
            WHEN quota_counters.used >= :limit THEN quota_counters.used
            WHEN quota_counters.used + excluded.used > :limit THEN :limit
            ELSE quota_counters.used + excluded.used
        END,
        taken = CASE
            WHEN {_ENDED} THEN excluded.used
            WHEN quota_counters.used >= :limit THEN 0
            WHEN quota_counters.used + excluded.used > :limit THEN :limit - quota_counters.used
            ELSE excluded.used
        END
    RETURNING quota, caller, window_start, used, taken, CAST(:store_ms AS BIGINT)
    """  # noqa: S608 - the only words put in are numbers


def give_back(policy: Policy, caller: str, calls: int, counted_ms: int | None) -> Statement:
    """Give calls back to the caller's open window, where it had opened by `counted_ms`; see `GiveBack`."""
    parameters: Mapping[str, Value] = {
        "quota": policy.name,
        "caller": caller,
        "calls": calls,
        "counted_ms": _ANY_TIME if counted_ms is None else counted_ms,
        "window_ms": policy.window_s * 1000,
    }
    return Statement(_BACK, parameters)


def sweep(policy: Policy) -> Statement:
    """Drop the rows of a policy whose windows ended as long ago as they lasted.

    Nobody waits for it, and a caller who comes back at once should find his row not in the middle of being dropped.
    """
    return Statement(_SWEEP, {"quota": policy.name, "kept_ms": 2 * policy.window_s * 1000})
