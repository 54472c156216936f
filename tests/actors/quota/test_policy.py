from __future__ import annotations

import re

import pytest

from gateway.actors.quota import Allowance, Policy


@pytest.mark.parametrize("name", ["free_search", "unpaid_quotes"])
def test_the_fields_are_those_of_the_ratelimit_draft(name: str) -> None:
    allowance = Allowance(Policy(name, 12), granted=True, remaining=11, reset_s=60)
    assert allowance.headers == {"RateLimit-Policy": f'"{name}";q=12;w=60', "RateLimit": f'"{name}";r=11;t=60'}
    assert all(re.fullmatch(r'"[a-z_]+"(;[a-z]=[0-9]+){2}', value) for value in allowance.headers.values())


@pytest.mark.parametrize("name", ["free_search", "free_ai", "scrape", "audio", "billed:search/brave"])
def test_what_is_given_away_or_billed_is_decided_by_the_store_call_by_call(name: str) -> None:
    assert Policy(name, 300).share == 0


@pytest.mark.parametrize("name", ["unpaid_quotes", "payment_attempts", "paid"])
@pytest.mark.parametrize(("limit", "share"), [(1, 1), (9, 1), (19, 1), (20, 2), (300, 30)])
def test_a_share_is_a_tenth_of_the_limit_and_at_least_one(name: str, limit: int, share: int) -> None:
    assert Policy(name, limit).share == share
