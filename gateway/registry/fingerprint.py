"""What the proof of a route depends on, in short: nodes with the same fingerprint may share what they find."""

from __future__ import annotations

import hashlib
import ipaddress
import json
from collections.abc import Sequence
from urllib.parse import urlsplit

import attrs

from gateway.registry.http_call import HttpCall


def fingerprint(calls: Sequence[HttpCall], *parts: str | int) -> str | None:
    """Return 32 hex digits over the calls that prove a route, keys and all, and what else the proof depends on.

    None where what one node finds says nothing to others: at a back end on its own host, and without a call.
    """
    if not calls or any(on_this_host(call.url) for call in calls):
        return None
    asked = [attrs.asdict(call) | {"content": call.content.hex()} for call in calls]
    return hashlib.sha256(json.dumps([*parts, asked], sort_keys=True).encode()).hexdigest()[:32]


def on_this_host(url: str) -> bool:
    """Return True if an address is this host's own."""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
