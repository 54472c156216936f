"""A caller's query as words: without the marks by which an engine takes a part of it for a command.

SearXNG takes commands from the start of any part of a query (`!!gh` answers with a redirect, `!images` asks other
engines, `:fr` other languages, `<3` sets a time-out, `?` was one once; docs.searxng.org, "Search syntax").  DuckDuckGo
and Brave take bangs from either end of a word (`!g`, `g!`) and a backslash at the start for "go to the first result".
Engines read past such marks otherwise, so nothing that is searched for is lost.  Operators (`site:`, quotes) stay.
"""

from __future__ import annotations

import re

SEARXNG = re.compile(r"(?<!\S)[!:<?]+")
BANGS = re.compile(r"(?<!\S)[!\\]+|!+(?!\S)")


def plain_query(query: str, commands: re.Pattern[str]) -> str:
    """Return the query without an engine's command marks; of marks alone, all of them as one quoted phrase."""
    return commands.sub("", query).strip() or f'"{"".join(query.split())}"'
