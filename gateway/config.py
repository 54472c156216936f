"""The node's configuration: one TOML file, every key also as `GATEWAY_SECTION__KEY` (spec/operating, "Configuration").

An unknown key is an error that names it.  Secrets are file paths, never values.  Nothing else in the project reads the
environment.
"""

from __future__ import annotations

import ipaddress
import os
import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs
import cattrs
from cattrs.errors import ClassValidationError, ForbiddenExtraKeysError, IterableValidationError

from gateway.errors import Violation

ENVIRONMENT_PREFIX = "GATEWAY_"
ADDRESS = re.compile(r"0x[0-9a-fA-F]{40}\Z")
NETWORK = re.compile(r"eip155:[1-9][0-9]{0,11}\Z")


class ConfigurationError(Exception):
    """The configuration cannot be used; `violations` says where (a pointer into the file) and what to do."""

    def __init__(self, source: str, violations: list[Violation]) -> None:
        self.source = source
        self.violations = violations
        super().__init__("; ".join(f"{source} {each.pointer}: {each.detail}" for each in violations))


def default_data_dir() -> Path:
    """Return the place of a node's data when none is configured."""
    state = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return Path(state) / "gateway"


@attrs.frozen
class NodeSection:
    """`[node]`: where the node listens and keeps its data."""

    base_url: str = ""
    listen: tuple[str, ...] = ("127.0.0.1:8402",)
    operator_listen: str = "127.0.0.1:8403"
    operator_token_file: str = ""
    data_dir: str = ""
    name: str = "node-1"
    drain_s: int = 75
    max_connections: int = 1024


@attrs.frozen
class StoreSection:
    """`[store]`: empty means SQLite in the data directory."""

    url: str = ""


@attrs.frozen
class PaymentSection:
    """`[payment]`: the seller's standing terms and how payments settle.  Amounts are atomic units of `asset`."""

    network: str = "eip155:8453"
    asset: str = "0x833589fCD6eDb6E08f4c7C32D4f71b54bdA02913"
    asset_name: str = "USD Coin"
    asset_version: str = "2"
    decimals: int = 6
    pay_to: str = ""
    facilitator_url: str = ""
    rpc_urls: tuple[str, ...] = ()
    quote_ttl_s: int = 120
    confirmations: int = 1
    max_unsettled_per_payer: int = 5_000_000
    max_unsettled: int = 100_000_000
    payer_hold_s: int = 900
    verify_timeout_s: int = 10
    settle_timeout_s: int = 20
    settle_wait_s: int = 15

    @property
    def configured(self) -> bool:
        """True when paid operations have somewhere to be paid to, settled and looked up."""
        return bool(self.pay_to and self.facilitator_url and self.rpc_urls)


@attrs.frozen
class QuotaSection:
    """`[quota]`: calls a minute and caller (spec/readings, "quotas")."""

    free_search: int = 12
    free_ai: int = 12
    scrape: int = 12
    audio: int = 4
    unpaid_quotes: int = 300
    paid: int = 180
    trusted_proxies: tuple[str, ...] = ()


@attrs.frozen
class SearchAdapterSection:
    """`[[search.adapter]]`: one engine; `cost_atomic` is what a call of it costs the node, where the operator knows."""

    kind: str
    name: str = ""
    base_url: str = ""
    key_file: str = ""
    cost_atomic: int | None = None
    simulated: bool = False


@attrs.frozen
class SearchSection:
    """`[search]`: adapters in the order they are asked; none means the embedded index."""

    adapter: tuple[SearchAdapterSection, ...] = (SearchAdapterSection("index"),)
    probe_interval_s: int = 15


@attrs.frozen
class Configuration:
    """The whole configuration, checked."""

    node: NodeSection = attrs.field(factory=NodeSection)
    store: StoreSection = attrs.field(factory=StoreSection)
    payment: PaymentSection = attrs.field(factory=PaymentSection)
    quota: QuotaSection = attrs.field(factory=QuotaSection)
    search: SearchSection = attrs.field(factory=SearchSection)
    source: str = "defaults"

    @property
    def data_dir(self) -> Path:
        """The directory of the store and the keys."""
        return Path(self.node.data_dir).expanduser() if self.node.data_dir else default_data_dir()

    @property
    def base_url(self) -> str:
        """The public address, without a trailing slash."""
        return (self.node.base_url or f"http://{self.node.listen[0]}").rstrip("/")

    @property
    def store_path(self) -> Path:
        """The SQLite file."""
        if not self.store.url:
            return self.data_dir / "gateway.db"
        return Path(self.store.url.removeprefix("sqlite:///").replace("{data_dir}", str(self.data_dir)))


SECTIONS = {field.name for field in attrs.fields(Configuration)} - {"source"}


def load(path: Path | None, environment: Mapping[str, str] | None = None) -> Configuration:
    """Read the file at `path` (none: defaults), overlay the environment, check everything.

    Raises `ConfigurationError` with every violation found.
    """
    environment = os.environ if environment is None else environment
    source = str(path) if path else "defaults"
    tree: dict[str, Any] = {}
    if path is not None:
        try:
            tree = tomllib.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigurationError(source, [Violation("", f"cannot be read: {error.strerror}")]) from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigurationError(source, [Violation("", f"is not TOML: {error}")]) from error
    for section, key, value in _overlay(environment):
        tree.setdefault(section, {})[key] = value
    return structure(tree, source)


def structure(tree: Mapping[str, Any], source: str = "defaults") -> Configuration:
    """Structure and check a configuration tree; raises `ConfigurationError`."""
    unknown = [Violation(f"/{name}", "unknown section") for name in tree if name not in SECTIONS]
    if unknown:
        raise ConfigurationError(source, unknown)
    try:
        configuration = attrs.evolve(_CONVERTER.structure(tree, Configuration), source=source)
    except ClassValidationError as error:
        raise ConfigurationError(source, list(_violations(error, ""))) from error
    violations = list(_check(configuration))
    if violations:
        raise ConfigurationError(source, violations)
    return configuration


