"""The back ends that a configuration names: search adapters, routes to models; their secrets read."""

from __future__ import annotations

from pathlib import Path

from gateway.config import Configuration, ConfigurationError, ModelRouteSection, SearchAdapterSection
from gateway.errors import Violation
from gateway.registry.ai import adapters as models
from gateway.registry.ai.adapter import ModelAdapter, ModelRoute, RouteSettings
from gateway.registry.ai.catalog import CATALOG
from gateway.registry.search import adapters as engines
from gateway.registry.search.adapter import Adapter

EMBEDDED = ModelRouteSection(model=models.EMBEDDED_MODEL, kind="embedded")
"""The route that a node has without being configured: to the model inside it."""


def adapters_of(configuration: Configuration) -> tuple[Adapter, ...]:
    """Return the search adapters in order; raises `ConfigurationError`."""
    settings = [
        engines.AdapterSettings(
            kind=section.kind,
            name=section.name,
            base_url=section.base_url,
            key=_key(configuration, f"/search/adapter/{index}", section),
            cost_atomic=section.cost_atomic,
            simulated=section.simulated,
        )
        for index, section in enumerate(configuration.search.adapter)
    ]
    try:
        return engines.build(settings, base_url=configuration.base_url)
    except engines.AdapterSettingsError as error:
        raise ConfigurationError(configuration.source, [Violation("/search/adapter", str(error))]) from error


def model_routes_of(configuration: Configuration, embedded: ModelAdapter | None) -> tuple[ModelRoute, ...]:
    """Return the routes to models in order, the embedded one last unless configured; raises `ConfigurationError`.

    `embedded` asks the model inside the node; None where it is switched off.
    """
    sections = list(configuration.ai.route)
    if embedded is not None and all(section.kind != EMBEDDED.kind for section in sections):
        sections.append(EMBEDDED)
    settings = [
        RouteSettings(
            model=section.model,
            kind=section.kind,
            base_url=section.base_url,
            upstream_model=section.upstream_model,
            key=_key(configuration, f"/ai/route/{index}", section),
            name=section.name,
            billed=section.billed,
            canary=section.canary,
            rates=_rates(section),
            simulated=section.simulated,
        )
        for index, section in enumerate(sections)
    ]
    try:
        return models.build(settings, CATALOG, embedded)
    except models.RouteSettingsError as error:
        where = f"/ai/route/{error.index}"
        raise ConfigurationError(configuration.source, [Violation(where, error.message)]) from error


def _rates(section: ModelRouteSection) -> tuple[int, int] | None:
    if section.input_rate is None or section.output_rate is None:
        return None
    return section.input_rate, section.output_rate


def _key(configuration: Configuration, pointer: str, section: SearchAdapterSection | ModelRouteSection) -> str:
    try:
        return Path(section.key_file).expanduser().read_text().strip() if section.key_file else ""
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not text"
        told = Violation(f"{pointer}/key_file", f"{section.key_file} cannot be read: {why}")
        raise ConfigurationError(configuration.source, [told]) from error
