"""The request of the preview."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.errors import GatewayError
from gateway.http.validation import BodyValidator
from gateway.registry.ai.fast_call_request import EXAMPLE
from gateway.registry.table import FAST_CALL

VALIDATOR = BodyValidator.of(FAST_CALL)


def test_the_preview_is_neither_callable_nor_sold() -> None:
    valid = VALIDATOR.validate(dict(EXAMPLE))
    assert (FAST_CALL.callable, FAST_CALL.sells(valid.request)) == (False, False)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"messages": []},
        {"messages": [{"role": "user", "content": "a" * 10_001}]},
        {"messages": EXAMPLE["messages"], "max_output_tokens": 1025},
        {"messages": EXAMPLE["messages"], "model": "gateway/fast"},
    ],
)
def test_a_body_out_of_its_bounds_is_refused(body: dict[str, Any]) -> None:
    with pytest.raises(GatewayError) as caught:
        VALIDATOR.validate(body)
    assert caught.value.status == 400
