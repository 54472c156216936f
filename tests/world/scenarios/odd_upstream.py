"""A provider of models and a search engine whose odd answers a caller can bring about, in a thread beside the test."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import attrs

MODEL = "odd-model"
ENGINES = {"engines": [{"name": "web", "enabled": True}]}
HIT = {"url": "https://www.example.com/", "title": "A hit", "content": "Text.", "engine": "web"}


def completion(content: str | None = "Hello.", finish: str = "stop", **message: Any) -> dict[str, Any]:
    choice = {"index": 0, "message": {"role": "assistant", "content": content, **message}, "finish_reason": finish}
    usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    return {"id": "x", "object": "chat.completion", "model": MODEL, "choices": [choice], "usage": usage}


CHATS: dict[str, tuple[int, bytes]] = {
    "tool call": (200, json.dumps(completion(None, "tool_calls", tool_calls=[{"id": "1"}])).encode()),
    "empty content": (200, json.dumps(completion("")).encode()),
    "no content": (200, json.dumps(completion(None)).encode()),
    "no choice": (200, json.dumps(completion() | {"choices": []}).encode()),
    "odd end": (200, json.dumps(completion(finish="because")).encode()),
    "no end": (200, json.dumps(completion(finish="")).encode()),
    "invisible text": (200, json.dumps(completion("\u200b\n")).encode()),
    "cut off": (200, json.dumps(completion(None, "length")).encode()),
    "bytes that are no text": (200, json.dumps(completion("?")).encode().replace(b"?", b"\xed\xa0\xbd")),
    "a page": (200, b"<html>Your message was blocked.</html>"),
    "error within": (200, b'{"error": {"message": "odd"}}'),
    "too much": (200, b'"' + b"x" * (5 * 2**20) + b'"'),
    "redirect": (307, b""),
    "refused": (400, b'{"error": {"message": "odd", "type": "invalid_request_error"}}'),
    "too long": (400, b'{"error": {"message": "long", "code": "context_length_exceeded"}}'),
}
"""What prompts bring about, by the prompt."""
SEARCHES: dict[str, tuple[int, bytes]] = {
    "array": (200, b"[]"),
    "page": (200, b"<html>Solve this CAPTCHA</html>"),
    "silent": (200, json.dumps({"results": [], "unresponsive_engines": [["web", "timeout"]]}).encode()),
    "unusable": (200, json.dumps({"results": [{"url": "gopher://x"}]}).encode()),
    "elsewhere": (302, b""),
    "refused": (400, b"{}"),
    "nothing": (204, b""),
}
"""What queries bring about, by the query; so does every part that SearXNG takes for a command."""


@attrs.define(eq=False)
class OddUpstream:
    """What it is told to be: `broken` completions and searches answer 500, for everybody; `port` stays its own."""

    broken: bool = False
    port: int = 0
    asked: Counter[str] = attrs.field(factory=Counter)
    _server: ThreadingHTTPServer | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        upstream = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
                return

            def do_GET(self) -> None:
                self.tell(*upstream.shown(self.path))

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                self.tell(*upstream.said(body["messages"][-1]["content"]))

            def tell(self, status: int, body: bytes) -> None:
                self.send_response(status)
                self.send_header("content-length", str(len(body)))
                if status in {302, 307}:
                    self.send_header("location", f"{upstream.url}/elsewhere")
                self.end_headers()
                self.wfile.write(body)

        class Server(ThreadingHTTPServer):
            def handle_error(self, request: object, client_address: object) -> None:
                return  # a node that has read enough leaves

        self._server = Server(("127.0.0.1", self.port), Handler)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def said(self, prompt: str) -> tuple[int, bytes]:
        self.asked["chat"] += 1
        if self.broken:
            return 500, b"{}"
        if prompt == "crash":
            return 500, b"{}"
        return CHATS.get(prompt, (200, json.dumps(completion()).encode()))

    def shown(self, path: str) -> tuple[int, bytes]:
        place = urlsplit(path)
        self.asked[place.path] += 1
        match place.path:
            case "/v1/models":
                return 200, json.dumps({"data": [{"id": MODEL}]}).encode()
            case "/healthz":
                return 200, b"OK"
            case "/config":
                return 200, json.dumps(ENGINES).encode()
            case "/search":
                return self.found(parse_qs(place.query)["q"][0])
        return 404, b"{}"

    def found(self, query: str) -> tuple[int, bytes]:
        if self.broken:
            return 500, b"{}"
        if any(part.startswith(("!", ":", "<")) for part in query.split()):
            return 302, b""
        return SEARCHES.get(query, (200, json.dumps({"results": [HIT], "unresponsive_engines": []}).encode()))


@contextmanager
def odd_upstream() -> Iterator[OddUpstream]:
    upstream = OddUpstream()
    upstream.start()
    try:
        yield upstream
    finally:
        upstream.stop()
