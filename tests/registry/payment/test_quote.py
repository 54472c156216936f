from __future__ import annotations

import re

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.errors import QuoteInvalid, QuoteMissing
from gateway.registry.payment import Asset, Quote, QuoteSecrets, Terms

ASSET = Asset("eip155:8453", 8453, "0x833589fCD6eDb6E08f4c7C32D4f71b54bdA02913", "USD Coin", "2", 6)
TERMS = Terms(ASSET, "0x90F79bf6EB2c4f870365E785982E1f101E93b906", "https://gateway.example", "gateway.example")
SECRETS = QuoteSecrets({"k1": b"1" * 32, "k0": b"0" * 32}, "k1")

names = st.text("abcXYZ019._:-", min_size=1, max_size=48)
heads = st.none() | st.integers(0, 10**15 - 1)
quotes = st.tuples(st.booleans(), heads).flatmap(lambda kind: _quotes(*kind))


def _quotes(example: bool, head: int | None) -> st.SearchStrategy[Quote]:
    """A quote of the example is never redeemed, so it does not say its block."""
    return st.builds(
        Quote,
        quote_id=st.from_regex(r"qt_[0-9A-HJKMNP-TV-Z]{26}", fullmatch=True),
        operation=names,
        request_hash=st.binary(min_size=32, max_size=32).map(lambda raw: "sha256:" + raw.hex()),
        amount=st.integers(0, 10**18),
        price_version=names,
        issued_at=st.integers(0, 2**40),
        expires_at=st.integers(0, 2**41),
        example=st.just(example),
        head=st.just(None if example else head),
    )


bounded = settings(max_examples=80, derandomize=True, deadline=None, database=None)


@given(quotes)
@bounded
def test_a_sealed_quote_opens_to_itself(quote: Quote) -> None:
    assert SECRETS.open(SECRETS.seal(quote, TERMS), TERMS) == quote


@given(quotes)
@bounded
def test_a_token_is_short_and_needs_no_escape_anywhere(quote: Quote) -> None:
    token = SECRETS.seal(quote, TERMS)
    assert len(token) < 300
    assert re.fullmatch(r"[A-Za-z0-9._:~-]+", token)


@given(quotes, st.data())
@bounded
def test_a_token_altered_in_any_character_is_invalid(quote: Quote, data: st.DataObject) -> None:
    token = SECRETS.seal(quote, TERMS)
    place = data.draw(st.integers(0, len(token) - 1))
    letter = data.draw(st.sampled_from([other for other in "aZ0~-." if other != token[place]]))
    with pytest.raises(QuoteInvalid):
        SECRETS.open(token[:place] + letter + token[place + 1 :], TERMS)


def test_a_quote_of_a_release_that_said_no_block_still_opens(quote: Quote) -> None:
    old = attrs.evolve(quote, head=None)
    token = SECRETS.seal(old, TERMS)
    assert token.split("~")[8] == "-"
    assert SECRETS.open(token, TERMS) == old


def test_a_release_that_knows_no_block_reads_a_quote_that_says_it_as_no_example(quote: Quote) -> None:
    token = SECRETS.seal(attrs.evolve(quote, head=46_000_000), TERMS)
    assert (token.split("~")[0], len(token.split("~")), token.split("~")[8]) == ("q1", 11, "46000000")


@pytest.mark.parametrize(
    "token", ["", "~", "q1", "~" * 10, "q1~k9~a~b~1~c~1~1~-~x~y", "ü" * 20, "\ud800", "1" * 10_000]
)
def test_what_is_no_token_is_invalid(token: str) -> None:
    with pytest.raises(QuoteInvalid):
        SECRETS.open(token, TERMS)


def test_no_token_at_all_is_a_missing_quote() -> None:
    with pytest.raises(QuoteMissing):
        SECRETS.open(None, TERMS)


def test_a_token_cut_short_or_grown_is_invalid(quote: Quote) -> None:
    token = SECRETS.seal(quote, TERMS)
    for other in (token[:-1], token + "A", token + "=", " " + token, token.upper(), "~".join(token.split("~")[:-1])):
        with pytest.raises(QuoteInvalid):
            SECRETS.open(other, TERMS)


@pytest.mark.parametrize(
    "terms",
    [
        attrs.evolve(TERMS, pay_to="0x70997970C51812dc3A010C7d01b50e0d17dc79C8"),
        attrs.evolve(TERMS, asset=attrs.evolve(ASSET, address="0xA0b86991c6218b36c1d19D4a2e9Eb0cE3606eB48")),
        attrs.evolve(TERMS, asset=attrs.evolve(ASSET, network="eip155:84532", chain_id=84532)),
    ],
)
def test_a_quote_is_bound_to_payee_token_and_network(quote: Quote, terms: Terms) -> None:
    with pytest.raises(QuoteInvalid):
        SECRETS.open(SECRETS.seal(quote, TERMS), terms)


def test_a_quote_of_the_previous_secret_is_honoured_and_of_a_dropped_one_is_not(quote: Quote) -> None:
    old = QuoteSecrets({"k0": b"0" * 32}, "k0")
    new = QuoteSecrets({"k1": b"1" * 32}, "k1")
    token = old.seal(quote, TERMS)
    assert SECRETS.open(token, TERMS) == quote
    with pytest.raises(QuoteInvalid):
        new.open(token, TERMS)


def test_a_secret_does_not_open_under_the_name_of_another(quote: Quote) -> None:
    token = SECRETS.seal(quote, TERMS).replace("~k1~", "~k0~")
    with pytest.raises(QuoteInvalid):
        SECRETS.open(token, TERMS)


def test_a_challenge_id_is_known_under_every_secret_and_to_nobody_else() -> None:
    old = QuoteSecrets({"k0": b"0" * 32}, "k0")
    assert SECRETS.made_challenge_id(SECRETS.challenge_id("a|b"), "a|b")
    assert SECRETS.made_challenge_id(old.challenge_id("a|b"), "a|b")
    assert not SECRETS.made_challenge_id(SECRETS.challenge_id("a|b"), "a|c")
    assert not SECRETS.made_challenge_id("", "a|b")
    assert not SECRETS.made_challenge_id("ü", "a|b")
    assert not old.made_challenge_id(SECRETS.challenge_id("a|b"), "a|b")


@pytest.mark.parametrize(
    ("secrets", "current", "why"),
    [
        ({}, "k1", "no quote secret"),
        ({"k1": b"1" * 32}, "k2", "no quote secret"),
        ({"k1": b"1" * 31}, "k1", "shorter than 32"),
        ({"k~1": b"1" * 32}, "k~1", "is not 1 to 16"),
    ],
)
def test_secrets_that_could_not_protect_a_quote_are_refused(secrets: dict[str, bytes], current: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        QuoteSecrets(secrets, current)


def test_secrets_never_show_in_a_log() -> None:
    assert "1111" not in repr(SECRETS)


@pytest.mark.parametrize(
    "change",
    [
        {"quote_id": "qt_01jdq0000000000000000000ab"},
        {"operation": "search~paid"},
        {"operation": ""},
        {"request_hash": "ab" * 32},
        {"amount": -1},
        {"price_version": "a b"},
    ],
)
def test_a_quote_that_a_token_could_not_carry_cannot_be_made(quote: Quote, change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="must"):
        attrs.evolve(quote, **change)  # type: ignore[arg-type]
