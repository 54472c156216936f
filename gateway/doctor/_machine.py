"""What the node needs of the machine and of Python."""

from __future__ import annotations

import platform
import resource
import sqlite3
import sys

from gateway.config import Configuration
from gateway.doctor._check import Check, failed, fine, note

OLDEST_PYTHON = (3, 11)
OLDEST_SQLITE = (3, 35, 0)
"""The first with RETURNING."""
BACKEND = "CoinCurveECCBackend"
FILES_BESIDE_CONNECTIONS = 200


def machine(configuration: Configuration) -> list[Check]:
    """Check Python, the signature backend, SQLite and the limit of open files."""
    return [
        python(sys.version_info[:2], platform.python_version()),
        signatures(_backend()),
        sqlite(sqlite3.sqlite_version_info, sqlite3.sqlite_version),
        open_files(resource.getrlimit(resource.RLIMIT_NOFILE)[0], configuration.node.max_connections),
    ]


def python(version: tuple[int, ...], shown: str) -> Check:
    """Check the interpreter."""
    if version < OLDEST_PYTHON:
        return failed("python", shown, "the node does not start", "install Python 3.11 or newer")
    return fine("python", shown)


def signatures(backend: str) -> Check:
    """Check what recovers payers from signatures."""
    if backend != BACKEND:
        return failed(
            "signatures",
            f"eth_keys uses {backend}",
            "the node does not start, it would be twenty times slower",
            "pip install coincurve, and leave ECC_BACKEND_CLASS unset",
        )
    return fine("signatures", "coincurve")


def sqlite(version: tuple[int, ...], shown: str) -> Check:
    """Check the library beneath the store."""
    if version < OLDEST_SQLITE:
        return failed("sqlite", shown, "the store cannot be used", "install SQLite 3.35 or newer")
    return fine("sqlite", shown)


def open_files(limit: int, connections: int) -> Check:
    """Check that every connection can have its file descriptor."""
    wanted = connections + FILES_BESIDE_CONNECTIONS
    if limit != resource.RLIM_INFINITY and limit < wanted:
        return note(
            "open files",
            f"the limit is {limit} and [node] max_connections is {connections}",
            "the node serves no more than half as many connections at once",
            f"ulimit -n {wanted} (systemd: LimitNOFILE={wanted}), or lower max_connections",
        )
    return fine("open files", f"the limit is {'none' if limit == resource.RLIM_INFINITY else limit}")


def _backend() -> str:
    from eth_keys.backends import get_backend

    try:
        return type(get_backend()).__name__
    except ImportError as error:
        return str(error)
