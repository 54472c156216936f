"""The price of `ai.execute`: exact, monotone, rounded up, and never a float."""

from __future__ import annotations

from fractions import Fraction
from math import ceil

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.registry.ai.catalog import CATALOG, Model, Rates
from gateway.registry.ai.pricing import LEAST, MESSAGE_TOKENS, MOST, execute_price, prompt_tokens
from gateway.registry.ai.prompt import Message, Prompt

LUNA = CATALOG.models["openai/gpt-5.6-luna"]
PAID = tuple(each for each in CATALOG.models.values() if each.rates)
LONG_OVER = 272_000

texts = st.text(min_size=1, max_size=60)
prompts = st.lists(texts, min_size=1, max_size=5)
outputs = st.integers(1, 16_384)
margins = st.integers(1, 1_000)
rates = st.builds(
    Rates,
    st.integers(1, 10**8),
    st.integers(1, 10**8),
    st.none() | st.integers(1, 400),
    st.integers(100, 400),
    st.integers(100, 400),
)


def prompt(*contents: str, tokens_out: int = 16) -> Prompt:
    return Prompt(LUNA.id, tuple(Message("user", each) for each in contents), tokens_out)


def of_tokens(tokens_in: int, tokens_out: int) -> Prompt:
    """A prompt that counts as so many tokens."""
    return prompt("a" * (tokens_in - MESSAGE_TOKENS), tokens_out=tokens_out)


def priced(by: Rates) -> Model:
    return attrs.evolve(LUNA, rates=by)


# -- the bound of a prompt's tokens ------------------------------------------------------------------------------------


def test_a_prompt_counts_its_utf_8_bytes_and_16_a_message() -> None:
    assert prompt_tokens(prompt("hi")) == 18
    assert prompt_tokens(prompt("hi", "é€😀")) == 18 + 16 + 2 + 3 + 4


@given(prompts)
def test_every_message_adds_its_own(contents: list[str]) -> None:
    assert prompt_tokens(prompt(*contents)) == sum(prompt_tokens(prompt(each)) for each in contents)


# -- the price ---------------------------------------------------------------------------------------------------------


def test_luna_costs_114_micro_usd_for_18_tokens_in_and_16_out() -> None:
    assert execute_price(LUNA, prompt("hi", tokens_out=16)) == 18 * 1 + 16 * 6 == 114


@pytest.mark.parametrize(
    ("tokens_in", "price"),
    [
        (LONG_OVER - 1, 271_999 + 96),
        (LONG_OVER, 272_000 + 96),
        (LONG_OVER + 1, 2 * 272_001 + 9 * 16),
    ],
)
def test_one_token_more_than_272_000_makes_the_whole_call_a_long_one(tokens_in: int, price: int) -> None:
    assert execute_price(LUNA, of_tokens(tokens_in, 16)) == price


def test_what_would_cost_more_than_the_most_is_told_as_it_is() -> None:
    within = of_tokens((MOST - 9 * 1_000) // 2, 1_000)
    over = of_tokens((MOST - 9 * 1_000) // 2 + 1, 1_000)
    assert execute_price(LUNA, within) == MOST
    assert execute_price(LUNA, over) == MOST + 2


def test_the_least_price_is_one_atomic_unit() -> None:
    assert LEAST == 1
    assert execute_price(priced(Rates(1, 1)), prompt("a", tokens_out=1)) == 1


def test_a_fraction_is_rounded_up() -> None:
    by = Rates(1, 1_000_000)
    assert execute_price(priced(by), prompt("a", tokens_out=5)) == 6


@pytest.mark.parametrize(
    "model", [each for each in CATALOG.models.values() if not each.rates], ids=lambda each: each.id
)
def test_a_model_without_rates_costs_nothing(model: Model) -> None:
    assert execute_price(model, of_tokens(300_000, 16_384)) == 0


@given(rates, prompts, outputs, margins)
def test_the_price_is_the_exact_one_rounded_up(by: Rates, contents: list[str], out: int, margin: int) -> None:
    asked = prompt(*contents, tokens_out=out)
    tokens_in = prompt_tokens(asked)
    long = by.long_over is not None and tokens_in > by.long_over
    into = Fraction(by.input, 10**6) * (Fraction(by.long_input_percent, 100) if long else 1)
    outof = Fraction(by.output, 10**6) * (Fraction(by.long_output_percent, 100) if long else 1)
    exact = (tokens_in * into + out * outof) * Fraction(margin, 100)
    price = execute_price(priced(by), asked, margin_percent=margin)
    assert type(price) is int
    assert price == max(1, ceil(exact))


@given(rates, st.integers(17, 1_000), st.integers(0, 1_000), outputs, st.integers(0, 1_000), margins)
def test_more_tokens_never_cost_less(
    by: Rates, tokens_in: int, more_in: int, out: int, more_out: int, margin: int
) -> None:
    less = execute_price(priced(by), of_tokens(tokens_in, out), margin_percent=margin)
    more = execute_price(priced(by), of_tokens(tokens_in + more_in, out + more_out), margin_percent=margin)
    assert less <= more


@given(st.sampled_from(PAID), prompts, outputs, margins, st.integers(0, 100))
def test_a_higher_margin_never_costs_less(model: Model, contents: list[str], out: int, margin: int, more: int) -> None:
    asked = prompt(*contents, tokens_out=out)
    assert execute_price(model, asked, margin_percent=margin) <= execute_price(
        model, asked, margin_percent=margin + more
    )


@given(st.sampled_from(PAID), prompts, outputs)
def test_a_margin_of_100_percent_is_the_catalog_s_rates(model: Model, contents: list[str], out: int) -> None:
    asked = prompt(*contents, tokens_out=out)
    assert execute_price(model, asked) == execute_price(model, asked, margin_percent=100)


@given(st.sampled_from(PAID), prompts, outputs)
def test_every_paid_call_costs_something(model: Model, contents: list[str], out: int) -> None:
    assert execute_price(model, prompt(*contents, tokens_out=out), margin_percent=1) >= LEAST
