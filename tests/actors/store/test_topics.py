from __future__ import annotations

from gateway.actors.store.topics import Topics


async def test_all_who_hear_a_topic_are_woken_and_nobody_else() -> None:
    topics = Topics()
    with topics.hear("a") as first, topics.hear("a") as second, topics.hear("b") as other:
        topics.wake(["a", "c"])
        assert first.is_set()
        assert second.is_set()
        assert not other.is_set()


async def test_what_is_told_before_or_after_wakes_nobody() -> None:
    topics = Topics()
    topics.wake(["a"])
    with topics.hear("a") as event:
        assert not event.is_set()
    topics.wake(["a"])
    assert not event.is_set()


async def test_a_gap_wakes_everybody() -> None:
    topics = Topics()
    with topics.hear("a") as first, topics.hear("b") as second:
        topics.wake_all()
        assert first.is_set()
        assert second.is_set()
