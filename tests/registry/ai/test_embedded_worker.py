from __future__ import annotations

import contextlib
import http.client
import json
import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import attrs
import psutil
import pytest

from gateway.registry.ai.embedded_engine import MODEL, SLOT_TOKENS, SLOTS
from gateway.registry.ai.embedded_worker import BODY_BYTES, QUEUE

WORKER = [sys.executable, "-I", "-m", "gateway.registry.ai.embedded_worker"]
KEY = "a-key-of-the-test"
TASK = {"key": KEY, "threads": 1, "memoryMib": 512}
SOON_S = 30.0


@attrs.frozen
class Running:
    process: subprocess.Popen[bytes]
    port: int

    @property
    def seen(self) -> psutil.Process:
        return psutil.Process(self.process.pid)

    def call(
        self, method: str, path: str, content: bytes = b"", key: str | None = KEY, within: float = 60.0
    ) -> tuple[int, dict[str, Any]]:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=within)) as connection:
            connection.request(method, path, content, {} if key is None else {"authorization": f"Bearer {key}"})
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())

    def ask(self, text: str, within: float = 60.0, **members: Any) -> tuple[int, dict[str, Any]]:
        return self.call("POST", "/v1/chat/completions", body(text, **members), within=within)

    def leave_behind(self, text: str) -> socket.socket:
        """Ask for a long answer and return the connection that it would come by."""
        content = body(text, max_tokens=1024)
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\n"
        connection = socket.create_connection(("127.0.0.1", self.port))
        connection.sendall(f"{head}content-length: {len(content)}\r\n\r\n".encode() + content)
        return connection

    def works(self) -> bool:
        """Return whether it used a processor in the last tenth of a second."""
        before = self.used()
        time.sleep(0.1)
        return self.used() - before > 0.02

    def used(self) -> float:
        times = self.seen.cpu_times()
        return float(times.user + times.system)


def body(text: str, **members: Any) -> bytes:
    asked = {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 16, "temperature": 0}
    return json.dumps(asked | members).encode()


def until(true: Callable[[], bool], seconds: float = SOON_S) -> float:
    """Wait until something is true and return the seconds that took."""
    began = time.monotonic()
    while not true():
        assert time.monotonic() - began < seconds
        time.sleep(0.01)
    return time.monotonic() - began


def start(**members: Any) -> tuple[subprocess.Popen[bytes], dict[str, Any]]:
    process = subprocess.Popen(
        WORKER, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={}, cwd="/"
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps(TASK | members).encode() + b"\n")
    process.stdin.flush()
    line = process.stdout.readline()
    return process, json.loads(line) if line else {}


def end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            stream.close()


@pytest.fixture(scope="module")
def worker() -> Iterator[Running]:
    process, answer = start()
    try:
        yield Running(process, answer["port"])
    finally:
        end(process)


# -- answers -----------------------------------------------------------------------------------------------------------


def test_it_answers_a_chat_in_openais_form(worker: Running) -> None:
    status, answer = worker.ask("Why is the sky blue?", max_tokens=40)
    assert status == 200
    assert (answer["object"], answer["model"]) == ("chat.completion", MODEL)
    (choice,) = answer["choices"]
    assert "light" in choice["message"]["content"]
    assert (choice["index"], choice["message"]["role"]) == (0, "assistant")
    usage = answer["usage"]
    assert 0 < usage["completion_tokens"] <= 40
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


def test_an_answer_that_is_cut_off_says_so(worker: Running) -> None:
    _, answer = worker.ask("Write a long story about the sea.", max_tokens=5)
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 5


def test_the_same_seed_gives_the_same_answer_and_another_one_another(worker: Running) -> None:
    texts = [
        worker.ask("Invent a word.", temperature=1.5, seed=seed, max_tokens=24)[1]["choices"][0]["message"]["content"]
        for seed in (7, 7, -8)
    ]
    assert texts[0] == texts[1] != texts[2]


def test_a_stop_sequence_ends_the_answer_before_it(worker: Running) -> None:
    _, answer = worker.ask("Count: one, two, three, four, five. Repeat it.", stop=["three"], max_tokens=40)
    assert "three" not in answer["choices"][0]["message"]["content"]


