from __future__ import annotations

import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gateway.cli import main
from gateway.registry.ai.catalog import CATALOG
from gateway.registry.ai.choice import standing
from gateway.registry.ai.listing import Selling, model_list
from gateway.registry.payment.terms import Terms
from tests.commands.node_in_use import LUNA, SMALL, NodeInUse, node_in_use
from tests.http.shop import TERMS
from tests.registry.ai.shelf import Shelf, route

CODE = "gateway/code"


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[NodeInUse]:
    async with node_in_use(tmp_path) as running:
        yield running


@contextmanager
def answering(status: int, content: bytes) -> Iterator[str]:
    """A node that answers every GET the same."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/v1/models" else 500)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name there
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def listed(*arguments: str, terms: Terms | None = TERMS) -> Result:
    """Ask a node that sells luna by a simulated upstream and the small model for nothing."""
    shelf = Shelf([route(SMALL), route(LUNA, simulated=True)])
    shelf.probe(SMALL)
    shelf.probe(LUNA)
    standings = [standing(CATALOG, shelf.routes, shelf.proofs.of, name) for name in CATALOG.models]
    document = model_list(CATALOG, standings, Selling(TERMS.base_url, terms, None, 12))
    with answering(200, json.dumps(document).encode()) as url:
        return CliRunner().invoke(main, ["models", *arguments, "--node", f"{url}/"])


def ids(told: Result) -> list[str]:
    return [line.split()[0] for line in told.stdout.splitlines()[1:]]


async def test_a_node_is_asked_for_its_list_by_its_configuration(node: NodeInUse) -> None:
    told = await node.run("models")
    assert (told.returncode, told.stderr) == (0, "")
    assert told.stdout.splitlines()[0].split() == ["id", "billing", "usd", "availability", "reason"]
    assert len(told.stdout.splitlines()) == 1 + len(CATALOG.models)
    (luna,) = [line.split() for line in told.stdout.splitlines() if line.startswith(LUNA)]
    assert luna == [LUNA, "paid", "0.007000", "unavailable", "(simulated)", "unreachable"]
    assert "\x1b" not in told.stdout


def test_each_model_has_its_price_and_why_it_is_closed() -> None:
    told = listed()
    assert told.exit_code == 0
    lines = {line.split()[0]: line.split()[1:] for line in told.stdout.splitlines()[1:]}
    assert lines[LUNA] == ["paid", "0.007000", "available", "(simulated)", "-"]
    assert lines[SMALL] == ["free", "0.000000", "available", "-"]
    assert lines[CODE] == ["paid", "0.015000", "unavailable", "no_route"]
    assert lines["openai/whisper-tiny.en"][:2] == ["-", "-"]


def test_what_cannot_be_paid_for_says_so() -> None:
    told = listed(LUNA, terms=None)
    assert told.stdout.splitlines()[1].split()[-1] == "payment_not_configured"


@pytest.mark.parametrize(
    ("query", "some"), [("LUNA", [LUNA]), ("smollm2", [SMALL]), ("GPT-5.6 Luna", [LUNA]), ("nothing-like-it", [])]
)
def test_a_query_selects_by_id_or_name_in_any_case(query: str, some: list[str]) -> None:
    told = listed(query)
    assert told.exit_code == 0
    assert ids(told) == some or set(some) < set(ids(told))
    assert told.stdout != "" if some else told.stdout == "no models\n"


def test_a_query_selects_by_capability() -> None:
    assert ids(listed("transcription")) == ["openai/whisper-tiny.en"]


def test_only_what_can_be_called_now_is_shown_where_that_is_asked_for() -> None:
    assert set(ids(listed("--available"))) == {LUNA, SMALL, "gateway/fast"}
    assert LUNA not in ids(listed("--available", terms=None))


def test_as_json_the_list_is_the_node_s_own_with_the_chosen_models() -> None:
    told = json.loads(listed("luna", "--json").stdout)
    assert [each["id"] for each in told["data"]] == [LUNA]
    assert told["data"][0]["gateway"]["simulated"] is True
    assert (told["object"], told["gateway"]["counts"]["canonical"]) == ("list", 85)


def test_without_a_node_it_cannot_be_reached(tmp_path: Path) -> None:
    told = CliRunner().invoke(main, ["models", "--node", "http://127.0.0.1:1"])
    assert told.exit_code == 3
    assert "no node answers at http://127.0.0.1:1/v1/models" in told.stderr


@pytest.mark.parametrize(
    ("status", "content", "exit_code", "told"),
    [
        (200, b"<html>", 1, "is that a node?"),
        (200, b"[]", 1, "is that a node?"),
        (200, b'{"data": [{}]}', 1, "is no list of models of this release"),
        (404, b'{"code": "not_found", "detail": "none"}', 1, "404 not_found: none"),
        (503, b'{"code": "store_unavailable", "detail": "gone"}', 3, "503 store_unavailable: gone"),
    ],
)
def test_an_answer_that_is_no_list_ends_the_command(status: int, content: bytes, exit_code: int, told: str) -> None:
    with answering(status, content) as url:
        ended = CliRunner().invoke(main, ["models", "--node", url])
    assert ended.exit_code == exit_code
    assert told in ended.stderr
