from __future__ import annotations

from datetime import UTC, datetime, timedelta

import attrs

from gateway.registry.qualification import (
    Evidence,
    Finding,
    Outcome,
    Proofs,
    Record,
    Rules,
    State,
    called,
    evidence,
    next_probe,
    probed,
    qualification_id,
)

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
