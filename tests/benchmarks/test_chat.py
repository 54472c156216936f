"""Pass-through of a free chat: this node beside LiteLLM's proxy and npm's Portkey, before one upstream, in one run.

The gateways are loaded one after another, in rounds, and compared within each round: what else the machine does then
falls on all of them.  The load comes from `wrk` where there is one, else from the suite's own generator.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import attrs
import pytest
import trio

from gateway.world.npm import ToolUnavailable
from tests.benchmarks.chat_peers import BODY, PATH, Gateway, Open, fake_upstream, litellm, portkey, this_node
from tests.benchmarks.load import Load, drive, post, resident_mib

ROUNDS = 5
SECONDS = 2
WARM_UP_SECONDS = 2
CONNECTIONS = (1, 32)
BARS = {"LiteLLM": {1: 5.0, 32: 5.0}, "Portkey": {1: 0.5, 32: 0.35}}
RESIDENT_BAR_MIB = 180
SCRIPT = """
wrk.method = "POST"
wrk.body = [[{body}]]
wrk.headers["Content-Type"] = "application/json"
local turn = 0
if {keyed} then
  request = function()
    turn = turn + 1
    wrk.headers["Idempotency-Key"] = string.format("{key}%012d", turn)
    return wrk.format()
  end
end
done = function(summary, latency, requests)
  local failed = summary.errors
  io.write(string.format("told %d %d %d %d %d\\n", summary.requests, summary.duration, latency:percentile(50),
    latency:percentile(99), failed.status + failed.connect + failed.read + failed.write + failed.timeout))
end
"""
TOLD = re.compile(r"^told (\d+) (\d+) (\d+) (\d+) (\d+)$", re.MULTILINE)


@attrs.frozen
class Contender:
    """A gateway and how it is asked: `keyed` is a fresh Idempotency-Key with each request."""

    name: str
    gateway: Gateway
    keyed: bool = False


@pytest.mark.benchmark
def test_pass_through_of_a_free_chat_beside_litellm_and_portkey(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.2f} before; {ROUNDS} rounds of {SECONDS} s"]
    with ExitStack() as stack:
        upstream = stack.enter_context(fake_upstream())
        bare = Contender("upstream itself", Gateway("upstream", upstream, os.getpid(), {}))
        node = opened(stack, this_node, upstream, tmp_path / "node")
        peers = []
        for name, open_peer in (("LiteLLM", litellm), ("Portkey", portkey)):
            try:
                peers.append(Contender(name, opened(stack, open_peer, upstream, tmp_path / name)))
            except ToolUnavailable as reason:
                lines.append(f"{name} IS NOT MEASURED: {reason}")
        ours = Contender("node, a key each", node, keyed=True), Contender("node, no keys", node)
        before = resident_mib(node.pid)
        lines += [row(bare, each, [load(bare, tmp_path, connections=each, seconds=SECONDS)]) for each in CONNECTIONS]
        found = measured([*ours, *peers], tmp_path)
        lines += [row(each, number, found[each.name, number]) for number in CONNECTIONS for each in (*ours, *peers)]
        lines += [line for peer in peers for own in ours for line in compared(own, peer, found)]
        lines.append(
            f"memory: node {before:.0f} MiB before, {resident_mib(node.pid):.0f} MiB after"
            f" (bar {RESIDENT_BAR_MIB}), "
            + ", ".join(f"{each.name} {resident_mib(each.gateway.pid):.0f} MiB" for each in peers)
        )
    with capsys.disabled():
        print("\n" + "\n".join(lines))


def opened(stack: ExitStack, open_gateway: Open, upstream: int, directory: Path) -> Gateway:
    directory.mkdir()
    return stack.enter_context(open_gateway(f"http://127.0.0.1:{upstream}/v1", directory))


Found = Mapping[tuple[str, int], Sequence[Load]]
"""The rounds of a contender at a number of connections."""


def measured(contenders: Sequence[Contender], directory: Path) -> Found:
    for each in contenders:
        load(each, directory, connections=max(CONNECTIONS), seconds=WARM_UP_SECONDS)
    found: dict[tuple[str, int], list[Load]] = {}
    for _ in range(ROUNDS):
        for connections in CONNECTIONS:
            for each in contenders:
                run = load(each, directory, connections=connections, seconds=SECONDS)
                found.setdefault((each.name, connections), []).append(run)
    return found


def load(contender: Contender, directory: Path, *, connections: int, seconds: int) -> Load:
    """Ask a gateway over and over; every answer must be a 200."""
    by = by_wrk if shutil.which("wrk") else by_hand
    return by(contender, directory, connections, seconds)


def by_wrk(contender: Contender, directory: Path, connections: int, seconds: int) -> Load:
    script = directory / "chat.lua"
    script.write_text(SCRIPT.format(body=BODY.decode(), keyed=str(contender.keyed).lower(), key=secrets.token_hex(8)))
    headers = [word for name, value in contender.gateway.headers.items() for word in ("-H", f"{name}: {value}")]
    url = f"http://127.0.0.1:{contender.gateway.port}{PATH}"
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--timeout", "60s", "-s", str(script), *headers, url]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    told = TOLD.search(said)
    assert told is not None, said
    answers, microseconds, p50, p99, failed = map(int, told.groups())
    assert answers > 0, said
    assert failed == 0, said
    return Load(answers, microseconds / 1e6, p50 / 1e3, p99 / 1e3, frozenset({200}))


def by_hand(contender: Contender, directory: Path, connections: int, seconds: int) -> Load:
    """Without wrk: the generator's own cost falls on the same cores, so the ratios come out nearer to one."""
    prefix = secrets.token_hex(8)
    requests = [
        post(
            f"127.0.0.1:{contender.gateway.port}",
            PATH,
            BODY,
            [
                *contender.gateway.headers.items(),
                *([("Idempotency-Key", f"{prefix}{turn:012d}")] if contender.keyed else ()),
            ],
        )
        for turn in range(seconds * 5_000 if contender.keyed else 1)
    ]
    run = trio.run(lambda: drive(contender.gateway.port, requests, connections=connections, seconds=seconds))
    assert run.statuses == frozenset({200})
    return run


# -- telling -----------------------------------------------------------------------------------------------------------


def row(contender: Contender, connections: int, runs: Sequence[Load]) -> str:
    rate, p50, p99 = (median(getattr(run, name) for run in runs) for name in ("rate", "p50_ms", "p99_ms"))
    return f"{contender.name:>16}, {connections:>2} connections: {rate:>9,.0f}/s, p50 {p50:.2f} ms, p99 {p99:.2f} ms"


def compared(own: Contender, peer: Contender, found: Found) -> list[str]:
    lines = []
    for connections in CONNECTIONS:
        pairs = zip(found[own.name, connections], found[peer.name, connections], strict=True)
        ratios = sorted(ours.rate / theirs.rate for ours, theirs in pairs)
        lines.append(
            f"{own.name} / {peer.name} at {connections}: {median(ratios):.2f}"
            f" ({ratios[0]:.2f} to {ratios[-1]:.2f} in {len(ratios)} rounds; bar {BARS[peer.name][connections]:g})"
        )
    return lines
