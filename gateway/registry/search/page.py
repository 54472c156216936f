"""Results as the node passes them on: plain text, http(s) links, each link once, in the engine's own order.

Engines are strangers: every string is stripped of markup, control, bidirectional and invisible characters before it
goes anywhere, and a result without a usable link is dropped.  Nothing is added that the engine did not say.
"""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import SplitResult, urlsplit

import attrs

from gateway.errors import EngineBlocked, ExecutorFailed

TITLE_CHARS = 300
SNIPPET_CHARS = 1000
URL_CHARS = 2048
RAW_CHARS = 8192

_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
_SCRIPT = re.compile(r"<(script|style)\b.*?(?:</\1\s*>|\Z)", re.DOTALL | re.IGNORECASE)
_TAG = re.compile(r"</?[a-zA-Z!?][^>]*(?:>|\Z)")
_JOINERS = "\u200c\u200d"  # part of the spelling of Persian, Indic scripts and emoji
_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn"})
_PORTS = {"http": 80, "https": 443}


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


def failed(target: str, reason: str, detail: str) -> ExecutorFailed:
    """Return the failure of an engine, with its machine `reason` beside the text."""
    return ExecutorFailed(f"{target}: {detail}", extra={"reason": reason})


def blocked(target: str, cause: str, detail: str, **more: Any) -> EngineBlocked:
    """Return the failure of an engine that turned the node away: `cause` is the machine word for what showed it."""
    return EngineBlocked(f"{target}: {detail}", extra={"reason": "blocked", "cause": cause} | more)


def collect(
    target: str, items: Any, fields: Mapping[str, str], *, limit: int, engine: str | None = None
) -> tuple[Hit, ...]:
    """Read an engine's result list: at most `limit` hits, the engine's order, each normalised link once.

    `fields` names the engine's members for title, url, snippet and (optionally) published.  Raises `ExecutorFailed`
    when `items` is no list, or when it holds results and not one of them is usable.
    """
    if not isinstance(items, list):
        raise failed(target, "malformed_answer", "its results are not a list")
    hits: dict[str, Hit] = {}
    for item in items:
        hit = read_hit(item, fields, engine)
        if hit is not None:
            hits.setdefault(normalised(hit.url), hit)
        if len(hits) == limit:
            break
    if items and not hits:
        raise failed(target, "malformed_answer", "none of its results is usable")
    return tuple(hits.values())


def read_hit(item: Any, fields: Mapping[str, str], engine: str | None) -> Hit | None:
    """Read one result; None when it has no usable link."""
    if not isinstance(item, dict):
        return None
    url = web_url(item.get(fields["url"]))
    if url is None:
        return None
    return Hit(
        title=plain(item.get(fields["title"]), TITLE_CHARS) or url,
        url=url,
        snippet=plain(item.get(fields["snippet"]), SNIPPET_CHARS),
        published_at=timestamp(item.get(fields.get("published", ""))),
        engine=engine or _engine(item),
    )


def plain(value: Any, limit: int) -> str:
    """Return `value` as one line of plain text of at most `limit` characters; anything but a string is empty."""
    if not isinstance(value, str):
        return ""
    text = value[:RAW_CHARS]
    for markup in (_COMMENT, _SCRIPT, _TAG):
        text = markup.sub(" ", text)
    folded = " ".join(visible(html.unescape(text)).split())
    folded = re.sub(r" ([.,;:!?)\]])", r"\1", folded)
    return folded if len(folded) <= limit else folded[: limit - 1].rstrip() + "…"


def visible(text: str) -> str:
    """Return `text` without characters that do not show, above all those that reorder or hide others."""
    return "".join(
        character
        if character in _JOINERS or unicodedata.category(character) not in _UNSEEN
        else (" " if character.isspace() else "")
        for character in text
    )


def web_url(value: Any) -> str | None:
    """Return `value` if it is an http(s) URL of a named host, without credentials or hidden characters; else None."""
    if not isinstance(value, str):
        return None
    url = value.strip()
    if not url or len(url) > URL_CHARS or "\\" in url or any(part.isspace() for part in url) or visible(url) != url:
        return None
    parts = _split(url)
    if parts is None or parts.scheme not in _PORTS or not parts.hostname or "@" in parts.netloc:
        return None
    return url


def normalised(url: str) -> str:
    """Return the form under which two links are the same: host in lower case, no default port, no fragment."""
    parts = urlsplit(url)
    port = "" if parts.port in {None, _PORTS[parts.scheme]} else f":{parts.port}"
    query = f"?{parts.query}" if parts.query else ""
    return f"{parts.scheme}://{parts.hostname}{port}{parts.path or '/'}{query}"


def hostname(url: str) -> str:
    """Return the host of a link that `web_url` accepted."""
    return urlsplit(url).hostname or ""


def timestamp(value: Any) -> str | None:
    """Return an engine's date as RFC 3339 UTC with milliseconds (UTC where it names no zone); None: unreadable."""
    if not isinstance(value, str) or len(value) > 40:
        return None
    try:
        moment = datetime.fromisoformat(value.strip())
        return rfc3339(moment if moment.tzinfo else moment.replace(tzinfo=UTC))
    except (ValueError, OverflowError):
        return None


def rfc3339(moment: datetime) -> str:
    """Return an aware time as RFC 3339 UTC with milliseconds."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def names(values: Iterable[Any]) -> tuple[str, ...]:
    """Return the engine names among `values` (a name, or a list that starts with one), each once, sorted."""
    found = {plain(each[0] if isinstance(each, list) and each else each, 100) for each in values}
    return tuple(sorted(found - {""}))


def _split(url: str) -> SplitResult | None:
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises for a port that is no number
    except ValueError:
        return None
    return parts


def _engine(item: Mapping[str, Any]) -> str | None:
    engines = item.get("engines")
    named = item.get("engine") or (engines[0] if isinstance(engines, list) and engines else None)
    return plain(named, 100) or None