def test_nobody_is_told_what_another_one_asked_by_what_is_in_a_cache(worker: Running) -> None:
    for _ in range(2):
        _, answer = worker.ask("The same question, asked twice, by two callers.", max_tokens=1)
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


@pytest.mark.parametrize("text", ["Give the capital of France as JSON.", "json please", "Describe a cat in JSON."])
def test_json_mode_ends_in_a_json_object(worker: Running, text: str) -> None:
    _, answer = worker.ask(text, max_tokens=300, response_format={"type": "json_object"})
    (choice,) = answer["choices"]
    assert choice["finish_reason"] == "stop"
    assert isinstance(json.loads(choice["message"]["content"]), dict)


def test_a_schema_is_kept_to(worker: Running) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"enum": ["Oslo", "Paris"]}, "population": {"type": "integer"}},
        "required": ["city", "population"],
        "additionalProperties": False,
    }
    wished = {"type": "json_schema", "json_schema": {"name": "city", "schema": schema}}
    _, answer = worker.ask("The capital of France?", max_tokens=100, response_format=wished)
    value = json.loads(answer["choices"][0]["message"]["content"])
    assert value.keys() == {"city", "population"}
    assert value["city"] in {"Oslo", "Paris"}
    assert type(value["population"]) is int


def test_it_lists_its_model(worker: Running) -> None:
    status, answer = worker.call("GET", "/v1/models")
    assert (status, [each["id"] for each in answer["data"]]) == (200, [MODEL])


# -- refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", [None, "", "another", KEY + "x", "schlüssel"])
@pytest.mark.parametrize(("method", "path"), [("GET", "/v1/models"), ("POST", "/v1/chat/completions"), ("GET", "/")])
def test_nothing_is_told_to_who_has_not_the_key(worker: Running, method: str, path: str, key: str | None) -> None:
    status, answer = worker.call(method, path, body("hi"), key)
    assert (status, answer["error"]["type"]) == (401, "authentication_error")


@pytest.mark.parametrize(
    ("content", "status", "kind"),
    [
        (b"{", 400, "invalid_request_error"),
        (b"[]", 400, "invalid_request_error"),
        (b"", 400, "invalid_request_error"),
        (b"[" * 100_000, 400, "invalid_request_error"),
        (body("hi", messages="hi"), 400, "invalid_request_error"),
        (body("hi", messages=[{"role": 3}]), 400, "invalid_request_error"),
        (body("hi", seed="x"), 400, "invalid_request_error"),
        (body("hi", max_tokens="x"), 400, "invalid_request_error"),
        (body("hi", temperature="warm"), 400, "invalid_request_error"),
        (body("x " * (SLOT_TOKENS + 100)), 400, "exceed_context_size_error"),
        (body("hi", model="another"), 404, "model_not_found"),
        (b"x" * (BODY_BYTES + 1), 413, "invalid_request_error"),
    ],
)
def test_what_cannot_be_answered_is_refused(worker: Running, content: bytes, status: int, kind: str) -> None:
    try:
        told, answer = worker.call("POST", "/v1/chat/completions", content)
    except (BrokenPipeError, ConnectionResetError):  # it does not read what is too large to its end
        assert status == 413
        return
    assert (told, answer["error"]["type"]) == (status, kind)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "minLength": 10**6},
        {"$ref": "https://127.0.0.1:1/schema.json"},
        {"$ref": "#"},
        {"type": 3},
        {"enum": []},
        {"items": 3},
    ],
)
def test_a_schema_that_makes_no_grammar_is_refused(worker: Running, schema: dict[str, Any]) -> None:
    wished = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    assert worker.ask("hi", response_format=wished)[0] == 400


@pytest.mark.parametrize("path", ["/", "/health", "/metrics", "/slots", "/v1/completions", "/v1/embeddings"])
def test_there_is_nothing_else(worker: Running, path: str) -> None:
    assert worker.call("GET", path)[0] == worker.call("POST", path)[0] == 404


def test_what_is_no_http_is_hung_up_on(worker: Running) -> None:
    with socket.create_connection(("127.0.0.1", worker.port)) as connection:
        connection.sendall(b"hello\r\n\r\n")
        assert connection.recv(1) == b""


