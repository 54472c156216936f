"""Facts about limits."""

from __future__ import annotations

import attrs
import pytest

from gateway.http.server import ServerLimits
from gateway.http.server.limits import BodyMemory


@pytest.mark.parametrize("field", [field.name for field in attrs.fields(ServerLimits)])
def test_every_limit_is_positive(field: str) -> None:
    with pytest.raises(ValueError, match=field):
        ServerLimits(**{field: 0})


def test_memory_is_taken_whole_or_not_at_all() -> None:
    memory = BodyMemory(10)
    assert memory.take(6)
    assert not memory.take(5)
    assert memory.take(4)
    memory.give_back(6)
    assert memory.free == 6
