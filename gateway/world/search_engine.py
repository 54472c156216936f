"""A search engine that speaks SearXNG's JSON and makes its results up from the query: the same query, the same results.

It stands for a SearXNG instance with its JSON format switched on (`formats: [html, json]`), external bangs included,
which it answers with a redirect; addresses are those reserved for examples (RFC 2606), so nothing it names exists.
"""

from __future__ import annotations

import hashlib
import random
import re
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qsl, quote

from gateway.world import faults
from gateway.world.door import Call, Reply, Silence
from gateway.world.faults import Faults

CALL = "search"
PAGE = 20
PAGES = 5
ENGINES = ("example-web", "example-news", "example-reference")
SITES = (
    "docs.example.org",
    "www.example.com",
    "news.example.net",
    "wiki.example.org",
    "blog.example.com",
    "forum.example.net",
)
TITLES = (
    "{} explained",
    "A short history of {}",
    "{}: questions and answers",
    "What changed in {} this year",
    "{} in practice",
    "Understanding {}",
    "Notes on {}",
    "{} for beginners",
    "How {} works",
    "Common mistakes with {}",
)
SENTENCES = (
    "This page introduces {} and says where the terms come from.",
    "The authors compare three ways to think about {}.",
    "A table sums up what is known about {} and what is not.",
    "Readers ask most often how {} is measured.",
    "The second part gives worked examples of {}.",
    "Sources are listed at the end, with dates.",
)
EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


class SearchEngine:
    """Answers `/search`, and `/healthz` and `/config`, which are not counted."""

    def __init__(self, state: Faults) -> None:
        self._faults = state

    async def answer(self, call: Call) -> Reply | Silence:
        """Answer one call in the mode in force."""
        mode = self._faults.mode(faults.SEARCH)
        if call.path == "/search":
            self._faults.count(faults.SEARCH, CALL)
        if mode == "hang":
            return Silence()
        match call.path:
            case "/healthz":
                return Reply(200, b"OK", "text/plain; charset=utf-8")
            case "/config":
                return Reply.json(_configuration())
            case "/search":
                return self._search(call, mode)
        return Reply(404, b"<h1>Page not found</h1>", "text/html")

    def _search(self, call: Call, mode: str) -> Reply:
        asked = dict(call.query) | _form(call)
        query = asked.get("q", "").strip()
        if mode == "http_500":
            return Reply(500, b"<h1>Internal Server Error</h1>", "text/html")
        if asked.get("format") != "json":
            return Reply(403, b"<h1>Forbidden</h1>", "text/html")
        page = asked.get("pageno", "1")
        if not query or not page.isdecimal() or int(page) < 1:
            return Reply.json({"error": "No query" if not query else "Invalid pageno"}, 400)
        if any(part.startswith("!!") for part in query.split()):
            return Reply(302, b"", "text/html", (("location", "https://www.example.com/"),))
        results: list[dict[str, Any]] = []
        if mode == faults.OK and int(page) <= PAGES:
            results = made_up(query, int(page), asked.get("language", "all"))
        blocked = [[engine, "CAPTCHA"] for engine in ENGINES] if mode == "blocked" else []
        return Reply.json(
            {
                "query": query,
                "number_of_results": len(results),
                "results": results,
                "answers": [],
                "corrections": [],
                "infoboxes": [],
                "suggestions": [],
                "unresponsive_engines": blocked,
            }
        )


def _form(call: Call) -> dict[str, str]:
    """Return the fields of a form: SearXNG takes a long query so."""
    if call.method != "POST":
        return {}
    return dict(parse_qsl(call.body.decode("utf-8", "replace")))


def made_up(query: str, page: int, language: str) -> list[dict[str, Any]]:
    """Return one page of results for a query, always the same ones, best score first."""
    seed = hashlib.sha256(f"{query}\n{page}\n{language}".encode()).digest()
    chance = random.Random(seed)  # noqa: S311 - plausible pages, not secrets
    topic = " ".join(query.split())[:80]
    slug = quote(re.sub(r"\W+", "-", topic.lower()).strip("-")[:40] or "page")
    results = []
    for place in range(PAGE):
        site, title = chance.choice(SITES), chance.choice(TITLES).format(topic)
        engines = sorted(chance.sample(ENGINES, chance.randint(1, len(ENGINES))))
        url = f"https://{site}/{slug}/{page}-{place + 1}"
        result = {
            "url": url,
            "title": f"{title[:1].upper()}{title[1:]}",
            "content": " ".join(sentence.format(topic) for sentence in chance.sample(SENTENCES, 2)),
            "engine": engines[0],
            "engines": engines,
            "positions": [place + 1],
            "score": round(len(engines) / (place + 1), 4),
            "category": "general",
            "template": "default.html",
            "parsed_url": ["https", site, url.removeprefix(f"https://{site}"), "", "", ""],
            "publishedDate": None,
        }
        if chance.random() < 0.4:
            result["publishedDate"] = (EPOCH - timedelta(minutes=chance.randrange(600_000))).strftime(
                "%Y-%m-%dT%H:%M:%S"
            )
        results.append(result)
    return sorted(results, key=lambda result: -result["score"])


def _configuration() -> dict[str, Any]:
    return {
        "instance_name": "the local world's search engine",
        "categories": ["general"],
        "default_locale": "",
        "locales": {"de": "Deutsch", "en": "English", "es": "Español", "fr": "Français"},
        "engines": [
            {"name": name, "categories": ["general"], "enabled": True, "shortcut": name, "paging": True}
            for name in ENGINES
        ],
        "safe_search": 0,
        "version": "2026.1.1",
    }
