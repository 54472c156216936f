"""Two nodes over one PostgreSQL database, and a shop for each, as customers behind a load balancer meet them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import httpx
import trio

from gateway.world.world import World
from tests.world.scenarios.node_process import Launch, NodeProcess, by_interpreter
from tests.world.scenarios.purchase import Shop

LEASE_S = 1.2


@attrs.frozen
class Pair:
    """The nodes `one` and `two`."""

    one: NodeProcess
    two: NodeProcess
    shops: tuple[Shop, Shop]

    @classmethod
    def of(
        cls,
        world: World,
        customer: httpx.AsyncClient,
        directory: Path,
        url: str,
        *,
        launch: Launch = by_interpreter,
        store: Mapping[str, Any] | None = None,
        **sections: Mapping[str, Any],
    ) -> Pair:
        """Write the configurations of two nodes that share a database and their keys."""
        keys, shared = str(directory / "keys"), {"base_url": "http://gateway.test"}
        one, two = (
            NodeProcess.of(
                world,
                directory / name,
                launch=launch,
                **sections,
                node={"name": name, "keys_dir": keys, **shared},
                store={"url": url, **(store or {})},
            )
            for name in ("one", "two")
        )
        return cls(one, two, (Shop(customer, one.url, world), Shop(customer, two.url, world)))

    @property
    def nodes(self) -> tuple[NodeProcess, NodeProcess]:
        return self.one, self.two

    async def start(self, **environment: str) -> None:
        """Start both, the first one first; `environment` is for the first."""
        await trio.to_thread.run_sync(lambda: self.one.start(**environment))
        await trio.to_thread.run_sync(self.two.start)

    def kill(self) -> None:
        for node in self.nodes:
            node.kill()
