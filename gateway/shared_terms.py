"""What all nodes of a store are paid in and to: a node joins on the terms of those that run, or not at all.

Each node records its terms at its start, with a number that counts such records: of two nodes that start at once on
different terms the one with the higher number sees the other.  What no running node has is replaced: terms are changed
by stopping every node and starting one that has the new ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import attrs
import structlog
import trio

from gateway.actors.store import Engine, Row, Statement
from gateway.config import Configuration, ConfigurationError
from gateway.errors import Violation

log = structlog.get_logger(__name__)

FACT = "terms:"
"""How a store names the terms of a node: this, and the node's name."""
LOOK_S = 0.1

COUNT = """
    INSERT INTO node_facts (name, value) VALUES ('terms', '1')
    ON CONFLICT (name) DO UPDATE SET value = CAST(CAST(node_facts.value AS BIGINT) + 1 AS TEXT)
"""
RECORD = """
    INSERT INTO node_facts (name, value)
    SELECT :name, f.value || ' ' || :terms FROM node_facts f WHERE f.name = 'terms'
    ON CONFLICT (name) DO UPDATE SET value = excluded.value
    RETURNING value
"""
OWN = "SELECT value FROM node_facts WHERE name = :name"
OF_OTHERS = """
    SELECT n.node, f.value FROM nodes n JOIN node_facts f ON f.name = 'terms:' || n.node
    WHERE n.node <> :node AND n.lease_until >= :store_ms ORDER BY n.node
"""


@attrs.frozen
class Terms:
    """What a node is paid in and to; addresses in lower case."""

    network: str
    asset: str
    pay_to: str

    @classmethod
    def of(cls, configuration: Configuration) -> Terms | None:
        """Return those of a configuration, None where payments are not configured."""
        payment = configuration.payment
        return cls(payment.network, payment.asset.lower(), payment.pay_to.lower()) if payment.configured else None

    @classmethod
    def read(cls, fact: str) -> tuple[int, Terms]:
        """Return what `str` and `RECORD` made of terms, with the number of the record."""
        number, network, asset, pay_to = fact.split(" ")
        return int(number), cls(network, asset, pay_to)

    def __str__(self) -> str:
        return f"{self.network} {self.asset} {self.pay_to}"

    def differences(self, others: Mapping[str, Terms]) -> list[Violation]:
        """Say of each member that a running node has otherwise: where it is configured, and what to do."""
        return [
            Violation(
                f"/payment/{name}",
                f"it is {getattr(self, name)} here and {getattr(theirs, name)} on node {node}, which runs over the same"
                " store. Configure the same on every node; to change it, stop every node and start them with the new"
                " value",
            )
            for node, theirs in sorted(others.items())
            for name in ("network", "asset", "pay_to")
            if getattr(self, name) != getattr(theirs, name)
        ]


async def join_terms(store: Engine, configuration: Configuration) -> None:
    """Record this node's terms; raises `ConfigurationError` where a node that runs over the store has others.

    The lease of a node that was killed is waited for.  Raises `StoreUnavailable` as any step does.
    """
    ours, node = Terms.of(configuration), configuration.node.name
    if ours is None:
        return
    name = FACT + node
    before = await store.fetch(OWN, {"name": name})
    *_, ((value,),) = await store.commit(
        Statement(COUNT), Statement(RECORD, {"name": name, "terms": str(ours)}, rows=1)
    )
    number, _ = Terms.read(str(value))
    gives_up = trio.current_time() + configuration.store.lease_ms / 1000 + LOOK_S
    while differing := ours.differences(_earlier(await store.fetch(OF_OTHERS, {"node": node}), number)):
        if trio.current_time() >= gives_up:
            raise ConfigurationError(configuration.source, differing)
        await trio.sleep(LOOK_S)
    was = Terms.read(str(before[0][0]))[1] if before else ours
    if was != ours:
        log.warning("payment_terms_changed", was=str(was), now=str(ours))


def running(facts: Iterable[Row], alive: Iterable[str], node: str) -> dict[str, Terms]:
    """Return the terms of the nodes that are alive, but for `node`, from what a store knows."""
    known = {str(name): str(value) for name, value in facts}
    return {each: Terms.read(known[FACT + each])[1] for each in alive if each != node and FACT + each in known}


def _earlier(rows: Iterable[Row], number: int) -> dict[str, Terms]:
    """Return the terms that running nodes recorded before the record of that number."""
    read = {str(node): Terms.read(str(value)) for node, value in rows}
    return {node: terms for node, (recorded, terms) in read.items() if recorded < number}
