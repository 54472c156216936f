"""The table entry of an operation: everything the pipeline and the listings say of it comes from here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs

from gateway.errors import GatewayError

MICRO = 10**6
"""Prices are stated in millionths of a USD."""


def _nothing_more(_: Mapping[str, Any]) -> GatewayError | None:
    return None


@attrs.frozen
class Operation:
    """What is sold or given away under one path.

    Attributes:
        id: the operation's name in request hashes, quotes and receipts.
        schema: JSON Schema 2020-12 of the body, with defaults; the same object validates and is published.
        example: a body that the schema accepts; what an empty probe of a paid route is quoted for.
        request: the frozen attrs class that a valid body is structured into.
        price: millionths of a USD for a request; 0 where `paid` is false.
        body_cap: bytes; a longer body is 413.
        deadline_s: seconds an execution may take.
        quota: name of the quota that a call is counted on.
        family: name of the executor.
        failure: the problem of an execution that started and failed.
        repeatable: False where a run that may have begun must never be begun again (a sandboxed command).
        refine: names the particular problem of a body that the schema refuses, where there is one.
    """

    id: str
    path: str
    title: str
    summary: str
    schema: Mapping[str, Any]
    example: Mapping[str, Any]
    request: type[Any]
    paid: bool
    price: Callable[[Any], int]
    key_required: bool
    body_cap: int
    deadline_s: float
    quota: str
    family: str
    failure: type[GatewayError]
    repeatable: bool = True
    refine: Callable[[Mapping[str, Any]], GatewayError | None] = _nothing_more

    def amount(self, request: Any, decimals: int) -> int:
        """Return the price of a request in atomic units of a dollar token of so many decimals, rounded up."""
        scaled: int = self.price(request) * 10**decimals
        return -(-scaled // MICRO)