# -- the work is bounded -----------------------------------------------------------------------------------------------


def test_hanging_up_stops_an_answer(worker: Running) -> None:
    connection = worker.leave_behind("Tell a very long story about every day of a year.")
    until(worker.works)
    connection.close()
    assert until(lambda: not worker.works()) < 1.0


def test_hanging_up_stops_the_reading_of_a_prompt(worker: Running) -> None:
    connection = worker.leave_behind("word " * 3000)
    until(worker.works)
    connection.close()
    until(lambda: not worker.works(), 5.0)  # to its end it would take half a minute


def test_a_long_queue_is_refused_at_once_and_who_leaves_it_makes_room(worker: Running) -> None:
    held = [worker.leave_behind("Tell a very long story.") for _ in range(SLOTS + QUEUE)]

    def refused() -> bool:
        try:
            return worker.ask("hi", max_tokens=1, within=1.0)[0] == 503
        except TimeoutError:  # it waits in a place that one of the others has not taken yet
            return False

    try:
        until(refused)
        assert worker.call("GET", "/v1/models")[0] == 200
    finally:
        for each in held:
            each.close()
    until(lambda: worker.ask("hi", max_tokens=1)[0] == 200)


def test_both_slots_answer_at_once(worker: Running) -> None:
    with ThreadPoolExecutor(SLOTS) as pool:
        answers = list(pool.map(lambda number: worker.ask(f"Say {number}.", max_tokens=32), range(SLOTS)))
    assert [status for status, _ in answers] == [200] * SLOTS


# -- what it may do ----------------------------------------------------------------------------------------------------


def test_it_listens_on_one_port_of_the_loopback_only(worker: Running) -> None:
    listening = [each.laddr for each in worker.seen.net_connections() if each.status == psutil.CONN_LISTEN]
    assert listening == [("127.0.0.1", worker.port)]


def test_its_memory_files_and_core_are_bounded(worker: Running) -> None:
    seen = worker.seen
    assert seen.rlimit(resource.RLIMIT_DATA) == (512 * 2**20, 512 * 2**20)
    assert seen.rlimit(resource.RLIMIT_CORE) == (0, 0)
    assert seen.rlimit(resource.RLIMIT_FSIZE) == (0, 0)
    assert Path(f"/proc/{seen.pid}/oom_score_adj").read_text().strip() == "800"


@pytest.mark.parametrize(("threads", "niceness"), [(0, 0), (10_000, 10)])
def test_it_yields_to_the_node_where_it_could_take_every_core(threads: int, niceness: int) -> None:
    program = (
        f"import os; from gateway.registry.ai.embedded_worker import limit; limit(512, {threads}); print(os.nice(0))"
    )
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, check=True)
    assert int(done.stdout) - os.nice(0) == niceness


def test_its_key_is_neither_among_its_arguments_nor_in_its_environment(worker: Running) -> None:
    assert KEY not in " ".join(worker.seen.cmdline())
    assert worker.seen.environ() == {}


def test_it_ends_with_its_standard_input_even_while_it_answers() -> None:
    process, answer = start()
    try:
        running = Running(process, answer["port"])
        with running.leave_behind("Tell a very long story."):
            until(running.works)
            assert process.stdin is not None
            process.stdin.close()
            began = time.monotonic()
            assert process.wait(SOON_S) == 0
            assert time.monotonic() - began < 1.0
    finally:
        end(process)


def test_it_ends_where_no_task_comes() -> None:
    done = subprocess.run(WORKER, stdin=subprocess.DEVNULL, capture_output=True, timeout=SOON_S, check=False)
    assert (done.returncode, done.stdout) == (0, b"")


def test_memory_that_does_not_suffice_is_told() -> None:
    process, answer = start(memoryMib=200)
    try:
        assert answer == {"error": "load_failed"}
        assert process.wait(SOON_S) == 3
        assert process.stderr is not None
        assert b"failed to allocate" in process.stderr.read()
    finally:
        end(process)


def test_weights_that_are_not_there_are_told(tmp_path: Path) -> None:
    process, answer = start(weights=str(tmp_path / "none.gguf"))
    try:
        assert (answer, process.wait(SOON_S)) == ({"error": "model_not_installed"}, 3)
    finally:
        end(process)
