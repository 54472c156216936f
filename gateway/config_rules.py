"""What a configuration of the right shape must hold to be used."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import attrs

from gateway.errors import Violation

if TYPE_CHECKING:
    from gateway.config_sections import Configuration, NodeSection, PaymentSection, SandboxSection, StoreSection

NETWORK = re.compile(r"eip155:[1-9][0-9]{0,11}\Z")
NODE_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}\Z")
HOST = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[^\s/?#@:]+)\Z")
URL = re.compile(r"https?://[^/?#@\s]+(?:/[^?#\s]*)?\Z")
URL_WITH_SECRETS = re.compile(r"https?://[^/?#\s]+\S*\Z")
SQLITE = "sqlite:///"
POSTGRESQL = ("postgresql://", "postgres://")
MOST_READERS = 64
LEASE_MS = (500, 60_000)
LONGEST_CONNECT_S, LONGEST_STATEMENT_S = 60, 600
ROUTE_KINDS = ("openai", "anthropic", "gemini", "embedded")
ROUTE_NAME = re.compile(r"[A-Za-z0-9._/-]{1,96}\Z")
LEAST_MODEL_MIB = 512
MOST_SLOTS = 64
LEAST_SANDBOX_MIB = 64
UIDS = range(1, 2**32 - 1 - MOST_SLOTS)
QUOTED = re.compile(r'"[^"]*"')


def broken_rules(configuration: Configuration) -> list[Violation]:
    """Return a violation for each rule that a configuration of the right shape breaks."""
    return [
        Violation(pointer, detail)
        for holds, pointer, detail in (
            *_node_rules(configuration.node),
            *_store_rules(configuration.store),
            *_payment_rules(configuration.payment),
            *_sandbox_rules(configuration.sandbox),
            *_other_rules(configuration),
        )
        if not holds
    ]


Rule = tuple[bool, str, str]
"""Whether it holds, the pointer of the key, and what to do if it does not."""


def _node_rules(node: NodeSection) -> Iterator[Rule]:
    yield bool(node.listen), "/node/listen", "name at least one host:port"
    for index, address in enumerate(node.listen):
        yield _is_listen(address), f"/node/listen/{index}", "must be host:port"
    yield _is_listen(node.operator_listen), "/node/operator_listen", "must be host:port"
    yield (
        not node.base_url or bool(URL.match(node.base_url)),
        "/node/base_url",
        "must be an http(s) URL without user, query and fragment",
    )
    yield bool(NODE_NAME.match(node.name)), "/node/name", "must be 1 to 64 of A-Za-z0-9._-"
    yield node.drain_s >= 0, "/node/drain_s", "must not be negative"
    yield node.max_connections > 0, "/node/max_connections", "must be positive"


def _store_rules(store: StoreSection) -> Iterator[Rule]:
    url, shared = store.url, store.url.startswith(POSTGRESQL)
    fault = _fault_of_postgresql(url) if shared else None
    yield fault is None, "/store/url", str(fault)
    yield (
        shared or not url or (url.startswith(SQLITE) and url != SQLITE),
        "/store/url",
        "must be sqlite:///PATH (one node) or postgresql://USER@HOST/DATABASE (one node or several)",
    )
    yield (
        shared or not store.password_file,
        "/store/password_file",
        "is the password of a PostgreSQL server, and [store] url names none",
    )
    yield 1 <= store.readers <= MOST_READERS, "/store/readers", f"must be 1 to {MOST_READERS}"
    yield LEASE_MS[0] <= store.lease_ms <= LEASE_MS[1], "/store/lease_ms", "must be {} to {}".format(*LEASE_MS)
    yield (
        1 <= store.connect_timeout_s <= LONGEST_CONNECT_S,
        "/store/connect_timeout_s",
        f"must be 1 to {LONGEST_CONNECT_S}",
    )
    yield (
        1 <= store.statement_timeout_s <= LONGEST_STATEMENT_S,
        "/store/statement_timeout_s",
        f"must be 1 to {LONGEST_STATEMENT_S}",
    )


def _fault_of_postgresql(url: str) -> str | None:
    """Return why a URL cannot be used, without what may be its password; None where it can."""
    from psycopg.conninfo import conninfo_to_dict

    from gateway.actors.store.postgresql_settings import PostgresqlSettings

    escape = "write user, password and host percent-encoded (%40 for @, %2F for /), or use password_file"
    try:
        PostgresqlSettings(url=url)
    except ValueError as error:
        # libpq quotes the part that it stumbled over; in a URL with a user or a password, that may be either.
        quotes_a_secret = QUOTED.search(str(error)) and ("@" in url or "password" in url)
        return f"{QUOTED.sub('a part of it', str(error))}; {escape}" if quotes_a_secret else str(error)
    members = conninfo_to_dict(url)
    ports = str(members.get("port") or "0").split(",")
    if not all(port == "" or (port.isascii() and port.isdecimal() and int(port) < 2**16) for port in ports):
        return f"its port is no number below 65536; {escape}"
    if "@" in str(members.get("host") or ""):
        return f"its host has an @; {escape}"
    if members.get("target_session_attrs") == "read-write":
        return "target_session_attrs=read-write would refuse the node's own reading sessions; say primary"
    return None


def _payment_rules(payment: PaymentSection) -> Iterator[Rule]:
    yield bool(NETWORK.match(payment.network)), "/payment/network", "must be a CAIP-2 id such as eip155:8453"
    for name in ("asset", "pay_to"):
        address = getattr(payment, name)
        yield (
            not address or _is_address(address),
            f"/payment/{name}",
            "must be a 0x address, its checksum right if it has one",
        )
    yield bool(payment.asset), "/payment/asset", "must be a 0x address"
    yield 0 <= payment.decimals <= 18, "/payment/decimals", "must be 0 to 18"
    facilitator = payment.facilitator_url
    yield not facilitator or bool(URL.match(facilitator)), "/payment/facilitator_url", "must be an http(s) URL"
    for index, rpc in enumerate(payment.rpc_urls):
        yield bool(URL_WITH_SECRETS.match(rpc)), f"/payment/rpc_urls/{index}", "must be an http(s) URL"
    needed = {name: getattr(payment, name) for name in ("pay_to", "facilitator_url", "rpc_urls")}
    for name, value in needed.items():
        yield bool(value) or not any(needed.values()), f"/payment/{name}", "is needed as well to be paid"
    for name in ("quote_ttl_s", "confirmations", "verify_timeout_s", "settle_timeout_s", "settle_wait_s"):
        yield getattr(payment, name) > 0, f"/payment/{name}", "must be positive"
    for name in ("max_unsettled_per_payer", "max_unsettled", "payer_hold_s"):
        yield getattr(payment, name) >= 0, f"/payment/{name}", "must not be negative"


def _sandbox_rules(sandbox: SandboxSection) -> Iterator[Rule]:
    yield 0 <= sandbox.slots <= MOST_SLOTS, "/sandbox/slots", f"must be 0 (one a core) to {MOST_SLOTS}"
    yield sandbox.queue >= 0, "/sandbox/queue", "must not be negative"
    yield (
        sandbox.memory_mib == 0 or sandbox.memory_mib >= LEAST_SANDBOX_MIB,
        "/sandbox/memory_mib",
        f"must be 0 (half of the host's) or at least {LEAST_SANDBOX_MIB}",
    )
    yield sandbox.first_uid in UIDS, "/sandbox/first_uid", "must be a user id of the host that is not root's"
    yield sandbox.canary_interval_s > 0, "/sandbox/canary_interval_s", "must be positive"


def _other_rules(configuration: Configuration) -> Iterator[Rule]:
    quota = configuration.quota
    for field in attrs.fields(type(quota)):
        if field.name != "trusted_proxies":
            yield getattr(quota, field.name) >= 0, f"/quota/{field.name}", "must not be negative"
    for index, network in enumerate(quota.trusted_proxies):
        yield _is_network(network), f"/quota/trusted_proxies/{index}", "must be an IP address or network"
    yield configuration.search.probe_interval_s > 0, "/search/probe_interval_s", "must be positive"
    ai = configuration.ai
    for name in ("probe_interval_s", "canary_interval_s", "margin_percent", "embedded_threads"):
        yield getattr(ai, name) > 0, f"/ai/{name}", "must be positive"
    yield ai.embedded_memory_mib >= LEAST_MODEL_MIB, "/ai/embedded_memory_mib", f"must be at least {LEAST_MODEL_MIB}"
    for index, route in enumerate(ai.route):
        at = f"/ai/route/{index}"
        yield route.kind in ROUTE_KINDS, f"{at}/kind", f"must be one of {', '.join(ROUTE_KINDS)}"
        yield not route.base_url or bool(URL.match(route.base_url)), f"{at}/base_url", "must be an http(s) URL"
        rates = (route.input_rate, route.output_rate)
        yield all(rate is None or rate >= 0 for rate in rates), f"{at}/input_rate", "rates must not be negative"
        yield (rates[0] is None) == (rates[1] is None), f"{at}/output_rate", "name both rates, or neither"
        yield not route.name or bool(ROUTE_NAME.match(route.name)), f"{at}/name", "must be 1 to 96 of A-Za-z0-9._/-"


def _is_listen(address: str) -> bool:
    host, _, port = address.rpartition(":")
    return bool(HOST.match(host)) and port.isascii() and port.isdecimal() and int(port) < 2**16


def _is_address(text: str) -> bool:
    from gateway.registry.payment.asset import checksum

    try:
        spelled = checksum(text)
    except ValueError:
        return False
    digits = text[2:]
    return digits in {digits.lower(), digits.upper()} or text == spelled


def _is_network(text: str) -> bool:
    try:
        ipaddress.ip_network(text, strict=False)
    except ValueError:
        return False
    return True
