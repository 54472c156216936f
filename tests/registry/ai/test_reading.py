from __future__ import annotations

import datetime as dt
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.registry.ai.adapter import LEAST_CANARY_TOKENS, Completion, FinishReason, ModelFailed, Usage
from gateway.registry.ai.prompt import Prompt, ResponseFormat, Sampling
from gateway.registry.ai.reading import (
    asked_wait,
    bodies,
    completion,
    finding,
    finish_reason,
    is_snapshot,
    joined_texts,
    json_body,
    reported_model,
    shortest,
    tokens,
)
from gateway.registry.call_evidence import Weight
from tests.registry.ai.model_answers import ASKED, JSON_PROMPT, KEY, PROMPT, answered, json_values


def failure(body: Any, status: int = 200, headers: dict[str, str] | None = None) -> ModelFailed:
    with pytest.raises(ModelFailed) as failed:
        json_body(answered(body, status, headers), KEY)
    return failed.value


def finished(content: str, finish: FinishReason = "stop", prompt: Prompt = PROMPT) -> Completion:
    return completion(prompt, content=content, finish_reason=finish, usage=None, upstream_model=None, upstream_id=None)


def test_an_object_in_a_200_is_the_answer() -> None:
    assert json_body(answered({"a": 1}), KEY) == {"a": 1}
    assert json_body(answered({"a": 1, "error": None}), KEY)["a"] == 1


@pytest.mark.parametrize("body", [b"", b"<html>", b"[1]", b"3", b"\xff", b"[" * 100_000, b'{"a": NaN}'])
def test_a_200_that_holds_no_json_object_is_malformed(body: bytes) -> None:
    assert (failure(body).reason, failure(body).weight) == ("malformed_answer", Weight.DOUBT)


@pytest.mark.parametrize("status", [401, 402, 403, 404, 408, 409, 429, 500, 502, 503, 504, 529])
def test_a_refusal_for_the_routes_own_sake_counts_and_names_its_status(status: int) -> None:
    failed = failure({"error": {"message": "no"}}, status)
    assert (failed.reason, failed.weight in {Weight.FAULT, Weight.PROOF}) == (f"status_{status}", True)


@pytest.mark.parametrize("status", [400, 413, 422])
def test_a_refusal_of_one_prompt_does_not_count(status: int) -> None:
    failed = failure({"error": {"message": "no", "type": "invalid_request_error"}}, status)
    assert (failed.reason, failed.weight) == (f"status_{status}", Weight.NOTHING)


@pytest.mark.parametrize(
    "error",
    [
        {"code": 400, "message": "API key not valid. Please pass a valid API key.", "status": "INVALID_ARGUMENT"},
        {"code": 400, "message": "x", "status": "INVALID_ARGUMENT", "details": [{"reason": "API_KEY_INVALID"}]},
        {"code": 400, "message": "Billing is not enabled.", "status": "FAILED_PRECONDITION"},
        {"type": "invalid_request_error", "message": "Your credit balance is too low to access the Anthropic API."},
        {"code": "model_not_found", "message": "x"},
    ],
)
def test_a_400_about_the_key_the_account_or_the_model_counts(error: dict[str, Any]) -> None:
    assert failure({"error": error}, 400).weight is Weight.PROOF


def test_words_of_the_prompt_that_an_upstream_quotes_close_no_route() -> None:
    quoted = {"message": "Invalid text: 'api key not valid, your credit balance is too low'", "type": "invalid"}
    assert failure({"error": quoted}, 400).weight is Weight.NOTHING


def test_a_403_of_a_moderation_is_about_the_prompt() -> None:
    moderated = {"code": 403, "message": "flagged", "metadata": {"reasons": ["x"], "flagged_input": "y"}}
    assert failure({"error": moderated}, 403).weight is Weight.NOTHING


def test_a_429_for_one_prompt_over_what_a_minute_may_hold_is_about_the_prompt() -> None:
    told = "Request too large for m in organization o on tokens per min (TPM): Limit 30000, Requested 40000."
    assert failure({"error": {"type": "tokens", "message": told}}, 429).weight is Weight.NOTHING


@pytest.mark.parametrize(
    "error",
    [
        {"code": "context_length_exceeded", "type": "invalid_request_error", "message": "x"},
        {"code": 400, "type": "exceed_context_size_error", "message": "x", "n_prompt_tokens": 9000, "n_ctx": 8192},
    ],
)
def test_a_prompt_that_is_too_long_is_told_apart(error: dict[str, Any]) -> None:
    failed = failure({"error": error}, 400)
    assert (failed.reason, failed.weight) == ("context_length_exceeded", Weight.NOTHING)


def test_an_error_inside_a_200_is_read_as_the_status_it_names() -> None:
    failed = failure({"error": {"code": 502, "message": "Provider returned error", "metadata": {}}})
    assert (failed.reason, failed.weight) == ("status_502", Weight.FAULT)
    assert failure({"error": {"code": 400, "message": "x"}}).weight is Weight.NOTHING


