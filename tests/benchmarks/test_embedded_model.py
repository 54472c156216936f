"""The embedded model: a free chat over HTTP from a whole node, beside bare xllamacpp, in turns on the same machine."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import median

import attrs
import httpx
import psutil
import pytest
import tomli_w
import trio

from gateway.actors.embedded_model import ModelPlace, WorkerSettings, embedded_model
from gateway.actors.runtime import open_runtime
from gateway.actors.upstream import Caller, upstream
from gateway.registry.ai.embedded import EmbeddedAdapter
from gateway.registry.ai.embedded_engine import SLOT_TOKENS, SLOTS, weights
from gateway.registry.ai.prompt import Message, Prompt
from tests.world.scenarios.node_process import NodeProcess, free_port, pause, running

BAR = 0.9
RESIDENT_BAR_MIB = 180
TASKS = {
    "short": ("Tell me a very long story about the number {number}.", 160, 10),
    "long": ("word {number} " * 250, 32, 4),
}
"""The prompt, the most tokens of its answer, and how many pairs are measured."""
BARE = """
import json, sys, xllamacpp
path, slots, tokens = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
params = xllamacpp.CommonParams()
params.model.path = path
params.n_parallel, params.n_ctx = slots, slots * tokens
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
params.verbosity = -1
server = xllamacpp.Server(params)
for line in sys.stdin:
    answer = server.handle_chat_completions(json.loads(line))
    print(json.dumps(answer["usage"]), flush=True)
