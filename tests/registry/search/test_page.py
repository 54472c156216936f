from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from gateway.errors import ExecutorFailed
from gateway.registry.search.page import (
    collect,
    hostname,
    names,
    normalised,
    plain,
    rfc3339,
    timestamp,
    visible,
    web_url,
)

FIELDS = {"title": "title", "url": "url", "snippet": "content", "published": "date"}


def item(url: Any, title: Any = "T", content: Any = "C", **more: Any) -> dict[str, Any]:
    return {"url": url, "title": title, "content": content, **more}


@pytest.mark.parametrize(
    ("raw", "clean"),
    [
        ("plain", "plain"),
        ("a <b>bold</b> word", "a bold word"),
        ("<script>alert(1)</script>after", "after"),
        ("before<script>alert(1)", "before"),
        ("<style>b{}</style>x<!-- hidden -->y", "x y"),
        ("x <a href='y", "x"),
        ("1 < 2 and 3 > 2", "1 < 2 and 3 > 2"),
        ("Tom &amp; Jerry", "Tom & Jerry"),
        ("<b>end</b>.", "end."),
        ("  many\n\t spaces ", "many spaces"),
        ("safe\u202egnp.exe\u202c", "safegnp.exe"),
        ("zero\u200bwidth\ufeff", "zerowidth"),
        ("tag\U000e0041\U000e0042", "tag"),
        ("null\x00bell\x07", "nullbell"),
        ("\ud800lone", "lone"),
        ("नी\u200dक \u200c", "नी\u200dक \u200c"),
        (None, ""),
        (7, ""),
        (["x"], ""),
    ],
)
def test_text_is_plain_visible_and_on_one_line(raw: Any, clean: str) -> None:
    assert plain(raw, 100) == clean


def test_long_text_is_cut_and_says_so() -> None:
    assert plain("x" * 5000, 10) == "x" * 9 + "…"


def test_a_megabyte_of_open_tags_is_read_in_no_time() -> None:
    assert plain("<script" * 200_000, 100) == ""


def test_visible_text_encodes() -> None:
    assert visible("".join(map(chr, range(0x3000)))).encode()


@pytest.mark.parametrize(
    "url",
    [
        "https://example.org/",
        "http://example.org",
        "https://example.org:8443/a?b=c#d",
        "HTTPS://EXAMPLE.org/",
        "https://münchen.example/ü",
        " https://example.org/ \n",
    ],
)
def test_a_link_of_the_web_is_kept(url: str) -> None:
    assert web_url(url) == url.strip()


@pytest.mark.parametrize(
    "url",
    [
        "javascript:alert(1)",
        "data:text/html,x",
        "file:///etc/passwd",
        "ftp://example.org/",
        "//example.org/",
        "example.org",
        "https://",
        "https:///path",
        "https://user:pw@example.org/",
        "https://example.org@evil.example/",
        "https://example.org\\@evil.example/",
        "https://exa mple.org/",
        "https://example.org/\nx",
        "https://example.org/\u202egnp",
        "https://example.org:99999/",
        "https://example.org:port/",
        "https://[::1/",
        "https://example.org/" + "x" * 2048,
        "",
        None,
        5,
        {"url": "https://example.org"},
    ],
)
def test_anything_else_is_no_link(url: Any) -> None:
    assert web_url(url) is None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("https://Example.org", "https://example.org/"),
        ("https://example.org:443/a", "https://example.org/a#part"),
        ("HTTP://example.org:80/?q=1", "http://example.org/?q=1"),
    ],
)
def test_links_that_differ_in_spelling_only_are_the_same(one: str, other: str) -> None:
    assert normalised(one) == normalised(other)


def test_links_that_differ_in_path_or_query_are_different() -> None:
    assert len({normalised(f"https://example.org/{end}") for end in ("a", "A", "a?b", "a/")}) == 4
    assert hostname("https://Example.org:8443/a") == "example.org"


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        ("2026-03-04T05:06:07", "2026-03-04T05:06:07.000Z"),
        ("2026-03-04T05:06:07.891Z", "2026-03-04T05:06:07.891Z"),
        ("2026-03-04T05:06:07+02:00", "2026-03-04T03:06:07.000Z"),
        ("2026-03-04 05:06:07", "2026-03-04T05:06:07.000Z"),
        ("2026-03-04", "2026-03-04T00:00:00.000Z"),
        ("0001-01-01T00:00:00+14:00", None),
        ("yesterday", None),
        ("9" * 100, None),
        (None, None),
        (1700000000, None),
    ],
)
def test_dates_are_told_in_utc_or_not_at_all(raw: Any, told: str | None) -> None:
    assert timestamp(raw) == told


def test_times_are_written_with_milliseconds() -> None:
    moment = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=timezone(timedelta(hours=1)))
    assert rfc3339(moment) == "2026-01-02T02:04:05.678Z"
    assert rfc3339(datetime(2026, 1, 1, tzinfo=UTC)) == "2026-01-01T00:00:00.000Z"


def test_hits_keep_the_engines_order_and_each_link_stands_once() -> None:
    items = [item(f"https://example.org/{n}") for n in (3, 1, 3, 2)]
    items.insert(1, item("https://EXAMPLE.org:443/3#again", "another title"))
    assert [hit.url[-1] for hit in collect("t", items, FIELDS, limit=10)] == ["3", "1", "2"]


def test_at_most_the_limit_is_kept() -> None:
    items = [item(f"https://example.org/{n}") for n in range(20)]
    assert len(collect("t", items, FIELDS, limit=3)) == 3


def test_unusable_items_are_dropped_and_usable_ones_kept() -> None:
    items: list[Any] = [None, 7, [], {}, item("javascript:alert(1)"), item(None), item("https://example.org/")]
    assert [hit.url for hit in collect("t", items, FIELDS, limit=10)] == ["https://example.org/"]


def test_results_of_which_none_is_usable_are_a_failure_not_an_empty_page() -> None:
    with pytest.raises(ExecutorFailed) as caught:
        collect("t", [item("javascript:alert(1)"), {}], FIELDS, limit=10)
    assert caught.value.extra == {"reason": "malformed_answer"}


def test_no_results_are_an_empty_page() -> None:
    assert collect("t", [], FIELDS, limit=10) == ()


@pytest.mark.parametrize("items", [None, "results", 3, {"0": {}}])
def test_results_that_are_no_list_are_a_failure(items: Any) -> None:
    with pytest.raises(ExecutorFailed):
        collect("t", items, FIELDS, limit=10)


def test_wrong_types_inside_an_item_are_unknown_not_invented() -> None:
    (hit,) = collect("t", [item("https://example.org/x", 5, ["y"], date=7, engine=3)], FIELDS, limit=1)
    assert (hit.title, hit.snippet, hit.published_at, hit.engine) == ("https://example.org/x", "", None, None)


def test_the_engine_is_the_one_named_or_else_the_first_of_the_list() -> None:
    variants: list[dict[str, Any]] = [
        {"engine": "brave", "engines": ["x"]},
        {"engines": ["bing", "brave"]},
        {"engines": []},
        {},
    ]
    engines = [collect("t", [item("https://e.org/", **more)], FIELDS, limit=1)[0].engine for more in variants]
    assert engines == ["brave", "bing", None, None]


def test_names_come_from_pairs_or_plain_text() -> None:
    assert names([["google", "CAPTCHA"], "brave", ["google", "timeout"], 3, [], None]) == ("brave", "google")
