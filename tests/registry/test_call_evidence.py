from __future__ import annotations

import re
from pathlib import Path

import pytest

import gateway.actors
import gateway.registry
from gateway.registry.call_evidence import (
    MOST_VOICES,
    STATUSES,
    WEIGHTS,
    Voice,
    Weight,
    believed,
    heard,
    neighbourhood,
    refuted,
    weight_of,
)

TABLE = {
    Weight.NOTHING: {
        *("answer_lost", "budget_not_reserved", "busy", "context_length_exceeded", "deadline", "no_slot", "no_text"),
        *("node_overloaded", "not_json", "flagged_input", "prompt_over_rate"),
        *("status_400", "status_413", "status_414", "status_422", "status_431"),
    },
    Weight.DOUBT: {
        *("answer_too_large", "captcha", "empty_choices", "empty_content", "engines_silent", "malformed_answer"),
        *("no_results", "timeout", "tool_call", "unfinished", "upstream_error", "worker_failed"),
        *("status_202", "status_204", "status_301", "status_302", "status_307", "status_406", "status_451"),
    },
    Weight.FAULT: {
        *("connection_broken", "limit_ignored", "upstream_failed", "crashed", "a_word_that_nobody_knows"),
        *("status_403", "status_408", "status_409", "status_418", "status_500", "status_502", "status_503"),
        *("status_504", "status_529"),
    },
    Weight.PROOF: {
        *("rate_limited", "route_refused", "unreachable", "wrong_model"),
        *("status_401", "status_402", "status_404", "status_405", "status_407", "status_410", "status_429"),
    },
}
RAISED = re.compile(r'(?:ModelFailed\(|failed\(\s*[\w.]+,|blocked\(\s*[\w.]+,|reason(?:: str)? =)\s*"([a-z_]+)"')
OF_A_LISTING = {"model_not_listed", "model_retired", "model_without_chat"}
"""Words of probes alone."""


@pytest.mark.parametrize(("weight", "reason"), [(weight, each) for weight, all_ in TABLE.items() for each in all_])
def test_whose_evidence_each_outcome_is(weight: Weight, reason: str) -> None:
    assert weight_of(reason) is weight


def test_the_table_above_is_the_whole_one() -> None:
    told = {each for all_ in TABLE.values() for each in all_}
    assert set(WEIGHTS) | {f"status_{each}" for each in STATUSES} <= told


def test_every_word_that_an_adapter_or_a_family_raises_is_in_the_table() -> None:
    folders = [
        *(Path(gateway.registry.__file__).parent / name for name in ("ai", "search")),
        Path(gateway.actors.__file__).parent,
    ]
    modules = [*folders[0].glob("*.py"), *folders[1].glob("*.py"), folders[2] / "ai.py", folders[2] / "search.py"]
    modules.append(Path(gateway.registry.__file__).parent / "http_call.py")
    raised = {word for module in modules for word in RAISED.findall(module.read_text())}
    assert {"tool_call", "malformed_answer", "captcha", "timeout", "wrong_model"} <= raised
    assert raised - OF_A_LISTING - {"upstream_failed"} <= set(WEIGHTS)


# -- callers -----------------------------------------------------------------------------------------------------------


def test_a_caller_has_one_voice_in_a_window() -> None:
    voices = heard((), "a", now=1.0, window_s=10)
    assert voices == (Voice("a", 1.0),)
    assert heard(voices, "a", now=5.0, window_s=10) == voices
    assert heard(voices, "b", now=5.0, window_s=10) == (Voice("a", 1.0), Voice("b", 5.0))
    assert heard(voices, "a", now=11.0, window_s=10) == (Voice("a", 11.0),)


def test_a_success_refutes_all_and_they_are_not_raised_anew() -> None:
    voices = refuted(heard((), "a", now=1.0, window_s=10))
    assert heard(voices, "a", now=5.0, window_s=10) == (Voice("a", 1.0, stands=False),)
    assert refuted(()) == ()


def test_who_was_believed_is_remembered() -> None:
    voices = (Voice("a", 1.0), Voice("b", 1.0))
    assert believed(voices, "b") == (Voice("a", 1.0), Voice("b", 1.0, held=True))


def test_so_many_callers_are_remembered_and_no_more() -> None:
    voices: tuple[Voice, ...] = ()
    for number in range(1000):
        voices = heard(voices, str(number), now=1.0, window_s=10)
    assert [each.caller for each in voices] == [str(number) for number in range(1000 - MOST_VOICES, 1000)]


@pytest.mark.parametrize(
    ("network", "shared"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2::/64", "2001:db8:1::/48"),
        ("2001:db8:1:3::/64", "2001:db8:1::/48"),
        ("2001:db8::/32", "2001:db8::/32"),
        ("", ""),
        ("somebody", "somebody"),
    ],
)
def test_callers_are_unrelated_by_address_or_by_a_whole_ipv6_site(network: str, shared: str) -> None:
    assert neighbourhood(network) == shared
