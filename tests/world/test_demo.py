from __future__ import annotations

import io
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import attrs
import httpx
import psutil
import psycopg
import pytest
import trio
from rich.console import Console

from gateway.world.demo import STEPS, DemoOptions, demo, ready_file
from gateway.world.nodes import Node
from gateway.world.report import Report
from gateway.world.store import Store
from gateway.world.world import World
from tests.world.programs import NODE

pytestmark = pytest.mark.world

DEMO = """
import sys, trio
from functools import partial
from pathlib import Path
from gateway.world.demo import DemoOptions, demo
ready, nodes, store, *node = sys.argv[1:]
options = DemoOptions(stay=True, agent=False, ready=Path(ready), nodes=int(nodes), store=store)
sys.exit(trio.run(partial(demo, options, node_command=(sys.executable, *node))))
"""


@contextmanager
def demo_of(ready: Path, *node: str, nodes: int = 1, store: str = "") -> Iterator[subprocess.Popen[bytes]]:
    """Run the demo in a process of its own around a stand-in node: what is shown here is the life of its parts."""
    command = [sys.executable, "-c", DEMO, str(ready), str(nodes), store, *node]
    environment = os.environ | {"TMPDIR": str(ready.parent)}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, env=environment)
    try:
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=60)


def said(process: subprocess.Popen[bytes], words: bytes) -> bytes:
    """Return the line with these words, once the demo has said it."""
    assert process.stderr is not None
    while line := process.stderr.readline():
        if words in line:
            return line
    raise AssertionError(words)


def all_gone(processes: list[psutil.Process]) -> bool:
    _, alive = psutil.wait_procs(processes, timeout=20)
    return not alive


def silent() -> tuple[Report, io.StringIO]:
    told = io.StringIO()
    return Report(progress=Console(file=told, width=200), outcome=Console(file=io.StringIO())), told


@pytest.fixture
def node(tmp_path: Path) -> str:
    path = tmp_path / "node.py"
    path.write_text(NODE)
    return str(path)


def test_the_world_outlives_its_node_and_ctrl_c_ends_all_of_it(tmp_path: Path, node: str) -> None:
    ready = tmp_path / "ready.json"
    with demo_of(ready, node) as process:
        said(process, b"stays up until")
        told = json.loads(ready.read_text())
        children = psutil.Process(process.pid).children(recursive=True)
        assert told["pid"] in {each.pid for each in children}
        os.kill(told["pid"], signal.SIGKILL)
        said(process, b"ended (killed by SIGKILL)")
        assert told["config"].encode() in said(process, b"./run serve --config")
        assert process.poll() is None
        assert len(psutil.Process(process.pid).children(recursive=True)) == len(children) - 1
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
        assert all_gone(children)
        assert not ready.exists()
        assert not Path(told["config"]).exists()


def test_nothing_is_left_when_the_demo_is_killed(tmp_path: Path, node: str) -> None:
    with demo_of(tmp_path / "ready.json", node) as process:
        said(process, b"stays up until")
        children = psutil.Process(process.pid).children(recursive=True)
        assert len(children) == 3
        process.kill()
        assert all_gone(children)


def test_a_node_that_does_not_start_fails_the_demo_with_its_last_words(tmp_path: Path) -> None:
    with demo_of(tmp_path / "ready.json", "-c", "raise SystemExit('no store')") as process:
        said(process, b"node-1 ended with 1")
        said(process, b"no store")
        said(process, b"the logs are in")
        assert process.wait(60) == 1


def test_a_port_that_is_taken_fails_the_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    report, told = silent()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        options = DemoOptions(agent=False, port=taken.getsockname()[1])
        assert trio.run(partial(demo, options, report=report)) == 1
    assert "cannot have port" in told.getvalue()
    assert list(tmp_path.iterdir())


