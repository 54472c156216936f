"""The gateways of the chat benchmark, each before the same upstream: this node, LiteLLM's proxy, npm's Portkey.

The peers are fetched when they are first asked for, at pinned versions, into the project's scratch directory; they are
part of no lock.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import attrs
import httpx
import orjson
import tomli_w

from gateway.world.npm import ToolUnavailable, node_binary, npm
from tests.world.scenarios.node_process import NodeProcess, free_port, pause, running

LITELLM, PORTKEY = "1.108.7", "1.15.2"
SCRATCH = Path(__file__).parents[2] / ".gateway" / "peers"
FAKE_MODEL = Path(__file__).parent / "fake_model.py"
MODEL = "openai/gpt-oss-20b"
PATH = "/v1/chat/completions"
BODY = orjson.dumps({"model": MODEL, "messages": [{"role": "user", "content": "What is a tide?"}], "max_tokens": 64})
INSTALL_S, START_S = 1200.0, 90.0
ENDLESS = 1_000_000_000


@attrs.frozen
class Gateway:
    """A running gateway: what a request to it carries beside its body, and the process whose memory counts."""

    name: str
    port: int
    pid: int
    headers: Mapping[str, str]


Open = Callable[[str, Path], AbstractContextManager[Gateway]]
"""Runs a gateway before the upstream of a base URL, its files in a directory, for the length of a block."""


@contextmanager
def fake_upstream() -> Iterator[int]:
    """Run the upstream of all; yield its port."""
    command = [sys.executable, str(FAKE_MODEL), MODEL]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as upstream:
        assert upstream.stdin is not None
        assert upstream.stdout is not None
        try:
            yield int(upstream.stdout.readline())
        finally:
            upstream.stdin.close()


@contextmanager
def this_node(upstream: str, directory: Path) -> Iterator[Gateway]:
    """Run `gateway serve` with one free route; validation, quota and idempotency are what they always are."""
    port = free_port()
    config = directory / "gateway.toml"
    settings = {
        "node": {
            "listen": [f"127.0.0.1:{port}"],
            "operator_listen": "127.0.0.1:0",
            "data_dir": str(directory / "data"),
        },
        "quota": {"free_ai": ENDLESS},
        "ai": {
            "embedded": False,
            "route": [
                {
                    "model": MODEL,
                    "kind": "openai",
                    "base_url": upstream,
                    "upstream_model": MODEL,
                    "billed": False,
                    "canary": False,
                }
            ],
        },
    }
    config.write_text(tomli_w.dumps(settings))
    with running(NodeProcess(directory, port, config)) as node:
        gateway = Gateway("this node", port, node.pid, {})
        _wait(gateway, lambda: node.returncode, directory / "node.log")
        yield gateway


@contextmanager
def litellm(upstream: str, directory: Path) -> Iterator[Gateway]:
    """Run LiteLLM's proxy with one worker and no database."""
    python = _litellm_python()
    port, key = free_port(), f"sk-{secrets.token_hex(32)}"
    route = {"model": f"openai/{MODEL}", "api_base": upstream, "api_key": "none"}
    config = directory / "litellm.yaml"  # JSON is YAML
    config.write_bytes(orjson.dumps({"model_list": [{"model_name": MODEL, "litellm_params": route}]}))
    program = [str(python), str(python.parent / "litellm"), "--config", str(config), "--host", "127.0.0.1"]
    environment = {"LITELLM_MASTER_KEY": key, "LITELLM_LOG": "ERROR", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    with _process([*program, "--port", str(port), "--num_workers", "1"], directory, environment) as server:
        gateway = Gateway("LiteLLM", port, server.pid, {"Authorization": f"Bearer {key}"})
        _wait(gateway, server.poll, directory / "log")
        yield gateway


@contextmanager
def portkey(upstream: str, directory: Path) -> Iterator[Gateway]:
    """Run Portkey's gateway on the Node.js that the environment carries."""
    program = _portkey_program()
    port = free_port()
    headers = {"Authorization": "Bearer none", "x-portkey-provider": "openai", "x-portkey-custom-host": upstream}
    with _process([str(node_binary()), str(program), f"--port={port}", "--headless"], directory, {}) as server:
        gateway = Gateway("Portkey", port, server.pid, headers)
        _wait(gateway, server.poll, directory / "log")
        yield gateway


@contextmanager
def _process(
    command: Sequence[str], directory: Path, environment: Mapping[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    surroundings = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    with (directory / "log").open("wb") as log:
        server = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=directory,
            env={**surroundings, **environment},
        )
    try:
        yield server
    finally:
        server.kill()
        server.wait()


def _wait(gateway: Gateway, returncode: Callable[[], int | None], log: Path) -> None:
    """Wait until it passes the upstream's answer on."""
    said = "no answer"
    for _ in range(int(START_S / 0.1)):
        if returncode() is not None:
            break
        try:
            answer = httpx.post(
                f"http://127.0.0.1:{gateway.port}{PATH}",
                content=BODY,
                headers={"Content-Type": "application/json", **gateway.headers},
                timeout=30,
                trust_env=False,
            )
        except httpx.TransportError:
            pass
        else:
            said = f"{answer.status_code} {answer.text}"
            if (
                answer.status_code == 200
                and "rise and fall of the sea" in answer.json()["choices"][0]["message"]["content"]
            ):
                return
        pause(0.1)
    raise AssertionError(f"{gateway.name} does not pass a chat on: {said}\n{log.read_text(errors='replace')[-3000:]}")


# -- fetching the peers ------------------------------------------------------------------------------------------------


def _litellm_python() -> Path:
    """Return the Python of an environment with LiteLLM's proxy; raises `ToolUnavailable`."""
    directory = SCRATCH / f"litellm-{LITELLM}"
    python = directory / "bin" / "python"

    def install() -> None:
        venv.create(directory, clear=True, with_pip=True)
        command = [
            str(python),
            "-m",
            "pip",
            "install",
            "--disable-pip-version-check",
            "-q",
            f"litellm[proxy]=={LITELLM}",
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_S, check=False)
        if done.returncode:
            raise ToolUnavailable(f"pip could not install litellm[proxy]=={LITELLM}:\n{done.stderr.strip()[-2000:]}")

    _once(directory, install)
    return python


def _portkey_program() -> Path:
    """Return the program of Portkey's gateway; raises `ToolUnavailable`."""
    directory = SCRATCH / f"portkey-{PORTKEY}"

    def install() -> None:
        directory.mkdir(parents=True)
        (directory / "package.json").write_text('{"private": true}')
        npm(["install", f"@portkey-ai/gateway@{PORTKEY}"], directory)

    _once(directory, install)
    return directory / "node_modules" / "@portkey-ai" / "gateway" / "build" / "start-server.js"


def _once(directory: Path, install: Callable[[], None]) -> None:
    """Install into a directory unless that has been done to its end."""
    stamp = directory / ".installed"
    if not stamp.exists():
        shutil.rmtree(directory, ignore_errors=True)
        install()
        stamp.touch()
