"""The table of operations: adding one is an entry here and an executor for its family."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.errors import ExecutorFailed
from gateway.registry.operation import Operation
from gateway.registry.search import request as search

PRICE_VERSION = "2026-07-25.3"
"""The catalog version (interface.md 9) that prices are quoted from."""

SEARCH_PAID_PRICE = 6_000
"""0.006000 USD in millionths (interface.md 4.3)."""

SEARCH_BODY_CAP = 64 * 1024
SEARCH_DEADLINE_S = 12.0

SEARCH_FREE = Operation(
    id="search.free",
    path="/v1/search/free",
    title="Free web search",
    summary="Raw, cited search results within the published free quota.",
    schema=search.SCHEMA,
    example=search.EXAMPLE,
    request=search.SearchRequest,
    paid=False,
    price=lambda _: 0,
    key_required=True,
    body_cap=SEARCH_BODY_CAP,
    deadline_s=SEARCH_DEADLINE_S,
    quota="free_search",
    family="search",
    failure=ExecutorFailed,
    refine=search.refine,
)

SEARCH_PAID = Operation(
    id="search.paid",
    path="/v1/search/paid",
    title="Paid web search",
    summary="Raw, cited search results for a fixed price.",
    schema=search.SCHEMA,
    example=search.EXAMPLE,
    request=search.SearchRequest,
    paid=True,
    price=lambda _: SEARCH_PAID_PRICE,
    key_required=True,
    body_cap=SEARCH_BODY_CAP,
    deadline_s=SEARCH_DEADLINE_S,
    quota="paid",
    family="search",
    failure=ExecutorFailed,
    refine=search.refine,
)

OPERATIONS: Mapping[str, Operation] = {each.id: each for each in (SEARCH_FREE, SEARCH_PAID)}
