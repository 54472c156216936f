from __future__ import annotations

import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import attrs
import psutil
import pytest
import trio
from structlog.testing import capture_logs

from gateway.actors.embedded_model import ModelPlace, WorkerSettings, embedded_model
from gateway.actors.runtime import Overloaded, open_runtime
from gateway.actors.upstream import Caller, upstream
from gateway.registry.ai.adapter import ModelFailed
from gateway.registry.ai.embedded import EmbeddedAdapter, Endpoint
from gateway.registry.ai.prompt import Message, Prompt
from gateway.registry.http_call import HttpAnswer, HttpCall, UpstreamTimeout

PROMPT = Prompt("huggingfacetb/smollm2-135m-instruct", (Message("user", "Say hello."),), 8)
QUICK = WorkerSettings(memory_mib=512, check_s=1.0, retry_first_s=0.05)
SOON_S = 60.0


@attrs.define(eq=False)
class Scene:
    """A supervised worker, and all that its place told."""

    call: Caller
    place: ModelPlace
    told: list[Endpoint | str] = attrs.field(factory=list)
    bell: trio.Event = attrs.field(factory=trio.Event)

    def note(self) -> None:
        self.told.append(self.place.now())
        self.bell.set()
        self.bell = trio.Event()

    async def until(self, true: Callable[[], bool]) -> None:
        with trio.fail_after(SOON_S):
            while not true():
                with trio.move_on_after(0.05):
                    await self.bell.wait()

    async def answers(self, times: int = 1) -> None:
        await self.until(lambda: sum(isinstance(each, Endpoint) for each in self.told) == times)

    @property
    def words(self) -> list[str]:
        return ["there" if isinstance(each, Endpoint) else each for each in self.told]

    async def ask(self) -> str:
        adapter = EmbeddedAdapter(self.place.now)
        return adapter.read(PROMPT, await self.call(adapter.plan(PROMPT, timeout_s=30.0))).content


@asynccontextmanager
async def scene(settings: WorkerSettings = QUICK) -> AsyncIterator[Scene]:
    place = ModelPlace()
    async with open_runtime() as runtime:
        here = Scene(Caller(await runtime.start("upstream", upstream, capacity=16)), place)
        place.changed = here.note
        body = partial(embedded_model, place=place, call=here.call, settings=settings)
        await runtime.start("embedded-model", body, capacity=4)
        yield here


def program(text: str) -> tuple[str, ...]:
    return (sys.executable, "-I", "-S", "-c", text)


async def test_the_node_does_not_wait_for_it_and_is_told_once_it_answers() -> None:
    async with scene() as here:
        assert here.place.now() == "starting"
        adapter = EmbeddedAdapter(here.place.now)
        assert adapter.read_probe([]).reason == "starting"
        with pytest.raises(ModelFailed, match="starting"):
            adapter.plan(PROMPT, timeout_s=1.0)
        await here.answers()
        assert await here.ask()
        (question,) = adapter.probe_calls()
        assert adapter.read_probe([await here.call(question)]).ok


async def test_it_ends_with_the_node() -> None:
    async with scene() as here:
        await here.answers()
        pid = here.place.pid
        assert pid is not None
        assert psutil.pid_exists(pid)
    assert not psutil.pid_exists(pid)
    assert here.words == ["there", "stopped"]


async def test_a_worker_that_is_killed_is_started_again_with_another_key() -> None:
    with capture_logs() as logs:
        async with scene() as here:
            await here.answers()
            assert here.place.pid is not None
            os.kill(here.place.pid, signal.SIGKILL)
            await here.answers(2)
            assert await here.ask()
    assert here.words == ["there", "killed", "there", "stopped"]
    first, second = (each for each in here.told if isinstance(each, Endpoint))
    assert first.key != second.key
    assert here.place.starts == 2
    assert [(each["reason"], each["code"]) for each in logs if each["event"] == "embedded_model_ended"] == [
        ("killed", -9)
    ]
    assert not any(key in str(logs) for key in (first.key, second.key))


async def test_a_worker_that_hangs_is_killed_and_started_again() -> None:
    async with scene(attrs.evolve(QUICK, check_s=0.5)) as here:
        await here.answers()
        pid = here.place.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        await here.answers(2)
        assert not psutil.pid_exists(pid)
    assert here.words == ["there", "hung", "there", "stopped"]