def test_an_agent_buys_and_all_of_it_adds_up() -> None:
    outcome = io.StringIO()
    report = Report(progress=Console(file=io.StringIO()), outcome=Console(file=outcome))
    assert trio.run(partial(demo, DemoOptions(strict=True, json=True), report=report)) == 0, outcome.getvalue()
    found = json.loads(outcome.getvalue())
    assert (found["complete"], found["transfers"], found["faults"]) == (True, 5, [])
    once = [step for step in found["steps"] if not step["replayed"]]
    assert [(each["step"], each["price"], each["charged"]) for each in once] == [
        ("free search", None, "0"),
        ("search over x402", "6000", "6000"),
        ("search over MPP", "6000", "6000"),
        ("free chat", None, "0"),
        ("AI over x402", once[4]["price"], once[4]["price"]),
        ("chat over MPP", "7000", "7000"),
        ("command over x402", "10000", "10000"),
    ]
    again = [step["step"] for step in found["steps"] if step["replayed"]]
    assert again == [f"{each['step']}, again" for each in once if each["price"]]
    assert [each["by"] for each in once[3:]] == [
        "huggingfacetb/smollm2-135m-instruct",
        "openai/gpt-5.6-luna, simulated",
        "openai/gpt-5.6-luna, simulated",
        "bubblewrap",
    ]


CLOSED = "import os; os.environ['GATEWAY_AI__EMBEDDED'] = 'false'; from gateway.cli import main; main()"


def test_a_family_that_is_closed_is_reported_with_its_reason_and_fails_a_strict_demo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("GATEWAY_NODE__DATA_DIR", "/nowhere")  # of a node of the caller's own
    outcome = io.StringIO()
    report = Report(progress=Console(file=io.StringIO()), outcome=Console(file=outcome))
    node = (sys.executable, "-P", "-c", CLOSED, "serve")
    assert trio.run(partial(demo, DemoOptions(strict=True, json=True), report=report, node_command=node)) == 1
    found = json.loads(outcome.getvalue())
    assert (found["holds"], found["complete"], found["transfers"]) == (True, False, 5)
    (closed,) = (step for step in found["steps"] if step["verdict"] != "held")
    assert (closed["step"], closed["status"], closed["verdict"]) == ("free chat", 503, "closed")
    assert closed["reason"].endswith("(no_route)")


def test_a_killed_node_comes_back_on_its_port_and_data(tmp_path: Path) -> None:
    ready = tmp_path / "ready.json"
    with demo_of(ready, "-m", "gateway", "serve") as process:
        said(process, b"stays up until")
        told = json.loads(ready.read_text())
        os.kill(told["pid"], signal.SIGKILL)
        said(process, b"./run serve --config")
        again = subprocess.Popen([sys.executable, "-m", "gateway", "serve", "--config", told["config"]])
        try:
            answer = None
            for _ in range(600):
                try:
                    answer = httpx.get(f"{told['gateway']}/readyz")
                    break
                except httpx.ConnectError:
                    select.select([], [], [], 0.05)
            assert answer is not None
            assert answer.status_code == 200
        finally:
            again.terminate()
            assert again.wait(60) == 0


READY = {
    *("gateway", "operator", "operatorToken", "config", "pid", "nodes"),
    *("chains", "facilitator", "token", "payTo", "payers", "faults"),
}
LISTED = {"name", "gateway", "operator", "operatorToken", "config", "pid"}


def started_once(world: World, directory: Path, number: int) -> Node:
    """A node as its first process leaves it."""
    name = f"node-{number}"
    config = world.node_config(directory / name, 8402 + 2 * number, 8403 + 2 * number, name=name)
    (directory / name / "data").mkdir()
    (directory / name / "data" / "operator.token").write_text(f"the-token-of-{name}\n")
    return Node(name, config, pid=40 + number)


def test_the_ready_file_says_where_everything_is(world: World, tmp_path: Path) -> None:
    told = ready_file(world, [started_once(world, tmp_path, 1)])
    assert (told["operator"], told["operatorToken"]) == ("http://127.0.0.1:8405", "the-token-of-node-1")
    assert set(told) == READY
    assert told["chains"] == {"eip155:8453": {"rpc": world.rpc_url, "ws": world.ws_url}}
    assert len(told["payers"]) >= 8
    assert set(told["payers"][0]) == {"address", "privateKey"}
    assert (told["gateway"], told["pid"]) == ("http://127.0.0.1:8404", 41)


