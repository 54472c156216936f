"""What all answers of model upstreams have in common: refusals, counts of tokens, names of models, what may be sold.

Nothing here raises anything but `ModelFailed`, whatever the upstream sent, and no detail holds a word of the prompt,
the key, or the upstream's own prose, which may quote both: only machine words of it are passed on.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson

from gateway.registry.ai.adapter import LEAST_CANARY_TOKENS, Completion, FinishReason, ModelFailed, Usage, text_member
from gateway.registry.ai.answer_schema import validator_of
from gateway.registry.ai.prompt import Message, Prompt
from gateway.registry.call_evidence import Weight
from gateway.registry.http_call import HttpAnswer, HttpCall
from gateway.registry.qualification import Finding
from gateway.registry.retry_after import retry_after
from gateway.registry.upstream_json import read_json

Headers = tuple[tuple[str, str], ...]

ANSWER_BYTES = 4 * 2**20
PROBE_S = 5.0
CANARY_S = 30.0
MOST_TOKENS = 10**9
"""No upstream counts as many."""

CUT_OFF = "no_text"
"""Why an answer that was cut off or filtered before its first word is not sold."""
INVISIBLE = frozenset({"Zs", "Zl", "Zp", "Cc", "Cf", "Mn"})
BLANKS = frozenset("\u115f\u1160\u2800\u3164\uffa0")
"""Letters and symbols of Unicode that have no form: Hangul fillers, the empty Braille pattern."""

MACHINE_WORD = re.compile(r"[A-Za-z][A-Za-z0-9]*(?:[_-][A-Za-z0-9]+)*")
SNAPSHOT = re.compile(r"-\d{4}-\d{2}-\d{2}|[-@]\d{8}")
"""What OpenAI (`-2026-07-09`), Anthropic (`-20260709`) and Vertex (`@20260709`) add to a name for a dated snapshot."""

OF_THE_PROMPT = frozenset({400, 413, 422})
OF_THE_ROUTE = (
    "api key not valid",
    "api key expired",
    "user location is not supported",
    "your credit balance is too low",
)
"""How messages begin that come with a 400 and yet are about the operator's key or account (Gemini, Anthropic)."""
TOO_LARGE = "request too large"
ROUTE_WORDS = frozenset({"API_KEY_INVALID", "FAILED_PRECONDITION", "model_not_found", "billing_error"})
TOO_LONG = frozenset({"context_length_exceeded", "exceed_context_size_error"})


def json_body(answer: HttpAnswer, key: str) -> dict[str, Any]:
    """Return the JSON object of a 200 answer; raises `ModelFailed`, also for an error that came with a 200.

    OpenRouter answers 200 before a provider has begun, so what goes wrong later stands in the body.
    """
    try:
        value = read_json(answer.content)
    except ValueError:
        value = None
    members: dict[str, Any] = value if isinstance(value, dict) else {}
    error = members.get("error")
    if answer.status != 200:
        raise refusal(answer.status, error, answer, key)
    if error:
        raise error_within(error, answer, key)
    if not isinstance(value, dict):
        raise ModelFailed("malformed_answer", "its answer is not a JSON object")
    return value


def bodies(answers: Sequence[HttpAnswer], asked: int, key: str) -> Sequence[dict[str, Any]]:
    """Return the JSON objects of the 200 answers to `asked` calls; raises `ModelFailed`."""
    if len(answers) != asked:
        raise ModelFailed("malformed_answer", f"{len(answers)} answers to {asked} calls")
    return [json_body(answer, key) for answer in answers]


def error_within(error: Any, answer: HttpAnswer, key: str) -> ModelFailed:
    """Return the failure that an error inside a 200 answer tells of."""
    code = error.get("code") if isinstance(error, dict) else None
    if type(code) is int and 400 <= code <= 599:
        return refusal(code, error, answer, key)
    word = _word(error, key)
    return ModelFailed("upstream_error", "answered 200 with an error in it" + (f" ({word})" if word else ""))