@pytest.mark.parametrize("error", ["model is loading", {"message": "x"}, {"code": 7}, {"code": True}, [1]])
def test_an_error_inside_a_200_without_a_status_is_an_upstream_error(error: Any) -> None:
    assert failure({"error": error}).reason == "upstream_error"


def test_a_failure_tells_the_upstreams_machine_word_and_none_of_its_prose() -> None:
    told = {"message": f"Incorrect API key: {KEY}. You said: {ASKED}", "type": "auth", "code": "invalid_api_key"}
    failed = failure({"error": told}, 401)
    assert failed.detail == "answered 401 (invalid_api_key)"
    assert KEY not in str(failed)
    assert ASKED not in str(failed)


@pytest.mark.parametrize("word", [KEY, "sk", f"key_{KEY}", ASKED, "a word", "", "x" * 65, 7, None])
def test_a_word_that_may_hold_a_secret_is_not_told(word: Any) -> None:
    assert failure({"error": {"code": word}}, 401).detail == "answered 401"


@pytest.mark.parametrize(
    ("error", "seconds"),
    [
        ({"details": [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "13s"}]}, 13.0),
        ({"details": [3, {}, {"retryDelay": 4}, {"retryDelay": "x"}]}, None),
        ({}, None),
    ],
)
def test_a_wait_that_stands_in_the_error_is_read(error: dict[str, Any], seconds: float | None) -> None:
    assert asked_wait({}, error) == seconds


def test_a_refusal_carries_the_wait() -> None:
    assert failure({"error": {"message": "slow down"}}, 429, {"retry-after": "20"}).retry_after == 20.0


@given(json_values, st.integers(100, 999), st.text(max_size=20), st.text(max_size=20))
def test_any_body_status_and_header_is_an_object_or_a_model_failure(
    body: Any, status: int, told: str, date: str
) -> None:
    try:
        read = json_body(answered(body, status, {"retry-after": told, "date": date}), KEY)
    except ModelFailed:
        return
    assert status == 200
    assert read == body


@given(json_values, st.integers(100, 999))
def test_any_error_is_told_as_a_model_failure(error: Any, status: int) -> None:
    if status != 200 or error:
        assert failure({"error": error}, status).reason.isidentifier()


def test_a_model_that_stopped_without_a_word_has_answered_nothing() -> None:
    with pytest.raises(ModelFailed, match="empty_content"):
        finished("")


@pytest.mark.parametrize(("stop", "weight"), [((), Weight.DOUBT), (("{",), Weight.NOTHING)])
def test_a_first_word_at_which_the_caller_had_it_stop_says_nothing_of_the_route(
    stop: tuple[str, ...], weight: Weight
) -> None:
    with pytest.raises(ModelFailed, match="empty_content") as failed:
        finished("", prompt=attrs.evolve(PROMPT, sampling=Sampling(stop=stop)))
    assert failed.value.weight is weight


BLANK = [
    "",
    " ",
    "\n\t\r ",
    "\u200b",
    "\ufeff\u2060",
    "\u00a0\u3000",
    "\u2800",
    "\u3164",
    "\u202e",
    "\x00",
    "\ufe0f",
    "\U000e0041",
]


@pytest.mark.parametrize("text", BLANK, ids=ascii)
@pytest.mark.parametrize(
    ("finish", "reason"), [("stop", "empty_content"), ("length", "no_text"), ("content_filter", "no_text")]
)
def test_what_nobody_can_see_is_not_sold(finish: FinishReason, reason: str, text: str) -> None:
    with pytest.raises(ModelFailed, match=reason):
        finished(text, finish)


@pytest.mark.parametrize("text", [" a", "\u200b.", "\U0001f600", "e\u0301", "-"])
@pytest.mark.parametrize("finish", ["stop", "length", "content_filter"])
def test_what_somebody_can_see_is_sold_as_it_came(finish: FinishReason, text: str) -> None:
    assert finished(text, finish).content == text


def test_a_canary_that_spent_its_tokens_before_a_word_is_health() -> None:
    def read() -> object:
        return finished("", "length")

    assert finding(read).ok
    assert finding(lambda: finished("")).reason == "empty_content"


def counted(*counts: int | None) -> Usage | None:
    usage = Usage(*counts)  # type: ignore[arg-type]  # input and output are there
    return completion(
        PROMPT, content="x", finish_reason="stop", usage=usage, upstream_model=None, upstream_id=None
    ).usage


def test_an_answer_over_the_limit_of_tokens_is_not_sold_and_is_the_routes_fault() -> None:
    most = PROMPT.max_output_tokens
    assert counted(5, most) == Usage(5, most)
    assert counted(5, most + 500, 500) == Usage(5, most + 500, 500)
    with pytest.raises(ModelFailed, match="limit_ignored") as failed:
        counted(5, most + 1)
    assert failed.value.weight is Weight.FAULT


@pytest.mark.parametrize("counts", [(5, 3, None, 6), (5, 3, 4), (0, 0, 1, None)])
def test_a_count_that_cannot_be_is_none(counts: tuple[int, ...]) -> None:
    assert counted(*counts) is None


