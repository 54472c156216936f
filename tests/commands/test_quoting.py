from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gateway.cli import main

BODY = {"query": "who pays for the web", "synthesize": False}
CHALLENGE = {
    "price": {
        "amountAtomic": "6000",
        "usd": "0.006000",
        "asset": "0xa",
        "network": "eip155:8453",
        "decimals": 6,
        "payTo": "0xb",
    },
    "quote": {"quoteId": "qt_1", "requestHash": "sha256:1", "expiresAt": "2026-11-27T00:02:00.000Z"},
}


@contextmanager
def answering(status: int, document: Any) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A node that answers every POST the same; what it was asked is kept."""
    asked: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            asked.append({"path": self.path, "body": json.loads(body), "headers": dict(self.headers)})
            content = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name there
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", asked
        finally:
            server.shutdown()
            thread.join()


def quote(*arguments: str, given: object = BODY) -> Result:
    return CliRunner().invoke(main, ["quote", *arguments], input=given if isinstance(given, str) else json.dumps(given))


def test_a_quote_is_asked_for_without_a_credential_and_shown() -> None:
    with answering(402, CHALLENGE) as (url, asked):
        told = quote("search.paid", "-", "--node", url + "/", "--json")
    assert told.exit_code == 0, told.output
    document = json.loads(told.stdout)
    assert (document["amountAtomic"], document["usd"]) == ("6000", "0.006000")
    assert (document["requestHash"], document["expiresAt"]) == ("sha256:1", "2026-11-27T00:02:00.000Z")
    (request,) = asked
    assert (request["path"], request["body"]) == ("/v1/search/paid", BODY)
    assert {"payment-signature", "authorization"} & {name.lower() for name in request["headers"]} == set()


def test_the_node_of_the_configuration_is_asked_where_it_listens(tmp_path: Path) -> None:
    (tmp_path / "body.json").write_text(json.dumps(BODY))
    with answering(402, CHALLENGE) as (url, asked):
        config = tmp_path / "gateway.toml"
        port = url.rpartition(":")[2]
        config.write_text(f'[node]\nbase_url = "https://public.example"\nlisten = ["0.0.0.0:{port}"]\n')
        told = quote("search.paid", str(tmp_path / "body.json"), "--config", str(config))
    assert told.exit_code == 0, told.output
    assert "0.006000" in told.stdout
    assert len(asked) == 1


def test_a_free_operation_is_told_to_be_free_without_asking_anybody() -> None:
    told = quote("search.free", "-", "--node", "http://127.0.0.1:1", "--json")
    document = json.loads(told.stdout)
    assert (document["funding"], document["amountAtomic"], document["quota"]) == ("free", "0", "free_search")
    assert document["requestHash"].startswith("sha256:")


def test_a_body_that_the_operation_refuses_fails_with_every_violation() -> None:
    told = quote("search.free", "-", given={"maxResults": 99})
    assert told.exit_code == 1
    assert "/query: is required" in told.stderr
    assert "/maxResults" in told.stderr


@pytest.mark.parametrize(
    ("status", "document", "told"),
    [
        (503, {"code": "operation_unavailable", "detail": "no route"}, "503 operation_unavailable: no route"),
        (200, {}, "no problem document"),
        (402, {"price": {}}, "answered 402 without a quote"),
        (402, [], "answered 402 without a quote"),
    ],
)
def test_what_is_no_quote_fails(status: int, document: Any, told: str) -> None:
    with answering(status, document) as (url, _):
        result = quote("search.paid", "-", "--node", url)
    assert result.exit_code == 1
    assert told in result.stderr


@pytest.mark.parametrize("given", ["", "no json", '{"query": 1, "query": 2}'])
def test_what_is_no_json_is_wrong_usage(given: str) -> None:
    assert quote("search.paid", "-", given=given).exit_code == 2


def test_an_unknown_operation_or_file_is_wrong_usage_and_no_node_is_3() -> None:
    unknown = quote("search.gold", "-")
    assert (unknown.exit_code, "search.paid" in unknown.stderr) == (2, True)
    assert quote("search.paid", "/nowhere/body.json").exit_code == 2
    assert quote("search.paid", "-", "--node", "http://127.0.0.1:1").exit_code == 3
