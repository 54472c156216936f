"""The sections of a node's configuration, their keys and defaults, and what follows from them."""

from __future__ import annotations

import os
from pathlib import Path

import attrs

from gateway.config_rules import POSTGRESQL, SQLITE


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
    payment_attempts: int = 120
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
    `first_uid + n`, which nobody else should be.  `lay_ahead` has a sandbox set up in each slot before it is asked for.
    """

    enabled: bool = True
    image: str = ""
    slots: int = 0
    queue: int = 4
    memory_mib: int = 0
    launcher: tuple[str, ...] = ()
    first_uid: int = 64400
    canary_interval_s: int = 600
    lay_ahead: bool = True


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
