"""An OpenAI upstream that costs next to nothing: one epoll loop, answers made beforehand but for the model they name.

It must never be the bottleneck of what stands before it, so it reads of a request only what it needs: where it ends,
and which model it asks for.  It prints the port that it listens on; its end of stdin is its own.
"""

from __future__ import annotations

import re
import select
import socket
import sys

LENGTH = re.compile(rb"\r\ncontent-length: *([0-9]+)", re.IGNORECASE)
CHUNKED = re.compile(rb"\r\ntransfer-encoding: *chunked", re.IGNORECASE)
MODEL = re.compile(rb'"model" *: *"([^"\\]*)"')
HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nx-request-id: req_fake\r\n"
    b"content-length: %d\r\nconnection: keep-alive\r\n\r\n"
)
SAID = "The tide is the rise and fall of the sea, twice a day, as the moon and the sun draw the water."
COMPLETION = (
    b'{"id":"chatcmpl-fake","object":"chat.completion","created":1795816156,"model":"%b","choices":[{"index":0,'
    b'"message":{"role":"assistant","content":"%b","refusal":null},"logprobs":null,"finish_reason":"stop"}],'
    b'"usage":{"prompt_tokens":18,"completion_tokens":24,"total_tokens":42}}'
)
LISTING = b'{"object":"list","data":[{"id":"%b","object":"model","created":1795816156,"owned_by":"fake"}]}'


def main() -> None:
    """Serve until the end of stdin; the argument is the model that the listing names."""
    listing = whole(LISTING % sys.argv[1].encode())
    made: dict[bytes, bytes] = {}
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    listener.setblocking(False)
    print(listener.getsockname()[1], flush=True)
    poll = select.epoll()
    poll.register(listener, select.EPOLLIN)
    poll.register(sys.stdin, select.EPOLLIN)
    open_connections: dict[int, tuple[socket.socket, bytearray]] = {}
    while True:
        for number, _ in poll.poll():
            if number == listener.fileno():
                connection, _ = listener.accept()
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                poll.register(connection, select.EPOLLIN)
                open_connections[connection.fileno()] = connection, bytearray()
                continue
            if number == sys.stdin.fileno():
                return
            connection, kept = open_connections[number]
            try:
                chunk = connection.recv(65536)
                kept += chunk
                while chunk and (ends := end_of_request(kept)):
                    if kept.startswith(b"GET "):
                        connection.sendall(listing)
                    else:
                        found = MODEL.search(kept, 0, ends)
                        model = bytes(found[1]) if found else b"unknown"
                        if model not in made:
                            made[model] = whole(COMPLETION % (model, SAID.encode()))
                        connection.sendall(made[model])
                    del kept[:ends]
            except ConnectionError:
                chunk = b""
            if not chunk:
                poll.unregister(connection)
                del open_connections[number]
                connection.close()


def whole(body: bytes) -> bytes:
    return HEAD % len(body) + body


def end_of_request(kept: bytearray) -> int:
    """Return where the first request ends, 0 while it has not."""
    body = kept.find(b"\r\n\r\n") + 4
    if body < 4:
        return 0
    length = LENGTH.search(kept, 0, body)
    if length is None and CHUNKED.search(kept, 0, body):
        last = kept.find(b"0\r\n\r\n", body)
        return 0 if last < 0 or (last > body and kept[last - 2 : last] != b"\r\n") else last + 5
    ends = body + (int(length[1]) if length else 0)
    return ends if len(kept) >= ends else 0


if __name__ == "__main__":
    main()
