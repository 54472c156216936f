"""Supervised actors on trio.

An actor is an async function that owns its state in local variables and reads letters from an inbox.  Everyone else
holds a `Ref` and may only ask or tell.

    class Spend(Ask[Balance]): ...

    async def ledger(inbox: Inbox[Spend]) -> None:
        spent = 0
        inbox.ready()
        async for letter in inbox:
            spent += letter.message.amount
            letter.answer(letter.message, Balance(spent))

    async with open_runtime() as runtime:
        ref = await runtime.start("ledger", ledger)
        balance = await ref.ask(Spend(3), within=1.0)

Three promises hold for every ask, whatever is cancelled and whenever:

* `Overloaded` or `ActorDown` means the actor never saw the message.
* `Unanswered` or `ActorCrashed` means it did, and the outcome is unknown.
* A message in the actor's hands is finished by the actor.  An asker that goes away (a client hanging up) withdraws a
  queued message, never a running one; nor does a cancellation around the runtime reach an actor, which ends in order.
"""

from gateway.actors.runtime._actor import Body, Inbox
from gateway.actors.runtime._errors import ActorCrashed, ActorDown, ActorError, Overloaded, Unanswered, UpwardAsk
from gateway.actors.runtime._letter import Ask, Letter
from gateway.actors.runtime._life import Event, Health, Phase, Restart
from gateway.actors.runtime._ref import Ref
from gateway.actors.runtime._runtime import Runtime, open_runtime

__all__ = [
    "ActorCrashed",
    "ActorDown",
    "ActorError",
    "Ask",
    "Body",
    "Event",
    "Health",
    "Inbox",
    "Letter",
    "Overloaded",
    "Phase",
    "Ref",
    "Restart",
    "Runtime",
    "Unanswered",
    "UpwardAsk",
    "open_runtime",
]
