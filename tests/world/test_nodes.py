from __future__ import annotations

import os
import signal
import socket
import sys
from functools import partial
from pathlib import Path

import attrs
import httpx
import orjson
import pytest
import trio

from gateway import config
from gateway.world.child import ChildFailed
from gateway.world.nodes import Node, configured, start_all
from gateway.world.store import Store
from gateway.world.world import World
from tests.world.programs import NODE

pytestmark = pytest.mark.world


@pytest.fixture
def stand_in(tmp_path: Path) -> tuple[str, str]:
    """The command of a program that says it is ready."""
    path = tmp_path / "stand_in.py"
    path.write_text(NODE)
    return sys.executable, str(path)


def unheard(node: Node, how: str) -> None:
    raise AssertionError(node.name, how)


async def ready(node: Node) -> bool:
    async with httpx.AsyncClient() as client:
        try:
            return (await client.get(f"{node.gateway}/readyz")).status_code == 200
        except httpx.ConnectError:
            return False


async def test_nodes_are_apart_in_name_ports_and_data_and_share_store_and_keys(world: World, tmp_path: Path) -> None:
    shared = attrs.evolve(world, directory=tmp_path, store=Store("postgresql://postgres@127.0.0.1:1/gateway"))
    with configured(shared, tmp_path, 3) as nodes:
        told = [config.load(node.config, {}) for node in nodes]
    assert [each.node.name for each in told] == [node.name for node in nodes] == ["node-1", "node-2", "node-3"]
    assert len({place for each in told for place in (*each.node.listen, each.node.operator_listen)}) == 6
    assert len({each.data_dir for each in told}) == 3
    assert {each.keys_dir for each in told} == {tmp_path / "keys"}
    assert {each.base_url for each in told} == {nodes[0].gateway}, "a quote of one is paid at another"
    assert [f"http://{each.node.listen[0]}" for each in told] == [node.gateway for node in nodes]
    assert {each.store.url for each in told} == {"postgresql://postgres@127.0.0.1:1/gateway"}


async def test_the_first_node_has_the_port_that_was_asked_for(world: World, tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with configured(world, tmp_path, 2, port=port) as (first, second):
        assert first.gateway == f"http://127.0.0.1:{port}"
        assert second.gateway != first.gateway


async def test_a_node_that_is_killed_on_purpose_is_not_told_of_and_comes_back_in_place(
    world: World, tmp_path: Path, stand_in: tuple[str, str]
) -> None:
    with configured(world, tmp_path, 1, command=stand_in) as (node,):
        async with trio.open_nursery() as nursery:
            await nursery.start(node.run, unheard)
            pid, place = node.pid, node.gateway
            await node.kill()
            assert not await ready(node)
            await nursery.start(node.run, unheard)
            assert node.pid != pid
            assert (node.gateway, await ready(node)) == (place, True)
            nursery.cancel_scope.cancel()


async def test_a_node_that_ends_by_itself_is_told_of(world: World, tmp_path: Path, stand_in: tuple[str, str]) -> None:
    heard: list[tuple[str, str]] = []
    with configured(world, tmp_path, 1, command=stand_in) as (node,):
        async with trio.open_nursery() as nursery:
            await nursery.start(node.run, lambda node, how: heard.append((node.name, how)))
            os.kill(node.pid, signal.SIGTERM)
        await node.kill()
    assert heard == [("node-1", "killed by SIGTERM")]


async def test_all_nodes_are_ready_once_they_are_started(
    world: World, tmp_path: Path, stand_in: tuple[str, str]
) -> None:
    with configured(world, tmp_path, 3, command=stand_in) as nodes:
        async with trio.open_nursery() as nursery:
            await start_all(nodes, nursery, unheard)
            assert [await ready(node) for node in nodes] == [True, True, True]
            assert len({node.pid for node in nodes}) == 3
            nursery.cancel_scope.cancel()


async def test_no_other_node_is_started_when_the_first_fails(world: World, tmp_path: Path) -> None:
    failing = (sys.executable, "-c", "raise SystemExit('no store')")
    with configured(world, tmp_path, 2, command=failing) as (first, second):
        with pytest.RaisesGroup(pytest.RaisesExc(ChildFailed, match="node-1 ended with 1"), flatten_subgroups=True):
            async with trio.open_nursery() as nursery:
                await start_all((first, second), nursery, unheard)
        assert second.pid == 0


def listed(reason: str | None) -> bytes:
    return orjson.dumps(
        {"data": [{"gateway": {"availabilityReason": None}}, {"gateway": {"availabilityReason": reason}}]}
    )


@pytest.mark.parametrize(
    "answers",
    [
        [(200, listed("starting")), (200, listed("starting")), (200, listed(None)), (402, b"{}")],
        [(200, listed(None)), (503, b'{"reason": "starting"}'), (200, listed(None)), (402, b"{}")],
        [(200, listed("model_not_installed")), (503, b'{"reason": "sandbox.userns_denied"}')],
        [(404, b"{}"), (404, b"{}")],
    ],
)
async def test_the_models_and_the_sandbox_of_a_node_are_waited_for_while_they_start(
    world: World, tmp_path: Path, answers: list[tuple[int, bytes]]
) -> None:
    left = list(answers)

    async def answer(stream: trio.SocketStream) -> None:
        async with stream:
            while received := await stream.receive_some():
                if b"POST" in received and not received.endswith(b"}"):
                    await stream.receive_some()  # its body comes by itself
                status, body = left.pop(0)
                await stream.send_all(b"HTTP/1.1 %d OK\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body))

    with configured(world, tmp_path, 1) as (node,):
        async with trio.open_nursery() as nursery:
            port = int(node.gateway.rpartition(":")[2])
            await nursery.start(partial(trio.serve_tcp, answer, port, host="127.0.0.1"))
            with trio.fail_after(10):
                await node.until_started()
            nursery.cancel_scope.cancel()
    assert left == []
