from __future__ import annotations

from typing import Any

import pytest

from gateway.config import ConfigurationError, structure
from gateway.config_rules import broken_rules

PAY_TO = "0x90F79bf6EB2c4f870365E785982E1f101E93b906"
PAID = {"pay_to": PAY_TO, "facilitator_url": "https://f.example", "rpc_urls": ["https://rpc.example"]}


def broken(section: str, **members: Any) -> list[str]:
    try:
        configuration = structure({section: members})
    except ConfigurationError as error:
        return [each.pointer for each in error.violations]
    assert broken_rules(configuration) == []
    return []


@pytest.mark.parametrize("address", ["127.0.0.1:8402", "0.0.0.0:1", "[::1]:65535", "localhost:0", "node.example:80"])
def test_a_listener_is_host_and_port(address: str) -> None:
    assert broken("node", listen=[address]) == []
    assert broken("node", operator_listen=address) == []


@pytest.mark.parametrize(
    "address", ["", "8402", ":8402", "127.0.0.1", "127.0.0.1:65536", "h:-1", "h:x", "::1:80", "h:\u0663"]
)
def test_what_is_no_host_and_port_is_refused(address: str) -> None:
    assert broken("node", listen=["127.0.0.1:1", address]) == ["/node/listen/1"]
    assert broken("node", operator_listen=address) == ["/node/operator_listen"]


def test_a_node_listens_somewhere() -> None:
    assert broken("node", listen=[]) == ["/node/listen"]


@pytest.mark.parametrize(
    "url",
    [
        "node.example",
        "ftp://node.example",
        "https://",
        "https:///path",
        "https://user:pw@node.example",
        "https://node.example?x=1",
        "https://node.example/#x",
        "https://node.example/a b",
        "https://node.example\n",
    ],
)
def test_a_public_address_is_a_plain_http_url(url: str) -> None:
    assert broken("node", base_url=url) == ["/node/base_url"]
    assert broken("payment", **(PAID | {"facilitator_url": url})) == ["/payment/facilitator_url"]


def test_an_rpc_url_may_carry_its_secret() -> None:
    assert broken("payment", **(PAID | {"rpc_urls": ["https://u:p@rpc.example/v2/key?x=1"]})) == []
    assert broken("payment", **(PAID | {"rpc_urls": ["wss://rpc.example"]})) == ["/payment/rpc_urls/0"]


@pytest.mark.parametrize(
    ("address", "fine"),
    [
        (PAY_TO, True),
        (PAY_TO.lower(), True),
        ("0x" + PAY_TO[2:].upper(), True),
        (PAY_TO.replace("F7", "f7"), False),
        (PAY_TO[:-1], False),
        (PAY_TO + "0", False),
        (PAY_TO[2:], False),
        ("0x" + "g" * 40, False),
        (PAY_TO + "\n", False),
    ],
)
def test_money_goes_to_an_address_that_was_not_mistyped(address: str, fine: bool) -> None:
    assert broken("payment", **(PAID | {"pay_to": address})) == ([] if fine else ["/payment/pay_to"])
    assert broken("payment", asset=address) == ([] if fine else ["/payment/asset"])


@pytest.mark.parametrize("missing", list(PAID))
def test_payments_are_configured_whole_or_not_at_all(missing: str) -> None:
    assert broken("payment", **{name: value for name, value in PAID.items() if name != missing}) == [
        f"/payment/{missing}"
    ]
    assert broken("payment", **PAID) == []
    assert broken("payment") == []


@pytest.mark.parametrize("network", ["eip155:", "eip155:0", "eip155:x", "base", "eip155:8453 ", "eip155:08453"])
def test_a_network_is_a_caip_2_name(network: str) -> None:
    assert broken("payment", network=network) == ["/payment/network"]


@pytest.mark.parametrize(
    ("section", "name", "wrong", "right"),
    [
        ("node", "drain_s", -1, 0),
        ("node", "max_connections", 0, 1),
        ("node", "name", "", "n"),
        ("node", "name", "a b", "a-b.C_1"),
        ("node", "name", "n" * 65, "n" * 64),
        ("payment", "decimals", 19, 18),
        ("payment", "decimals", -1, 0),
        ("payment", "quote_ttl_s", 0, 1),
        ("payment", "confirmations", 0, 1),
        ("payment", "verify_timeout_s", 0, 1),
        ("payment", "settle_timeout_s", 0, 1),
        ("payment", "settle_wait_s", 0, 1),
        ("payment", "max_unsettled_per_payer", -1, 0),
        ("payment", "max_unsettled", -1, 0),
        ("payment", "payer_hold_s", -1, 0),
        ("payment", "asset", "", "0x" + "1" * 40),
        ("quota", "free_search", -1, 0),
        ("quota", "paid", -1, 0),
        ("search", "probe_interval_s", 0, 1),
        ("store", "url", "mysql://x", "postgres://x"),
        ("store", "url", "sqlite:///", ""),
        ("store", "url", "sqlite://x.db", "sqlite:////x.db"),
        ("store", "url", "/var/lib/x.db", "postgresql:///x?host=/run"),
        ("store", "readers", 0, 1),
        ("store", "readers", 65, 64),
        ("store", "lease_ms", 499, 500),
        ("store", "lease_ms", 60_001, 60_000),
        ("store", "connect_timeout_s", 0, 1),
        ("store", "connect_timeout_s", 61, 60),
        ("store", "statement_timeout_s", 0, 1),
        ("store", "statement_timeout_s", 601, 600),
    ],
)
def test_a_value_out_of_bounds_is_refused(section: str, name: str, wrong: Any, right: Any) -> None:
    assert broken(section, **{name: wrong}) == [f"/{section}/{name}"]
    assert broken(section, **{name: right}) == []


