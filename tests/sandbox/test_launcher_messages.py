"""What the node and the launcher say is heard as it was said, and nothing else is heard."""

from __future__ import annotations

import pytest

from gateway.sandbox.launcher_messages import (
    LONGEST,
    Bounds,
    Clear,
    Cleared,
    Ended,
    Failed,
    Laid,
    Lay,
    Left,
    Message,
    Ready,
    Release,
    Spawn,
    Stop,
    Unfit,
    Up,
    message_of,
    packet,
)

BOUNDS = Bounds(1, 2, 3, 4, 5, 6, 7, single=True)


@pytest.mark.parametrize(
    "message",
    [
        Spawn("a", 1, BOUNDS),
        Spawn("a", 1, BOUNDS, again=True),
        Lay(BOUNDS),
        Laid(3, BOUNDS),
        Release("a"),
        Stop("a", "wall"),
        Clear("a"),
        Up("0.8.0", "hybrid", 2, 0),
        Unfit("sandbox.userns_denied", "ä", "b"),
        Ready("a", {"memory": "/sys/fs/cgroup/memory/a"}, 9000, ahead=True),
        Failed("a", "sandbox.stopped", "wall"),
        Failed("a", "sandbox.stopped", "wall", left="/sys/fs/cgroup/a"),
        Left("a"),
        Ended("a", None, 0, 0, None, 1, 2, 3, 4, 5, 6, 7, 0),
        Cleared("a", 0, None),
    ],
    ids=lambda message: type(message).__name__,
)
def test_a_message_is_heard_as_it_was_said(message: Message) -> None:
    assert message_of(packet(message)) == message
    assert len(packet(message)) < LONGEST


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"{}",
        b'{"says": "Nothing"}',
        b'{"says": ["Release"]}',
        b'{"says": "Release"}',
        b'{"says": "Release", "run": "a", "more": 1}',
        b'{"says": "Spawn", "run": "a", "slot": 0, "bounds": {}}',
        b'{"says": "Spawn", "run": "a", "slot": 0, "bounds": 1}',
    ],
)
def test_what_is_no_message_is_refused(said: bytes) -> None:
    with pytest.raises(ValueError, match=r"message|Expecting"):
        message_of(said)
