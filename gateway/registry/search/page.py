"""Results as the node passes them on: plain text, public http(s) links, each page once, in the engine's own order.

Engines are strangers: every string is made one line without hidden characters before it goes anywhere (`text`), and a
result without a usable link is dropped (`link`).  Nothing is added that the engine did not say.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import attrs

from gateway.errors import EngineBlocked, ExecutorFailed
from gateway.registry.search.link import page_of, web_url
from gateway.registry.search.text import TextKind, one_line

TITLE_CHARS = 300
SNIPPET_CHARS = 1000
EARLIEST = datetime(1990, 1, 1, tzinfo=UTC)


@attrs.frozen
class Hit:
    """One result.  `published_at` is RFC 3339 UTC, or None where the engine does not say."""

    title: str
    url: str
    snippet: str
    published_at: str | None = None
    engine: str | None = None


@attrs.frozen
class SearchPage:
    """What an engine answered.

    Attributes:
        degraded: the engine answered in part only.
        unresponsive: the engines behind it that did not answer.
    """

    hits: tuple[Hit, ...]
    degraded: bool = False
    unresponsive: tuple[str, ...] = ()


def failed(target: str, reason: str, detail: str, *, retry_after: float | None = None) -> ExecutorFailed:
    """Return the failure of an engine, with its machine `reason` beside the text."""
    return ExecutorFailed(f"{target}: {detail}", extra={"reason": reason}, retry_after=retry_after)


def blocked(target: str, cause: str, detail: str, *, retry_after: float | None = None, **more: Any) -> EngineBlocked:
    """Return the failure of an engine that turned the node away: `cause` is the machine word for what showed it."""
    extra = {"reason": "blocked", "cause": cause} | more
    return EngineBlocked(f"{target}: {detail}", extra=extra, retry_after=retry_after)


def collect(
    target: str,
    items: Any,
    fields: Mapping[str, str],
    *,
    limit: int,
    engine: str | None = None,
    kind: TextKind = "plain",
) -> tuple[Hit, ...]:
    """Read an engine's result list: at most `limit` hits, the engine's order, each page once.

    `fields` names the engine's members for title, url, snippet and (optionally) published; `kind` is what their text
    is.  Raises `ExecutorFailed`
    when `items` is no list, or when it holds results and not one of them is usable.
    """
    if not isinstance(items, list):
        raise failed(target, "malformed_answer", "its results are not a list")
    hits: dict[str, Hit] = {}
    for item in items:
        hit = read_hit(item, fields, engine, kind)
        if hit is not None:
            hits.setdefault(page_of(hit.url), hit)
        if len(hits) == limit:
            break
    if items and not hits:
        raise failed(target, "malformed_answer", "none of its results is usable")
    return tuple(hits.values())


def read_hit(item: Any, fields: Mapping[str, str], engine: str | None, kind: TextKind) -> Hit | None:
    """Read one result; None when it has no usable link."""
    if not isinstance(item, dict):
        return None
    url = web_url(item.get(fields["url"]))
    if url is None:
        return None
    return Hit(
        title=one_line(item.get(fields["title"]), TITLE_CHARS, kind) or url,
        url=url,
        snippet=one_line(item.get(fields["snippet"]), SNIPPET_CHARS, kind),
        published_at=timestamp(item.get(fields.get("published", ""))),
        engine=engine or _engine(item),
    )


def timestamp(value: Any) -> str | None:
    """Return an engine's date as RFC 3339 UTC with milliseconds (UTC where it names no zone); None: unreadable."""
    if not isinstance(value, str) or len(value) > 40:
        return None
    try:
        moment = datetime.fromisoformat(value.strip())
        return rfc3339(moment if moment.tzinfo else moment.replace(tzinfo=UTC))
    except (ValueError, OverflowError):
        return None


def plausible(told: str | None, now: datetime) -> str | None:
    """Return an engine's date, None for one before the web or in the future (a day is left for other time zones)."""
    if told is None:
        return None
    moment = datetime.fromisoformat(told)
    return told if EARLIEST <= moment <= now + timedelta(days=1) else None


def rfc3339(moment: datetime) -> str:
    """Return an aware time as RFC 3339 UTC with milliseconds."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def names(values: Iterable[Any]) -> tuple[str, ...]:
    """Return the engine names among `values` (a name, or a list that starts with one), each once, sorted."""
    found = {one_line(each[0] if isinstance(each, list) and each else each, 100, "plain") for each in values}
    return tuple(sorted(found - {""}))


def _engine(item: Mapping[str, Any]) -> str | None:
    engines = item.get("engines")
    named = item.get("engine") or (engines[0] if isinstance(engines, list) and engines else None)
    return one_line(named, 100, "plain") or None
