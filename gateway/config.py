"""The node's configuration: one TOML file, every key also as `GATEWAY_SECTION__KEY` (spec/operating, "Configuration").

An unknown key is an error that names it.  Secrets are file paths, never values; a relative path counts from the file
that names it, from the working directory where the environment does.  Nothing else in the project reads the
environment.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, get_args

import attrs
import cattrs
from cattrs.errors import ClassValidationError, ForbiddenExtraKeysError, IterableValidationError

from gateway.config_rules import POSTGRESQL, SQLITE, broken_rules
from gateway.errors import Violation

ENVIRONMENT_PREFIX = "GATEWAY_"


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
    """`[node]`: where the node listens, keeps its data, and what it is called among the nodes of one store."""

    base_url: str = ""
    listen: tuple[str, ...] = ("127.0.0.1:8402",)
    operator_listen: str = "127.0.0.1:8403"
    operator_token_file: str = ""
    data_dir: str = ""
    keys_dir: str = ""
    name: str = "node-1"
    drain_s: int = 75
    max_connections: int = 1024


@attrs.frozen
class StoreSection:
    """`[store]`: an empty URL means SQLite in the data directory; all but the URL is for PostgreSQL only."""

    url: str = attrs.field(default="", repr=lambda url: repr(shown_url(url)))
    password_file: str = ""
    readers: int = 4
    lease_ms: int = 1200
    connect_timeout_s: int = 5
    statement_timeout_s: int = 15


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
    """`[quota]`: calls a minute and caller; `billed_daily`: free calls a day of the whole node on each billed route."""

    free_search: int = 12
    free_ai: int = 12
    scrape: int = 12
    audio: int = 4
    unpaid_quotes: int = 300
    paid: int = 180
    billed_daily: int = 1000
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
class ModelRouteSection:
    """`[[ai.route]]`: one way to a model of the catalog.

    `billed` says whether each call of it costs the operator (None: it does where a key is configured); `canary` whether
    it may be proved by a call of at most 16 tokens now and then (None: where that costs nothing).  The rates are what
    the upstream charges, in millionths of a USD per million tokens (None: not known).
    """

    model: str
    kind: str
    base_url: str = ""
    upstream_model: str = ""
    key_file: str = ""
    name: str = ""
    billed: bool | None = None
    canary: bool | None = None
    input_rate: int | None = None
    output_rate: int | None = None
    simulated: bool = False


@attrs.frozen
class AiSection:
    """`[ai]`: routes to models, those of one model in the order they are asked, and the embedded model.

    `margin_percent` is what the price of `ai.execute` is of the catalog's rates.
    """

    route: tuple[ModelRouteSection, ...] = ()
    embedded: bool = True
    embedded_threads: int = 1
    embedded_memory_mib: int = 1024
    probe_interval_s: int = 15
    canary_interval_s: int = 3600
    margin_percent: int = 100


@attrs.frozen
class SandboxSection:
    """`[sandbox]`: where sold commands run, and how many at a time.

    `image` is the directory in which runtime images stand (empty: the usual one, `gateway sandbox build` says which).
    `slots` are the runs at a time (0: one a core), `memory_mib` what all of them may take of the host (0: half of what
    it has), `queue` how many may wait for a slot.  `launcher` are the words before the launcher's own command, such as
    `["sudo", "-n"]`: what gives it the privilege that the node has not.  Under root, slot n runs as the host's user
    `first_uid + n`, which nobody else should be.
    """

    enabled: bool = True
    image: str = ""
    slots: int = 0
    queue: int = 4
    memory_mib: int = 0
    launcher: tuple[str, ...] = ()
    first_uid: int = 64400
    canary_interval_s: int = 600


@attrs.frozen
class Configuration:
    """The whole configuration, checked."""

    node: NodeSection = attrs.field(factory=NodeSection)
    store: StoreSection = attrs.field(factory=StoreSection)
    payment: PaymentSection = attrs.field(factory=PaymentSection)
    quota: QuotaSection = attrs.field(factory=QuotaSection)
    search: SearchSection = attrs.field(factory=SearchSection)
    ai: AiSection = attrs.field(factory=AiSection)
    sandbox: SandboxSection = attrs.field(factory=SandboxSection)
    source: str = "defaults"

    @property
    def data_dir(self) -> Path:
        """The directory of what this node keeps for itself, absolute."""
        return Path(self.node.data_dir).expanduser().absolute() if self.node.data_dir else default_data_dir()

    @property
    def keys_dir(self) -> Path:
        """The directory of the keys, whose contents all nodes of a store have alike, absolute."""
        return Path(self.node.keys_dir).expanduser().absolute() if self.node.keys_dir else self.data_dir / "keys"

    @property
    def base_url(self) -> str:
        """The public address, without a trailing slash."""
        return (self.node.base_url or f"http://{self.node.listen[0]}").rstrip("/")

    @property
    def shared_store(self) -> bool:
        """Whether the store is on PostgreSQL, where several nodes may share it."""
        return self.store.url.startswith(POSTGRESQL)

    @property
    def shown_store(self) -> str:
        """The store's URL as it may be shown: without passwords."""
        return shown_url(self.store.url) if self.shared_store else f"{SQLITE}{self.store_path}"

    @property
    def store_path(self) -> Path:
        """The SQLite file, absolute; raises ValueError for a store on PostgreSQL."""
        if self.shared_store:
            raise ValueError("a store on PostgreSQL is no file")
        if not self.store.url:
            return self.data_dir / "gateway.db"
        return Path(self.store.url.removeprefix(SQLITE).replace("{data_dir}", str(self.data_dir))).absolute()


