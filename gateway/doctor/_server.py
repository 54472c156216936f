"""The PostgreSQL server of a store that nodes share: whether it is reached, and keeps what it is told."""

from __future__ import annotations

import attrs

from gateway.actors.clock import MOST_APART_MS as STANDS_ASIDE_MS
from gateway.actors.store import Reason, StoreRefused, moves, schema
from gateway.actors.store.postgresql_failures import remedy
from gateway.actors.store.postgresql_settings import PostgresqlSettings
from gateway.config import Configuration, ConfigurationError
from gateway.doctor._check import Check, failed, fine, note
from gateway.doctor._keys import START, keys
from gateway.doctor._server_seen import Seen, look
from gateway.migrating import Standing, standing_of_server
from gateway.opening import settings_of
from gateway.shared_keys import known_keys
from gateway.shared_terms import Terms, running

OLDEST = 130_000
BESIDE_READERS = 3
"""Connections of a node that do not read: one writes, one looks up, one hears."""
MOST_APART_MS = 2000
LOST = "payments that were acknowledged are lost when the server's machine stops"


@attrs.frozen
class Examined:
    """The checks of a server, and the names of the nodes that live over it."""

    checks: list[Check]
    alive: frozenset[str] = frozenset()


def server(configuration: Configuration) -> Examined:
    """Check the server, the store on it, the keys against it, and the nodes over it."""
    try:
        settings = settings_of(configuration)
    except ConfigurationError as error:
        what = error.violations[0].detail
        return Examined([failed("store password", what, START, "mend that file or [store] password_file")])
    about = password(settings)
    try:
        seen = look(settings, configuration.node.name)
    except StoreRefused as refused:
        own = keys(configuration.keys_dir, {}, fresh=True)
        return Examined([*about, failed("store", refused.what, START, refused.remedy), *own])
    checks = [
        version(seen),
        *about,
        encryption(seen),
        durability(seen),
        writable(seen),
        connections(seen, settings.readers),
        clock(seen),
        *sessions(seen),
    ]
    known = known_keys(seen.facts)
    checks += keys(configuration.keys_dir, known, fresh=not known)
    try:
        moves.require_here({str(name): str(value) for name, value in seen.facts}, settings.shown)
        standing = standing_of_server(settings, schema.shipped())
    except StoreRefused as refused:
        return Examined([*checks, failed("schema", refused.what, START, refused.remedy)])
    alive = frozenset(each.node for each in standing.nodes)
    checks += terms(configuration, seen, alive)
    return Examined([*checks, tables(standing), nodes(standing)], alive)


# -- what it means -----------------------------------------------------------------------------------------------------


def password(settings: PostgresqlSettings) -> list[Check]:
    """Check where the password is."""
    if settings.url == settings.shown:
        return []
    return [
        note(
            "store password",
            "it stands in [store] url",
            "whoever reads the configuration or the environment of the node has it",
            "put it alone into a file of mode 0600 and name that in [store] password_file",
        )
    ]


def version(seen: Seen) -> Check:
    """Check the server's version."""
    told = f"{seen.version // 10_000}.{seen.version % 10_000}"
    if seen.version < OLDEST:
        oldest = OLDEST // 10_000
        return failed("store", f"{seen.place} is PostgreSQL {told}", START, f"run PostgreSQL {oldest} or newer there")
    return fine("store", f"{seen.place}, PostgreSQL {told}")


def encryption(seen: Seen) -> Check:
    """Check what others on the way to the server see and could answer."""
    name = "store TLS"
    if seen.local:
        return fine(name, "not needed, the server is on this machine" if not seen.encrypted else "in force")
    fix = "give the server a certificate, and add sslmode=verify-full&sslrootcert=FILE to [store] url"
    if not seen.encrypted:
        return note(name, f"none to {seen.host}", "the password and all rows can be read and changed on the way", fix)
    if seen.sslmode not in {"verify-full", "verify-ca"}:
        return note(
            name,
            f"in force, but with sslmode={seen.sslmode} the server need not prove who it is",
            "somebody on the way could stand in for it",
            "add sslmode=verify-full&sslrootcert=FILE to [store] url",
        )
    return fine(name, f"in force, sslmode={seen.sslmode}")


