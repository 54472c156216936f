"""A node that wants leases, writes while it holds one, and tells on standard output; it ends when its input does.

Arguments: the URL of the store, the node's name, how many leases.  Lines: `joined`, `took NAME EPOCH`, `lost NAME`.
"""

from __future__ import annotations

import os
import sys
from functools import partial

import trio

from gateway.actors.leases import Held, Leases
from gateway.actors.runtime import open_runtime
from gateway.actors.store import Conflict, PostgresqlSettings, Statement, open_postgresql
from gateway.errors import StoreUnavailable

WRITE_EVERY_S = 0.02
# The fence has locked the lease by then, so that the count sees what every earlier holder wrote.
WRITE = """
    INSERT INTO node_facts (name, value)
    SELECT 'w' || CAST(1000000 + COUNT(*) AS TEXT), :epoch FROM node_facts WHERE name LIKE 'w%'
"""


def tell(*words: object) -> None:
    os.write(1, f"{' '.join(map(str, words))}\n".encode())


async def main(url: str, node: str, wanted: int) -> None:
    settings = PostgresqlSettings(url, readers=2)
    async with open_runtime() as runtime, open_postgresql(runtime, settings, node=node) as store:
        leases = Leases(store, lease_ms=settings.lease_ms)
        await runtime.start("leases", leases.watch)
        tell("joined")

        async def duty(held: Held) -> None:
            tell("took", held.name, held.epoch)
            try:
                while True:
                    if held.name == "l0":
                        try:
                            await store.commit(held.fence(), Statement(WRITE, {"epoch": str(held.epoch)}, rows=1))
                        except (Conflict, StoreUnavailable) as error:
                            tell("refused", type(error).__name__)
                    await trio.sleep(WRITE_EVERY_S)
            finally:
                tell("lost", held.name)

        async with trio.open_nursery() as nursery:
            for number in range(wanted):
                nursery.start_soon(leases.hold, f"l{number}", duty)
            await trio.to_thread.run_sync(sys.stdin.read)
            nursery.cancel_scope.cancel()
    tell("left")


if __name__ == "__main__":
    trio.run(partial(main, sys.argv[1], sys.argv[2], int(sys.argv[3])))
