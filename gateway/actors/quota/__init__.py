"""The quota actor: calls a caller and window, counted over all nodes of a store.

A window opens with a caller's first call and lasts `window_s`.  Where one node has the store to itself, counters live
in memory and are flushed (`memory`).  Where nodes share it, the rows of the store decide (`shared`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gateway.actors.quota.memory import count_in_memory
from gateway.actors.quota.policy import Allowance, GiveBack, Message, Policy, Spend
from gateway.actors.quota.shared import count_in_store
from gateway.actors.runtime import Inbox
from gateway.actors.store import NodeStore

__all__ = ["Allowance", "GiveBack", "Message", "Policy", "Spend", "quota"]


async def quota(
    inbox: Inbox[Message], *, policies: Mapping[str, Policy], store: NodeStore, clock_ms: Callable[[], int]
) -> None:
    """Count calls; `clock_ms` is for a store of one node, nodes that share one count by the store's clock."""
    if store.shared:
        await count_in_store(inbox, policies=policies, store=store)
    else:
        await count_in_memory(inbox, policies=policies, store=store, clock_ms=clock_ms)
