"""Commits without end and names each acknowledged step on standard output, until it is killed."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import trio

from gateway.actors.runtime import open_runtime
from gateway.actors.store import Statement, Store, open_sqlite

WORKERS = 16


async def work(store: Store, worker: int) -> None:
    (((last,),),) = await store.fetch_many(
        [("SELECT coalesce(max(whole), 0) FROM kept WHERE text = :worker", {"worker": f"{worker}"})]
    )
    assert isinstance(last, int)
    while True:
        last += 1
        identity = worker * 1_000_000_000 + last
        await store.commit(
            Statement(
                "INSERT INTO kept VALUES (:id, :worker, :last, :bytes)",
                {"id": identity, "worker": f"{worker}", "last": last, "bytes": bytes(last % 7000)},
                rows=1,
            ),
            Statement("INSERT INTO parents VALUES (:id)", {"id": identity}, rows=1),
        )
        os.write(1, f"{worker} {last}\n".encode())


async def main(path: str, migrations: str) -> None:
    async with open_runtime() as runtime, open_sqlite(runtime, path, migrations=Path(migrations)) as store:
        os.write(1, b"ready\n")
        async with trio.open_nursery() as nursery:
            for worker in range(WORKERS):
                nursery.start_soon(work, store, worker)


if __name__ == "__main__":
    trio.run(main, sys.argv[1], sys.argv[2])
