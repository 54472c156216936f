"""From settings to adapters: one per configured engine, in the operator's order."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs

from gateway.registry.search.adapter import Adapter, Cost
from gateway.registry.search.brave import BASE_URL as BRAVE_URL
from gateway.registry.search.brave import BraveAdapter
from gateway.registry.search.corpus import pages
from gateway.registry.search.ddgs import DdgsAdapter
from gateway.registry.search.exa import BASE_URL as EXA_URL
from gateway.registry.search.exa import ExaAdapter
from gateway.registry.search.index import Index, IndexAdapter
from gateway.registry.search.searxng import SearxngAdapter
from gateway.registry.search.tavily import BASE_URL as TAVILY_URL
from gateway.registry.search.tavily import TavilyAdapter


class AdapterSettingsError(Exception):
    """The settings name adapters that cannot stand together or alone; the text says which and what to do."""


@attrs.frozen
class AdapterSettings:
    """One engine as the operator names it.

    Attributes:
        kind: searxng, brave, tavily, exa, ddgs or index.
        name: shown to callers; empty means the kind (`embedded-index` for the index).
        base_url: where the engine is; required for searxng, else the engine's public address.
        key: the engine's API key, already read from its file.
        cost_atomic: what a call costs the node, atomic units; None means that the operator did not say.
        simulated: the engine is a stand-in of the local world.
    """

    kind: str
    name: str = ""
    base_url: str = ""
    key: str = attrs.field(default="", repr=False)
    cost_atomic: int | None = None
    simulated: bool = False


def build(settings: Sequence[AdapterSettings], *, base_url: str) -> tuple[Adapter, ...]:
    """Return the adapters in order; `base_url` is the node's own public address, for the links of the embedded index.

    Raises `AdapterSettingsError` for an unknown kind, a searxng without base_url, a name that is used twice, and for
    web and local engines in one list: what a node's results cover must not depend on which engine happened to answer.
    """
    if not settings:
        raise AdapterSettingsError("no search adapter is configured")
    adapters: list[Adapter] = []
    for each in settings:
        make = _KINDS.get(each.kind)
        if make is None:
            raise AdapterSettingsError(f"search adapter kind {each.kind!r} is not one of {', '.join(_KINDS)}")
        adapters.append(make(each, base_url))
    seen: set[str] = set()
    for adapter in adapters:
        if adapter.name in seen:
            raise AdapterSettingsError(f"two search adapters are named {adapter.name!r}; give one another name")
        seen.add(adapter.name)
    if len({adapter.coverage for adapter in adapters}) > 1:
        raise AdapterSettingsError(
            "search adapters of the web and the embedded index cannot serve one node; keep either"
        )
    return tuple(adapters)


def _searxng(settings: AdapterSettings, _: str) -> Adapter:
    if not settings.base_url:
        raise AdapterSettingsError("a searxng adapter needs base_url, the address of the instance")
    cost = Cost(settings.cost_atomic or 0, _basis(settings, "self_hosted_no_charge_per_call"))
    return SearxngAdapter(settings.name or "searxng", settings.base_url, cost, settings.simulated)


def _brave(settings: AdapterSettings, _: str) -> Adapter:
    return BraveAdapter(
        settings.name or "brave", settings.key, _billed(settings), settings.base_url or BRAVE_URL, settings.simulated
    )


def _tavily(settings: AdapterSettings, _: str) -> Adapter:
    return TavilyAdapter(
        settings.name or "tavily", settings.key, _billed(settings), settings.base_url or TAVILY_URL, settings.simulated
    )


def _exa(settings: AdapterSettings, _: str) -> Adapter:
    return ExaAdapter(
        settings.name or "exa", settings.key, _billed(settings), settings.base_url or EXA_URL, settings.simulated
    )


def _ddgs(settings: AdapterSettings, _: str) -> Adapter:
    cost = Cost(settings.cost_atomic or 0, _basis(settings, "no_charge_per_call"))
    return DdgsAdapter(settings.name or "ddgs", cost, settings.simulated)


def _index(settings: AdapterSettings, base_url: str) -> Adapter:
    return IndexAdapter(settings.name or "embedded-index", Index(pages()), base_url)


def _basis(settings: AdapterSettings, free: str) -> str:
    return "configured_per_call" if settings.cost_atomic else free


def _billed(settings: AdapterSettings) -> Cost:
    if not settings.key:
        raise AdapterSettingsError(f"a {settings.kind} adapter needs key_file, a file that holds its API key")
    basis = "billed_per_call_rate_not_configured" if not settings.cost_atomic else "configured_per_call"
    return Cost(settings.cost_atomic or None, basis, billed=True)


_KINDS: dict[str, Callable[[AdapterSettings, str], Adapter]] = {
    "searxng": _searxng,
    "brave": _brave,
    "tavily": _tavily,
    "exa": _exa,
    "ddgs": _ddgs,
    "index": _index,
}
