"""What real calls prove of a route: pure rules over their outcomes, kept in the records of `qualification`.

`failures_to_close` failed calls in a row close a route for a back-off that doubles.  What a request can bring about
(`call_evidence.Weight`) is not counted among them: the next probe comes soon instead, and only `callers_to_close`
unrelated callers without a success between them close the route.  A fault closes it as well, but one caller's faults
close it for a back-off once in `voice_s` only: after that, until somebody has looked.
"""

from __future__ import annotations

import attrs

from gateway.registry.call_evidence import Weight, believed, heard, neighbourhood, refuted
from gateway.registry.qualification import Observation, Outcome, Record, Rules, observed


def called(record: Record, outcome: Outcome, *, now: float, rules: Rules) -> Record:
    """Return the record after a real call that ended at `now`."""
    doubtful = not outcome.ok and outcome.weight is Weight.DOUBT
    seen = observed(record, Observation(outcome.ok, probe=False, ms=outcome.ms, doubtful=doubtful), rules)
    if record.closed_until is not None or (outcome.began is not None and outcome.began < record.reopened_at):
        return attrs.evolve(record, observations=seen)  # one that was sent before the route closed decides nothing
    if outcome.ok:
        answered_at = record.answered_at if record.refusal else now
        voices = refuted(record.voices)
        return attrs.evolve(
            record, observations=seen, failed_calls=0, closings=0, answered_at=answered_at, voices=voices
        )
    caller = neighbourhood(outcome.caller)
    voices = heard(record.voices, caller, now=now, window_s=rules.voice_s)
    failed = record.failed_calls + (outcome.weight in {Weight.FAULT, Weight.PROOF})
    record = attrs.evolve(record, observations=seen, failed_calls=failed, suspect=True, voices=voices)
    several = sum(each.stands for each in voices) >= rules.callers_to_close
    if several or (outcome.weight is not Weight.DOUBT and failed >= rules.failures_to_close):
        return _closed(record, outcome, caller, now=now, rules=rules, several=several)
    return record


def _closed(record: Record, outcome: Outcome, caller: str, *, now: float, rules: Rules, several: bool) -> Record:
    """Return the record of a route that calls have closed: for a back-off, unless one caller alone closes it again."""
    again = any(each.held for each in record.voices if each.caller == caller)
    lasts = several or outcome.weight is Weight.PROOF or not again
    closings = record.closings + lasts
    return attrs.evolve(
        record,
        refusal="consecutive_failures" if rules.failures_to_close > 1 else outcome.reason or "call_failed",
        closings=closings,
        closed_until=now + rules.back_off(closings) if lasts else now,
        on_repetition=not lasts,
        voices=believed(record.voices, caller),
    )
