from __future__ import annotations

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.registry.operation import MICRO, Operation
from gateway.registry.table import OPERATIONS, PRICE_VERSION, SEARCH_PAID_PRICE

SEARCH = OPERATIONS["search.paid"]


def priced(price: int) -> Operation:
    return attrs.evolve(SEARCH, price=lambda _: price)


@settings(derandomize=True, deadline=None)
@given(price=st.integers(0, 10**9), decimals=st.integers(0, 18))
def test_an_amount_is_the_price_and_never_less(price: int, decimals: int) -> None:
    amount = priced(price).amount(None, decimals)
    assert amount * MICRO >= price * 10**decimals
    assert (amount - 1) * MICRO < price * 10**decimals


def test_in_a_token_of_six_decimals_a_price_is_its_own_amount() -> None:
    assert SEARCH.amount(None, 6) == SEARCH_PAID_PRICE == 6_000


def test_free_is_free_in_every_token() -> None:
    assert [OPERATIONS["search.free"].amount(None, decimals) for decimals in (0, 6, 18)] == [0, 0, 0]


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=list(OPERATIONS))
def test_the_table_is_consistent(operation: Operation) -> None:
    assert OPERATIONS[operation.id] is operation
    assert operation.path.startswith("/v1/")
    assert operation.schema["type"] == "object"
    assert operation.schema["additionalProperties"] is False
    assert set(operation.example) <= set(operation.schema["properties"])
    assert len(operation.title.encode()) == len(operation.title) <= 40
    assert 0 < operation.deadline_s <= 120
    assert operation.body_cap >= 4096
    assert operation.refine({}) is None
    assert operation.callable or not operation.paid


def test_prices_are_quoted_from_the_catalog_of_the_interface() -> None:
    assert PRICE_VERSION == "2026-07-25.3"


def test_a_key_is_required_where_the_interface_says_so() -> None:
    assert {name for name, each in OPERATIONS.items() if each.key_required} == {
        "search.free",
        "search.paid",
        "sandbox.execute",
    }


def test_a_request_is_sold_where_the_operation_is_and_it_costs_something() -> None:
    assert priced(1).sells(None)
    assert not priced(0).sells(None)
    assert not attrs.evolve(priced(1), paid=False).sells(None)