def _overlay(environment: Mapping[str, str]) -> list[tuple[str, str, Any]]:
    found = []
    for name, raw in sorted(environment.items()):
        section, separator, key = name.removeprefix(ENVIRONMENT_PREFIX).lower().partition("__")
        if name.startswith(ENVIRONMENT_PREFIX) and separator:
            found.append((section, key, raw if _is_text(section, key) else _toml_value(raw)))
    return found


def _is_text(section: str, key: str) -> bool:
    if section not in SECTIONS:
        return True
    fields = attrs.fields_dict(attrs.resolve_types(_section_class(section)))
    return key in fields and fields[key].type is str


def _section_class(section: str) -> type:
    kind = attrs.fields_dict(attrs.resolve_types(Configuration))[section].type
    if kind is None:
        raise TypeError(section)
    return kind


def _toml_value(raw: str) -> Any:
    try:
        return tomllib.loads(f"value = {raw}")["value"]
    except tomllib.TOMLDecodeError:
        return raw


def _strict(kind: type) -> Callable[[Any, Any], Any]:
    def hook(value: Any, _: Any) -> Any:
        if type(value) is not kind:
            raise TypeError(f"must be {kind.__name__}, not {type(value).__name__}")
        return value

    return hook


def _converter() -> cattrs.Converter:
    converter = cattrs.Converter(forbid_extra_keys=True)
    for kind in (str, int, bool, float):
        converter.register_structure_hook(kind, _strict(kind))

    def texts(value: Any, _: Any) -> tuple[str, ...]:
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise TypeError("must be a list of strings")
        return tuple(value)

    converter.register_structure_hook_func(lambda kind: kind == tuple[str, ...], texts)
    return converter


_CONVERTER = _converter()


def _violations(error: BaseException, pointer: str) -> list[Violation]:
    found: list[Violation] = []
    if isinstance(error, ClassValidationError):
        noted, bare = error.group_exceptions()
        for inner, note in noted:
            found += _violations(inner, f"{pointer}/{note.name}")
        for inner in bare:
            found += _violations(inner, pointer)
    elif isinstance(error, IterableValidationError):
        indexed, bare = error.group_exceptions()
        for inner, place in indexed:
            found += _violations(inner, f"{pointer}/{place.index}")
        for inner in bare:
            found += _violations(inner, pointer)
    elif isinstance(error, ForbiddenExtraKeysError):
        found += [Violation(f"{pointer}/{name}", "unknown key") for name in sorted(error.extra_fields)]
    else:
        found.append(Violation(pointer, str(error)))
    return found


def _check(configuration: Configuration) -> list[Violation]:
    node, payment, quota = configuration.node, configuration.payment, configuration.quota
    found: list[Violation] = []

    def require(holds: bool, pointer: str, detail: str) -> None:  # noqa: FBT001 - a local word
        if not holds:
            found.append(Violation(pointer, detail))

    require(bool(node.listen), "/node/listen", "name at least one host:port")
    for index, address in enumerate(node.listen):
        require(_is_listen(address), f"/node/listen/{index}", "must be host:port")
    require(not node.base_url or _is_url(node.base_url), "/node/base_url", "must be an http(s) URL")
    require(node.drain_s >= 0, "/node/drain_s", "must not be negative")
    require(node.max_connections > 0, "/node/max_connections", "must be positive")
    url = configuration.store.url
    require(not url or url.startswith("sqlite:///"), "/store/url", "must be sqlite:///PATH")
    require(bool(NETWORK.match(payment.network)), "/payment/network", "must be a CAIP-2 id such as eip155:8453")
    require(bool(ADDRESS.match(payment.asset)), "/payment/asset", "must be a 0x address")
    require(not payment.pay_to or bool(ADDRESS.match(payment.pay_to)), "/payment/pay_to", "must be a 0x address")
    require(0 <= payment.decimals <= 18, "/payment/decimals", "must be 0 to 18")
    require(
        not payment.facilitator_url or _is_url(payment.facilitator_url),
        "/payment/facilitator_url",
        "must be an http(s) URL",
    )
    for index, rpc in enumerate(payment.rpc_urls):
        require(_is_url(rpc), f"/payment/rpc_urls/{index}", "must be an http(s) URL")
    for name in ("quote_ttl_s", "confirmations", "verify_timeout_s", "settle_timeout_s", "settle_wait_s"):
        require(getattr(payment, name) > 0, f"/payment/{name}", "must be positive")
    for name in ("max_unsettled_per_payer", "max_unsettled", "payer_hold_s"):
        require(getattr(payment, name) >= 0, f"/payment/{name}", "must not be negative")
    for field in attrs.fields(QuotaSection):
        if field.name != "trusted_proxies":
            require(getattr(quota, field.name) >= 0, f"/quota/{field.name}", "must not be negative")
    for index, network in enumerate(quota.trusted_proxies):
        require(_is_network(network), f"/quota/trusted_proxies/{index}", "must be an IP address or network")
    require(configuration.search.probe_interval_s > 0, "/search/probe_interval_s", "must be positive")
    return found


def _is_listen(address: str) -> bool:
    host, _, port = address.rpartition(":")
    return bool(host) and port.isdecimal() and int(port) < 2**16


def _is_url(url: str) -> bool:
    return bool(re.match(r"https?://[^/?#\s]+", url))


def _is_network(text: str) -> bool:
    try:
        ipaddress.ip_network(text, strict=False)
    except ValueError:
        return False
    return True
