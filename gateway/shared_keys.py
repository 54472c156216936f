"""The keys that all nodes of a store have alike: a node joins with the keys that the store knows, or not at all."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from gateway.actors.store import Conflict, Row, Statement, Store
from gateway.keys import FACT, Keys, KeysRefused, open_shared_keys, require_known

SELECT_KNOWN = "SELECT name, value FROM node_facts ORDER BY name"

RECORD = """
    INSERT INTO node_facts (name, value) VALUES (:name, :value)
    ON CONFLICT (name) DO UPDATE SET value = node_facts.value WHERE node_facts.value = excluded.value
"""
"""Changes one row, or none where the store knows another key by that name."""


async def join_keys(store: Store, directory: Path) -> Keys:
    """Open the keys under `directory` and record in the store what it does not know of them yet.

    On a store that knows no key, what is missing is made.  Raises `KeysRefused` where the keys are not the store's,
    also where another node that starts at the same time was first with its own; `StoreUnavailable` as any step does.
    """
    keys, fresh = open_shared_keys(directory, known_keys(await store.fetch(SELECT_KNOWN)))
    if fresh:
        names = sorted(fresh)
        try:
            await store.commit(*(Statement(RECORD, {"name": name, "value": fresh[name]}, rows=1) for name in names))
        except Conflict as conflict:
            require_known(keys, known_keys(await store.fetch(SELECT_KNOWN)), directory)
            raise KeysRefused(f"{directory}: {names[conflict.index]} changes in the store; start again") from conflict
        require_known(keys, known_keys(await store.fetch(SELECT_KNOWN)), directory)
    return keys


def known_keys(facts: Iterable[Row]) -> dict[str, str]:
    """Return the fingerprints of the keys that a store knows, from the rows of `SELECT_KNOWN`."""
    return {str(name): str(value) for name, value in facts if FACT.match(str(name))}
