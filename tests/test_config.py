from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pytest

from gateway.config import SECTIONS, Configuration, ConfigurationError, default_data_dir, load

WHOLE = """
[node]
base_url = "https://node.example"
listen = ["127.0.0.1:8402", "[::1]:8402"]
operator_listen = "127.0.0.1:8403"
operator_token_file = "token"
data_dir = "data"
keys_dir = "shared-keys"
name = "node-7"
drain_s = 5
max_connections = 10
[store]
url = "postgresql://gateway@db.example/gateway?sslmode=verify-full"
password_file = "password"
readers = 8
lease_ms = 2000
connect_timeout_s = 3
statement_timeout_s = 7
[payment]
network = "eip155:84532"
asset = "0x036CbD53842c5426634e7929541eC2318f3dCF7e"
asset_name = "USDC"
asset_version = "2"
decimals = 6
pay_to = "0x90F79bf6EB2c4f870365E785982E1f101E93b906"
facilitator_url = "https://facilitator.example/x402"
rpc_urls = ["https://rpc.example/v3/key"]
quote_ttl_s = 60
confirmations = 2
max_unsettled_per_payer = 1
max_unsettled = 2
payer_hold_s = 3
verify_timeout_s = 4
settle_timeout_s = 5
settle_wait_s = 6
[quota]
free_search = 1
free_ai = 2
scrape = 3
audio = 9
unpaid_quotes = 5
payment_attempts = 6
paid = 6
billed_daily = 7
trusted_proxies = ["10.0.0.0/8", "::1"]
[search]
probe_interval_s = 30
[[search.adapter]]
kind = "searxng"
name = "mine"
base_url = "http://127.0.0.1:8080"
key_file = "brave.key"
cost_atomic = 5
simulated = true
[[search.adapter]]
kind = "index"
[ai]
embedded = false
embedded_threads = 2
embedded_memory_mib = 600
probe_interval_s = 20
canary_interval_s = 1800
margin_percent = 125
[[ai.route]]
model = "openai/gpt-5.6-luna"
kind = "openai"
base_url = "https://models.example/v1"
upstream_model = "gpt-5.6-luna"
key_file = "model.key"
name = "luna"
input_rate = 1000000
output_rate = 6000000
billed = false
canary = true
simulated = true
[[ai.route]]
model = "anthropic/claude-sonnet-4.6"
kind = "anthropic"
[sandbox]
enabled = false
image = "images"
slots = 3
queue = 8
memory_mib = 4096
launcher = ["sudo", "-n"]
first_uid = 70000
canary_interval_s = 300
lay_ahead = false
"""


def written(directory: Path, text: str) -> Path:
    path = directory / "gateway.toml"
    path.write_text(text)
    return path


def violations(text: str, tmp_path: Path, environment: dict[str, str] | None = None) -> list[tuple[str, str]]:
    with pytest.raises(ConfigurationError) as caught:
        load(written(tmp_path, text), environment or {})
    return [(each.pointer, each.detail) for each in caught.value.violations]


def test_every_key_of_every_section_can_be_set(tmp_path: Path) -> None:
    configuration = load(written(tmp_path, WHOLE), {})
    for section in SECTIONS:
        found, default = getattr(configuration, section), getattr(Configuration(), section)
        same = [
            field.name
            for field in attrs.fields(type(found))
            if getattr(found, field.name) == getattr(default, field.name)
        ]
        assert set(same) <= {"operator_listen", "asset_version", "decimals"}, section
    assert configuration.quota.trusted_proxies == ("10.0.0.0/8", "::1")
    assert [each.kind for each in configuration.search.adapter] == ["searxng", "index"]
    assert configuration.search.adapter[0].cost_atomic == 5
    assert configuration.search.adapter[1].cost_atomic is None
    luna, sonnet = configuration.ai.route
    assert (luna.name, luna.billed, luna.canary, luna.key_file) == ("luna", False, True, str(tmp_path / "model.key"))
    assert (luna.input_rate, luna.output_rate, sonnet.input_rate) == (1_000_000, 6_000_000, None)
    assert (sonnet.billed, sonnet.canary, sonnet.simulated) == (None, None, False)