def durability(seen: Seen) -> Check:
    """Check that what the server acknowledges is on its disk."""
    name = "store durability"
    off = [each for each in ("fsync", "full_page_writes") if seen.settings.get(each) == "off"]
    if off:
        what = f"{' and '.join(off)} {'is' if len(off) == 1 else 'are'} off"
        return failed(name, what, LOST, f"in postgresql.conf: {', '.join(f'{each} = on' for each in off)}; then reload")
    if seen.settings.get("synchronous_commit") == "off":
        return note(
            name,
            "synchronous_commit is off by default there",
            "the node turns it on for itself; what other programs change may be lost",
            "in postgresql.conf: synchronous_commit = on; then reload",
        )
    return fine(name, "what is acknowledged is on the disk")


def writable(seen: Seen) -> Check:
    """Check that the server takes writes, in the encoding that the node writes."""
    name = "store writes"
    if seen.recovering:
        return failed(name, "the server is a standby, or recovers", START, "name the primary in [store] url")
    if seen.read_only:
        return failed(
            name,
            "transactions are read-only there",
            START,
            "name the primary in [store] url, and set default_transaction_read_only = off for its role and database",
        )
    encoding = seen.settings.get("server_encoding", "UTF8")
    if encoding != "UTF8":
        fix = "make the database with ENCODING 'UTF8' TEMPLATE template0"
        return failed(name, f"the encoding of the database is {encoding}", START, fix)
    return fine(name, "taken")


def connections(seen: Seen, readers: int) -> Check:
    """Check that the node's connections have room beside those of others."""
    name, needed = "store connections", readers + BESIDE_READERS
    whose = (
        "max_connections of the server",
        "the connection limit of the role",
        "the connection limit of the database",
    )
    for limit, clients, what in zip(seen.limits, seen.clients, whose, strict=True):
        if 0 <= limit < clients + needed:
            return failed(
                name,
                f"{what} leaves {limit}, {clients} are in use by others, and this node needs {needed}",
                "it does not start, or answers 503 (too_many_connections) under load",
                f"raise it by {clients + needed - limit} or more, or lower [store] readers (now {readers})",
            )
    allowed = min((limit for limit in seen.limits if limit >= 0), default="any number")
    return fine(name, f"{needed} needed, {seen.clients[0]} in use by others, of {allowed}")


def clock(seen: Seen) -> Check:
    """Check this machine's clock against the store's."""
    name, fix = "store clock", "set both clocks (NTP)"
    apart = f"{abs(seen.ahead_ms) / 1000:.1f} s {'ahead of' if seen.ahead_ms > 0 else 'behind'} this machine's"
    if abs(seen.ahead_ms) > STANDS_ASIDE_MS:
        return failed(name, apart, "the node takes no lease, is not ready (clock_skew) and sells nothing", fix)
    if abs(seen.ahead_ms) > MOST_APART_MS:
        so = f"nodes go by the store's clock; one that is {STANDS_ASIDE_MS // 1000} s from it stands aside"
        return note(name, apart, so, fix)
    return fine(name, f"{abs(seen.ahead_ms)} ms from this machine's")


def sessions(seen: Seen) -> list[Check]:
    """Check that a connection is a session of its own."""
    if not seen.pooled:
        return []
    return [failed("store sessions", Reason.POOLED.story, START, remedy(Reason.POOLED))]


def terms(configuration: Configuration, seen: Seen, alive: frozenset[str]) -> list[Check]:
    """Check that the nodes which run over the store are paid in and to the same."""
    ours = Terms.of(configuration)
    others = running(seen.facts, alive, configuration.node.name)
    if ours is None or not others:
        return []
    differing = ours.differences(others)
    if not differing:
        return [fine("payment terms", f"the same on {', '.join(sorted(others))}")]
    fix = "configure the same on every node; to change it, stop every node and start them with the new value"
    return [
        failed("payment terms", f"{each.pointer}: {each.detail.partition('. ')[0]}", START, fix) for each in differing
    ]


def tables(standing: Standing) -> Check:
    """Check the schema of the store."""
    name = "schema"
    if not standing.applied:
        return note(name, "the database is empty", "the first start makes the tables")
    if standing.pending:
        waiting = ", ".join(f"{each.version:04d} {each.name}" for each in standing.pending)
        return failed(name, f"version {standing.applied}, pending: {waiting}", START, "run `gateway migrate`")
    return fine(name, f"version {standing.applied}")


def nodes(standing: Standing) -> Check:
    """Tell which nodes run over the store now."""
    if not standing.nodes:
        return fine("nodes", "none runs over this store now")
    return fine("nodes", ", ".join(f"{each.node} ({each.release})" for each in standing.nodes))
