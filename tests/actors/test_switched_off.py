from __future__ import annotations

import pytest

from gateway.actors.switched_off import SwitchedOff
from gateway.errors import OperationUnavailable
from gateway.registry.execution import Family, Work

OFF: Family = SwitchedOff("sandboxed commands")


async def test_what_is_switched_off_is_refused_before_any_price_and_when_it_was_claimed_before() -> None:
    with pytest.raises(OperationUnavailable, match="does not sell sandboxed commands") as caught:
        OFF.admit("sandbox.execute", None)
    assert caught.value.extra == {"reason": "switched_off"}
    with pytest.raises(OperationUnavailable):
        await OFF.execute(Work("op_1", "sandbox.execute", None, 1, 0.0))


def test_what_is_switched_off_bills_nobody() -> None:
    assert OFF.budget("sandbox.execute", None) is None
