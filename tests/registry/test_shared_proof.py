from __future__ import annotations

from datetime import UTC, datetime, timedelta

import attrs
import pytest

from gateway.registry.qualification import (
    Evidence,
    Finding,
    Outcome,
    Record,
    Rules,
    State,
    canary_allowed,
    canary_wanted,
    evidence,
    next_probe,
    probed,
)
from gateway.registry.route_calls import called
from gateway.registry.shared_proof import learned, next_own_probe

RULES = Rules()
START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
GOOD = Finding(ok=True)
BAD = Finding(ok=False, reason="unreachable")
LOST = Outcome("r", ok=False, reason="timeout", ms=8000)
NAME = "q_0123456789abcdef0123"


def told(record: Record, finding: Finding = GOOD, now: float = 0.0, name: str = NAME) -> Record:
    wall = START + timedelta(seconds=now)
    return learned(record, finding, now=now, wall=wall, ms=20, rules=RULES, name=name)


def looked(record: Record, finding: Finding = GOOD, now: float = 0.0) -> Record:
    return probed(record, finding, now=now, wall=START + timedelta(seconds=now), ms=20, rules=RULES)


def lost(record: Record, times: int, now: float = 1.0) -> Record:
    for _ in range(times):
        record = called(record, LOST, now=now, rules=RULES)
    return record


def seen(record: Record) -> Evidence:
    return evidence(record, rules=RULES)


NEW = Record("r")


def test_another_s_good_finding_opens_a_route_until_its_own_proof_expires() -> None:
    found = seen(told(NEW, now=7.0))
    assert (found.state, found.expires, found.last_probe_at) == (State.AVAILABLE, 52.0, START + timedelta(seconds=7))
    assert found.valid_until == START + timedelta(seconds=52)


def test_a_proof_has_one_name_on_all_nodes() -> None:
    assert seen(told(NEW)).qualification_id == NAME


def test_an_expired_finding_opens_nothing() -> None:
    found = seen(told(NEW, now=-45.0)).at(0.0)
    assert (found.open, found.reason) == (False, "proof_expired")


def test_another_s_bad_finding_closes_a_route() -> None:
    found = seen(told(looked(NEW), BAD, now=5.0))
    assert (found.open, found.reason) == (False, "unreachable")


def test_a_finding_that_is_older_than_what_is_known_changes_nothing() -> None:
    for known, old in ((looked(NEW, now=5.0), BAD), (looked(NEW, BAD, now=5.0), GOOD)):
        assert attrs.evolve(told(known, old, now=5.0), vouched=known.vouched) == known


def test_a_finding_of_another_opens_again_what_a_finding_of_another_closed() -> None:
    assert seen(told(told(NEW, BAD), GOOD, now=1.0)).open


def test_after_an_own_probe_has_failed_only_an_own_probe_opens() -> None:
    record = told(looked(told(NEW), BAD, now=5.0), GOOD, now=15.0)
    assert not seen(record).open
    assert seen(looked(record, GOOD, now=16.0)).open


def test_an_own_refusal_outlives_the_bad_findings_of_others() -> None:
    record = told(told(looked(NEW, BAD), BAD, now=5.0), GOOD, now=15.0)
    assert not seen(record).open


def test_after_own_calls_have_closed_a_route_only_an_own_probe_opens_it() -> None:
    record = told(lost(told(NEW), 3, now=1.0), GOOD, now=15.0)
    assert (seen(record).open, seen(record).reason) == (False, "consecutive_failures")
    assert seen(looked(record, GOOD, now=16.0)).open


def test_a_single_failed_call_is_outweighed_by_a_later_finding_of_another() -> None:
    record = told(lost(told(NEW), 1, now=1.0), GOOD, now=15.0)
    assert seen(record).open
    assert next_own_probe(record, rules=RULES) == 45.0


@pytest.mark.parametrize("record", [told(NEW, now=2.0), told(NEW, BAD, now=2.0), looked(NEW, now=2.0)])
def test_a_node_that_follows_looks_itself_only_after_two_intervals_of_silence(record: Record) -> None:
    assert next_own_probe(record, rules=RULES) == 32.0


def test_a_node_that_follows_looks_before_its_proof_expires() -> None:
    record = told(NEW)
    assert next_own_probe(record, rules=RULES) < seen(record).expires


def test_a_route_that_nobody_has_looked_at_is_due() -> None:
    assert next_own_probe(NEW, rules=RULES) == float("-inf")


def test_a_failed_call_is_followed_by_an_own_probe() -> None:
    assert next_own_probe(lost(told(NEW), 1), rules=RULES) == 1.0


def test_a_route_that_own_calls_closed_is_looked_at_when_its_back_off_is_over() -> None:
    assert next_own_probe(lost(told(NEW), 3, now=4.0), rules=RULES) == 5.0


def test_an_own_refusal_is_looked_at_again_while_others_find_the_route_well() -> None:
    refused = looked(told(NEW), BAD, now=10.0)
    assert next_own_probe(refused, rules=RULES) == 11.0
    assert next_own_probe(looked(refused, BAD, now=11.0), rules=RULES) == 13.0


def test_where_others_find_the_route_ill_too_the_probing_is_left_to_them() -> None:
    refused = told(looked(told(NEW), BAD, now=10.0), BAD, now=12.0)
    assert next_own_probe(refused, rules=RULES) == 42.0
    assert next_own_probe(told(refused, GOOD, now=20.0), rules=RULES) <= 20.0


def test_who_takes_over_from_one_whose_probe_failed_looks_at_once_and_then_backs_off() -> None:
    record = told(NEW, BAD, now=3.0)
    assert next_probe(record, rules=RULES) == 3.0
    assert next_probe(looked(record, BAD, now=4.0), rules=RULES) == 6.0


def test_another_s_canary_spares_this_node_its_own() -> None:
    record = told(NEW, Finding(ok=True, basis="canary"), now=5.0)
    assert not canary_wanted(record, now=3604.0, rules=RULES)


def test_another_s_failed_canary_is_not_repeated_at_once() -> None:
    record = NEW
    for now in (1.0, 2.0, 4.0, 8.0):
        record = told(record, Finding(ok=False, basis="canary", reason="wrong_model"), now=now)
    assert seen(record).reason == "wrong_model"
    assert canary_wanted(record, now=9.0, rules=RULES)
    assert not canary_allowed(record, now=15.9, rules=RULES)