def refusal(status: int, error: Any, answer: HttpAnswer, key: str) -> ModelFailed:
    """Return the failure that a status other than 200 tells of.

    400, 413 and 422 are about this one prompt unless they bear a sign that it is the key, the account or the model's
    name.  So are a 403 of a moderation (OpenRouter) and a 429 for one prompt over what a minute may hold (OpenAI).
    """
    details = error if isinstance(error, dict) else {}
    word = _word(error, key)
    return ModelFailed(
        _reason(status, details),
        f"answered {status}" + (f" ({word})" if word else ""),
        retry_after=asked_wait(answer.headers, details),
    )


def asked_wait(headers: Mapping[str, str], error: Mapping[str, Any]) -> float | None:
    """Return the seconds that an upstream asked to wait; Gemini says it in `RetryInfo` of the error."""
    return retry_after(headers, (text_member(each, "retryDelay") or "" for each in objects(error.get("details"))))


def completion(
    prompt: Prompt,
    *,
    content: str,
    finish_reason: FinishReason,
    usage: Usage | None,
    upstream_model: str | None,
    upstream_id: str | None,
) -> Completion:
    """Return what was answered, if it can be sold; raises `ModelFailed`.

    What is left of the text without white space and invisible characters is what is sold: nothing is not.  Nor is a
    JSON mode that ends in no JSON, or in JSON that breaks the schema, nor an answer over the asked limit of tokens.

    Where the caller named texts to stop at, the first word may have been one: that says nothing of the route, which
    anybody could close otherwise.
    """
    if is_blank(content):
        if finish_reason != "stop":
            raise ModelFailed(CUT_OFF, f"it ended by {finish_reason} without a word")
        raise ModelFailed(
            "empty_content", "it stopped without a word", weight=Weight.NOTHING if prompt.sampling.stop else None
        )
    if finish_reason == "stop" and prompt.response_format.json and not _is_json(content, prompt):
        raise ModelFailed("not_json", "its text is not the JSON that was asked for")
    counted = _plausible(usage)
    said = 0 if counted is None else counted.output_tokens - (counted.reasoning_tokens or 0)
    if said > prompt.max_output_tokens:  # not all upstreams hold their reasoning to the limit
        raise ModelFailed("limit_ignored", f"it counts {said} tokens of text; {prompt.max_output_tokens} were the most")
    return Completion(content, finish_reason, counted, upstream_model, upstream_id)


def is_blank(text: str) -> bool:
    """Return True where a person sees nothing of a text: white space, controls, characters without a form."""
    return all(each in BLANKS or unicodedata.category(each) in INVISIBLE for each in text)


def _plausible(usage: Usage | None) -> Usage | None:
    """Return a count of tokens that can be, None for one that cannot: a part is not more than its whole."""
    if usage is None:
        return None
    parts = ((usage.cached_tokens, usage.input_tokens), (usage.reasoning_tokens, usage.output_tokens))
    return None if any(part is not None and part > whole for part, whole in parts) else usage


def reported_model(
    reported: Any, asked: str, *, same: Callable[[str, str], bool] = lambda told, asked: told == asked
) -> str | None:
    """Return the model that the upstream says answered, None where it does not say.

    Raises `ModelFailed` where it is neither the `same` as the one that was asked nor a dated snapshot of it.
    """
    if reported is None or reported == "":
        return None
    if not isinstance(reported, str):
        raise ModelFailed("malformed_answer", "the model it names is not text")
    if not same(reported, asked) and not is_snapshot(reported, asked):
        raise ModelFailed("wrong_model", "another model than the one that was asked for answered")
    return reported


def finish_reason(known: Mapping[str, FinishReason], told: str | None) -> FinishReason:
    """Return why the model ended, in OpenAI's words; raises `ModelFailed` for what is no end of a completion."""
    if told is None:
        raise ModelFailed("malformed_answer", "it does not say why it ended")
    if told not in known:
        raise ModelFailed("unfinished", "it ended for a reason that leaves no completion")
    return known[told]


