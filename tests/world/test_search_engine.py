from __future__ import annotations

from typing import Any

import httpx
import orjson
import pytest

from gateway.world.door import Call, Reply, Silence
from gateway.world.faults import SEARCH_MODES, Faults
from gateway.world.search_engine import PAGE, PAGES, SearchEngine, made_up


def engine(mode: str = "ok") -> tuple[SearchEngine, Faults]:
    faults = Faults({"search": SEARCH_MODES}, {"search": ("search",)})
    faults.set("search", mode)
    return SearchEngine(faults), faults


async def ask(searched: SearchEngine, path: str = "/search", **query: str) -> Reply:
    answer = await searched.answer(Call("GET", path, query, {}, b""))
    assert isinstance(answer, Reply)
    return answer


async def found(mode: str = "ok", **query: str) -> dict[str, Any]:
    answer = await ask(engine(mode)[0], format="json", **query)
    assert answer.status == 200
    told: dict[str, Any] = orjson.loads(answer.body)
    return told


async def test_the_same_query_finds_the_same() -> None:
    assert await found(q="trio channels") == await found(q="trio channels")
    assert (await found(q="trio channels"))["results"] != (await found(q="trio nurseries"))["results"]


async def test_a_page_is_full_of_distinct_results_best_first() -> None:
    results = (await found(q="trio channels"))["results"]
    assert len({each["url"] for each in results}) == len(results) == PAGE
    assert [each["score"] for each in results] == sorted((each["score"] for each in results), reverse=True)
    assert all(each["title"] and each["content"] and each["engines"] for each in results)
    assert all(
        httpx.URL(each["url"]).host.endswith((".example.org", ".example.com", ".example.net")) for each in results
    )
    assert 0 < sum(each["publishedDate"] is not None for each in results) < PAGE


async def test_pages_differ_and_end() -> None:
    assert (await found(q="x", pageno="2"))["results"] != (await found(q="x"))["results"]
    assert (await found(q="x", pageno=str(PAGES + 1)))["results"] == []


def test_addresses_are_ascii_whatever_is_asked() -> None:
    assert all(each["url"].isascii() for each in made_up("Überraschung 日本語 \n <b>", 1, "de"))


async def test_blocked_is_an_empty_page_that_names_the_engines() -> None:
    told = await found("blocked", q="x")
    assert told["results"] == []
    assert ["example-web", "CAPTCHA"] in told["unresponsive_engines"]


async def test_empty_is_an_honest_empty_page() -> None:
    told = await found("empty", q="x")
    assert (told["results"], told["unresponsive_engines"]) == ([], [])


async def test_hanging_says_nothing_at_any_path() -> None:
    searched, faults = engine("hang")
    for path in ("/search", "/healthz", "/config"):
        assert isinstance(await searched.answer(Call("GET", path, {"q": "x"}, {}, b"")), Silence)
    assert faults.state()["search"] == {"search": 1}


async def test_only_searches_count_and_whatever_happens_to_them() -> None:
    searched, faults = engine("http_500")
    assert (await ask(searched, q="x", format="json")).status == 500
    for path in ("/healthz", "/config"):
        assert (await ask(searched, path)).status == 200
    assert (await ask(searched, "/elsewhere")).status == 404
    assert faults.state()["search"] == {"search": 1}


@pytest.mark.parametrize(
    ("query", "status"),
    [({"q": "x"}, 403), ({"format": "json"}, 400), ({"q": "x", "format": "json", "pageno": "0"}, 400)],
)
async def test_bad_calls_are_refused_as_searxng_does(query: dict[str, str], status: int) -> None:
    assert (await ask(engine()[0], **query)).status == status


async def test_a_long_query_may_come_as_a_form() -> None:
    searched, _ = engine()
    form = b"q=a+tide&format=json&pageno=1"
    posted = await searched.answer(Call("POST", "/search", {}, {}, form))
    assert isinstance(posted, Reply)
    assert orjson.loads(posted.body) == await found(q="a tide")
