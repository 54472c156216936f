from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from gateway.errors import ExecutorFailed
from gateway.registry.search.page import collect, names, plausible, rfc3339, timestamp

FIELDS = {"title": "title", "url": "url", "snippet": "content", "published": "date"}


def item(url: Any, title: Any = "T", content: Any = "C", **more: Any) -> dict[str, Any]:
    return {"url": url, "title": title, "content": content, **more}


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


def test_links_that_differ_by_trackers_are_one_page_and_the_page_is_filled() -> None:
    urls = [
        "https://www.example.org/a/?utm_source=x#top",
        "http://example.org/a",
        "https://example.org/a?fbclid=1&ref=y",
        "https://example.org/b?gclid=2&q=1",
        "https://example.org/b?q=1",
        "https://example.org/c",
    ]
    hits = collect("t", [item(url) for url in urls], FIELDS, limit=3)
    assert [hit.url for hit in hits] == [
        "https://www.example.org/a/#top",
        "https://example.org/b?q=1",
        "https://example.org/c",
    ]


@pytest.mark.parametrize(("kind", "told"), [("plain", "Map<K, V> &amp; <b>x</b>"), ("html", "Map<K, V> & x")])
def test_an_engines_text_is_read_as_what_it_is(kind: Any, told: str) -> None:
    raw = "Map<K, V> &amp; <b>x</b>"
    (hit,) = collect("t", [item("https://example.org/", raw, raw)], FIELDS, limit=1, kind=kind)
    assert (hit.title, hit.snippet) == (told, told)


@pytest.mark.parametrize(
    ("told", "kept"),
    [
        ("1989-12-31T23:59:59.000Z", False),
        ("1990-01-01T00:00:00.000Z", True),
        ("2026-01-02T00:00:00.000Z", True),
        ("2026-01-02T23:00:00.000Z", True),
        ("2026-01-04T00:00:00.000Z", False),
        ("9999-01-01T00:00:00.000Z", False),
    ],
)
def test_a_date_before_the_web_or_in_the_future_is_none(told: str, kept: bool) -> None:
    assert plausible(told, datetime(2026, 1, 2, tzinfo=UTC)) == (told if kept else None)
    assert plausible(None, datetime(2026, 1, 2, tzinfo=UTC)) is None
