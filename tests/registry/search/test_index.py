from __future__ import annotations

import random
import threading

import pytest

from gateway.registry.search.corpus import Page, pages
from gateway.registry.search.index import MAX_TERMS, Index, IndexAdapter, quoted_terms, sections
from gateway.registry.search.page import SearchPage
from gateway.registry.search.request import SearchRequest

CORPUS = (
    Page("apples", "Apples", "# Apples\n\nApples are fruit.\n\n## Storing\n\nKeep apples cool and dry.\n"),
    Page("pears", "Pears", "# Pears\n\nPears are fruit, unlike the gateway.\n"),
    Page("evil", "Evil", "# Evil\n\nA <script>alert(1)</script> marks \u202ethis\u202c page.\n"),
)
INDEX = Index(CORPUS)
ADAPTER = IndexAdapter("embedded-index", INDEX, "http://127.0.0.1:8402/")
SHIPPED = IndexAdapter("embedded-index", Index(pages()), "http://127.0.0.1:8402")


def names(query: str, limit: int = 10) -> list[str]:
    return [page.name for page, _ in INDEX.find(query, limit)]


def test_the_page_that_is_about_the_words_comes_first() -> None:
    assert names("apples") == ["apples"]
    assert names("storing fruit")[0] == "apples"
    assert sorted(names("fruit")) == ["apples", "pears"]


def test_words_are_found_in_their_other_forms() -> None:
    assert names("store apple")[0] == "apples"


def test_a_page_stands_once_however_many_of_its_passages_fit() -> None:
    assert names("apples apples fruit cool").count("apples") == 1


def test_no_more_pages_than_asked_for() -> None:
    assert len(names("fruit", 1)) == 1


def test_words_that_stand_nowhere_find_nothing() -> None:
    assert ADAPTER.search(SearchRequest("quantum chromodynamics")) == SearchPage(())


def test_common_words_alone_do_not_drag_pages_in() -> None:
    assert names("what is the quark") == []


@pytest.mark.parametrize(
    "query",
    [
        '"',
        '""',
        "foo AND",
        "a:b*(",
        "NEAR(apples, 3)",
        "title : apples",
        "^apples",
        "apples OR",
        "-apples",
        "{title body}: apples",
        "') DROP TABLE passages; --",
        "apples\x00pears",
        "\x00",
        "\ud800",
        "*",
        "apples" * 300,
        "? " * 1000,
        "'; SELECT * FROM passages",
    ],
)
def test_what_the_caller_types_is_never_syntax(query: str) -> None:
    INDEX.find(query, 10)
    assert names("apples") == ["apples"]


def test_random_bytes_are_never_syntax() -> None:
    chance = random.Random(7)
    for _ in range(300):
        INDEX.find("".join(chr(chance.randrange(1, 0x2500)) for _ in range(chance.randrange(1, 60))), 3)


def test_terms_are_quoted_and_bounded() -> None:
    assert quoted_terms("Pay with x402 AND pay!") == '"pay" OR "x402"'
    assert quoted_terms("what is it") == '"what" OR "is" OR "it"'
    assert quoted_terms("!?") == ""
    assert quoted_terms(" ".join(f"w{n}" for n in range(500))).count('"') == 2 * MAX_TERMS


def test_a_hit_links_to_the_page_that_the_node_serves() -> None:
    (hit,) = ADAPTER.search(SearchRequest("pears")).hits
    assert (hit.title, hit.url) == ("Pears", "http://127.0.0.1:8402/docs/pears")
    assert "Pears are fruit" in hit.snippet
    assert (hit.engine, hit.published_at) == ("sqlite-fts5", None)


def test_markup_of_a_page_is_text_and_hidden_characters_do_not_come_out() -> None:
    (hit,) = ADAPTER.search(SearchRequest("evil marks")).hits
    assert "<script>" in hit.snippet
    assert "\u202e" not in hit.snippet


def test_it_says_that_it_is_local_and_english() -> None:
    assert (ADAPTER.coverage, ADAPTER.kind) == ("local", "index")
    assert ADAPTER.capabilities.lacks(SearchRequest("a", language="de")) == "language_unsupported"
    assert ADAPTER.capabilities.lacks(SearchRequest("a", region="DE")) == "region_unsupported"
    assert ADAPTER.cost.atomic == 0


def test_it_proves_itself_by_finding_something() -> None:
    assert ADAPTER.prove().ok
    assert IndexAdapter("i", Index(()), "http://h").prove().reason == "index_empty"


def test_a_closed_index_proves_nothing() -> None:
    index = Index(CORPUS)
    index.close()
    assert IndexAdapter("i", index, "http://h").prove().reason == "index_unreadable"


def test_threads_may_search_at_the_same_time() -> None:
    found: list[int] = []

    def search() -> None:
        found.extend(len(INDEX.find("fruit", 10)) for _ in range(50))

    threads = [threading.Thread(target=search) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [2] * 200


def test_sections_are_plain_text_under_their_headings() -> None:
    text = (
        "# T\n\nOne `two` **three** [four](http://x).\n\n## Sub\n\n```\ncode\n```\n\n| a | b |\n|---|---|\n| c | d |\n"
    )
    assert sections(text) == [("T", "One two three four."), ("Sub", "code a b c d")]


@pytest.mark.parametrize(
    ("query", "page"),
    [
        ("how to verify a payment receipt", "receipts"),
        ("pay with x402", "payments-x402"),
        ("MPP authorization header", "payments-mpp"),
        ("lost the answer of a paid call", "idempotency"),
        ("free quota per minute", "quotas"),
        ("what is stored about me", "privacy"),
        ("settlement pending", "errors"),
        ("configure a searxng adapter", "running-a-node"),
        ("demo without money", "getting-started"),
    ],
)
def test_the_shipped_documentation_answers_its_questions(query: str, page: str) -> None:
    hits = SHIPPED.search(SearchRequest(query)).hits
    assert page in [hit.url.rpartition("/")[2] for hit in hits]
