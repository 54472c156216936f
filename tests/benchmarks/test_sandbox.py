"""A sandboxed `node -e 0` beside the same node without a sandbox, in turns on one machine; and what 500 runs leave.

The floor is the image's own node under the image's own loader: spawned, its output read to the end, reaped.  Of a paid
run settlement is left out, in two ways (`paid_runs.Bought`); the bar is for the second: without the verification and
the whole phase of settlement.  All else that the node does for a purchase is in it.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import TypeVar

import attrs
import httpx
import psutil
import pytest

from gateway.sandbox.cgroups import find
from gateway.sandbox.image_lock import load_lock
from gateway.sandbox.launcher_messages import Cleared, Ended, Lay, Ready, Release, Spawn
from gateway.sandbox.seccomp import load_filter
from gateway.world.world import World, world_in_thread
from tests.benchmarks.paid_runs import Bought, Seller, stopwatch
from tests.sandbox.launcher_driver import ROOMY, Driver, launcher, pinned_image, require_a_sandbox
from tests.world.scenarios.node_process import QUICK, NodeProcess, pause, running

One = TypeVar("One")
Other = TypeVar("Other")

COMMAND = ("node", "-e", "0")
BODY = {"command": list(COMMAND)}
PAIRS = 40
BETWEEN_RUNS_S = 0.05
"""A node settles and keeps meanwhile, and the launcher lays the next sandbox."""
LAUNCHER_BAR, PAID_BAR = 1.2, 1.5
MORE_CONNECTIONS = 4
STORE = "gateway.db"
BEFORE_COUNTING = 10
"""Runs after which all that is made once has been made: caches, threads, connections."""
LOG_FULL = 100
"""Purchases after which the store's log has its size, and is written over: a node's first ones let it grow."""
CACHES_FULL = 750
"""Runs after which the node's caches are full, too: pages of the store, eight MiB of them."""
NODE_MIB, LAUNCHER_MIB = 4.0, 1.0
"""What caches that are not full yet, and an allocator that gives nothing back, may add to the memory of each."""


@pytest.fixture(scope="module")
def image() -> Iterator[Path]:
    require_a_sandbox()
    with pinned_image() as path:
        yield path


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world_in_thread(tmp_path_factory.mktemp("world"), block_time=None) as opened:
        yield opened


# -- the floor ---------------------------------------------------------------------------------------------------------


def bare(image: Path) -> float:
    """Run the command without a sandbox, and return how long it took in seconds."""
    loader, libraries = image / "usr/lib" / load_lock().interpreter, image / "usr/lib"
    command = [str(loader), "--library-path", str(libraries), str(image / "usr/bin/node"), *COMMAND[1:]]
    nothing, (reads, writes) = os.open("/dev/null", os.O_RDWR), os.pipe()
    streams = [(os.POSIX_SPAWN_DUP2, each, at) for at, each in enumerate((nothing, writes, writes))]
    began = time.perf_counter()
    pid = os.posix_spawn(loader, command, {"PATH": "/usr/bin"}, file_actions=streams)
    os.close(writes)
    said = os.read(reads, 1)
    _, status = os.waitpid(pid, 0)
    took = time.perf_counter() - began
    os.close(reads)
    os.close(nothing)
    assert (said, status) == (b"", 0)
    return took


# -- the launcher alone ------------------------------------------------------------------------------------------------


@attrs.frozen
class Steps:
    """Seconds of one run through the launcher: until it is held, until its end is told, until it is cleared away.

    `wall` is what the launcher says of its time from the release on.
    """

    set_up: float
    run: float
    clear: float
    wall: float

    @property
    def whole(self) -> float:
        return self.set_up + self.run + self.clear


def by_launcher(driver: Driver, program: bytes, *, ahead: bool | None) -> Steps:
    """Make a run; its descriptors are made before the clock starts.

    It has to be, or not to be, in a sandbox that was laid `ahead`; None: as it comes.
    """
    name, nothing, (reads, writes) = f"run-{secrets.token_hex(4)}", os.open("/dev/null", os.O_RDWR), os.pipe()
    files = []
    for content in (b"".join(each.encode() + b"\0" for each in COMMAND), program):
        files.append(os.memfd_create("given"))
        os.pwrite(files[-1], content, 0)
    began = time.perf_counter()
    driver.say(Spawn(name, 0, ROOMY, again=ahead is not False), [nothing, writes, writes, *files])
    os.close(writes)
    ready, _ = driver.expect(Ready, name)
    held = time.perf_counter()
    driver.say(Release(name))
    said = os.read(reads, 1)
    ended, _ = driver.expect(Ended, name)
    over = time.perf_counter()
    cleared, _ = driver.expect(Cleared, name)
    gone = time.perf_counter()
    for each in (reads, nothing, *files):
        os.close(each)
    assert (said, ended.exit_code, ended.processes, cleared.mounts, cleared.cgroups) == (b"", 0, 0, 0, 0)
    assert ahead is None or ready.ahead is ahead
    return Steps(held - began, over - held, gone - over, ended.wall_us / 1e6)


