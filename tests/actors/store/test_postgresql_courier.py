from __future__ import annotations

import random

import orjson
import pytest

from gateway.actors.store.postgresql_courier import chunks, topics_of


def test_topics_are_told_in_payloads_that_fit() -> None:
    rng = random.Random(3)
    topics = [rng.choice('aé🪙"\\') * rng.randrange(1, 400) for _ in range(500)]
    payloads = list(chunks(topics))
    assert all(len(payload) < 8000 for payload in payloads)
    assert len(payloads) < sum(len(orjson.dumps(topic)) for topic in topics) / 4000
    assert [topic for payload in payloads for topic in topics_of(payload.decode())] == topics


def test_a_topic_that_does_not_fit_is_left_out_and_no_other() -> None:
    assert list(chunks(["a", "x" * 9000, "b"])) == [b'["a"]', b'["b"]']
    assert list(chunks([])) == []


@pytest.mark.parametrize("payload", ["", "not json", "{}", "1", "null"])
def test_what_no_node_made_tells_nothing(payload: str) -> None:
    assert topics_of(payload) == []


def test_only_text_is_a_topic() -> None:
    assert topics_of('["a", 1, null, ["b"]]') == ["a"]
