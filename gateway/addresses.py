"""How this machine reaches the listeners of its own node."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.config import Configuration


def public_url(configuration: Configuration) -> str:
    """Return where this machine reaches the node's public listener."""
    return f"http://{reachable(configuration.node.listen[0])}"


def operator_url(configuration: Configuration) -> str:
    """Return where this machine reaches the operator's listener."""
    return f"http://{reachable(configuration.node.operator_listen)}"


def reachable(address: str) -> str:
    """Return an address that can be connected to for one that is listened on: a wildcard becomes loopback."""
    host, _, port = address.rpartition(":")
    try:
        listened = ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        return address
    if not listened.is_unspecified:
        return address
    return f"127.0.0.1:{port}" if listened.version == 4 else f"[::1]:{port}"
