from __future__ import annotations

from datetime import UTC, datetime, timedelta

import attrs
import pytest

from gateway.registry.qualification import (
    Evidence,
    Finding,
    Outcome,
    Proofs,
    Record,
    Rules,
    State,
    canary_allowed,
    canary_wanted,
    evidence,
    next_probe,
    probed,
    proof_basis,
    proved_at,
    qualification_id,
)
from gateway.registry.route_calls import called

RULES = Rules()
START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
GOOD = Finding(ok=True)
BAD = Finding(ok=False, reason="unreachable")
LOST = Outcome("r", ok=False, reason="timeout", ms=8000)
FINE = Outcome("r", ok=True, ms=120)


def after_probe(record: Record, finding: Finding = GOOD, now: float = 0.0, ms: int = 20) -> Record:
    return probed(record, finding, now=now, wall=START + timedelta(seconds=now), ms=ms, rules=RULES)


def after_calls(record: Record, *outcomes: Outcome, now: float = 1.0) -> Record:
    for outcome in outcomes:
        record = called(record, outcome, now=now, rules=RULES)
    return record


def seen(record: Record) -> Evidence:
    return evidence(record, rules=RULES)


PROVEN = after_probe(Record("r"))


def test_a_route_that_was_never_probed_is_unproven_and_closed() -> None:
    found = seen(Record("r"))
    assert (found.state, found.reason, found.open, found.qualification_id) == (
        State.UNPROVEN,
        "not_probed",
        False,
        None,
    )


def test_a_successful_probe_opens_a_route_for_three_intervals() -> None:
    found = seen(PROVEN)
    assert found.open
    assert found.state is State.AVAILABLE
    assert found.last_probe_at == START
    assert found.valid_until == START + timedelta(seconds=45)
    assert found.at(44.9).open
    assert found.at(45.0).state is State.UNPROVEN
    assert found.at(45.0).reason == "proof_expired"
    assert found.at(45.0).qualification_id is None


def test_a_failed_probe_closes_at_once_and_says_why() -> None:
    found = seen(after_probe(PROVEN, BAD, 15.0))
    assert (found.state, found.reason, found.open, found.valid_until) == (
        State.UNAVAILABLE,
        "unreachable",
        False,
        None,
    )


def test_failed_probes_come_after_one_second_doubling_to_the_interval() -> None:
    record, now, pauses = PROVEN, 0.0, []
    for _ in range(7):
        record = after_probe(record, BAD, now)
        due = next_probe(record, rules=RULES)
        pauses.append(due - now)
        now = due
    assert pauses == [1, 2, 4, 8, 15, 15, 15]


def test_a_recovered_probe_opens_again_and_returns_to_the_interval() -> None:
    record = after_probe(after_probe(PROVEN, BAD, 15.0), GOOD, 16.0)
    assert seen(record).open
    assert next_probe(record, rules=RULES) == 31.0
    assert next_probe(record, rules=RULES, jitter=1.1) == 32.5


def test_one_failed_call_closes_nothing_but_brings_the_next_probe_forward() -> None:
    record = after_calls(PROVEN, LOST)
    assert seen(record).open
    assert next_probe(record, rules=RULES) == 1.0


def test_three_failed_calls_in_a_row_close_the_route() -> None:
    found = seen(after_calls(PROVEN, LOST, LOST, LOST))
    assert (found.state, found.reason) == (State.UNAVAILABLE, "consecutive_failures")


def test_a_good_call_between_failed_ones_starts_the_count_again() -> None:
    assert seen(after_calls(PROVEN, LOST, LOST, FINE, LOST, LOST)).open


def test_a_probe_before_the_back_off_has_passed_does_not_open_a_route_that_calls_closed() -> None:
    record = after_calls(PROVEN, LOST, LOST, LOST, now=10.0)
    assert not seen(after_probe(record, GOOD, 10.5)).open
    assert seen(after_probe(record, GOOD, 11.0)).open


def test_a_half_open_route_closes_again_on_its_first_failed_call_for_twice_as_long() -> None:
    record = after_calls(PROVEN, LOST, LOST, LOST, now=10.0)
    record = after_probe(record, GOOD, 11.0)
    record = after_calls(record, LOST, now=12.0)
    assert seen(record).reason == "consecutive_failures"
    assert next_probe(record, rules=RULES) == 14.0
    assert not seen(after_probe(record, GOOD, 13.9)).open