@pytest.mark.benchmark
@pytest.mark.parametrize("ahead", [True, False], ids=["laid ahead", "set up when asked for"])
def test_the_launcher_beside_bare_node(image: Path, ahead: bool, capsys: pytest.CaptureFixture[str]) -> None:
    program = load_filter(platform.machine(), single=False).program

    def sandboxed() -> Steps:
        pause(BETWEEN_RUNS_S)
        return by_launcher(driver, program, ahead=ahead)

    def floored() -> float:
        pause(BETWEEN_RUNS_S)
        return bare(image)

    with launcher(image) as driver:
        by_launcher(driver, program, ahead=False)
        if ahead:
            _lay(driver, program)
        sandboxed()
        bare(image)
        before = _spent(driver.process.pid)
        ours, floor = in_turns(sandboxed, floored)
        pause(0.05)  # what a process has used is told once it has been reaped
        used = [(now - then) / PAIRS * 1e3 for now, then in zip(_spent(driver.process.pid), before, strict=True)]
    whole = [each.whole / least for each, least in zip(ours, floor, strict=True)]
    held = [(each.set_up + each.wall) / least for each, least in zip(ours, floor, strict=True)]
    with capsys.disabled():
        print(f"\nbare node: {told(floor)}; load {os.getloadavg()[0]:.2f}")
        for step in attrs.fields_dict(Steps):
            print(f"{step}: {told([getattr(each, step) for each in ours])}")
        print(f"set_up and wall: {compared(held, LAUNCHER_BAR)}")
        print(f"launcher: {told([each.whole for each in ours])}; {compared(whole, LAUNCHER_BAR)}")
        print(f"CPU of all processes: {used[0]:.1f} ms a run, bare {used[1]:.1f}; ratio {used[0] / used[1]:.2f}")


