from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trio
from quart import Response, request

from gateway import errors
from gateway.commands.exits import Stop
from gateway.commands.operator_calling import ask_operator
from gateway.config import Configuration, structure
from gateway.http.server import GatewayApp, bind, serve
from gateway.operator_token import open_token


@asynccontextmanager
async def listener(directory: Path) -> AsyncIterator[Configuration]:
    """An operator's listener that tells what it was asked, refuses and cannot answer, and a configuration of it."""
    app, stop = GatewayApp(base_url="http://node.example", body_cap=lambda _: 1000), trio.Event()

    @app.route("/said", methods=["GET", "POST"])
    async def said() -> Response:
        body, token = await request.get_data(as_text=True), request.headers["Authorization"]
        return Response(f'{{"method": "{request.method}", "body": "{len(body)}", "token": "{token[:7]}"}}')

    @app.get("/refused")
    async def refused() -> Response:
        raise errors.OperationNotFound("there is none")

    @app.get("/away")
    async def away() -> Response:
        raise errors.StoreUnavailable("not now")

    @app.get("/locked")
    async def locked() -> Response:
        raise errors.Unauthorized

    async with trio.open_nursery() as nursery:
        (url,) = await nursery.start(partial(serve, app, [bind("127.0.0.1:0")], stop=stop))
        node = {"operator_listen": url.removeprefix("http://"), "data_dir": str(directory)}
        yield structure({"node": node})
        stop.set()


async def ask(configuration: Configuration, method: str, path: str, body: dict[str, str] | None = None) -> object:
    ask_it = partial(ask_operator, configuration, method, path, body, why="only it knows")
    return await trio.to_thread.run_sync(ask_it)


async def test_the_listener_is_asked_with_the_node_s_token(tmp_path: Path) -> None:
    async with listener(tmp_path) as configuration:
        open_token(configuration, create=True)
        assert await ask(configuration, "GET", "/said") == {"method": "GET", "body": "0", "token": "Bearer "}
        assert await ask(configuration, "POST", "/said", {}) == {"method": "POST", "body": "2", "token": "Bearer "}


@pytest.mark.parametrize(
    ("path", "exit_code", "told"),
    [
        ("/refused", 1, "404 operation_not_found: there is none"),
        ("/away", 3, "503 store_unavailable: not now"),
        ("/locked", 2, "the node does not take the token"),
    ],
)
async def test_what_it_does_not_answer_ends_the_command(tmp_path: Path, path: str, exit_code: int, told: str) -> None:
    async with listener(tmp_path) as configuration:
        open_token(configuration, create=True)
        with pytest.raises(Stop, match=told) as ending:
            await ask(configuration, "GET", path)
    assert ending.value.exit_code == exit_code


async def test_where_no_node_ever_ran_the_reason_is_told(tmp_path: Path) -> None:
    async with listener(tmp_path / "elsewhere") as configuration:
        with pytest.raises(Stop, match=r"no node has run in .*; only it knows\. Name .* with --config") as ending:
            await ask(configuration, "GET", "/said")
    assert ending.value.exit_code == 3
