"""The life of an operation, as a table: (state, event) -> (next state, effect).

Three steps are durable: the claim (before any foreign effect), the kept output with the intent to settle (before
/settle) and the receipt.  The states between are told from these and from events.  Nothing here does anything; `live`
runs the effects and feeds back what came of them.  What a crash leaves is taken on by the event of the last durable
step (`CLAIMED_PAID`, `CLAIMED_FREE`, `RESUMED`), never by a guess; a run that must not be repeated by `RUN_LOST`.
"""

from __future__ import annotations

from enum import Enum, StrEnum


class State(StrEnum):
    """Where an operation stands; on the wire in upper case."""

    QUOTED = "quoted"
    CLAIMED = "claimed"
    VERIFIED = "verified"
    EXECUTING = "executing"
    EXECUTED = "executed"
    SETTLING = "settling"
    SETTLED = "settled"
    RECEIPTED = "receipted"
    FAILED = "failed"
    EXPIRED = "expired"
    NEEDS_OPERATOR = "needs_operator"

    @property
    def ended(self) -> bool:
        """True where nothing more happens by itself."""
        return self in ENDS


ENDS = frozenset({State.RECEIPTED, State.FAILED, State.EXPIRED, State.NEEDS_OPERATOR})


class Event(Enum):
    """What came of an effect."""

    CLAIMED_FREE = "the claim of a free operation stands"
    CLAIMED_PAID = "the claim of a paid operation stands"
    VERIFIED = "the facilitator verified the payment"
    ALREADY_PAID = "the chain shows the payment made before it was settled here"
    VERIFIED_KEPT = "the payment is verified, and an earlier attempt kept the output"
    REFUSED = "the facilitator refused the payment and the chain shows it unused, cancelled or older than its quote"
    UNVERIFIABLE = "nobody could verify the payment"
    OVER_LIMIT = "with what other nodes claimed meanwhile, too much of this payer is unsettled"
    STARTED = "the execution may begin"
    SERVED_FREE = "a free execution gave a result"
    SERVED_PAID = "a paid execution gave a result"
    SERVE_FAILED = "the execution failed"
    RUN_LOST = "a run that must not be repeated may have happened and its outcome is lost"
    KEPT = "the output and the intent to settle are durable"
    RESUMED = "a crash or a restart left kept output whose settlement is not decided"
    SUBMITTED = "the facilitator was asked to settle, whatever it answered"
    CONFIRMED = "the chain shows AuthorizationUsed and the matching Transfer, deep enough"
    UNDECIDED = "the chain cannot be read, or not yet"
    UNUSED = "the chain shows the authorization unused and still valid"
    DEAD = "the chain shows that the authorization cannot settle any more"
    DIVERTED = "the chain shows the authorization used for another transfer, or for something sold before"
    LOST_TRACK = "the authorization is spent, and neither a transfer nor a cancellation can be found"
    RECEIPT_KEPT = "the ledger posting and the receipt are durable"


class Effect(Enum):
    """What to do next."""

    VERIFY = "ask the facilitator to verify"
    START = "begin the execution"
    EXECUTE = "execute"
    KEEP = "make the output and the intent to settle durable"
    SETTLE = "ask the facilitator to settle"
    LOOK = "look at the chain"
    RECEIPT = "post the ledger, sign and keep the receipt"
    END = "record the end without a charge"
    REST = "nothing more"


class Impossible(RuntimeError):
    """An event that cannot happen in this state: a defect."""


TABLE: dict[tuple[State, Event], tuple[State, Effect]] = {
    (State.CLAIMED, Event.CLAIMED_FREE): (State.CLAIMED, Effect.START),
    (State.CLAIMED, Event.CLAIMED_PAID): (State.CLAIMED, Effect.VERIFY),
    (State.CLAIMED, Event.VERIFIED): (State.VERIFIED, Effect.START),
    (State.CLAIMED, Event.ALREADY_PAID): (State.VERIFIED, Effect.START),
    (State.CLAIMED, Event.VERIFIED_KEPT): (State.EXECUTED, Effect.KEEP),
    (State.CLAIMED, Event.REFUSED): (State.FAILED, Effect.END),
    (State.CLAIMED, Event.UNVERIFIABLE): (State.FAILED, Effect.END),
    (State.CLAIMED, Event.DIVERTED): (State.NEEDS_OPERATOR, Effect.END),
    (State.CLAIMED, Event.OVER_LIMIT): (State.FAILED, Effect.END),
    (State.CLAIMED, Event.RUN_LOST): (State.FAILED, Effect.END),
    (State.CLAIMED, Event.STARTED): (State.EXECUTING, Effect.EXECUTE),
    (State.VERIFIED, Event.STARTED): (State.EXECUTING, Effect.EXECUTE),
    (State.EXECUTING, Event.SERVED_FREE): (State.EXECUTED, Effect.RECEIPT),
    (State.EXECUTING, Event.SERVED_PAID): (State.EXECUTED, Effect.KEEP),
    (State.EXECUTING, Event.SERVE_FAILED): (State.FAILED, Effect.END),
    (State.EXECUTING, Event.RUN_LOST): (State.FAILED, Effect.END),
    (State.EXECUTED, Event.KEPT): (State.SETTLING, Effect.SETTLE),
    (State.EXECUTED, Event.RESUMED): (State.SETTLING, Effect.LOOK),
    (State.EXECUTED, Event.RECEIPT_KEPT): (State.RECEIPTED, Effect.REST),
    (State.SETTLING, Event.SUBMITTED): (State.SETTLING, Effect.LOOK),
    (State.SETTLING, Event.UNDECIDED): (State.SETTLING, Effect.LOOK),
    (State.SETTLING, Event.UNUSED): (State.SETTLING, Effect.SETTLE),
    (State.SETTLING, Event.CONFIRMED): (State.SETTLED, Effect.RECEIPT),
    (State.SETTLING, Event.DEAD): (State.FAILED, Effect.END),
    (State.SETTLING, Event.DIVERTED): (State.NEEDS_OPERATOR, Effect.END),
    (State.SETTLING, Event.LOST_TRACK): (State.NEEDS_OPERATOR, Effect.END),
    (State.SETTLED, Event.RECEIPT_KEPT): (State.RECEIPTED, Effect.REST),
}


def decide(state: State, event: Event) -> tuple[State, Effect]:
    """Return the next state and the effect to run; raises `Impossible`."""
    try:
        return TABLE[state, event]
    except KeyError:
        raise Impossible(f"{event.name} in state {state.value}") from None
