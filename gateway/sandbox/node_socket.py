"""The launcher's end of the node's socket: packets heard and said, with their descriptors, and never waited for.

A node that is stopped does not stop the launcher, whose timers bound what runs: what the socket has no room for is kept
until there is room.  Standard library only: the launcher imports this.
"""

from __future__ import annotations

import array
import errno
import os
import socket
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from gateway.sandbox.event_loop import EventLoop
from gateway.sandbox.launcher_messages import LONGEST, MOST_DESCRIPTORS

MOST_UNSENT = 1024
ROOM_FOR_RIGHTS = socket.CMSG_SPACE(MOST_DESCRIPTORS * array.array("i").itemsize)


@dataclass(frozen=True)
class Packet:
    """What was heard at once: nothing at the end; the descriptors are the hearer's to close.

    `cut` says that it was more than may be said at once.
    """

    content: bytes
    descriptors: tuple[int, ...]
    cut: bool


class NodeSocket:
    """The launcher's end of a SOCK_SEQPACKET; it blocks for nobody, also where the node's end does."""

    def __init__(self, end: socket.socket, loop: EventLoop) -> None:
        self._end = end
        self._loop = loop
        self._unsent: deque[tuple[bytes, tuple[int, ...]]] = deque()

    def fileno(self) -> int:
        """Return its number."""
        return self._end.fileno()

    def hear(self) -> Packet | None:
        """Return the next packet, or None where there is none now.  Raises `OSError` where the node is gone."""
        # Not `recv_fds`, which lets its flags drop in Python 3.11.
        flags = socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC
        try:
            content, rights, told, _ = self._end.recvmsg(LONGEST, ROOM_FOR_RIGHTS, flags)
        except BlockingIOError:
            return None
        descriptors = array.array("i")
        for _, _, numbers in rights:
            descriptors.frombytes(numbers)
        return Packet(content, tuple(descriptors), cut=bool(told & (socket.MSG_TRUNC | socket.MSG_CTRUNC)))

    def say(self, packet: bytes, descriptors: Sequence[int] = ()) -> None:
        """Send this now, or as soon as there is room; the descriptors stay the caller's.

        Raises `OSError` where the node is gone, or has left too much unheard (ENOBUFS).
        """
        if not self._unsent and self._sent(packet, descriptors):
            return
        if len(self._unsent) == MOST_UNSENT:
            raise OSError(errno.ENOBUFS, "too much is unheard")
        self._unsent.append((packet, tuple(map(os.dup, descriptors))))
        self._loop.once_writable(self._end.fileno(), self._send_on)

    def _send_on(self) -> None:
        while self._unsent:
            packet, descriptors = self._unsent[0]
            try:
                if not self._sent(packet, descriptors):
                    self._loop.once_writable(self._end.fileno(), self._send_on)
                    return
            except OSError:
                # That it is gone is also heard, and the end of the launcher is that one's.
                self.forget()
                return
            self._unsent.popleft()
            _close(descriptors)

    def _sent(self, packet: bytes, descriptors: Sequence[int]) -> bool:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
        try:
            self._end.sendmsg([packet], rights, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except BlockingIOError:
            return False
        return True

    def forget(self) -> None:
        """Let go of what was not sent."""
        while self._unsent:
            _close(self._unsent.popleft()[1])


def _close(descriptors: Sequence[int]) -> None:
    for each in descriptors:
        os.close(each)