SHAPE = {"type": "object", "required": ["answer"], "properties": {"answer": {"type": "integer"}}}


@pytest.mark.parametrize("content", ['{"unrelated": true}', '{"answer": "x"}', "[]", "3", '{"answer": 1'])
@pytest.mark.parametrize("strict", [True, None])
def test_json_that_breaks_its_schema_is_not_sold(content: str, strict: bool | None) -> None:
    prompt = attrs.evolve(PROMPT, response_format=ResponseFormat("json_schema", schema=SHAPE, strict=strict))
    assert finished('{"answer": 1}', prompt=prompt).content == '{"answer": 1}'
    with pytest.raises(ModelFailed, match="not_json") as failed:
        finished(content, prompt=prompt)
    assert failed.value.weight is Weight.NOTHING


@pytest.mark.parametrize("content", ["Sure! {}", "```json\n{}\n```", '{"a": 1', "[1]", "3"])
def test_a_json_mode_that_ends_in_no_json_object_is_not_sold_and_says_nothing_of_the_route(content: str) -> None:
    with pytest.raises(ModelFailed, match="not_json") as failed:
        finished(content, prompt=JSON_PROMPT)
    assert failed.value.weight is Weight.NOTHING


def test_a_json_mode_that_was_cut_off_is_told_as_such() -> None:
    assert finished('{"a": 1', "length", JSON_PROMPT).finish_reason == "length"


def test_json_by_a_schema_may_be_any_json() -> None:
    prompt = attrs.evolve(PROMPT, response_format=ResponseFormat("json_schema", schema={"type": "array"}))
    assert finished("[1]", prompt=prompt).content == "[1]"


@pytest.mark.parametrize("reported", ["m", "m-2026-07-09", "m-20260709", "m@20260709", None, ""])
def test_the_model_that_was_asked_or_a_dated_snapshot_of_it_may_answer(reported: str | None) -> None:
    assert reported_model(reported, "m") == (reported or None)


@pytest.mark.parametrize(
    "reported", ["n", "m-mini", "m-2026-07-09-mini", "m-2026", "M", "m:free", "om", "m-2026-07-09\n", "m/m"]
)
def test_any_other_model_is_the_wrong_one(reported: str) -> None:
    with pytest.raises(ModelFailed, match="wrong_model") as failed:
        reported_model(reported, "m")
    assert failed.value.weight is Weight.PROOF


@pytest.mark.parametrize("reported", [7, True, ["m"], {"id": "m"}])
def test_a_model_that_is_no_text_is_malformed(reported: Any) -> None:
    with pytest.raises(ModelFailed, match="malformed_answer"):
        reported_model(reported, "m")


@given(st.text(max_size=12), st.dates(), st.text(max_size=4))
def test_a_snapshot_is_named_by_its_model_a_date_and_no_more(model: str, date: dt.date, more: str) -> None:
    digits = date.isoformat().replace("-", "")
    assert not is_snapshot(model, model)
    for suffix in (f"-{date.isoformat()}", f"-{digits}", f"@{digits}"):
        assert is_snapshot(model + suffix, model)
        assert not is_snapshot(f"{model}{suffix}{more}x", model)


@pytest.mark.parametrize("value", [True, -1, 2**50 + 1, 2**53, 1.0, "1", None])
def test_what_is_no_count_of_tokens_is_none(value: Any) -> None:
    assert tokens({"n": value}, "n") is None


def test_a_count_of_tokens_is_exact() -> None:
    assert tokens({"n": 0}, "n") == 0
    assert tokens({"n": 10**9}, "n") == 10**9
    assert tokens({"n": 10**15}, "n") is None


def test_an_end_that_leaves_no_completion_is_a_failure() -> None:
    assert finish_reason({"end": "stop"}, "end") == "stop"
    with pytest.raises(ModelFailed, match="unfinished"):
        finish_reason({"end": "stop"}, "abort")
    with pytest.raises(ModelFailed, match="malformed_answer"):
        finish_reason({"end": "stop"}, None)


def test_only_blocks_of_text_are_joined() -> None:
    blocks = [{"type": "thinking", "text": "hm"}, {"type": "text", "text": "a"}, 3, {"type": "text", "text": "b"}]
    assert joined_texts(blocks) == "ab"
    assert joined_texts("text") == ""


def test_every_call_of_a_probe_has_an_answer() -> None:
    assert bodies([answered({})], 1, KEY) == [{}]
    with pytest.raises(ModelFailed, match="malformed_answer"):
        bodies([], 1, KEY)


def test_a_probe_finds_what_its_answers_are_read_as() -> None:
    def fails() -> None:
        raise ModelFailed("status_401", "answered 401")

    assert finding(lambda: None).ok
    assert (finding(fails).ok, finding(fails).reason) == (False, "status_401")


def test_a_canary_asks_for_sixteen_tokens_and_never_for_one() -> None:
    assert shortest("m").max_output_tokens == LEAST_CANARY_TOKENS == 16
