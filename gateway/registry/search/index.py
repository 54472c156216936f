"""The embedded index: the documentation that the node ships, searched by SQLite's FTS5 without any network.

It is the default of a fresh node and says what it is: coverage `local`, English only.  What the caller typed never
reaches FTS5 as syntax: words are taken out of it and quoted.  No hit is an empty page.
"""

from __future__ import annotations

import re
import sqlite3
import threading
from collections.abc import Sequence
from typing import Literal

import attrs

from gateway.registry.qualification import Finding
from gateway.registry.search.adapter import Capabilities, Cost
from gateway.registry.search.corpus import Page
from gateway.registry.search.page import SNIPPET_CHARS, Hit, SearchPage
from gateway.registry.search.request import SearchRequest
from gateway.registry.search.text import one_line

MAX_TERMS = 64
PASSAGES_A_PAGE = 8
SNIPPET_TOKENS = 40
CAPABILITIES = Capabilities(languages=frozenset({"en"}), regions=frozenset({"US"}))
COST = Cost(basis="embedded_no_charge_per_call")

_WORD = re.compile(r"\w+")
_COMMON = frozenset({
    "a", "about", "an", "and", "are", "as", "at", "be", "by", "can", "do", "does", "for", "from", "how", "i", "if",
    "in", "is", "it", "its", "me", "my", "of", "on", "or", "our", "so", "that", "the", "their", "this", "to", "was",
    "we", "what", "when", "where", "which", "who", "why", "will", "with", "you", "your",
})  # fmt: skip

_SEARCH = f"""
    SELECT page, snippet(passages, 2, '', '', '…', {SNIPPET_TOKENS})
    FROM passages WHERE passages MATCH :terms
    ORDER BY bm25(passages, 4.0, 3.0, 1.0), rowid LIMIT :rows
"""  # noqa: S608 - a constant of this module


class Index:
    """Pages cut into their sections, in memory; safe to use from several threads, one at a time."""

    def __init__(self, pages: Sequence[Page]) -> None:
        self._pages = {page.name: page for page in pages}
        self._turn = threading.Lock()
        self._database = sqlite3.connect(":memory:", check_same_thread=False)
        self._database.execute(
            "CREATE VIRTUAL TABLE passages USING fts5("
            "title, heading, body, page UNINDEXED, tokenize = 'porter unicode61 remove_diacritics 2')"
        )
        self._database.executemany(
            "INSERT INTO passages VALUES (?, ?, ?, ?)",
            [(page.title, heading, body, page.name) for page in pages for heading, body in sections(page.text)],
        )
        self._database.commit()

    def find(self, query: str, limit: int) -> list[tuple[Page, str]]:
        """Return at most `limit` pages with the passage that fits best, best page first."""
        terms = quoted_terms(query)
        if not terms:
            return []
        with self._turn:
            rows = self._database.execute(_SEARCH, {"terms": terms, "rows": limit * PASSAGES_A_PAGE}).fetchall()
        best: dict[str, str] = {}
        for name, passage in rows:
            best.setdefault(name, passage)
        return [(self._pages[name], passage) for name, passage in best.items()][:limit]

    def close(self) -> None:
        """Free the memory."""
        self._database.close()


@attrs.frozen
class IndexAdapter:
    """Serves searches from an `Index`; a page's link is `{base_url}/docs/{name}`."""

    name: str
    index: Index
    base_url: str
    cost: Cost = COST
    simulated: bool = False
    capabilities: Capabilities = CAPABILITIES
    kind: Literal["index"] = attrs.field(default="index", init=False)
    coverage: Literal["local"] = attrs.field(default="local", init=False)

    def search(self, request: SearchRequest) -> SearchPage:
        """Return the pages that hold any word of the query, best first."""
        base = self.base_url.rstrip("/")
        return SearchPage(
            tuple(
                Hit(
                    page.title,
                    f"{base}/docs/{page.name}",
                    one_line(passage, SNIPPET_CHARS, "plain"),
                    engine="sqlite-fts5",
                )
                for page, passage in self.index.find(request.query, request.max_results)
            )
        )

    def prove(self) -> Finding:
        """Look a word up that every corpus of this node holds."""
        try:
            found = self.index.find("gateway", 1)
        except sqlite3.Error:
            return Finding(ok=False, reason="index_unreadable")
        return Finding(ok=True) if found else Finding(ok=False, reason="index_empty")


def quoted_terms(query: str) -> str:
    """Return an FTS5 expression that asks for any of the query's words, each a quoted string; empty: there is no word.

    Words of every English sentence are left out unless the query has no others; at most `MAX_TERMS` are asked.
    """
    words = list(dict.fromkeys(_WORD.findall(query.lower())))
    telling = [word for word in words if word not in _COMMON] or words
    return " OR ".join(f'"{word}"' for word in telling[:MAX_TERMS])


def sections(text: str) -> list[tuple[str, str]]:
    """Cut Markdown at its headings: (heading, plain text) of every section that says something."""
    cut: list[tuple[str, list[str]]] = [("", [])]
    for line in text.splitlines():
        if line.startswith("#"):
            cut.append((line.lstrip("#").strip(), []))
        else:
            cut[-1][1].append(line)
    return [(_unmarked(heading), body) for heading, lines in cut if (body := _unmarked("\n".join(lines)))]


def _unmarked(text: str) -> str:
    text = re.sub(r"^```.*$|^[|:\- ]+$", "", text, flags=re.MULTILINE)
    text = re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", text)
    return " ".join(re.sub(r"[`*|]|^\s*[-*] ", " ", text, flags=re.MULTILINE).split())
