"""What the outcome of a call says of its route, and whose evidence it is: one table for all families.

Anybody can make a request that a sound route fails on: a prompt that provokes a tool call, a query that an engine
answers with a redirect.  Such an outcome must not close the route for everybody, so it only raises doubt: a look at the
route decides, or several unrelated callers do.  The machine word of an outcome is its key here.
"""

from __future__ import annotations

import enum
import ipaddress
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import attrs

MOST_VOICES = 64
"""How many callers are remembered of a route, the latest ones."""
UNRELATED_IPV6 = 48
"""Whoever has one IPv6 network of a caller's size has many more in the same prefix of this length."""

_STATUS = re.compile(r"status_(\d{3})")


class Weight(enum.StrEnum):
    """What a failed call says of its route.

    NOTHING: it is about the request alone, or about this node.
    DOUBT: a request can bring it about on a sound route; it closes nothing by itself.
    FAULT: the route failed, though a particular request may have brought it about; it closes until somebody has looked.
    PROOF: no request brings it about.
    """

    NOTHING = "nothing"
    DOUBT = "doubt"
    FAULT = "fault"
    PROOF = "proof"


WEIGHTS: Mapping[str, Weight] = MappingProxyType(
    {
        **dict.fromkeys(
            (
                "answer_lost",  # within this node
                "budget_not_reserved",
                "busy",
                "context_length_exceeded",
                "deadline",
                "flagged_input",
                "no_slot",
                "no_text",
                "node_overloaded",
                "not_json",
                "prompt_over_rate",
            ),
            Weight.NOTHING,
        ),
        **dict.fromkeys(
            (
                "answer_too_large",
                "captcha",
                "empty_choices",
                "empty_content",
                "engines_silent",
                "malformed_answer",  # a lone surrogate in a text makes one
                "no_results",
                "timeout",  # a long prompt takes long
                "tool_call",
                "unfinished",
                "upstream_error",
                "worker_failed",
            ),
            Weight.DOUBT,
        ),
        **dict.fromkeys(("connection_broken", "limit_ignored"), Weight.FAULT),
        **dict.fromkeys(("rate_limited", "route_refused", "unreachable", "wrong_model"), Weight.PROOF),
    }
)
STATUSES: Mapping[int, Weight] = MappingProxyType(
    {
        **dict.fromkeys((400, 413, 414, 422, 431), Weight.NOTHING),
        **dict.fromkeys((406, 451), Weight.DOUBT),
        **dict.fromkeys((401, 402, 404, 405, 407, 410, 429), Weight.PROOF),
    }
)
"""403 and 408 are not among them: gates before an upstream answer so to what they find in a body."""


def weight_of(reason: str) -> Weight:
    """Return the weight of an outcome's machine word; what no table knows is a fault."""
    known = WEIGHTS.get(reason)
    if known is not None:
        return known
    status = _STATUS.fullmatch(reason)
    if status is None:
        return Weight.FAULT
    code = int(status[1])
    return STATUSES.get(code, Weight.DOUBT if code < 400 else Weight.FAULT)


@attrs.frozen
class Voice:
    """A caller that met failures of a route, first at `at`.

    `stands`: nothing has succeeded since.  `held`: the route was once closed for a while on its word.
    """

    caller: str
    at: float
    stands: bool = True
    held: bool = False


def heard(voices: Sequence[Voice], caller: str, *, now: float, window_s: float) -> tuple[Voice, ...]:
    """Return the voices with a caller's among them: each caller has one in a window, and repeats nothing by it."""
    live = tuple(each for each in voices if each.at > now - window_s)
    if any(each.caller == caller for each in live):
        return live
    return (*live, Voice(caller, now))[-MOST_VOICES:]


def refuted(voices: tuple[Voice, ...]) -> tuple[Voice, ...]:
    """Return the voices after a success: none of them stands, and none is raised anew within its window."""
    return tuple(attrs.evolve(each, stands=False) for each in voices) if voices else voices


def believed(voices: Sequence[Voice], caller: str) -> tuple[Voice, ...]:
    """Return the voices after the route was closed for a while on a caller's word."""
    return tuple(attrs.evolve(each, held=True) if each.caller == caller else each for each in voices)


def neighbourhood(network: str) -> str:
    """Return what callers are unrelated by: the IPv4 address, the IPv6 /48; anything else as it is."""
    try:
        parsed = ipaddress.ip_network(network, strict=False)
    except ValueError:
        return network
    return network if parsed.version == 4 else str(parsed.supernet(new_prefix=min(UNRELATED_IPV6, parsed.prefixlen)))