async def test_a_model_that_is_not_installed_is_told_and_not_tried_again(tmp_path: Path) -> None:
    async with scene(attrs.evolve(QUICK, weights=tmp_path / "none.gguf")) as here:
        await here.until(lambda: here.told == ["model_not_installed"])
        with trio.move_on_after(0.5):  # ten pauses before another try
            await here.until(lambda: len(here.told) > 1)
        assert (here.told, here.place.starts, here.place.pid) == (["model_not_installed"], 1, None)


async def test_memory_that_does_not_suffice_is_told_with_what_the_engine_said_and_tried_again() -> None:
    with capture_logs() as logs:
        async with scene(attrs.evolve(QUICK, memory_mib=200)) as here:
            await here.until(lambda: here.place.starts > 1)
            assert here.told == ["out_of_memory"]
    ended = next(each for each in logs if each["event"] == "embedded_model_ended")
    assert "failed to allocate" in ended["said"]


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("raise SystemExit(1)", "crashed"),
        ("import os; os.abort()", "crashed"),
        ("print('{}', flush=True)", "crashed"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "killed"),
        ("import sys; sys.exit('terminate called after throwing an instance of std::bad_alloc')", "out_of_memory"),
        ("raise MemoryError", "out_of_memory"),
    ],
)
async def test_a_worker_that_ends_before_it_answers_says_how(text: str, word: str) -> None:
    async with scene(attrs.evolve(QUICK, command=program(text), retry_first_s=60.0)) as here:
        await here.until(lambda: here.told == [word])


async def test_a_worker_that_does_not_get_ready_is_ended() -> None:
    slow = program("import sys; sys.stdin.read()")
    async with scene(attrs.evolve(QUICK, command=slow, start_s=0.2, retry_first_s=60.0)) as here:
        await here.until(lambda: here.told == ["start_timeout"])
        assert here.place.pid is None


async def test_what_a_worker_says_at_length_does_not_hold_it_up() -> None:
    talks = program("import sys\nfor _ in range(4000): sys.stderr.write('x' * 1000)\nsys.exit('MemoryError')")
    async with scene(attrs.evolve(QUICK, command=talks, retry_first_s=60.0)) as here:
        await here.until(lambda: here.told == ["out_of_memory"])


async def test_what_a_worker_said_once_it_served_is_not_logged() -> None:
    # It may hold what callers asked.  This one answers anything with the listing, then says something and ends.
    text = """
import http.server, json, sys, threading
sys.stdin.readline()
class Any(http.server.BaseHTTPRequestHandler):
    def log_message(self, *told): pass
    def do_GET(self):
        content = json.dumps({"data": [{"id": "smollm2-135m-instruct"}]}).encode()
        self.send_response(200); self.send_header("content-length", str(len(content))); self.end_headers()
        self.wfile.write(content)
        threading.Timer(0.2, end).start()
def end():
    sys.stderr.write("a secret of a caller"); sys.stderr.flush()
    import os; os._exit(1)
server = http.server.HTTPServer(("127.0.0.1", 0), Any)
print(json.dumps({"port": server.server_port}), flush=True)
server.serve_forever()
"""
    with capture_logs() as logs:
        async with scene(attrs.evolve(QUICK, command=program(text), retry_first_s=60.0)) as here:
            await here.until(lambda: here.words == ["there", "crashed"])
    assert "secret of a caller" not in str(logs)


async def test_a_node_that_has_its_own_hands_full_does_not_kill_the_model() -> None:
    calls = 0

    async def overloaded(call: HttpCall, *, stops: bool = False) -> HttpAnswer:
        nonlocal calls
        calls += 1
        if calls == 4:
            enough.set()
        try:
            raise Overloaded("upstream")
        except Overloaded as error:
            raise UpstreamTimeout("no room") from error

    enough = trio.Event()
    place = ModelPlace()
    async with open_runtime() as runtime:
        body = partial(embedded_model, place=place, call=overloaded, settings=attrs.evolve(QUICK, check_s=0.05))
        await runtime.start("embedded-model", body, capacity=4)
        with trio.fail_after(SOON_S):
            await enough.wait()
        assert isinstance(place.now(), Endpoint)
        assert place.starts == 1


@pytest.mark.parametrize(("failures", "seconds"), [(1, 1.0), (2, 2.0), (5, 16.0), (7, 60.0), (10_000, 60.0)])
def test_the_pause_before_another_try_doubles_up_to_a_minute(failures: int, seconds: float) -> None:
    assert WorkerSettings().back_off(failures) == seconds
