"""What the machine offers the sandbox, and what earlier runs left."""

from __future__ import annotations

from gateway.config import Configuration
from gateway.doctor._check import Check, failed, fine, note
from gateway.doctor._listeners import holder_of
from gateway.sandbox.host import Fact, Grade, Machine, examine, leftovers
from gateway.sandbox_settings import wanted_of

NOT_THERE_YET = frozenset({"sandbox.bwrap_missing", "sandbox.image_missing"})
"""What the operator has yet to install: no fault of the machine."""
CLOSED = "sandbox.execute answers 503 before any quote"
OFF = "set enabled = false in [sandbox]"


def sandbox(
    configuration: Configuration, alive: frozenset[str] = frozenset(), machine: Machine | None = None
) -> list[Check]:
    """Check what runs need, image included; `alive` are the nodes over a shared store."""
    if not configuration.sandbox.enabled:
        return [fine("sandbox", "it is switched off, and no runs are sold")]
    wanted = wanted_of(configuration)
    facts = list(examine(wanted, machine).facts)
    if not _runs(configuration, alive):
        facts.append(leftovers(wanted, machine))
    return [judged(each) for each in facts]


def judged(fact: Fact) -> Check:
    """Return what a fact about the machine means."""
    name = f"sandbox {fact.name}"
    if fact.grade is Grade.FINE:
        return fine(name, fact.fact)
    if fact.grade is Grade.NOTE:
        return note(name, fact.fact, fact.consequence, fact.fix)
    told = f"{fact.fact} ({fact.reason})"
    if fact.reason in NOT_THERE_YET:
        return note(name, told, CLOSED, f"{fact.fix}; or {OFF}")
    return failed(name, told, f"{fact.consequence}: {CLOSED}", f"{fact.fix}; or {OFF}")


def _runs(configuration: Configuration, alive: frozenset[str]) -> bool:
    if configuration.shared_store:
        return configuration.node.name in alive
    return holder_of(configuration.store_path) is not None