def test_the_ready_file_lists_every_node_and_speaks_of_the_first(world: World, tmp_path: Path) -> None:
    shared = attrs.evolve(world, store=Store("postgresql://postgres@127.0.0.1:1/gateway"))
    told = ready_file(shared, [started_once(shared, tmp_path, number) for number in (1, 2)])
    assert set(told) == READY | {"store"}
    assert told["store"] == {"url": "postgresql://postgres@127.0.0.1:1/gateway", "pid": None}
    assert [set(each) for each in told["nodes"]] == [LISTED, LISTED]
    assert [(each["name"], each["pid"], each["gateway"]) for each in told["nodes"]] == [
        ("node-1", 41, "http://127.0.0.1:8404"),
        ("node-2", 42, "http://127.0.0.1:8406"),
    ]
    assert {name: told[name] for name in LISTED - {"name"}} == {
        name: told["nodes"][0][name] for name in LISTED - {"name"}
    }


async def test_a_ready_file_in_no_folder_is_refused_before_anything_starts(tmp_path: Path) -> None:
    report, said = silent()
    assert await demo(DemoOptions(ready=tmp_path / "absent" / "ready.json"), report=report) == 2
    assert "there is no folder" in said.getvalue()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (DemoOptions(nodes=2), "--nodes 2: several nodes need a store that they can share; add --store postgresql"),
        (DemoOptions(store="sqlite:///x"), "--store sqlite:///x: say postgresql, or postgresql://USER@HOST/DATABASE"),
    ],
)
def test_options_that_cannot_be_used_are_refused_before_anything_starts(
    options: DemoOptions, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    report, said = silent()
    assert trio.run(partial(demo, options, report=report)) == 2
    assert said.getvalue().startswith(words)
    assert list(tmp_path.iterdir()) == []


async def test_a_store_that_cannot_be_had_is_told_and_is_no_failure_of_the_demo() -> None:
    report, said = silent()
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        url = f"postgresql://postgres:secret@127.0.0.1:{nobody.getsockname()[1]}/gateway"
        assert await demo(DemoOptions(store=url), report=report) == 3
    assert "cannot be used" in said.getvalue()
    assert "secret" not in said.getvalue()
    assert "the logs are in" not in said.getvalue()


def test_two_nodes_share_the_round_and_one_takes_over_from_the_other() -> None:
    outcome, progress = io.StringIO(), io.StringIO()
    report = Report(progress=Console(file=progress, width=200), outcome=Console(file=outcome))
    options = DemoOptions(strict=True, json=True, nodes=2, store="postgresql")
    assert trio.run(partial(demo, options, report=report)) == 0, progress.getvalue()
    found = json.loads(outcome.getvalue())
    assert (found["complete"], found["transfers"], found["faults"]) == (True, 6, [])
    steps, taken = found["steps"][:STEPS], found["steps"][STEPS:]
    assert {step["node"] for step in steps} == {"node-1", "node-2"}
    assert [(each["node"], each["replayed"], each["charged"]) for each in taken] == [
        ("node-2", False, "6000"),
        ("node-1", True, "6000"),
    ]
    assert taken[0]["transaction"] == taken[1]["transaction"]
    assert (found["takeOver"]["killed"], found["takeOver"]["by"]) == ("node-1", "node-2")
    assert found["takeOver"]["ms"] > 0
    assert "node-1 waits for the answer and is killed" in progress.getvalue()


def test_a_paused_store_does_not_hold_up_the_end(tmp_path: Path) -> None:
    ready = tmp_path / "ready.json"
    with demo_of(ready, "-m", "gateway", "serve", nodes=2, store="postgresql") as process:
        said(process, b"stays up until")
        faults = json.loads(ready.read_text())["faults"]
        assert httpx.put(f"{faults}/store", json={"mode": "pause"}, timeout=30).status_code == 200
        process.send_signal(signal.SIGINT)
        assert process.wait(15) == 0


def test_the_world_outlives_any_of_its_nodes_and_takes_its_store_with_it(tmp_path: Path, node: str) -> None:
    ready = tmp_path / "ready.json"
    with demo_of(ready, node, nodes=2, store="postgresql") as process:
        said(process, b"stays up until")
        told = json.loads(ready.read_text())
        first, second = (psutil.Process(each["pid"]) for each in told["nodes"])
        store = psutil.Process(told["store"]["pid"])
        second.kill()
        said(process, b"node-2 ended (killed by SIGKILL)")
        assert told["nodes"][1]["config"].encode() in said(process, b"to bring node-2 back: ./run serve --config")
        assert first.is_running()
        with psycopg.connect(told["store"]["url"]) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
        assert all_gone([first, store])