def test_without_a_file_there_are_defaults_that_hold() -> None:
    configuration = load(None, {})
    assert configuration == attrs.evolve(Configuration(), source="defaults")
    assert not configuration.payment.configured
    assert configuration.base_url == "http://127.0.0.1:8402"
    assert configuration.store_path == default_data_dir() / "gateway.db"


def every_key() -> list[tuple[str, str, Any]]:
    configuration = Configuration()
    return [
        (section, field.name, getattr(getattr(configuration, section), field.name))
        for section in sorted(SECTIONS)
        for field in attrs.fields(type(getattr(configuration, section)))
    ]


@pytest.mark.parametrize(("section", "key", "default"), every_key(), ids=lambda value: str(value)[:20])
def test_every_key_can_be_set_by_the_environment(section: str, key: str, default: Any) -> None:
    texts = {
        "base_url": "https://node.example",
        "operator_listen": "127.0.0.1:1",
        "url": "sqlite:////var/node.db",
        "network": "eip155:1",
        "asset": "0x" + "1" * 40,
        "pay_to": "0x" + "2" * 40,
        "facilitator_url": "http://127.0.0.1:1",
    }
    raw: str
    expected: Any
    kinds: list[str] = []
    bounded = {"lease_ms": 700, "embedded_memory_mib": 700, "memory_mib": 700}
    if key == "adapter":
        raw, expected, kinds = '[{kind = "index"}, {kind = "ddgs"}]', None, ["index", "ddgs"]
    elif key == "route":
        raw, expected, kinds = '[{model = "a/b", kind = "openai"}]', None, ["openai"]
    elif isinstance(default, bool):
        raw, expected = str(not default).lower(), not default
    elif isinstance(default, tuple):
        raw, expected = {
            "listen": ('["127.0.0.1:1"]', ("127.0.0.1:1",)),
            "rpc_urls": ('["http://127.0.0.1:2"]', ("http://127.0.0.1:2",)),
            "trusted_proxies": ('["::1"]', ("::1",)),
            "launcher": ('["doas"]', ("doas",)),
        }[key]
    elif isinstance(default, int):
        expected = bounded.get(key, 7)
        raw = str(expected)
    else:
        raw = expected = texts.get(key, "text")
    environment = {f"GATEWAY_{section}__{key}".upper(): raw}
    if key in {"pay_to", "facilitator_url", "rpc_urls"}:
        environment |= {
            "GATEWAY_PAYMENT__PAY_TO": texts["pay_to"],
            "GATEWAY_PAYMENT__FACILITATOR_URL": texts["facilitator_url"],
            "GATEWAY_PAYMENT__RPC_URLS": '["http://127.0.0.1:2"]',
        }
    if key == "password_file":
        environment["GATEWAY_STORE__URL"] = "postgresql://127.0.0.1/gateway"
    found = getattr(getattr(load(None, environment), section), key)
    assert found == expected if expected is not None else [each.kind for each in found] == kinds


def test_the_environment_wins_over_the_file(tmp_path: Path) -> None:
    environment = {"GATEWAY_NODE__NAME": "other", "GATEWAY_QUOTA__PAID": "9", "UNRELATED__X": "1", "GATEWAY_X": "1"}
    configuration = load(written(tmp_path, WHOLE), environment)
    assert (configuration.node.name, configuration.quota.paid, configuration.quota.audio) == ("other", 9, 9)


@pytest.mark.parametrize("raw", ["8402", "true", "[]", "0x12", "1e5", "null"])
def test_a_text_in_the_environment_is_taken_as_it_is(raw: str) -> None:
    assert load(None, {"GATEWAY_PAYMENT__ASSET_NAME": raw}).payment.asset_name == raw


