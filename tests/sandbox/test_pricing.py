"""The price of a run: two classes, and no larger limit is ever cheaper."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.sandbox.limits import RANGES, Limits
from gateway.sandbox.pricing import LEAST, MOST, PriceClass, price_class

FIELDS = {each.metadata["json"]: each.name for each in attrs.fields(Limits)}
RANGE_OF = {FIELDS[name]: each for name, each in RANGES.items()}


@st.composite
def lesser_and_greater(draw: st.DrawFn) -> tuple[Limits, Limits]:
    """Two sets of limits, no limit of the first over that of the second; borders are drawn often."""
    pairs = {}
    for name, each in RANGE_OF.items():
        value = st.sampled_from([each.least, each.default, each.default + 1]) | st.integers(each.least, each.most)
        pairs[name] = sorted((draw(value), draw(value)))
    return (
        Limits(**{name: pair[0] for name, pair in pairs.items()}),
        Limits(**{name: pair[1] for name, pair in pairs.items()}),
    )


def test_the_prices_are_the_published_ones() -> None:
    assert (LEAST, MOST) == (10_000, 60_000)
    assert [(each.value, each.price) for each in PriceClass] == [("short", 10_000), ("standard", 60_000)]


def test_the_defaults_are_of_the_short_class() -> None:
    assert price_class(Limits()) is PriceClass.SHORT


def test_the_least_limits_cost_no_less_than_the_short_class() -> None:
    assert price_class(Limits(**{name: each.least for name, each in RANGE_OF.items()})) is PriceClass.SHORT


@pytest.mark.parametrize("name", RANGE_OF)
def test_one_limit_one_over_its_default_is_of_the_standard_class(name: str) -> None:
    least = {each: bounds.least for each, bounds in RANGE_OF.items()}
    assert price_class(Limits(**{**least, name: RANGE_OF[name].default})) is PriceClass.SHORT
    assert price_class(Limits(**{**least, name: RANGE_OF[name].default + 1})) is PriceClass.STANDARD


@given(lesser_and_greater())
def test_larger_limits_never_cost_less(both: tuple[Limits, Limits]) -> None:
    lesser, greater = both
    assert price_class(lesser).price <= price_class(greater).price
