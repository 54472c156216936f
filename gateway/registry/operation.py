"""The table entry of an operation: everything the pipeline and the listings say of it comes from here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import attrs

from gateway.errors import GatewayError

MICRO = 10**6
"""Prices are stated in millionths of a USD."""


def _nothing_more(_: Any) -> Any:
    return None


@attrs.frozen
class Operation:
    """What is sold or given away under one path.

    Attributes:
        id: the operation's name in request hashes, quotes and receipts.
        schema: JSON Schema 2020-12 of the body, with defaults; the same object validates and is published.
        example: a body that the schema accepts; what an empty probe of a paid route is quoted for.
        request: the frozen attrs class that a valid body is structured into.
        paid: it is sold, at least for some requests; else no payment is ever read.
        price: millionths of a USD for a request; 0 where the request is free.
        body_cap: bytes; a longer body is 413.
        deadline_s: seconds an execution may take; `time_for` tells them of one request.
        quota: name of the quota that a free call is counted on; a paid one is counted on `paid`.
        family: name of the executor.
        failure: the problem of an execution that started and failed.
        refine: names the particular problem of a body that the schema refuses, where there is one.
        check: what is wrong with a request that the schema accepts, where there is something.
        cap: bytes that the body of this request may have, where that is less than `body_cap`.
        own_deadline_s: seconds an execution of this request may take, where that is not `deadline_s`.
        result_cap: bytes of JSON that a result may have; a longer one is the failure of its execution.
        funding_header: `x-gateway-funding` says what the caller takes the request to be.
        answer: the form of a 200, the envelope of interface.md 2.1 or OpenAI's chat completion.
        callable: False for a preview, which is listed and never runs.
        stops_when_left: a free execution is stopped when nobody waits for it any more.
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
    refine: Callable[[Mapping[str, Any]], GatewayError | None] = _nothing_more
    check: Callable[[Any], GatewayError | None] = _nothing_more
    cap: Callable[[Any], int | None] = _nothing_more
    own_deadline_s: Callable[[Any], float | None] = _nothing_more
    result_cap: int = 2 * 2**20
    funding_header: bool = False
    answer: Literal["envelope", "chat_completion"] = "envelope"
    callable: bool = True
    stops_when_left: bool = False

    def sells(self, request: Any) -> bool:
        """Return True if this request is to be paid for."""
        return self.paid and self.price(request) > 0

    def time_for(self, request: Any) -> float:
        """Return how many seconds the execution of a request may take."""
        own = self.own_deadline_s(request)
        return self.deadline_s if own is None else own

    def amount(self, request: Any, decimals: int) -> int:
        """Return the price of a request in atomic units of a dollar token of so many decimals, rounded up."""
        scaled: int = self.price(request) * 10**decimals
        return -(-scaled // MICRO)
