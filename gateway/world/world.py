"""The local world in one piece: chain, token, facilitator, search engine, models, store and their faults."""

from __future__ import annotations

import json
import secrets
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import attrs
import tomli_w
import trio

from gateway.config import SandboxSection, default_data_dir
from gateway.config_rules import MOST_SLOTS
from gateway.sandbox.image import directory_of_images
from gateway.world import chain as chains
from gateway.world import token
from gateway.world.chain import Account, Chain, open_chain
from gateway.world.child import Child, open_child
from gateway.world.door import url_of
from gateway.world.store import Store, open_store
from gateway.world.upstreams import open_upstreams

LUNA = ("openai/gpt-5.6-luna", "openai", "gpt-5.6-luna")
"""What the nodes of a world sell: id in the catalog, format, the upstream's name of it."""
FACILITATOR_START_S = 60.0
FACILITATOR_MODULE = "gateway.world.facilitator"
"""Named, not imported: the SDK and web3 are that process's business."""


@attrs.frozen
class World:
    """Where everything is.

    The nodes are told of `node_rpc_url` and `facilitator_url`, which faults reach; `rpc_url` is the chain itself.
    `store` is what they share; None where each has a file of its own.
    """

    directory: Path
    network: str
    chain_id: int
    rpc_url: str
    ws_url: str
    node_rpc_url: str
    facilitator_url: str
    search_url: str
    ai_url: str
    ai_key_file: Path
    faults_url: str
    token: str
    payers: tuple[Account, ...]
    pay_to: str
    store: Store | None = None

    def node_settings(
        self,
        directory: Path,
        port: int,
        operator_port: int = 0,
        *,
        name: str = "node-1",
        sandbox: int | None = None,
        base_url: str = "",
    ) -> dict[str, Any]:
        """Return the configuration of a node on `port` that sells into this world, its data under `directory`.

        `operator_port` is that of the operator's listener, 0 for any; `name` tells it from the others of its store.
        `sandbox` is its number among those of this machine that sell sandboxed runs, None where it does not; `base_url`
        is where its buyers come to, by default the node itself.
        """
        settings = self._settings(directory, port, operator_port) | {"sandbox": _sandbox(sandbox)}
        if base_url:
            settings["node"] |= {"base_url": base_url}
        if self.store is not None:
            settings["node"] |= {"name": name, "keys_dir": str(self.directory / "keys")}
            settings["store"] = {"url": self.store.url}
        return settings

    def _settings(self, directory: Path, port: int, operator_port: int) -> dict[str, Any]:
        return {
            "node": {
                "base_url": url_of(port),
                "listen": [f"127.0.0.1:{port}"],
                "operator_listen": f"127.0.0.1:{operator_port}",
                "data_dir": str(directory / "data"),
            },
            "payment": {
                "network": self.network,
                "asset": self.token,
                "asset_name": token.NAME,
                "asset_version": token.VERSION,
                "decimals": token.DECIMALS,
                "pay_to": self.pay_to,
                "facilitator_url": self.facilitator_url,
                "rpc_urls": [self.node_rpc_url],
            },
            "search": {"adapter": [{"kind": "searxng", "base_url": self.search_url, "simulated": True}]},
            "ai": {"route": [self.ai_route(*LUNA)]},
        }

    def ai_route(self, model: str, kind: str, upstream_model: str, **members: Any) -> dict[str, Any]:
        """Return the configuration of a route to one of the simulated models, which cost nobody anything.

        `members` stand beside the rest, or in place of them.
        """
        route = {
            "model": model,
            "kind": kind,
            "base_url": self.ai_url,
            "upstream_model": upstream_model,
            "key_file": str(self.ai_key_file),
            "simulated": True,
            "billed": False,
            "canary": False,
        }
        return route | members

    def node_config(
        self,
        directory: Path,
        port: int,
        operator_port: int = 0,
        *,
        name: str = "node-1",
        sandbox: int | None = None,
        base_url: str = "",
    ) -> Path:
        """Write that configuration as TOML to `directory`/gateway.toml and return its path."""
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / "gateway.toml"
        path.touch(mode=0o600)  # the store's URL may hold a password
        settings = self.node_settings(directory, port, operator_port, name=name, sandbox=sandbox, base_url=base_url)
        path.write_text(tomli_w.dumps(settings))
        return path