def test_a_half_open_route_is_whole_again_after_one_good_call() -> None:
    record = after_probe(after_calls(PROVEN, LOST, LOST, LOST, now=10.0), GOOD, 11.0)
    assert seen(after_calls(record, FINE, LOST, LOST, now=12.0)).open


def test_a_straggler_of_a_closed_route_neither_opens_it_nor_closes_it_longer() -> None:
    closed = after_calls(PROVEN, LOST, LOST, LOST, now=10.0)
    for straggler in (FINE, LOST):
        late = after_calls(closed, straggler, now=10.2)
        assert not seen(late).open
        assert late.closed_until == closed.closed_until == 11.0


def test_a_failed_probe_of_a_route_that_calls_closed_keeps_it_closed() -> None:
    record = after_calls(PROVEN, LOST, LOST, LOST, now=10.0)
    record = after_probe(record, BAD, 11.0)
    assert seen(record).reason == "unreachable"
    assert next_probe(record, rules=RULES) == 12.0
    assert seen(after_probe(record, GOOD, 12.0)).open


def test_degraded_findings_leave_a_route_open_and_say_why() -> None:
    found = seen(after_probe(Record("r"), Finding(ok=True, degraded=True, reason="engines_missing")))
    assert (found.state, found.reason, found.open) == (State.DEGRADED, "engines_missing", True)


def test_evidence_says_when_it_rests_on_the_configuration_alone() -> None:
    assert seen(after_probe(Record("r"), Finding(ok=True, basis="configuration"))).basis == "configuration"


def test_p50_is_of_calls_where_there_are_calls_and_of_probes_before() -> None:
    assert seen(PROVEN).p50_ms == 20
    assert seen(after_calls(PROVEN, FINE, attrs.evolve(FINE, ms=140))).p50_ms == 130


def test_the_error_rate_counts_probes_and_calls_and_looks_back_fifty() -> None:
    assert seen(after_calls(PROVEN, LOST)).error_rate == 0.5
    record = PROVEN
    for _ in range(60):
        record = after_calls(record, FINE)
    assert len(record.observations) == 50
    assert seen(record).error_rate == 0.0


def test_a_qualification_id_names_one_proof_of_one_route() -> None:
    later = START + timedelta(microseconds=1)
    ids = {
        qualification_id("r", START, "probe"),
        qualification_id("s", START, "probe"),
        qualification_id("r", later, "probe"),
    }
    assert len(ids) == 3
    assert all(each.startswith("q_") and len(each) == 22 for each in ids)
    assert seen(PROVEN).qualification_id == qualification_id("r", START, "probe")


def test_a_qualification_id_tells_when_it_was_proved_and_whose_it_is() -> None:
    moment = START + timedelta(microseconds=123_457)
    name = qualification_id("ai/openai/gpt-5.6-luna", moment, "canary")
    assert proved_at(name) == moment
    assert proof_basis(name, "ai/openai/gpt-5.6-luna") == "canary"
    assert proof_basis(name, "ai/openai/gpt-5.6-terra") is None


@pytest.mark.parametrize(
    "name", ["", "q_", "q_1", "op_0123456789abcdef0123", "q_0123456789ABCDEF0123", "q_" + "0" * 21]
)
def test_what_is_no_qualification_id_names_no_proof(name: str) -> None:
    assert proved_at(name) is None
    assert proof_basis(name, "r") is None


def test_the_names_of_later_proofs_sort_after_those_of_earlier_ones() -> None:
    moments = [START + timedelta(seconds=17 * n) for n in range(50)]
    names = [qualification_id("r", moment, "probe") for moment in moments]
    assert names == sorted(names)


# -- one failure closes ------------------------------------------------------------------------------------------------

STRICT = Rules(failures_to_close=1)


def test_where_one_failed_call_closes_the_reason_is_that_of_the_call() -> None:
    for reason, told in (("status_500", "status_500"), ("wrong_model", "wrong_model"), (None, "call_failed")):
        closed = called(PROVEN, Outcome("r", ok=False, reason=reason), now=1.0, rules=STRICT)
        assert (seen(closed).state, seen(closed).reason) == (State.UNAVAILABLE, told)


