"""The text of engines as the node passes it on: one line, without characters that hide, reorder or move others.

Engines send either HTML or plain text, and each adapter says which.  In plain text `List<String>` and `a < b && c > d`
are text.  In HTML what is a tag of HTML is taken out, and what only looks like one stays.
"""

from __future__ import annotations

import unicodedata
from html.parser import HTMLParser
from typing import Any, Literal

TextKind = Literal["plain", "html"]
RAW_CHARS = 8192
JOINERS = "\u200c\u200d"  # part of the spelling of Persian, Indic scripts and emoji

_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn"})
_INLINE = frozenset({
    "a", "abbr", "acronym", "b", "bdi", "bdo", "big", "cite", "code", "data", "del", "dfn", "em", "font", "i", "ins",
    "kbd", "label", "mark", "q", "s", "samp", "small", "span", "strike", "strong", "sub", "sup", "time", "tt", "u",
    "var", "wbr",
})  # fmt: skip
_APART = frozenset({
    "address", "applet", "area", "article", "aside", "audio", "base", "blockquote", "body", "br", "button", "canvas",
    "caption", "center", "col", "colgroup", "datalist", "dd", "details", "dialog", "dir", "div", "dl", "dt", "embed",
    "fieldset", "figcaption", "figure", "footer", "form", "frame", "frameset", "h1", "h2", "h3", "h4", "h5", "h6",
    "head", "header", "hgroup", "hr", "html", "iframe", "img", "input", "legend", "li", "link", "main", "map", "menu",
    "meta", "meter", "nav", "noframes", "noscript", "object", "ol", "optgroup", "option", "output", "p", "param",
    "picture", "pre", "progress", "rp", "rt", "ruby", "search", "section", "select", "slot", "source", "summary",
    "svg", "table", "tbody", "td", "template", "textarea", "tfoot", "th", "thead", "title", "tr", "track", "ul",
    "video",
})  # fmt: skip
_UNREAD = frozenset({"script", "style"})


def one_line(value: Any, limit: int, kind: TextKind) -> str:
    """Return `value` as one line of at most `limit` characters; anything but a string is empty."""
    if not isinstance(value, str):
        return ""
    raw = value[:RAW_CHARS]
    folded = " ".join(visible(text_of(raw) if kind == "html" else raw).split())
    return folded if len(folded) <= limit else folded[: limit - 1].rstrip() + "…"


def text_of(markup: str) -> str:
    """Return the text of a piece of HTML: known tags, comments, scripts and styles taken out, entities read."""
    reader = _Reader()
    reader.feed(markup)
    reader.close()
    return "".join(reader.parts)


def visible(text: str) -> str:
    """Return `text` without characters that do not show, above all those that reorder or hide others."""
    return "".join(
        character
        if character in JOINERS or unicodedata.category(character) not in _UNSEEN
        else (" " if character.isspace() else "")
        for character in text
    )


class _Reader(HTMLParser):
    """Collects text; a tag between blocks becomes a blank, one within a line nothing."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.parts: list[str] = []
        self._unread = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        del attrs
        if tag in _UNREAD:
            self._unread += 1
        elif tag in _APART:
            self.parts.append(" ")
        elif tag not in _INLINE:
            self._tell(self.get_starttag_text() or "")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in _UNREAD:
            self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        if tag in _UNREAD:
            self._unread = max(self._unread - 1, 0)
        elif tag in _APART:
            self.parts.append(" ")
        elif tag not in _INLINE:
            self._tell(f"</{tag}>")

    def handle_data(self, data: str) -> None:
        self._tell(data)

    def _tell(self, text: str) -> None:
        if not self._unread:
            self.parts.append(text)
