"""Fills a small disk through the store, makes room again, and tells as JSON what the store said and kept."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import trio

from gateway.actors.runtime import open_runtime
from gateway.actors.store import Statement, StoreUnavailable, open_sqlite


async def main(disk: str, migrations: str) -> None:
    ballast = Path(disk) / "ballast"
    ballast.write_bytes(bytes(6_000_000))
    acknowledged: set[int] = set()
    failures: list[str] = []
    async with open_runtime() as runtime:
        path = Path(disk) / "gateway.db"
        async with open_sqlite(runtime, path, migrations=Path(migrations)) as store:

            async def keep(number: int) -> None:
                sql = "INSERT INTO kept (id, bytes) VALUES (:id, :bytes)"
                try:
                    await store.commit(Statement(sql, {"id": number, "bytes": bytes(20_000)}))
                    acknowledged.add(number)
                except StoreUnavailable as error:
                    failures.append(f"{type(error).__name__} {error.extra['reason']}")

            for start in range(0, 400, 8):
                async with trio.open_nursery() as nursery:
                    for number in range(start, start + 8):
                        nursery.start_soon(keep, number)
            while_full = store.health
            ballast.unlink()
            before = len(failures)
            for number in range(1000, 1010):
                await keep(number)
            after_room = store.health
            ((count,),) = await store.fetch("SELECT count(*) FROM kept")
    async with open_runtime() as runtime, open_sqlite(runtime, path, migrations=Path(migrations)) as store:
        found = {number for (number,) in await store.fetch("SELECT id FROM kept")}
    told = {
        "acknowledged": len(acknowledged),
        "found": len(found),
        "lost": len(acknowledged - found),
        "unacknowledged": len(found - acknowledged),
        "counted": count,
        "failures": sorted(set(failures)),
        "failures_after_room": len(failures) - before,
        "while_full": [while_full.writable, while_full.reason],
        "after_room": [after_room.writable, after_room.reason],
    }
    sys.stdout.write(json.dumps(told))


if __name__ == "__main__":
    where, statements = sys.argv[1:]
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "none", where], check=True)
    trio.run(main, where, statements)
