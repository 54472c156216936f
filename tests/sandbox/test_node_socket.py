"""What the launcher says is kept while the node does not listen, and what it hears nobody inherits."""

from __future__ import annotations

import os
import socket
from array import array
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from gateway.sandbox.launcher_messages import MOST_DESCRIPTORS
from gateway.sandbox.node_socket import MOST_UNSENT, NodeSocket
from tests.sandbox.in_groups import descriptors


class Room:
    """Stands for a loop: keeps what is to be called when there is room."""

    def __init__(self) -> None:
        self.waits: Callable[[], None] | None = None

    def once_writable(self, _: int, call: Callable[[], None]) -> None:
        self.waits = call

    def there_is(self) -> None:
        call, self.waits = self.waits, None
        assert call is not None
        call()


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, NodeSocket, Room]]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    room = Room()
    with ours, theirs:
        ours.settimeout(5)
        yield ours, NodeSocket(theirs, cast("Any", room)), room


def filled(node: NodeSocket, room: Room) -> int:
    """Say the numbers from 0 on until one is kept back, and return how many were said."""
    said = 0
    while room.waits is None:
        node.say(b"%d" % said)
        said += 1
    return said


def test_what_is_heard_is_not_inherited_and_nobody_waits_for_it(ends: tuple[socket.socket, NodeSocket, Room]) -> None:
    ours, node, _ = ends
    assert node.hear() is None
    with open(os.devnull) as given:  # noqa: PTH123
        ours.sendmsg([b"a"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", [given.fileno()] * 3))])
    heard = node.hear()
    assert heard is not None
    assert (heard.content, len(heard.descriptors), heard.cut) == (b"a", 3, False)
    assert not any(map(os.get_inheritable, heard.descriptors))
    for each in heard.descriptors:
        os.close(each)


def test_more_descriptors_than_may_be_are_told_and_are_the_hearer_s(
    ends: tuple[socket.socket, NodeSocket, Room],
) -> None:
    ours, node, _ = ends
    before = descriptors()
    ours.sendmsg([b"a"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", [ours.fileno()] * 30))])
    heard = node.hear()
    assert heard is not None
    assert heard.cut
    assert MOST_DESCRIPTORS <= len(heard.descriptors) == descriptors() - before
    for each in heard.descriptors:
        os.close(each)


def test_what_there_is_no_room_for_is_said_later_and_in_order(ends: tuple[socket.socket, NodeSocket, Room]) -> None:
    ours, node, room = ends
    said = filled(node, room)
    before = descriptors()
    reads, writes = os.pipe()
    node.say(b"with a descriptor", [writes])
    os.close(writes)
    heard = [ours.recv(64) for _ in range(said - 1)]
    room.there_is()
    heard.append(ours.recv(64))
    assert heard == [b"%d" % number for number in range(said)]
    content, rights, _, _ = ours.recvmsg(64, socket.CMSG_SPACE(4))
    assert content == b"with a descriptor"
    (number,) = array("i", rights[0][2])
    os.write(number, b"x")
    os.close(number)
    assert os.read(reads, 2) == b"x"
    assert os.read(reads, 2) == b""
    os.close(reads)
    assert (room.waits, descriptors()) == (None, before)


def test_what_is_still_not_taken_waits_on(ends: tuple[socket.socket, NodeSocket, Room]) -> None:
    _, node, room = ends
    filled(node, room)
    room.there_is()
    assert room.waits is not None


def test_a_node_that_leaves_too_much_unheard_is_told_of(ends: tuple[socket.socket, NodeSocket, Room]) -> None:
    _, node, room = ends
    filled(node, room)
    for _ in range(MOST_UNSENT - 1):
        node.say(b"more")
    with pytest.raises(OSError, match="too much is unheard"):
        node.say(b"more")


def test_what_is_unsaid_is_let_go_of(ends: tuple[socket.socket, NodeSocket, Room]) -> None:
    ours, node, room = ends
    filled(node, room)
    before = descriptors()
    node.say(b"more", [ours.fileno()])
    assert descriptors() == before + 1
    node.forget()
    assert descriptors() == before


def test_a_node_that_is_gone_is_told_and_forgotten(ends: tuple[socket.socket, NodeSocket, Room]) -> None:
    ours, node, room = ends
    filled(node, room)
    ours.close()
    room.there_is()
    assert room.waits is None
    with pytest.raises(OSError, match="Broken pipe"):
        node.say(b"more")