def told(url: str) -> str:
    with pytest.raises(ConfigurationError) as caught:
        structure({"store": {"url": url}})
    (violation,) = caught.value.violations
    assert violation.pointer == "/store/url"
    return violation.detail


@pytest.mark.parametrize("url", ["mysql://h/d", "h/d", "POSTGRESQL://h/d", "postgresql:h"])
def test_a_url_of_another_kind_is_told_both_kinds(url: str) -> None:
    assert "sqlite:///PATH" in told(url)
    assert "postgresql://USER@HOST/DATABASE" in told(url)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("postgresql://h/d?sslmod=require", 'invalid URI query parameter: "sslmod"'),
        ("postgresql://h/d?sslmode", "missing key/value separator"),
        ("postgresql://[::1/d", "end of string reached"),
        ("postgresql://h:x/d", "its port is no number"),
        ("postgresql://h:65536/d", "its port is no number below 65536"),
        ("postgresql://a,b/d?target_session_attrs=read-write", "say primary"),
    ],
)
def test_a_url_that_libpq_does_not_understand_is_refused_in_its_words(url: str, why: str) -> None:
    assert why in told(url)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:s3cr%zzet@h/d",
        "postgresql://u:s3cr/s3cr@h/d",
        "postgresql://u:s3cr@s3cr@h/d",
        "postgresql://u:s3 cr/s3cr@h/d",
        "postgresql://u:s3cr@[::1/d",
        "postgresql://u@h/d?password=s3cr%zz",
        "postgresql://u@h/d?password=s3cr&foo=1",
    ],
)
def test_a_url_that_is_refused_does_not_tell_its_password(url: str) -> None:
    detail = told(url)
    assert "s3" not in detail
    assert "percent-encoded" in detail


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:p@h/d",
        "postgres://h:6432/d",
        "postgresql://a:1,b:2,c/d?target_session_attrs=primary",
        "postgresql://[::1]:5432/d",
        "postgresql:///d?host=/var/run/postgresql&port=5433",
        "postgresql://u@h/d?sslmode=verify-full&sslrootcert=/etc/ca.pem",
    ],
)
def test_what_libpq_understands_is_taken(url: str) -> None:
    assert broken("store", url=url) == []


def test_a_password_file_without_a_server_is_a_mistake() -> None:
    """Of a node that has lost its store's URL: it would start on an empty SQLite file."""
    assert broken("store", password_file="password") == ["/store/password_file"]
    assert broken("store", url="postgresql://h/d", password_file="password") == []


@pytest.mark.parametrize("network", ["10.0.0.1", "10.0.0.1/8", "::1", "2001:db8::/32"])
def test_a_proxy_is_an_address_or_a_network(network: str) -> None:
    assert broken("quota", trusted_proxies=[network]) == []


@pytest.mark.parametrize("network", ["", "proxy.example", "10.0.0.0/33", "*"])
def test_what_is_no_network_is_no_proxy(network: str) -> None:
    assert broken("quota", trusted_proxies=["::1", network]) == ["/quota/trusted_proxies/1"]


ROUTE = {"model": "openai/gpt-5.6-luna", "kind": "openai", "base_url": "https://models.example/v1"}


@pytest.mark.parametrize(
    ("members", "pointers"),
    [
        ({}, []),
        ({"kind": "gemini", "name": "mine/luna-2"}, []),
        ({"input_rate": 0, "output_rate": 1}, []),
        ({"kind": "ollama"}, ["kind"]),
        ({"base_url": "models.example"}, ["base_url"]),
        ({"base_url": "https://user@models.example"}, ["base_url"]),
        ({"name": "a b"}, ["name"]),
        ({"input_rate": 1}, ["output_rate"]),
        ({"input_rate": -1, "output_rate": 1}, ["input_rate"]),
    ],
)
def test_a_route_to_a_model_is_of_a_known_kind_at_an_address(members: dict[str, Any], pointers: list[str]) -> None:
    assert broken("ai", route=[ROUTE | members]) == [f"/ai/route/0/{name}" for name in pointers]


@pytest.mark.parametrize("name", ["probe_interval_s", "canary_interval_s", "margin_percent", "embedded_threads"])
def test_what_the_models_are_run_with_is_positive(name: str) -> None:
    assert broken("ai", **{name: 0}) == [f"/ai/{name}"]
    assert broken("ai", **{name: 1}) == []


def test_the_embedded_model_has_room_to_run_in() -> None:
    assert broken("ai", embedded_memory_mib=511) == ["/ai/embedded_memory_mib"]


@pytest.mark.parametrize(
    ("name", "wrong", "right"),
    [
        ("slots", -1, 0),
        ("slots", 65, 64),
        ("queue", -1, 0),
        ("memory_mib", 63, 64),
        ("first_uid", 0, 1),
        ("first_uid", 2**32 - 2, 2**31),
        ("canary_interval_s", 0, 1),
    ],
)
def test_the_sandbox_is_told_what_it_can_do(name: str, wrong: int, right: int) -> None:
    assert broken("sandbox", **{name: wrong}) == [f"/sandbox/{name}"]
    assert broken("sandbox", **{name: right}) == []
