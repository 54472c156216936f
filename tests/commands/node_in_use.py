"""A whole node whose operator uses the command line: each command is a process, as for the operator."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from subprocess import CompletedProcess

import attrs
import trio

from gateway.config import structure
from gateway.node import open_node

LUNA, SMALL = "openai/gpt-5.6-luna", "huggingfacetb/smollm2-135m-instruct"


@attrs.frozen
class NodeInUse:
    """A node with an embedded search index and a route to a model where nobody listens."""

    config: Path
    url: str

    async def run(self, *arguments: str) -> CompletedProcess[str]:
        """Run a command with the node's configuration to its end."""
        command = [sys.executable, "-m", "gateway", *arguments, "--config", str(self.config)]
        done: CompletedProcess[bytes] = await trio.run_process(
            command, capture_stdout=True, capture_stderr=True, check=False
        )
        return CompletedProcess(command, done.returncode, done.stdout.decode(), done.stderr.decode())


@asynccontextmanager
async def node_in_use(directory: Path) -> AsyncIterator[NodeInUse]:
    """Run a node for the length of a block."""
    node = {"listen": ["127.0.0.1:0"], "operator_listen": "127.0.0.1:0", "data_dir": str(directory)}
    upstream = {"kind": "openai", "base_url": "http://127.0.0.1:9/v1", "upstream_model": "luna"}
    route = {"model": LUNA, "simulated": True} | upstream
    tree = {"node": node, "ai": {"embedded": False, "route": [route]}, "sandbox": {"enabled": False}}
    async with open_node(structure(tree), operator=True) as up:
        assert up.operator is not None
        config = directory / "gateway.toml"
        listen, operator = (each.removeprefix("http://") for each in (up.urls[0], up.operator))
        config.write_text(f'[node]\ndata_dir = "{directory}"\nlisten = ["{listen}"]\noperator_listen = "{operator}"\n')
        yield NodeInUse(config, up.urls[0])