def is_snapshot(reported: str, asked: str) -> bool:
    """Return True if `reported` is the name of a dated snapshot of `asked`."""
    return reported.startswith(asked) and SNAPSHOT.fullmatch(reported, len(asked)) is not None


def tokens(members: Mapping[str, Any], name: str) -> int | None:
    """Return a count of tokens, None where there is none or it cannot be one."""
    value = members.get(name)
    return value if type(value) is int and 0 <= value <= MOST_TOKENS else None


def members_of(value: Any) -> Mapping[str, Any]:
    """Return a JSON object, or an empty one for anything else."""
    return value if isinstance(value, dict) else {}


def joined_texts(parts: Any) -> str:
    """Return the texts of typed blocks, without those of other types (thinking)."""
    return "".join(text_member(part, "text") or "" for part in objects(parts) if part.get("type") == "text")


def objects(value: Any) -> Sequence[Mapping[str, Any]]:
    """Return the objects of a JSON array, none for anything else."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def request(url: str, headers: Headers, body: Mapping[str, Any], target: str, timeout_s: float) -> HttpCall:
    """Return the call that asks a model."""
    return HttpCall(
        "POST",
        url,
        (*headers, ("content-type", "application/json")),
        orjson.dumps(body),
        timeout_s=timeout_s,
        max_bytes=ANSWER_BYTES,
        target=target,
    )


def question(url: str, headers: Headers, target: str) -> HttpCall:
    """Return an unbilled call."""
    return HttpCall("GET", url, headers, timeout_s=PROBE_S, max_bytes=ANSWER_BYTES, target=target)


def shortest(model: str) -> Prompt:
    """Return the prompt of a canary."""
    return Prompt(model, (Message("user", "Say OK."),), LEAST_CANARY_TOKENS)


def finding(read: Callable[[], object]) -> Finding:
    """Return what a probe found whose answers `read` takes without `ModelFailed`, or does not."""
    try:
        read()
    except ModelFailed as failure:
        # A canary has few tokens, and a reasoning model may have none left for a word.
        return Finding(ok=failure.reason == CUT_OFF, reason=None if failure.reason == CUT_OFF else failure.reason)
    return Finding(ok=True)


def _is_json(content: str, prompt: Prompt) -> bool:
    try:
        value = orjson.loads(content)
    except orjson.JSONDecodeError:
        return False
    if prompt.response_format.kind == "json_schema":
        validator = validator_of(prompt.response_format.schema or {})
        return validator is not None and validator.is_valid(value)
    return isinstance(value, dict)


def _reason(status: int, error: Mapping[str, Any]) -> str:
    """Return the machine word for a refusal; a status that may be the caller's fault or the operator's has one each."""
    message = (text_member(error, "message") or "").lower()
    if status in OF_THE_PROMPT:
        if _words(error) & TOO_LONG:
            return "context_length_exceeded"
        if message.startswith(OF_THE_ROUTE) or _words(error) & ROUTE_WORDS:
            return "route_refused"
    if status == 403 and "flagged_input" in members_of(error.get("metadata")):
        return "flagged_input"
    if status == 429 and message.startswith(TOO_LARGE):
        return "prompt_over_rate"
    return f"status_{status}"


def _words(error: Mapping[str, Any]) -> frozenset[str]:
    """Return the machine words of an error: OpenAI's code and type, Anthropic's type, Gemini's status and reasons."""
    named = [error.get(name) for name in ("code", "type", "status")]
    named += [each.get("reason") for each in objects(error.get("details"))]
    return frozenset(each for each in named if isinstance(each, str))


def _word(error: Any, key: str) -> str | None:
    """Return the most telling machine word of an error, if it is one and cannot be a part of the key."""
    for name in ("code", "type", "status"):
        word = text_member(error, name) if isinstance(error, dict) else None
        if word and len(word) <= 64 and MACHINE_WORD.fullmatch(word) and not (key and (word in key or key in word)):
            return word
    return None