@pytest.mark.benchmark
def test_runs_that_come_straight_one_after_another(image: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = load_filter(platform.machine(), single=False).program
    with launcher(image) as driver, launcher(image) as other:
        _lay(driver, program)
        laid, plain = in_turns(
            lambda: [by_launcher(driver, program, ahead=None) for _ in range(5)][1:],
            lambda: [by_launcher(other, program, ahead=False) for _ in range(5)][1:],
        )
    with capsys.disabled():
        print(f"\nload {os.getloadavg()[0]:.2f}")
        for name, found in (("laid ahead", laid), ("set up when asked for", plain)):
            every = [each for some in found for each in some]
            print(
                f"{name}: set_up {told([each.set_up for each in every])}; whole {told([each.whole for each in every])}"
            )


def _lay(driver: Driver, program: bytes) -> None:
    file = os.memfd_create("filter")
    os.pwrite(file, program, 0)
    driver.say(Lay(ROOMY), [file])
    os.close(file)
    pause(0.2)


def _spent(launcher: int) -> tuple[float, float]:
    """Return the processor seconds of a launcher and its runs, and those of this process's own children."""
    times, own = psutil.Process(launcher).cpu_times(), resource.getrusage(resource.RUSAGE_CHILDREN)
    return times.user + times.system + times.children_user + times.children_system, own.ru_utime + own.ru_stime


# -- a node --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def seller(world: World, image: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seller]:
    with stopwatch(world.facilitator_url) as facilitator, stopwatch(world.node_rpc_url) as chain:
        node = NodeProcess.of(
            world,
            tmp_path_factory.mktemp("node"),
            sandbox={"enabled": True, "image": str(image.parent)},
            payment={**QUICK, "facilitator_url": facilitator.url, "rpc_urls": [chain.url]},
        )
        with running(node), httpx.Client(base_url=node.url, timeout=60, trust_env=False) as client:
            opened = Seller(node, world, facilitator, chain, client, BODY)
            opened.wait_until_open()
            yield opened


@pytest.mark.benchmark
@pytest.mark.world
def test_a_paid_run_beside_bare_node(seller: Seller, image: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(LOG_FULL):
        seller.buy()
    bare(image)
    bought, floor = in_turns(seller.buy, lambda: bare(image))
    with capsys.disabled():
        print(f"\nbare node: {told(floor)}; load {os.getloadavg()[0]:.2f}")
        for name, path in {"setupMs": ("setupMs",), "wallMs": ("usage", "wallMs")}.items():
            print(f"{name}: {median(_within(each.execution, path) for each in bought):.0f} ms p50")
        busy, settling = [each.busy for each in bought], [each.settling for each in bought]
        took, ratios = _own(bought, floor, busy)
        print(f"paid run, what facilitator and chain were busy left out: {told(took)}; ratio {median(ratios):.2f}")
        took, ratios = _own(bought, floor, settling)
        print(f"paid run, the phase of settlement left out: {told(took)}; {compared(ratios, PAID_BAR)}")


def _own(
    bought: Sequence[Bought], floor: Sequence[float], left_out: Sequence[float]
) -> tuple[list[float], list[float]]:
    """Return the purchases without what is left out of each, in seconds and as ratios to the floor."""
    took = [each.whole - other for each, other in zip(bought, left_out, strict=True)]
    return took, [own / least for own, least in zip(took, floor, strict=True)]


def _within(execution: Mapping[str, object], path: Sequence[str]) -> float:
    found: object = execution
    for name in path:
        assert isinstance(found, Mapping)
        found = found[name]
    assert isinstance(found, int)
    return found


# -- what runs leave ---------------------------------------------------------------------------------------------------


@attrs.frozen
class Held:
    """What a node and its launcher hold between two runs.

    The node's connections over TCP stand apart: they are kept for the next call, and one more where two are made
    together.  So does what it has open of its store: a reader more where two read together, each of two files.
    """

    descriptors: tuple[int, int]
    processes: tuple[int, int]
    zombies: int
    groups: int
    connections: int = attrs.field(eq=False)
    resident_mib: tuple[float, float] = attrs.field(eq=False)

    @classmethod
    def by(cls, seller: Seller) -> Held:
        both = psutil.Process(seller.node.pid), seller.launcher
        below = both[0].children(recursive=True)
        connections = len(both[0].net_connections("inet"))
        store = sum(Path(each.path).name.startswith(STORE) for each in both[0].open_files())
        prefix = json.loads(both[1].cmdline()[-1])["prefix"]
        return cls(
            (both[0].num_fds() - connections - store, both[1].num_fds()),
            (len(both[0].children()), len(both[1].children())),
            sum(each.status() == psutil.STATUS_ZOMBIE for each in below),
            len(find().leftovers(prefix)),
            connections,
            (both[0].memory_info().rss / 2**20, both[1].memory_info().rss / 2**20),
        )


@pytest.mark.world
@pytest.mark.parametrize(
    ("runs_before", "runs"), [(BEFORE_COUNTING, 25), pytest.param(CACHES_FULL, 500, marks=pytest.mark.campaign)]
)
def test_runs_leave_nothing_behind(
    seller: Seller, runs_before: int, runs: int, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(runs_before):
        seller.buy()
    before = settled(seller, lambda held: held.zombies == 0)
    for _ in range(runs):
        seller.buy()
    after = settled(seller, lambda held: held == before)
    assert after == before
    assert after.zombies == 0
    grown = [then - now for then, now in zip(after.resident_mib, before.resident_mib, strict=True)]
    with capsys.disabled():
        print(f"\n{runs} runs: {after}; grown by {grown[0]:.2f} and {grown[1]:.2f} MiB")
    assert after.connections <= before.connections + MORE_CONNECTIONS
    assert grown[0] <= (NODE_MIB if runs_before < CACHES_FULL else 1.0)
    assert grown[1] <= LAUNCHER_MIB


def settled(seller: Seller, is_so: Callable[[Held], bool]) -> Held:
    """Return what is held once it is so, or what is held still after a second."""
    held = Held.by(seller)
    for _ in range(50):
        if is_so(held):
            break
        pause(0.02)
        held = Held.by(seller)
    return held


# -- figures -----------------------------------------------------------------------------------------------------------


def in_turns(one: Callable[[], One], other: Callable[[], Other]) -> tuple[list[One], list[Other]]:
    """Do both as often as there are pairs, each first in every other pair."""
    ones: list[One] = []
    others: list[Other] = []
    for number in range(PAIRS):
        if number % 2:
            others.append(other())
        ones.append(one())
        if not number % 2:
            others.append(other())
    return ones, others


def told(seconds: Sequence[float]) -> str:
    ordered = sorted(seconds)
    p90 = ordered[len(ordered) * 9 // 10]
    return f"p50 {median(ordered) * 1e3:.1f} ms ({ordered[0] * 1e3:.1f} at least, p90 {p90 * 1e3:.1f})"


def compared(ratios: Sequence[float], bar: float) -> str:
    return f"ratio {median(ratios):.2f} of {len(ratios)} pairs (bar {bar})"