"""


@attrs.frozen
class Took:
    seconds: float
    prompt: int
    output: int

    @property
    def rate(self) -> float:
        """Tokens a second, those of the prompt and those of the answer."""
        return (self.prompt + self.output) / self.seconds


def body(task: str, number: int) -> dict[str, object]:
    text, most, _ = TASKS[task]
    message = {"role": "user", "content": text.replace("{number}", str(number))}
    return {"messages": [message], "max_tokens": most, "temperature": 0}


@contextlib.contextmanager
def bare() -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", BARE, str(weights()), str(SLOTS), str(SLOT_TOKENS)]
    with subprocess.Popen(
        command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def by_bare(process: subprocess.Popen[str], task: str, number: int) -> Took:
    assert process.stdin is not None
    assert process.stdout is not None
    began = time.perf_counter()
    process.stdin.write(json.dumps(body(task, number) | {"cache_prompt": False}) + "\n")
    process.stdin.flush()
    usage = json.loads(process.stdout.readline())
    return Took(time.perf_counter() - began, usage["prompt_tokens"], usage["completion_tokens"])


def by_node(client: httpx.Client, task: str, number: int) -> Took:
    began = time.perf_counter()
    answer = client.post("/v1/chat/completions", json=body(task, number) | {"model": "gateway/fast"})
    took = time.perf_counter() - began
    assert answer.status_code == 200, answer.text
    usage = answer.json()["usage"]
    return Took(took, usage["prompt_tokens"], usage["completion_tokens"])


@contextlib.contextmanager
def node(directory: Path) -> Iterator[NodeProcess]:
    """Run `gateway serve` as it is on a machine without keys, but for its quota."""
    port, config = free_port(), directory / "gateway.toml"
    settings = {
        "node": {
            "listen": [f"127.0.0.1:{port}"],
            "operator_listen": "127.0.0.1:0",
            "data_dir": str(directory / "data"),
        },
        "quota": {"free_ai": 1_000_000},
    }
    config.write_text(tomli_w.dumps(settings))
    with running(NodeProcess(directory, port, config)) as process:
        yield process


def wait_for_model(client: httpx.Client) -> None:
    for _ in range(600):
        with contextlib.suppress(httpx.TransportError):
            if (
                client.post("/v1/chat/completions", json=body("short", 0) | {"model": "gateway/fast"}).status_code
                == 200
            ):
                return
        pause(0.1)
    raise AssertionError("gateway/fast did not answer within a minute")


@pytest.mark.benchmark
def test_tokens_a_second_beside_bare_xllamacpp(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.2f} before; pairs in turns, medians"]
    with (
        node(tmp_path) as process,
        bare() as other,
        httpx.Client(base_url=f"http://127.0.0.1:{process.port}", timeout=120) as client,
    ):
        wait_for_model(client)
        by_bare(other, "short", 0)
        for task, (_, _, pairs) in TASKS.items():
            ratios, rates = [], []
            for number in range(pairs):
                turns = [partial(by_node, client), partial(by_bare, other)]
                took = {turn.func: turn(task, number + 1) for turn in (turns if number % 2 else reversed(turns))}
                ours, theirs = took[by_node], took[by_bare]
                ratios.append(ours.rate / theirs.rate)
                rates.append((ours, theirs))
            shown = " ".join(f"{median(each[at].rate for each in rates):.0f}" for at in (0, 1))
            tokens = f"{rates[0][0].prompt}+{rates[0][0].output}"
            lines.append(
                f"{task} ({tokens} tokens): node and bare {shown} tokens/s,"
                f" ratio {median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}; bar {BAR})"
            )
        seen = psutil.Process(process.pid)
        (worker,) = seen.children(recursive=True)
        resident = [each.memory_info().rss / 2**20 for each in (seen, worker, psutil.Process(other.pid))]
        lines.append(
            f"resident: node {resident[0]:.0f} MiB (bar {RESIDENT_BAR_MIB}),"
            f" worker {resident[1]:.0f} MiB, bare {resident[2]:.0f} MiB"
        )
    with capsys.disabled():
        print("\n" + "\n".join(lines))


def used(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


async def stops_within(pid: int) -> float:
    """Return the seconds after which a process does no more."""
    began = last = trio.current_time()
    before = used(pid)
    while trio.current_time() - last < 0.5:
        await trio.sleep(0.02)
        now = used(pid)
        if now - before > 0.015:  # a tick of the kernel's clock is a hundredth of a second
            last, before = trio.current_time(), now
    return last - began


@pytest.mark.benchmark
async def test_loading_stopping_and_starting_again(capsys: pytest.CaptureFixture[str]) -> None:
    place, lines = ModelPlace(), [f"load {os.getloadavg()[0]:.2f} before"]
    adapter = EmbeddedAdapter(place.now)
    async with open_runtime() as runtime:
        call = Caller(await runtime.start("upstream", upstream, capacity=16))

        async def answers(since: float) -> float:
            while isinstance(place.now(), str):  # noqa: ASYNC110 - as exact as the figure is shown
                await trio.sleep(0.01)
            return trio.current_time() - since

        began = trio.current_time()
        settings = WorkerSettings(retry_first_s=0.01)
        await runtime.start(
            "embedded-model", partial(embedded_model, place=place, call=call, settings=settings), capacity=4
        )
        lines.append(f"answers {await answers(began):.2f} s after its start")
        for task, text in {"answer": "Tell a very long story.", "reading of 2,000 tokens": "word " * 2000}.items():
            prompt = Prompt("gateway/fast", (Message("user", text),), 1024)
            times: list[float] = []
            for _ in range(8):
                assert place.pid is not None
                with trio.move_on_after(0.7 + len(times) / 7):
                    await call(adapter.plan(prompt, timeout_s=60), stops=True)
                times.append(await stops_within(place.pid))
            lines.append(f"hung up during its {task}: stops after {median(times):.2f} s, at most {max(times):.2f} s")
        assert place.pid is not None
        psutil.Process(place.pid).kill()
        began = trio.current_time()
        while not isinstance(place.now(), str):  # noqa: ASYNC110 - same
            await trio.sleep(0.001)
        lines.append(f"killed: told after {trio.current_time() - began:.3f} s, back after {await answers(began):.2f} s")
    with capsys.disabled():
        print("\n" + "\n".join(lines))
