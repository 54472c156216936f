"""What a store says of a move to another store: that it was moved away, or that it is not whole yet.

Two stores that both took calls under the same keys would charge twice for one key.  So a store that was moved serves no
more, and one that a move is still filling does not serve yet.  `gateway.moving` writes these facts into `node_facts`.
"""

from __future__ import annotations

from collections.abc import Mapping

import orjson

from gateway.actors.store.errors import StoreRefused
from gateway.actors.store.protocol import Store

STORE_ID = "store-id"
"""A random id of the store, which goes along when it moves."""

MOVED_TO = "moved-to"
"""In the store that was left: a JSON object with `url` (no password in it) and `at` (RFC 3339)."""

MOVING_FROM = "moving-from"
"""In the store that a move is filling: a JSON object, how far it is."""

MOVED_FROM = "moved-from"
"""In the store that was filled, once it is whole: a JSON object with the `store` it came from and `at` (RFC 3339)."""

OF_THE_MOVE = (MOVED_TO, MOVING_FROM, MOVED_FROM)
"""What belongs to one of the two stores and is not copied."""

SELECT_OF_THE_MOVE = "SELECT name, value FROM node_facts WHERE name IN ('moved-to', 'moving-from', 'moved-from')"


async def require_whole(store: Store, where: object) -> None:
    """Raise StoreRefused if the store must not be served from because of a move; `where` names it."""
    require_here({str(name): str(value) for name, value in await store.fetch(SELECT_OF_THE_MOVE)}, where)


def require_here(facts: Mapping[str, str], where: object) -> None:
    """The same, of what `SELECT_OF_THE_MOVE` found."""
    if MOVED_TO in facts:
        left = orjson.loads(facts[MOVED_TO])
        raise StoreRefused(
            where,
            f"it was moved to {left['url']} at {left['at']}",
            f'Configure [store] url = "{left["url"]}"; two stores over the same keys would charge twice',
        )
    if MOVING_FROM in facts:
        raise StoreRefused(
            where,
            "a move is still filling it",
            "Run the same `gateway migrate --to` again, it goes on where it was; no node may use the store before",
        )
