from __future__ import annotations

import pytest

from gateway.addresses import operator_url, public_url, reachable
from gateway.config import structure


@pytest.mark.parametrize(
    ("listened", "reached"),
    [
        ("0.0.0.0:8402", "127.0.0.1:8402"),
        ("[::]:8402", "[::1]:8402"),
        ("10.1.2.3:80", "10.1.2.3:80"),
        ("[fe80::1]:80", "[fe80::1]:80"),
        ("localhost:1", "localhost:1"),
    ],
)
def test_a_wildcard_is_reached_over_loopback_and_everything_else_as_it_is(listened: str, reached: str) -> None:
    assert reachable(listened) == reached


def test_the_listeners_of_a_node_are_where_its_configuration_says() -> None:
    node = {"listen": ["0.0.0.0:8000", "127.0.0.1:1"], "operator_listen": "[::]:9000"}
    configuration = structure({"node": node})
    assert public_url(configuration) == "http://127.0.0.1:8000"
    assert operator_url(configuration) == "http://[::1]:9000"
