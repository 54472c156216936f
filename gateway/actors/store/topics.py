"""Topics that tasks of this node wait for: told here, or heard of from another node."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import final

import attrs
import trio


@final
@attrs.define(eq=False)
class Topics:
    """Those who hear, by topic; a topic that nobody hears costs nothing."""

    _heard: dict[str, set[trio.Event]] = attrs.field(factory=dict)

    @contextmanager
    def hear(self, topic: str) -> Iterator[trio.Event]:
        """An event that is set once the topic is told while the block runs."""
        event = trio.Event()
        self._heard.setdefault(topic, set()).add(event)
        try:
            yield event
        finally:
            waiting = self._heard[topic]
            waiting.discard(event)
            if not waiting:
                del self._heard[topic]

    def wake(self, topics: Iterable[str]) -> None:
        """Set the events of all who hear these topics."""
        for topic in topics:
            for event in self._heard.get(topic, ()):
                event.set()

    def wake_all(self) -> None:
        """Set every event: what was told while nobody listened is not known."""
        self.wake(list(self._heard))
