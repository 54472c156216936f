"""The table, walked in full: each pair of a state and an event is in it, or cannot happen."""

from __future__ import annotations

from itertools import product

import pytest

from gateway.actors.operations.life import ENDS, TABLE, Effect, Event, Impossible, State, decide

EXPECTED = """
claimed    CLAIMED_FREE   claimed         START
claimed    CLAIMED_PAID   claimed         VERIFY
claimed    VERIFIED       verified        START
claimed    ALREADY_PAID   verified        START
claimed    VERIFIED_KEPT  executed        KEEP
claimed    REFUSED        failed          END
claimed    UNVERIFIABLE   failed          END
claimed    DIVERTED       needs_operator  END
claimed    OVER_LIMIT     failed          END
claimed    RUN_LOST       failed          END
claimed    STARTED        executing       EXECUTE
verified   STARTED        executing       EXECUTE
executing  SERVED_FREE    executed        RECEIPT
executing  SERVED_PAID    executed        KEEP
executing  SERVE_FAILED   failed          END
executing  RUN_LOST       failed          END
executed   KEPT           settling        SETTLE
executed   RESUMED        settling        LOOK
executed   RECEIPT_KEPT   receipted       REST
settling   SUBMITTED      settling        LOOK
settling   UNDECIDED      settling        LOOK
settling   UNUSED         settling        SETTLE
settling   CONFIRMED      settled         RECEIPT
settling   DEAD           failed          END
settling   DIVERTED       needs_operator  END
settling   LOST_TRACK     needs_operator  END
settled    RECEIPT_KEPT   receipted       REST
"""
WALK = {
    (State(state), Event[event]): (State(then), Effect[effect])
    for state, event, then, effect in (line.split() for line in EXPECTED.strip().splitlines())
}


@pytest.mark.parametrize(("state", "event"), list(product(State, Event)))
def test_every_pair_is_decided_or_impossible(state: State, event: Event) -> None:
    if (state, event) in WALK:
        assert decide(state, event) == WALK[state, event]
    else:
        with pytest.raises(Impossible, match=f"{event.name} in state {state.value}"):
            decide(state, event)


def test_nothing_happens_after_an_end() -> None:
    assert not {state for state, _ in TABLE} & ENDS
    assert {State.RECEIPTED, State.FAILED, State.EXPIRED, State.NEEDS_OPERATOR} == {
        each for each in State if each.ended
    }


def test_an_end_has_nothing_left_to_do_but_to_be_recorded() -> None:
    for after, effect in TABLE.values():
        assert after.ended == (effect in {Effect.END, Effect.REST})


def test_nothing_is_submitted_before_the_intent_is_durable() -> None:
    before = {
        event
        for (state, event), (_, effect) in TABLE.items()
        if effect is Effect.SETTLE and state is not State.SETTLING
    }
    assert before == {Event.KEPT}


def test_only_the_chain_decides_that_something_was_paid() -> None:
    receipted = {pair for pair, (_, effect) in TABLE.items() if effect is Effect.RECEIPT}
    assert receipted == {(State.EXECUTING, Event.SERVED_FREE), (State.SETTLING, Event.CONFIRMED)}


def test_every_state_but_those_of_the_wire_alone_can_be_reached() -> None:
    reached = {after for after, _ in TABLE.values()} | {State.CLAIMED}
    assert set(State) - reached == {State.QUOTED, State.EXPIRED}


def test_every_event_and_every_effect_is_used() -> None:
    assert {event for _, event in TABLE} == set(Event)
    assert {effect for _, effect in TABLE.values()} == set(Effect)
