"""When an upstream asked to be called again (RFC 9110 section 10.2.3)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from email.utils import parsedate_to_datetime

LONGEST_S = 86_400.0


def retry_after(headers: Mapping[str, str], more: Iterable[str] = ()) -> float | None:
    """Return the seconds that an upstream asked to wait, at most a day; None where it did not say.

    Names of headers are in lower case.  A date is held against the answer's own `date`; `more` are other places where
    it may stand, numbers of seconds that may end in `s`.
    """
    told = headers.get("retry-after", "").strip()
    waits = (
        _number(headers.get("retry-after-ms", ""), per=1000),
        _number(told),
        _until(told, headers.get("date", "")),
        *(_number(each.removesuffix("s")) for each in more),
    )
    return next((min(each, LONGEST_S) for each in waits if each is not None), None)


def _number(told: str, per: float = 1.0) -> float | None:
    try:
        value = float(told) / per
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None


def _until(told: str, now: str) -> float | None:
    try:
        return max(0.0, (parsedate_to_datetime(told) - parsedate_to_datetime(now)).total_seconds())
    except (ValueError, TypeError, OverflowError):
        return None
