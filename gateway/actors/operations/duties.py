"""What the operations actor does again and again until its node drains."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import structlog
import trio

from gateway.actors.leases import Duty, Hold
from gateway.errors import StoreUnavailable

log = structlog.get_logger(__name__)

Do = Callable[[], Awaitable[None]]


async def keep_up(draining: trio.Event, every_s: float, *duties: Do) -> None:
    """Do some duties every so many seconds until the node drains; what the store does not take is done later."""
    put_off: frozenset[str] = frozenset()
    while not draining.is_set():
        with trio.move_on_after(every_s):
            await draining.wait()
            return
        put_off = await attempt(*duties, put_off=put_off)


async def attempt(*duties: Do, put_off: frozenset[str] = frozenset()) -> frozenset[str]:
    """Do each duty once; return the names of those that the store put off, told unless they are in `put_off`."""
    failed = set()
    for duty in duties:
        try:
            await duty()
        except StoreUnavailable as error:
            failed.add(duty.__name__)
            if duty.__name__ not in put_off:
                log.warning("duty_put_off", duty=duty.__name__, error=error.detail)
        except Exception as error:
            log.exception("duty_failed", duty=duty.__name__, error=repr(error))
    return frozenset(failed)


async def within(scope: trio.CancelScope, hold: Hold, name: str, duty: Duty) -> None:
    """Hold a lease for a duty until the scope is cancelled."""
    with scope:
        await hold(name, duty)
