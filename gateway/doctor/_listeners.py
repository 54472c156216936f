"""Where the node listens: whether it runs, and whether its addresses are its own."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from gateway.config import Configuration, ConfigurationError
from gateway.doctor._check import Check, failed, fine, note
from gateway.http.server import bind
from gateway.operator_token import open_token, token_path

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


def listeners(configuration: Configuration, alive: frozenset[str] = frozenset()) -> list[Check]:
    """Check the addresses and what is said of them to the world; `alive` are the nodes over a shared store."""
    node = configuration.node
    addresses = [*node.listen, node.operator_listen]
    if configuration.shared_store:
        runs = node.name in alive
        running = namesake(node.name, runs=runs, taken=[each for each in addresses if _in_use(each)])
    else:
        holder = holder_of(configuration.store_path)
        runs = bool(holder)
        running = fine("node", f"runs as process {holder}" if holder else "does not run now")
    return [
        running,
        *(listener(each, running=runs) for each in addresses),
        *public(node.base_url),
        token(configuration),
    ]


def namesake(name: str, *, runs: bool, taken: Sequence[str]) -> Check:
    """Check that the live node of this name is this one: it has this one's addresses."""
    if not runs:
        return fine("node", f"{name} does not run now")
    if taken:
        return fine("node", f"{name} runs")
    return failed(
        "node",
        f"a node that is called {name} lives over this store, and nothing listens at the addresses of this one",
        "if it is another node, this one does not start",
        "set [node] name to one that no other node of the store has",
    )


def listener(address: str, *, running: bool) -> Check:
    """Check that an address is free, or in use by the node itself."""
    name = f"listen {address}"
    try:
        bind(address).close()
    except ValueError as error:
        return failed(name, str(error), "the node does not start", "write it as host:port")
    except OSError as error:
        if error.errno == errno.EADDRINUSE and running:
            return fine(name, "in use, and the node runs")
        return failed(
            name,
            error.strerror or str(error),
            "the node does not start",
            "stop the program that has it, or set another address in [node]",
        )
    return fine(name, "free")


def _in_use(address: str) -> bool:
    try:
        bind(address).close()
    except OSError as error:
        return error.errno == errno.EADDRINUSE
    except ValueError:
        return False
    return address.endswith(":0")  # any port will do: whether the node has one cannot be told


def public(base_url: str) -> list[Check]:
    """Check what the node calls itself in quotes, receipts and documents."""
    if not base_url:
        return [
            note(
                "base_url",
                "not set",
                "quotes name the listening address, which only this machine reaches",
                "set [node] base_url to the public address",
            )
        ]
    parts = urlsplit(base_url)
    if parts.scheme != "https" and parts.hostname not in LOOPBACK:
        return [
            note(
                "base_url",
                f"{base_url} is plain HTTP",
                "keys and payments can be read on the way",
                "put a TLS proxy in front and set [node] base_url to its https address",
            )
        ]
    return [fine("base_url", base_url)]


def token(configuration: Configuration) -> Check:
    """Check the operator's token."""
    name = "operator token"
    if not configuration.node.operator_token_file and not token_path(configuration).exists():
        return note(name, f"{token_path(configuration)} is not there yet", "the first start makes it")
    try:
        open_token(configuration, create=False)
    except ConfigurationError as error:
        what = error.violations[0].detail
        return failed(name, what, "the node does not start", "mend that file, or unset [node] operator_token_file")
    return fine(name, str(token_path(configuration)))


def holder_of(store_path: Path) -> str | None:
    """Return the process id of the node that has a store open, as its lock file tells; None where none has."""
    try:
        lock = os.open(store_path.with_name(store_path.name + ".lock"), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return os.read(lock, 32).decode(errors="replace").strip() or "unknown"
    finally:
        os.close(lock)
    return None
