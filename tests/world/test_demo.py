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

import httpx
import psutil
import pytest
import trio
from rich.console import Console

from gateway.world.demo import DemoOptions, demo, ready_file
from gateway.world.report import Report
from gateway.world.world import World

pytestmark = pytest.mark.world

NODE = """
import sys, tomllib
from pathlib import Path
from http.server import BaseHTTPRequestHandler, HTTPServer

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/readyz" else 404)
        self.send_header("content-length", "0")
        self.end_headers()

node = tomllib.load(open(sys.argv[-1], "rb"))["node"]
Path(node["data_dir"]).mkdir()
(Path(node["data_dir"]) / "operator.token").write_text("the-token-of-the-operator")
port = int(node["listen"][0].rpartition(":")[2])
HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""
DEMO = """
import sys, trio
from functools import partial
from pathlib import Path
from gateway.world.demo import DemoOptions, demo
options = DemoOptions(stay=True, agent=False, ready=Path(sys.argv[1]))
sys.exit(trio.run(partial(demo, options, node_command=(sys.executable, *sys.argv[2:]))))
"""


@contextmanager
def demo_of(ready: Path, *node: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run the demo in a process of its own around a stand-in node: what is shown here is the life of its parts."""
    command = [sys.executable, "-c", DEMO, str(ready), *node]
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
        said(process, b"the node ended with 1")
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
    assert (found["complete"], found["transfers"], found["faults"]) == (True, 2, [])
    assert [(step["protocol"], step["replayed"], step["charged"]) for step in found["steps"]] == [
        ("free", False, "0"),
        ("x402", False, "6000"),
        ("x402", True, "6000"),
        ("mpp", False, "6000"),
        ("mpp", True, "6000"),
    ]


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


def test_the_ready_file_says_where_everything_is(world: World, tmp_path: Path) -> None:
    config = world.node_config(tmp_path, 8402, 8403)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "operator.token").write_text("the-token-of-the-operator\n")
    told = ready_file(world, config, 42)
    assert (told["operator"], told["operatorToken"]) == ("http://127.0.0.1:8403", "the-token-of-the-operator")
    assert set(told) == {
        *(
            "gateway",
            "operator",
            "operatorToken",
            "config",
            "pid",
            "chains",
            "facilitator",
            "token",
            "payTo",
            "payers",
            "faults",
        ),
    }
    assert told["chains"] == {"eip155:8453": {"rpc": world.rpc_url, "ws": world.ws_url}}
    assert len(told["payers"]) >= 8
    assert set(told["payers"][0]) == {"address", "privateKey"}
    assert told["gateway"] == "http://127.0.0.1:8402"


async def test_a_ready_file_in_no_folder_is_refused_before_anything_starts(tmp_path: Path) -> None:
    report, said = silent()
    assert await demo(DemoOptions(ready=tmp_path / "absent" / "ready.json"), report=report) == 2
    assert "there is no folder" in said.getvalue()