@pytest.mark.parametrize(
    ("text", "pointer", "detail"),
    [
        ("[nodes]", "/nodes", "unknown section"),
        ("source = 'x'", "/source", "unknown section"),
        ("[node]\nlistn = []", "/node/listn", "unknown key"),
        ("[[search.adapter]]\nkind = 'index'\nurl = 'x'", "/search/adapter/0/url", "unknown key"),
        ("[[search.adapter]]\nname = 'x'", "/search/adapter/0/kind", "is required"),
        ("node = 3", "/node", "must be a table"),
        ("[[node]]\nname = 'x'", "/node", "must be a table"),
        ("[node]\nlisten = '127.0.0.1:1'", "/node/listen", "must be a list of strings"),
        ("[node]\nlisten = [1]", "/node/listen", "must be a list of strings"),
        ("[node]\ndrain_s = '5'", "/node/drain_s", "must be int, not str"),
        ("[node]\ndrain_s = 5.0", "/node/drain_s", "must be int, not float"),
        ("[node]\ndrain_s = true", "/node/drain_s", "must be int, not bool"),
        ("[node]\nname = 5", "/node/name", "must be str, not int"),
        ("[search]\nadapter = 3", "/search/adapter", "must be a list of tables"),
        ("[search]\nadapter = ['index']", "/search/adapter", "must be a list of tables"),
        ("[search.adapter]\nkind = 'index'", "/search/adapter", "must be a list of tables"),
        ("[[ai.route]]\nkind = 'openai'", "/ai/route/0/model", "is required"),
        ("[[ai.route]]\nmodel = 'a/b'\nkind = 'openai'\nbilled = 1", "/ai/route/0/billed", "must be bool, not int"),
        ("[[ai.route]]\nmodel = 'a/b'\nkind = 'openai'\nurl = 'x'", "/ai/route/0/url", "unknown key"),
        ("[[search.adapter]]\nkind = 'index'\nsimulated = 1", "/search/adapter/0/simulated", "must be bool, not int"),
    ],
)
def test_what_is_wrong_is_named_by_its_place(tmp_path: Path, text: str, pointer: str, detail: str) -> None:
    found = dict(violations(text, tmp_path))
    assert found[pointer].partition(" (line ")[0].partition(";")[0] == detail


@pytest.mark.parametrize(
    ("text", "pointer", "detail"),
    [
        ("\n[node]\nlistn = []", "/node/listn", "unknown key; did you mean listen? (line 3)"),
        ("[serch]\n", "/serch", "unknown section; did you mean search? (line 1)"),
        (
            "[[ai.route]]\nmodel = 'a/b'\nkind = 'openai'\n\n[[ai.route]]\nmodel = 'a/b'\napi_key = 'x'",
            "/ai/route/1/api_key",
            "unknown key; a secret is the path of a file: key_file (line 7)",
        ),
        (
            "[store]\npassword = 'x'",
            "/store/password",
            "unknown key; a secret is the path of a file: password_file (line 2)",
        ),
        ("[node]\ndrain_s = 'x'  # soon", "/node/drain_s", "must be int, not str (line 2)"),
        ("[quota]\n# [node]\npaid = -1", "/quota/paid", "must not be negative (line 3)"),
    ],
)
def test_what_is_wrong_is_told_with_its_line_and_what_may_be_meant(
    tmp_path: Path, text: str, pointer: str, detail: str
) -> None:
    assert (pointer, detail) in violations(text, tmp_path)


def test_what_the_environment_set_is_told_by_its_variable_and_no_line(tmp_path: Path) -> None:
    path = written(tmp_path, "[quota]\npaid = 1")
    with pytest.raises(ConfigurationError) as caught:
        load(path, {"GATEWAY_QUOTA__PAID": "-1"})
    assert [each.detail for each in caught.value.violations] == ["must not be negative (GATEWAY_QUOTA__PAID)"]


def test_everything_wrong_is_named_at_once(tmp_path: Path) -> None:
    text = "[node]\nfoo = 1\ndrain_s = 'x'\n[quota]\nbar = 2\npaid = 1.5"
    assert {pointer for pointer, _ in violations(text, tmp_path)} == {
        "/node/foo",
        "/node/drain_s",
        "/quota/bar",
        "/quota/paid",
    }


