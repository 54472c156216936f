"""Two nodes over one database beside one of them: replays and price questions, in the same run on the same cores.

The load comes from `wrk`, which costs little; with anything dearer there is no second core left to measure.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median

import attrs
import httpx
import pytest
import trio

from gateway.world.postgresql import PostgresqlServer
from gateway.world.world import World, world_in_thread
from tests.benchmarks.load import cpu_seconds
from tests.reliability.pair import Pair
from tests.world.scenarios.node_process import NodeProcess
from tests.world.scenarios.purchase import FREE, PAID, Shop, body, fresh_key

ROUNDS = 5
SECONDS = 4
CONNECTIONS = 32
SCRIPT = """
wrk.method = "POST"
wrk.body = '{body}'
wrk.headers["Content-Type"] = "application/json"
wrk.headers["Idempotency-Key"] = "{key}"
"""
RATE = re.compile(r"Requests/sec:\s+([0-9.]+)")
DONE = re.compile(r"([0-9]+) requests in")
ODD = re.compile(r"Non-2xx or 3xx responses: ([0-9]+)")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world_in_thread(tmp_path_factory.mktemp("world"), block_time=0.25) as opened:
        yield opened


@attrs.frozen
class Measured:
    """What one run of some nodes came to: requests a second, and the CPU that each part took of one core."""

    rate: float
    nodes: float
    database: float


def load(nodes: Sequence[NodeProcess], script: Path, server: PostgresqlServer, *, status: int) -> Measured:
    """Load the nodes at the same time, each with its share of the connections."""
    each = str(CONNECTIONS // len(nodes))
    before = [cpu_seconds(node.pid) for node in nodes], database_seconds(server)
    with ExitStack() as stack:
        running = [
            stack.enter_context(
                subprocess.Popen(
                    ["wrk", "-t1", f"-c{each}", f"-d{SECONDS}s", "-s", str(script), node.url + PATHS[script.stem]],
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for node in nodes
        ]
        said = [process.communicate()[0] for process in running]
    for text in said:
        odd, done = ODD.search(text), DONE.search(text)
        assert done is not None, text
        assert (int(odd[1]) if odd else 0) == (0 if status == 200 else int(done[1])), text
    spent = [cpu_seconds(node.pid) for node in nodes], database_seconds(server)
    return Measured(
        sum(float(found[1]) for found in map(RATE.search, said) if found),
        sum(after - start for after, start in zip(spent[0], before[0], strict=True)) / SECONDS,
        (spent[1] - before[1]) / SECONDS,
    )


def database_seconds(server: PostgresqlServer) -> float:
    """CPU seconds of the database's processes that live."""
    assert server.pid is not None
    found = subprocess.run(["pgrep", "-P", str(server.pid)], capture_output=True, text=True, check=False).stdout
    return sum(cpu_seconds(int(pid)) for pid in found.split())


PATHS = {"replay": FREE, "402": PAID}


@pytest.mark.benchmark
async def test_two_nodes_beside_one_for_replays_and_price_questions(
    world: World,
    tmp_path: Path,
    own_postgresql_server: PostgresqlServer,
    postgresql_url: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if shutil.which("wrk") is None:
        pytest.skip("the load comes from wrk (apt-get install wrk)")
    async with httpx.AsyncClient(timeout=60, trust_env=False) as customer:
        pair = Pair.of(world, customer, tmp_path, postgresql_url)
        try:
            await pair.start()
            key, asked = fresh_key(), body("what is a tide")
            first = await Shop(customer, pair.one.url, world).post(asked, key, path=FREE)
            assert first.status_code == 200
            lines = []
            for name, status in (("replay", 200), ("402", 402)):
                script = tmp_path / f"{name}.lua"
                sent = '{"query":"what is a tide","synthesize":false}'
                script.write_text(SCRIPT.format(body=sent, key=key if status == 200 else fresh_key()))
                alone: list[Measured] = []
                both: list[Measured] = []
                for _ in range(ROUNDS):
                    for nodes, into in (((pair.one,), alone), (pair.nodes, both)):
                        run = partial(load, nodes, script, own_postgresql_server, status=status)
                        into.append(await trio.to_thread.run_sync(run))
                lines.append(line(name, alone, both))
        finally:
            pair.kill()
    with capsys.disabled():
        print("\n" + "\n".join(lines))


def line(name: str, alone: Sequence[Measured], both: Sequence[Measured]) -> str:
    ratios = sorted(two.rate / one.rate for one, two in zip(alone, both, strict=True))
    compared = f"ratio {median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f} in {len(ratios)} pairs)"
    return f"{name}: one node {told(alone)}, two nodes {told(both)}; {compared}"


def told(runs: Sequence[Measured]) -> str:
    rate, nodes, database = (median(getattr(run, name) for run in runs) for name in ("rate", "nodes", "database"))
    return f"{rate:,.0f}/s (CPU {nodes:.2f}, of the database {database:.2f})"