def _sandbox(number: int | None) -> dict[str, Any]:
    """Return the section of a node's sandbox: all share an image, and no user of the host."""
    if number is None:
        return {"enabled": False}
    first_uid = SandboxSection().first_uid + number * MOST_SLOTS
    return {"image": str(directory_of_images(default_data_dir())), "first_uid": first_uid}


@asynccontextmanager
async def open_world(
    directory: Path, *, block_time: float | None = 1, port: int = 0, store: str = ""
) -> AsyncIterator[World]:
    """Start a world whose logs and keys are under `directory`; all of it has ended when the block is left.

    `block_time` as in `open_chain`; `port` is that of the fault control, 0 for any; `store` as in `open_store`.  Raises
    `ToolUnavailable`, `StoreUnusable` or `ChildFailed`.
    """
    await trio.Path(directory).mkdir(parents=True, exist_ok=True)
    ai_key, ai_key_file = f"sk-simulated-{secrets.token_hex(16)}", directory / "ai.key"
    _write_secret(ai_key_file, ai_key)
    async with (
        open_store(store) as shared,
        open_chain(directory, block_time=block_time) as chain,
        _open_facilitator(directory, chain) as facilitator,
        open_upstreams(
            network=chains.NETWORK,
            rpc_url=chain.rpc_url,
            facilitator_url=facilitator,
            ai_key=ai_key,
            port=port,
            store=shared.server if shared else None,
        ) as upstreams,
    ):
        yield World(
            directory=directory,
            network=chains.NETWORK,
            chain_id=chains.CHAIN_ID,
            rpc_url=chain.rpc_url,
            ws_url=chain.ws_url,
            node_rpc_url=upstreams.rpc_url,
            facilitator_url=upstreams.facilitator_url,
            search_url=upstreams.search_url,
            ai_url=upstreams.ai_url,
            ai_key_file=ai_key_file,
            faults_url=upstreams.faults_url,
            token=token.ADDRESS,
            payers=chain.payers,
            pay_to=chain.pay_to.address,
            store=shared,
        )


@contextmanager
def world_in_thread(directory: Path, *, block_time: float | None = 1) -> Iterator[World]:
    """Open a world on a thread of its own, for callers that are not in one trio run (a test session)."""
    opened: SimpleQueue[tuple[World, trio.lowlevel.TrioToken, trio.CancelScope] | BaseException] = SimpleQueue()

    async def live() -> None:
        with trio.CancelScope() as scope:
            async with open_world(directory, block_time=block_time) as world:
                opened.put((world, trio.lowlevel.current_trio_token(), scope))
                await trio.sleep_forever()

    def run() -> None:
        try:
            trio.run(live)
        except BaseException as error:  # noqa: BLE001 - carried to the thread that waits
            opened.put(error)

    thread = threading.Thread(target=run, name="local world", daemon=True)
    thread.start()
    first = opened.get()
    if isinstance(first, BaseException):
        raise first
    world, loop, scope = first
    try:
        yield world
    finally:
        loop.run_sync_soon(scope.cancel)
        thread.join()


@asynccontextmanager
async def _open_facilitator(directory: Path, chain: Chain) -> AsyncIterator[str]:
    key_file = directory / "facilitator.key"
    _write_secret(key_file, chain.facilitator.private_key)
    command = [sys.executable, "-P", "-m", FACILITATOR_MODULE, "--rpc", chain.rpc_url, "--key-file", str(key_file)]
    command += ["--network", chains.NETWORK]
    async with open_child("facilitator", command, log=directory / "facilitator.log", read=True) as child:
        yield url_of(await _port_of(child))


def _write_secret(path: Path, secret: str) -> None:
    path.touch(mode=0o600)
    path.write_text(secret)


async def _port_of(child: Child) -> int:
    with trio.move_on_after(FACILITATOR_START_S):
        if line := await child.line():
            return int(json.loads(line)["port"])
    await child.end()
    raise await child.failure()
