from __future__ import annotations

import pytest

from gateway.errors import EngineBlocked, ExecutorFailed
from gateway.registry.http_call import HttpAnswer
from gateway.registry.search.adapter import Capabilities, json_object, keyed_finding, lookup, written
from gateway.registry.search.request import SearchRequest

ANY = Capabilities(languages=None, regions=None)
ENGLISH = Capabilities(languages=frozenset({"en"}), regions=frozenset({"US", "GB"}))
REGIONAL = Capabilities(languages=frozenset({"en", "en-gb", "pt-br", "zh-hant"}), regions=None)


def request(query: str = "words", **more: object) -> SearchRequest:
    return SearchRequest(query, **more)  # type: ignore[arg-type]


def answer(content: bytes, status: int = 200) -> HttpAnswer:
    return HttpAnswer(status, {}, content, 5)


@pytest.mark.parametrize(
    ("capabilities", "language", "region", "spoken"),
    [
        (ANY, "de", "US", "de"),
        (ANY, "de-AT", "AT", "de-at"),
        (ANY, "de-AT", "DE", "de-at"),
        (ANY, "de-1996", "DE", "de"),
        (ANY, "zh-Hant", "TW", "zh"),
        (ANY, "zh-Hant-TW", "US", "zh-tw"),
        (ENGLISH, "en", "US", "en"),
        (ENGLISH, "en-GB", "GB", "en"),
        (ENGLISH, "en-GB", "US", "en"),
        (ENGLISH, "en-GB-oxendict", "US", "en"),
        (ENGLISH, "de", "US", None),
        (ENGLISH, "eng", "US", None),
        (REGIONAL, "en", "GB", "en-gb"),
        (REGIONAL, "en", "US", "en"),
        (REGIONAL, "en-GB", "US", "en-gb"),
        (REGIONAL, "pt", "BR", "pt-br"),
        (REGIONAL, "pt", "PT", None),
        (REGIONAL, "pt-BR", "US", "pt-br"),
        (REGIONAL, "pt-BR-abl1943", "US", "pt-br"),
        (REGIONAL, "zh-Hant", "TW", "zh-hant"),
        (REGIONAL, "zh-Hant-TW", "US", "zh-hant"),
        (REGIONAL, "zh", "TW", None),
    ],
)
def test_the_language_is_found_by_lookup(
    capabilities: Capabilities, language: str, region: str, spoken: str | None
) -> None:
    assert capabilities.language_of(request(language=language, region=region)) == spoken


def test_a_capable_engine_lacks_nothing() -> None:
    assert ENGLISH.lacks(request()) is None


def test_each_thing_that_an_engine_lacks_has_its_word() -> None:
    short = Capabilities(None, None, max_query_chars=10, max_query_words=2, max_results=5)
    pairs = Capabilities(
        frozenset({"en", "fr"}), frozenset({"US", "FR"}), locales=frozenset({("en", "US"), ("fr", "FR")})
    )
    assert ENGLISH.lacks(request(language="fr")) == "language_unsupported"
    assert ENGLISH.lacks(request(region="FR")) == "region_unsupported"
    assert pairs.lacks(request(language="fr", region="US")) == "locale_unsupported"
    assert pairs.lacks(request(language="fr", region="FR")) is None
    assert short.lacks(request("x" * 11)) == "query_too_long"
    assert short.lacks(request("x" * 10)) is None
    assert short.lacks(request("a b c")) == "query_too_long"
    assert short.lacks(request("a b", max_results=6)) == "too_many_results"
    assert ANY.lacks(request(" \t\n")) == "query_without_words"


@pytest.mark.parametrize("status", [403, 429])
def test_being_turned_away_is_blocked(status: int) -> None:
    with pytest.raises(EngineBlocked):
        json_object("t", answer(b'{"results": []}', status))


def test_a_captcha_page_is_blocked() -> None:
    with pytest.raises(EngineBlocked):
        json_object("t", answer(b"<html><div class='g-reCAPTCHA'></div></html>"))


@pytest.mark.parametrize("status", [204, 301, 302, 400, 401, 404, 500, 502, 503])
def test_any_other_status_than_200_is_a_failure_with_its_number(status: int) -> None:
    with pytest.raises(ExecutorFailed) as caught:
        json_object("t", answer(b"{}", status))
    assert not isinstance(caught.value, EngineBlocked)
    assert caught.value.extra == {"reason": f"status_{status}"}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"<html>hello</html>",
        b"[]",
        b"null",
        b'"text"',
        b'{"results": [',
        b"\xff\xfe",
        b"[" * 200_000,
        b"1" * 100_000,
    ],
)
def test_an_answer_that_is_no_json_object_is_a_failure(content: bytes) -> None:
    with pytest.raises(ExecutorFailed) as caught:
        json_object("t", answer(content))
    assert caught.value.extra == {"reason": "malformed_answer"}


def test_an_engine_that_bills_every_call_is_proved_by_its_configuration_only() -> None:
    assert keyed_finding("k").ok
    assert keyed_finding("k").basis == "configuration"
    assert keyed_finding("").reason == "key_missing"


def test_a_single_letter_ends_no_parent() -> None:
    assert list(lookup("zh-hant-x-a-b")) == ["zh-hant-x-a-b", "zh-hant", "zh"]
    assert list(lookup("de")) == ["de"]


@pytest.mark.parametrize("tag", ["en", "pt-BR", "zh-Hant-TW", "de-1996"])
def test_a_tag_is_written_in_its_usual_case(tag: str) -> None:
    assert written(tag.lower()) == tag