@pytest.mark.parametrize(
    ("name", "raw", "pointer"),
    [
        ("GATEWAY_NODE__LISTN", "x", "/node/listn"),
        ("GATEWAY_NODES__LISTEN", "x", "/nodes"),
        ("GATEWAY_QUOTA__PAID", "many", "/quota/paid"),
        ("GATEWAY_QUOTA__PAID", "-1", "/quota/paid"),
        ("GATEWAY_NODE__LISTEN", "127.0.0.1:1", "/node/listen"),
        ("GATEWAY_NODE__LISTEN", '["x"]', "/node/listen/0"),
        ("GATEWAY_SEARCH__ADAPTER", "[{}]", "/search/adapter/0/kind"),
    ],
)
def test_a_wrong_variable_is_named(name: str, raw: str, pointer: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load(None, {name: raw})
    (violation,) = caught.value.violations
    assert violation.pointer == pointer
    assert f"({name})" in violation.detail


def test_how_a_list_is_written_in_a_variable_is_told() -> None:
    with pytest.raises(ConfigurationError) as caught:
        load(None, {"GATEWAY_NODE__LISTEN": "127.0.0.1:1"})
    (violation,) = caught.value.violations
    assert violation.detail == 'must be a list of strings; write ["one", "two"] (GATEWAY_NODE__LISTEN)'


def test_a_file_that_cannot_be_read_or_is_no_toml_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read: No such file"):
        load(tmp_path / "gone.toml", {})
    for content in (b"[node", b"\xff\xfe", b"a = 1\na = 2"):
        (tmp_path / "gateway.toml").write_bytes(content)
        with pytest.raises(ConfigurationError, match="is not TOML"):
            load(tmp_path / "gateway.toml", {})


def test_a_variable_beside_a_section_that_is_no_table_crashes_nothing(tmp_path: Path) -> None:
    assert ("/node", "must be a table (line 1)") in violations("node = 3", tmp_path, {"GATEWAY_NODE__NAME": "x"})


def test_relative_paths_of_a_file_count_from_its_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    path = written(tmp_path, WHOLE)
    monkeypatch.chdir(tmp_path / "elsewhere")
    configuration = load(path, {})
    monkeypatch.chdir("/")
    assert configuration.data_dir == tmp_path / "data"
    assert configuration.keys_dir == tmp_path / "shared-keys"
    assert configuration.store.password_file == str(tmp_path / "password")
    assert configuration.node.operator_token_file == str(tmp_path / "token")
    assert configuration.search.adapter[0].key_file == str(tmp_path / "brave.key")


def test_a_configuration_named_by_a_relative_path_has_absolute_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path, "[node]\ndata_dir = 'data'\n[store]\nurl = 'sqlite:///other.db'")
    monkeypatch.chdir(tmp_path)
    configuration = load(Path("gateway.toml"), {})
    monkeypatch.chdir("/")
    assert configuration.data_dir == tmp_path / "data"
    assert configuration.store_path == tmp_path / "other.db"


def test_relative_paths_of_the_environment_count_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert load(None, {"GATEWAY_NODE__DATA_DIR": "data"}).data_dir == tmp_path / "data"
    assert load(None, {"GATEWAY_NODE__KEYS_DIR": "keys"}).keys_dir == tmp_path / "keys"


def test_the_home_directory_is_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert load(written(tmp_path, "[node]\ndata_dir = '~/data'"), {}).data_dir == tmp_path / "data"
    assert load(None, {"GATEWAY_NODE__DATA_DIR": "~/data"}).data_dir == tmp_path / "data"


def test_a_relative_url_of_postgresql_is_no_path(tmp_path: Path) -> None:
    url = "postgresql:///gateway?host=/var/run/postgresql"
    assert load(written(tmp_path, f"[store]\nurl = '{url}'"), {}).store.url == url


def test_an_error_says_which_file_and_where(tmp_path: Path) -> None:
    path = written(tmp_path, "[node]\nfoo = 1")
    with pytest.raises(ConfigurationError) as caught:
        load(path, {})
    assert str(caught.value) == f"{path} /node/foo: unknown key (line 2)"
