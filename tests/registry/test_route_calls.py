"""What a caller can and cannot do to a route; see also `test_qualification`, where all outcomes are proof."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from gateway.registry.call_evidence import Weight
from gateway.registry.qualification import (
    CANARY,
    Evidence,
    Finding,
    Outcome,
    Record,
    Rules,
    State,
    canary_wanted,
    evidence,
    next_probe,
    probed,
)
from gateway.registry.route_calls import called

ONE = Rules(failures_to_close=1)
THREE = Rules()
START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
GOOD = Finding(ok=True)
ANSWERED = Finding(ok=True, basis=CANARY)
FINE = Outcome("r", ok=True, ms=120)
ANY = pytest.mark.parametrize("rules", [ONE, THREE], ids=["one", "three"])


def looked(record: Record, finding: Finding = GOOD, now: float = 0.0, rules: Rules = ONE) -> Record:
    return probed(record, finding, now=now, wall=START + timedelta(seconds=now), ms=20, rules=rules)


def failed(record: Record, weight: Weight, *callers: str, now: float, rules: Rules = ONE) -> Record:
    for caller in callers:
        outcome = Outcome("r", ok=False, reason="why", ms=9, began=now, weight=weight, caller=caller)
        record = called(record, outcome, now=now, rules=rules)
    return record


def seen(record: Record, rules: Rules = ONE) -> Evidence:
    return evidence(record, rules=rules)


PROVEN = looked(Record("r"))


@ANY
def test_what_one_caller_provokes_never_closes_a_route_however_often(rules: Rules) -> None:
    record = PROVEN
    for now in range(1, 2000):
        record = failed(record, Weight.DOUBT, "a", now=float(now), rules=rules)
        assert seen(record, rules).open
    assert seen(record, rules).error_rate == 0.0
    assert next_probe(record, rules=rules) == PROVEN.probed_at + rules.retry_first_s


@ANY
def test_callers_out_of_one_ipv6_site_are_one_caller(rules: Rules) -> None:
    record = failed(PROVEN, Weight.DOUBT, *(f"2001:db8:1:{each:x}::/64" for each in range(99)), now=1.0, rules=rules)
    assert seen(record, rules).open


@ANY
def test_three_unrelated_callers_without_a_success_between_close_a_route(rules: Rules) -> None:
    record = failed(PROVEN, Weight.DOUBT, "a", "b", now=1.0, rules=rules)
    assert seen(record, rules).open
    record = failed(record, Weight.DOUBT, "c", now=2.0, rules=rules)
    assert seen(record, rules).state is State.UNAVAILABLE
    assert next_probe(record, rules=rules) == 3.0


def test_a_success_between_them_starts_anew_and_who_was_refuted_does_not_count_again() -> None:
    record = failed(PROVEN, Weight.DOUBT, "a", "b", now=1.0)
    record = called(record, FINE, now=2.0, rules=ONE)
    record = failed(record, Weight.DOUBT, "a", "b", "c", "d", now=3.0)
    assert seen(record).open
    assert not seen(failed(record, Weight.DOUBT, "e", now=4.0)).open


def test_a_good_canary_outweighs_them() -> None:
    record = looked(failed(PROVEN, Weight.DOUBT, "a", "b", now=1.0), ANSWERED, 2.0)
    assert seen(failed(record, Weight.DOUBT, "a", "b", "c", "d", now=3.0)).open


def test_a_listing_does_not() -> None:
    record = looked(failed(PROVEN, Weight.DOUBT, "a", "b", now=1.0), GOOD, 2.0)
    assert not seen(failed(record, Weight.DOUBT, "c", now=3.0)).open


def test_callers_of_different_hours_do_not_add_up() -> None:
    record = failed(failed(PROVEN, Weight.DOUBT, "a", "b", now=1.0), Weight.DOUBT, "c", now=602.0)
    assert seen(record).open


def test_while_several_are_in_doubt_a_route_stays_closed_ever_longer() -> None:
    record, now, pauses = failed(PROVEN, Weight.DOUBT, "a", "b", "c", now=1.0), 1.0, []
    for _ in range(6):
        due = next_probe(record, rules=ONE)
        pauses.append(due - now)
        record = looked(record, GOOD, due)
        assert seen(record).open
        now = due + 0.5
        record = failed(record, Weight.DOUBT, "a", now=now)
    assert pauses == [1, 2, 4, 8, 15, 15]


# -- faults ------------------------------------------------------------------------------------------------------------


def test_a_fault_closes_at_once_and_is_looked_at_after_a_second() -> None:
    record = failed(PROVEN, Weight.FAULT, "a", now=5.0)
    assert (seen(record).open, seen(record).reason) == (False, "why")
    assert next_probe(record, rules=ONE) == 6.0


def test_faults_that_one_caller_repeats_close_until_the_next_look_alone() -> None:
    record = looked(failed(PROVEN, Weight.FAULT, "a", now=5.0), GOOD, 6.0)
    for now in range(7, 300):
        record = failed(record, Weight.FAULT, "a", now=float(now))
        assert not seen(record).open
        assert next_probe(record, rules=ONE) == now
        record = looked(record, GOOD, now + 0.02)
        assert seen(record).open


def test_a_look_that_fails_keeps_it_closed_whoever_had_said_so() -> None:
    record = looked(failed(PROVEN, Weight.FAULT, "a", now=5.0), GOOD, 6.0)
    record = looked(failed(record, Weight.FAULT, "a", now=7.0), Finding(ok=False, reason="status_500"), 7.1)
    assert seen(record).reason == "status_500"
    assert next_probe(record, rules=ONE) == 8.1


def test_faults_of_several_callers_close_for_a_back_off_that_doubles() -> None:
    record, now, pauses = PROVEN, 5.0, []
    for caller in ("a", "b", "c", "a", "b"):
        record = failed(record, Weight.FAULT, caller, now=now)
        due = next_probe(record, rules=ONE)
        pauses.append(due - now)
        record = looked(record, GOOD, due)
        now = due + 1
    assert pauses == [1, 2, 4, 8, 15]


def test_three_faults_in_a_row_close_where_three_are_needed_whoever_met_them() -> None:
    record = failed(PROVEN, Weight.FAULT, "a", "a", now=5.0, rules=THREE)
    assert seen(record, THREE).open
    record = failed(record, Weight.FAULT, "a", now=5.0, rules=THREE)
    assert seen(record, THREE).reason == "consecutive_failures"
    assert next_probe(record, rules=THREE) == 6.0


def test_doubts_are_none_of_the_failures_in_a_row() -> None:
    record = failed(PROVEN, Weight.DOUBT, "a", "a", now=5.0, rules=THREE)
    record = failed(record, Weight.FAULT, "a", "a", now=6.0, rules=THREE)
    assert seen(record, THREE).open


def test_proof_closes_for_a_back_off_that_doubles_whoever_brings_it() -> None:
    record, now, pauses = PROVEN, 5.0, []
    for _ in range(4):
        record = failed(record, Weight.PROOF, "a", now=now)
        due = next_probe(record, rules=ONE)
        pauses.append(due - now)
        record = looked(record, GOOD, due)
        now = due + 1
    assert pauses == [1, 2, 4, 8]


# -- canaries ----------------------------------------------------------------------------------------------------------

TRIED = looked(Record("r"), ANSWERED)


def test_doubt_wants_a_canary_once_a_caller() -> None:
    record = failed(TRIED, Weight.DOUBT, "a", now=20.0)
    assert canary_wanted(record, now=21.0, rules=ONE)
    record = looked(record, ANSWERED, 21.0)
    record = failed(record, Weight.DOUBT, *"aaaaaa", now=40.0)
    assert not canary_wanted(record, now=41.0, rules=ONE)
    assert canary_wanted(failed(record, Weight.DOUBT, "b", now=42.0), now=43.0, rules=ONE)


def test_doubt_wants_no_more_than_one_canary_an_interval() -> None:
    record = failed(TRIED, Weight.DOUBT, "a", now=2.0)
    assert not canary_wanted(record, now=14.9, rules=ONE)
    assert canary_wanted(record, now=15.0, rules=ONE)


def test_faults_that_one_caller_repeats_want_no_more_than_one_canary_an_interval() -> None:
    record = failed(TRIED, Weight.FAULT, "a", now=20.0)
    record = looked(record, ANSWERED, 21.0)
    record = failed(record, Weight.FAULT, "a", now=25.0)
    assert not canary_wanted(record, now=25.1, rules=ONE)
    assert seen(looked(record, GOOD, 25.1)).open
    assert canary_wanted(record, now=36.0, rules=ONE)