def test_a_call_from_before_a_route_opened_again_decides_nothing() -> None:
    closed = called(PROVEN, attrs.evolve(LOST, began=0.5), now=2.0, rules=STRICT)
    record = probed(closed, GOOD, now=3.0, wall=START, ms=20, rules=STRICT)
    late = called(record, attrs.evolve(LOST, began=2.9), now=9.0, rules=STRICT)
    assert seen(late).open
    assert late.closings == record.closings
    assert not seen(called(record, attrs.evolve(LOST, began=3.0), now=9.0, rules=STRICT)).open
    assert called(record, attrs.evolve(FINE, began=2.9), now=9.0, rules=STRICT).closings == 1


# -- canaries ----------------------------------------------------------------------------------------------------------

ANSWERED = Finding(ok=True, basis="canary")
REFUSED = Finding(ok=False, basis="canary", reason="wrong_model")


def wanted(record: Record, now: float) -> bool:
    return canary_wanted(record, now=now, rules=RULES)


def test_a_canary_is_wanted_before_anything_real_has_succeeded_and_an_hour_after() -> None:
    assert wanted(Record("r"), 0.0)
    assert wanted(PROVEN, 1.0)
    record = after_probe(Record("r"), ANSWERED, 5.0)
    assert not wanted(record, 3604.9)
    assert wanted(record, 3605.0)


def test_a_good_call_spares_the_canary() -> None:
    record = after_calls(after_probe(Record("r"), ANSWERED, 5.0), FINE, now=3000.0)
    assert not wanted(record, 6599.0)


def test_a_good_call_over_a_closed_route_spares_nothing() -> None:
    refused = after_probe(after_probe(Record("r"), ANSWERED, 5.0), REFUSED, 10.0)
    assert wanted(after_calls(refused, FINE, now=11.0), 12.0)


def test_a_failed_call_spares_nothing() -> None:
    assert wanted(after_calls(PROVEN, LOST), 2.0)


def test_a_canary_is_wanted_when_a_route_is_half_open_and_not_before() -> None:
    record = after_calls(after_probe(Record("r"), ANSWERED, 0.0), LOST, LOST, LOST, now=10.0)
    assert not wanted(record, 10.9)
    assert wanted(record, 11.0)
    assert not wanted(after_probe(record, ANSWERED, 12.0), 12.0)


def test_the_pause_after_failed_canaries_doubles_up_to_their_interval() -> None:
    record, now, pauses = Record("r"), 0.0, []
    for _ in range(15):
        record = after_probe(record, REFUSED, now)
        later = next(pause for pause in range(1, 4000) if canary_allowed(record, now=now + pause, rules=RULES))
        pauses.append(later)
        now += later
    assert pauses == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 3600, 3600, 3600]


def test_after_a_good_canary_the_next_one_is_allowed_at_once() -> None:
    record = after_probe(after_probe(Record("r"), REFUSED, 0.0), ANSWERED, 1.0)
    assert canary_allowed(record, now=1.0, rules=RULES)


def test_a_canary_ends_while_the_proof_of_the_round_before_still_stands() -> None:
    longest_round = RULES.interval_s * 1.1 + RULES.probe_timeout_s + RULES.canary_timeout_s
    assert longest_round < RULES.validity_s


def test_a_failure_count_of_any_size_has_a_back_off() -> None:
    assert RULES.back_off(100_000) == RULES.interval_s
    assert RULES.canary_back_off(100_000) == RULES.canary_interval_s


def test_proofs_read_an_unknown_route_as_unproven() -> None:
    assert Proofs(lambda: 0.0).of("nowhere").state is State.UNPROVEN


def test_proofs_expire_by_themselves_when_nothing_is_published_any_more() -> None:
    now = [0.0]
    proofs = Proofs(lambda: now[0])
    proofs.publish({"r": seen(PROVEN)})
    assert proofs.of("r").open
    assert proofs.snapshot()["r"].open
    now[0] = 45.0
    assert not proofs.of("r").open
    assert not proofs.snapshot()["r"].open


def test_a_snapshot_is_not_changed_by_what_is_published_later() -> None:
    proofs = Proofs(lambda: 0.0)
    published = {"r": seen(PROVEN)}
    proofs.publish(published)
    snapshot = proofs.snapshot()
    published["s"] = seen(PROVEN)
    proofs.publish({})
    assert set(snapshot) == {"r"}