def shown_url(url: str) -> str:
    """Return a store's URL as it may be shown: without passwords."""
    if not url.startswith(POSTGRESQL):
        return url
    from gateway.actors.store.postgresql_settings import without_secrets

    return without_secrets(url)


TABLES = (tuple[SearchAdapterSection, ...], tuple[ModelRouteSection, ...])
SECTIONS = {field.name for field in attrs.fields(Configuration)} - {"source"}


PATHS: Mapping[str, frozenset[str]] = {
    "node": frozenset({"data_dir", "keys_dir", "operator_token_file"}),
    "store": frozenset({"password_file"}),
    "sandbox": frozenset({"image"}),
}
"""The keys whose values are paths; those of adapters and routes and the store's URL are anchored apart."""


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
        _anchor(tree, path.absolute().parent)
    named: dict[str, str] = {}
    for variable, section, key, value in _overlay(environment):
        named[f"/{section}/{key}"] = variable
        members = tree.setdefault(section, {})
        if isinstance(members, dict):
            members[key] = value
    try:
        return structure(tree, source)
    except ConfigurationError as error:
        raise ConfigurationError(source, [_with_variable(each, named) for each in error.violations]) from error


def structure(tree: Mapping[str, Any], source: str = "defaults") -> Configuration:
    """Structure and check a configuration tree; raises `ConfigurationError`."""
    shape = [Violation(f"/{name}", "unknown section") for name in tree if name not in SECTIONS]
    shape += [
        Violation(f"/{name}", "must be a table")
        for name in tree
        if name in SECTIONS and not isinstance(tree[name], dict)
    ]
    if shape:
        raise ConfigurationError(source, shape)
    try:
        configuration = attrs.evolve(_CONVERTER.structure(tree, Configuration), source=source)
    except ClassValidationError as error:
        raise ConfigurationError(source, list(_violations(error, ""))) from error
    violations = broken_rules(configuration)
    if violations:
        raise ConfigurationError(source, violations)
    return configuration


def _anchor(tree: dict[str, Any], directory: Path) -> None:
    """Make the relative paths of a file count from its directory, and `~` the home directory."""

    def anchored(value: Any) -> Any:
        return str(directory / Path(value).expanduser()) if isinstance(value, str) and value else value

    for section, names in PATHS.items():
        members = tree.get(section)
        if isinstance(members, dict):
            members |= {name: anchored(members[name]) for name in names & members.keys()}
    store, search, ai = (tree.get(name) for name in ("store", "search", "ai"))
    if isinstance(store, dict):
        url = store.get("url")
        if isinstance(url, str) and url.startswith(SQLITE) and not url.startswith(SQLITE + "{data_dir}"):
            store["url"] = SQLITE + anchored(url.removeprefix(SQLITE))
    adapters = search.get("adapter") if isinstance(search, dict) else None
    routes = ai.get("route") if isinstance(ai, dict) else None
    for listed in (adapters, routes):
        for each in listed if isinstance(listed, list) else []:
            if isinstance(each, dict) and "key_file" in each:
                each["key_file"] = anchored(each["key_file"])


def _overlay(environment: Mapping[str, str]) -> list[tuple[str, str, str, Any]]:
    found = []
    for name, raw in sorted(environment.items()):
        section, separator, key = name.removeprefix(ENVIRONMENT_PREFIX).lower().partition("__")
        if name.startswith(ENVIRONMENT_PREFIX) and separator:
            found.append((name, section, key, raw if _is_text(section, key) else _toml_value(raw)))
    return found


def _with_variable(violation: Violation, named: Mapping[str, str]) -> Violation:
    """Say which environment variable set the member that is at fault."""
    for pointer, variable in named.items():
        at, section = violation.pointer, pointer.rpartition("/")[0]
        if (
            at == pointer
            or at.startswith(f"{pointer}/")
            or (at == section and section.removeprefix("/") not in SECTIONS)
        ):
            return Violation(at, f"{violation.detail} ({variable})")
    return violation


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

    def tables(value: Any, kind: Any) -> tuple[Any, ...]:
        if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
            raise TypeError("must be a list of tables")
        listed: Any = list.__class_getitem__((get_args(kind)[0],))  # cattrs tells the place of a faulty item in a list
        return tuple(converter.structure(value, listed))

    def flag(value: Any, _: Any) -> bool | None:
        if not isinstance(value, bool):
            raise TypeError(f"must be bool, not {type(value).__name__}")
        return value

    converter.register_structure_hook_func(lambda kind: kind == tuple[str, ...], texts)
    converter.register_structure_hook_func(lambda kind: kind in TABLES, tables)
    converter.register_structure_hook_func(lambda kind: kind == bool | None, flag)
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
    elif isinstance(error, KeyError):
        found.append(Violation(pointer, "is required"))
    else:
        found.append(Violation(pointer, str(error)))
    return found
