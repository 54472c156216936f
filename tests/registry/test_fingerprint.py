from __future__ import annotations

import re

import attrs
import pytest

from gateway.registry.fingerprint import fingerprint, on_this_host
from gateway.registry.http_call import HttpCall

CALL = HttpCall("GET", "https://a.example/models", (("authorization", "Bearer k"),), b"\xff")


def test_it_is_the_same_for_the_same_and_another_for_anything_else() -> None:
    told = fingerprint([CALL], 1, "openai")
    assert told is not None
    assert re.fullmatch("[0-9a-f]{32}", told)
    assert told == fingerprint([attrs.evolve(CALL)], 1, "openai")
    others = [
        fingerprint([CALL], 2, "openai"),
        fingerprint([CALL], 1, "gemini"),
        fingerprint([CALL, CALL], 1, "openai"),
        fingerprint([attrs.evolve(CALL, headers=(("authorization", "Bearer l"),))], 1, "openai"),
        fingerprint([attrs.evolve(CALL, content=b"\xfe")], 1, "openai"),
        fingerprint([attrs.evolve(CALL, url="https://b.example/models")], 1, "openai"),
    ]
    assert len({told, *others}) == 7


def test_what_is_found_on_a_nodes_own_host_or_without_a_call_is_not_shared() -> None:
    assert fingerprint([], 1) is None
    assert fingerprint([CALL, attrs.evolve(CALL, url="http://127.0.0.1:1/")], 1) is None


@pytest.mark.parametrize(
    ("url", "here"),
    [
        ("http://127.0.0.1:1", True),
        ("http://127.9.9.9", True),
        ("http://[::1]:1", True),
        ("http://localhost", True),
        ("http://a.localhost", True),
        ("http://10.0.0.1", False),
        ("http://localhost.example", False),
        ("https://a.example", False),
    ],
)
def test_a_loopback_address_is_this_hosts_own(url: str, here: bool) -> None:
    assert on_this_host(url) is here
