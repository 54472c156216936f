"""The documentation that the node ships: the pages under `/docs/` and the corpus of the embedded index."""

from __future__ import annotations

from importlib.resources import files

import attrs


@attrs.frozen
class Page:
    """One page: `name` is the last segment of its path, `text` is Markdown that starts with the title."""

    name: str
    title: str
    text: str


def pages() -> tuple[Page, ...]:
    """Return every page in the order of names."""
    found = [each for each in files(__name__).iterdir() if each.name.endswith(".md") and each.name != "README.md"]
    return tuple(
        _page(each.name.removesuffix(".md"), each.read_text(encoding="utf-8"))
        for each in sorted(found, key=lambda each: each.name)
    )


def _page(name: str, text: str) -> Page:
    first, _, _ = text.partition("\n")
    return Page(name, first.removeprefix("# ").strip(), text)
