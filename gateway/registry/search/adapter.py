"""What an adapter of a search engine is: what it can serve, what it asks, how it reads the answer.

Adapters do no I/O.  A remote one plans an `HttpCall` (or, for a library, a `WorkerCall`) and reads the answer; a local
one looks its answer up.  An adapter that cannot serve a request as it stands says so and is skipped: nothing is bent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal, Protocol, runtime_checkable

import attrs

from gateway.registry.http_call import HttpAnswer, HttpCall
from gateway.registry.qualification import Finding
from gateway.registry.retry_after import retry_after
from gateway.registry.search.page import SearchPage, blocked, failed
from gateway.registry.search.request import SearchRequest
from gateway.registry.upstream_json import read_json

Coverage = Literal["web", "local"]


@attrs.frozen
class Capabilities:
    """What an engine can be asked.

    Attributes:
        languages: BCP 47 tags in lower case, with a region or script only where the engine tells those apart; None: any
            language, with or without a region.
        regions: ISO 3166-1 codes; None: any.
        locales: the only pairs of primary tag and region, where the engine knows no others.
        max_query_chars: Unicode code points.
        max_query_words: white-space separated words; None: any number.
        max_results: the most results of one call.
    """

    languages: frozenset[str] | None
    regions: frozenset[str] | None
    max_query_chars: int = 2000
    max_query_words: int | None = None
    max_results: int = 10
    locales: frozenset[tuple[str, str]] | None = None

    def lacks(self, request: SearchRequest) -> str | None:
        """Return the machine word for the first thing that this engine cannot serve of `request`; None: it can."""
        spoken = self.language_of(request)
        checks = (
            ("language_unsupported", spoken is not None),
            ("region_unsupported", self.regions is None or request.region in self.regions),
            ("locale_unsupported", self.locales is None or (spoken, request.region) in self.locales),
            ("query_without_words", bool(request.query.strip())),
            ("query_too_long", len(request.query) <= self.max_query_chars),
            ("query_too_long", len(request.query.split()) <= (self.max_query_words or len(request.query))),
            ("too_many_results", request.max_results <= self.max_results),
        )
        return next((reason for reason, holds in checks if not holds), None)

    def language_of(self, request: SearchRequest) -> str | None:
        """Return the engine's own tag that serves the request's language; None: it does not speak it.

        It is found by lookup (RFC 4647 section 3.4): the tag itself, then its parents, without the last subtag each.
        A tag that is a language alone is looked for with the request's region first.  An engine that knows any
        language is asked for the language, with the tag's own region where it has one.
        """
        tag = request.language.lower()
        primary, *more = tag.split("-")
        if self.languages is None:
            region = next((each for each in more if len(each) == 2), None)
            return f"{primary}-{region}" if region else primary
        regional = [f"{primary}-{request.region.lower()}"] if tag == primary else []
        return next((each for each in (*regional, *lookup(tag)) if each in self.languages), None)


def lookup(tag: str) -> Iterator[str]:
    """Yield a tag and its parents, the narrowest first (RFC 4647 section 3.4); a single letter never ends one."""
    parts = tag.split("-")
    while parts:
        yield "-".join(parts)
        parts.pop()
        while parts and len(parts[-1]) == 1:
            parts.pop()


def written(tag: str) -> str:
    """Return a tag in its usual case (RFC 5646 section 2.1.1): `zh-Hant-TW`."""
    primary, *more = tag.split("-")
    cased = (each.upper() if len(each) == 2 else each.title() if len(each) == 4 else each for each in more)
    return "-".join((primary, *cased))


@attrs.frozen
class Cost:
    """What one call costs the node, in atomic units of the node's accounting asset, and what that figure rests on.

    `atomic` is None where the engine bills and the operator did not say how much.
    """

    atomic: int | None = 0
    basis: str = "no_charge_per_call"
    billed: bool = False


@attrs.frozen
class WorkerCall:
    """A program to run for one call: JSON on its standard input, JSON from its output; killed after `timeout_s`."""

    argv: tuple[str, ...]
    stdin: bytes
    timeout_s: float = 10.0
    max_bytes: int = 2**20
    target: str = "worker"


class SearchAdapter(Protocol):
    """What all adapters say of themselves; `name` is theirs alone on a node and names their route."""

    @property
    def name(self) -> str:
        """The adapter's name, shown in `servingAdapters`."""
        ...

    @property
    def kind(self) -> str:
        """The engine it speaks to."""
        ...

    @property
    def coverage(self) -> Coverage:
        """What its results cover."""
        ...

    @property
    def capabilities(self) -> Capabilities:
        """What it can be asked."""
        ...

    @property
    def cost(self) -> Cost:
        """What a call costs the node."""
        ...

    @property
    def simulated(self) -> bool:
        """True for a stand-in of the local world."""
        ...


class RemoteAdapter(SearchAdapter, Protocol):
    """An engine that is asked by a call."""

    def plan(self, request: SearchRequest) -> HttpCall | WorkerCall:
        """Return the one call that serves `request`."""
        ...

    def read(self, request: SearchRequest, answer: HttpAnswer) -> SearchPage:
        """Read the answer; raises `EngineBlocked` or `ExecutorFailed`.  A blocked engine is never an empty page."""
        ...

    def probe_calls(self) -> tuple[HttpCall, ...]:
        """Return the unbilled calls that prove the route; none: there is no free proof of this engine."""
        ...

    def read_probe(self, answers: Sequence[HttpAnswer]) -> Finding:
        """Judge the answers of `probe_calls`, in its order; with none, what the configuration alone shows."""
        ...


@runtime_checkable
class LocalAdapter(SearchAdapter, Protocol):
    """An engine inside the node.  Its methods may take milliseconds and are run in a thread."""

    def search(self, request: SearchRequest) -> SearchPage:
        """Return the page; no hit is an empty page."""
        ...

    def prove(self) -> Finding:
        """Look something up that must be found."""
        ...


Adapter = RemoteAdapter | LocalAdapter


def budget_of(adapter: SearchAdapter) -> str | None:
    """Return the name of the daily budget of free calls that an engine has which bills every call; else None."""
    return f"billed:{route_id(adapter)}" if adapter.cost.billed else None


def route_id(adapter: SearchAdapter) -> str:
    """Return the name of the adapter's route in evidence, results and receipts."""
    return f"search/{adapter.name}"


def json_object(target: str, answer: HttpAnswer) -> dict[str, Any]:
    """Return the JSON object of a 200 answer; raises `EngineBlocked` for a refusal, else `ExecutorFailed`.

    403 and 429 are how engines and the gates before them turn programs away; so is a CAPTCHA page in place of JSON.
    """
    status, wait = answer.status, retry_after(answer.headers)
    if status in {403, 429}:
        raise blocked(target, f"status_{status}", f"answered {status}", retry_after=wait)
    if status != 200:
        raise failed(target, f"status_{status}", f"answered {status}", retry_after=wait)
    try:
        value = read_json(answer.content)
    except ValueError:
        if b"captcha" in answer.content[:65536].lower():
            raise blocked(target, "captcha", "answered with a CAPTCHA") from None
        raise failed(target, "malformed_answer", "its answer is not JSON") from None
    if not isinstance(value, dict):
        raise failed(target, "malformed_answer", "its answer is not a JSON object")
    return value


def keyed_finding(key: str) -> Finding:
    """Judge an engine that bills every call: the key is there or not, and real calls decide the rest."""
    if not key:
        return Finding(ok=False, reason="key_missing", basis="configuration")
    return Finding(ok=True, basis="configuration")
