"""From settings to routes: one per configured way to a model, in the operator's order."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Sequence
from urllib.parse import SplitResult, urlsplit

from gateway.registry.ai.adapter import ModelAdapter, ModelRoute, RouteSettings
from gateway.registry.ai.anthropic import BASE_URL as ANTHROPIC_URL
from gateway.registry.ai.anthropic import AnthropicAdapter
from gateway.registry.ai.catalog import Catalog
from gateway.registry.ai.gemini import BASE_URL as GEMINI_URL
from gateway.registry.ai.gemini import GeminiAdapter
from gateway.registry.ai.openai import BASE_URL as OPENAI_URL
from gateway.registry.ai.openai import OpenAiAdapter

EMBEDDED_MODEL = "huggingfacetb/smollm2-135m-instruct"
"""The one canonical id that the embedded model is."""
CHATS = frozenset({"ai.execute", "chat.completions"})
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]{0,127}")
UPSTREAM_NAME = re.compile(r"[!-~]{1,256}")
KEY = re.compile(r"[!-~]{1,4096}")

Make = Callable[[str, str, str, str], ModelAdapter]
KINDS: dict[str, tuple[Make, str]] = {
    "openai": (OpenAiAdapter, OPENAI_URL),
    "anthropic": (AnthropicAdapter, ANTHROPIC_URL),
    "gemini": (GeminiAdapter, GEMINI_URL),
}
"""Of each kind but `embedded`: its adapter, and where it is unless configured."""


class RouteSettingsError(Exception):
    """The settings of a route that cannot work.

    Attributes:
        index: its place among the settings, from 0.
        message: what is wrong and what to do, without anything secret.
    """

    def __init__(self, index: int, message: str) -> None:
        super().__init__(f"route {index}: {message}")
        self.index = index
        self.message = message


class _WrongSettings(Exception):
    pass


def build(settings: Sequence[RouteSettings], catalog: Catalog, embedded: ModelAdapter | None) -> tuple[ModelRoute, ...]:
    """Return the routes in order; `embedded` asks the model inside the node, None where it is switched off.

    Unless the settings say otherwise, a route with a key is billed, and one that is not may be proved by canaries.
    What an upstream charges is known from the settings only: the catalog's rates are what the node charges by.

    Raises `RouteSettingsError` for a model that is not in the catalog or not sold as a chat, an unknown kind, no
    `upstream_model` (no provider's own name of a model can be told from the catalog's), an address that is none or
    would show a key to whoever listens, a missing key, and a name that is used twice.
    """
    routes: list[ModelRoute] = []
    for index, each in enumerate(settings):
        try:
            route = _route(each, routes, catalog, embedded)
            if any(route.route_id == other.route_id for other in routes):
                raise _WrongSettings(f"two routes are named {route.route_id!r}: give one another name")
        except _WrongSettings as wrong:
            raise RouteSettingsError(index, str(wrong)) from None
        routes.append(route)
    return tuple(routes)


def _route(
    settings: RouteSettings, before: Sequence[ModelRoute], catalog: Catalog, embedded: ModelAdapter | None
) -> ModelRoute:
    _check_model(settings.model, catalog)
    if settings.name and not NAME.fullmatch(settings.name):
        raise _WrongSettings("name must be letters, digits and . _ / : @ - only, at most 128")
    earlier = sum(other.model == settings.model for other in before)
    name = settings.name or (f"{settings.model}-{earlier + 1}" if earlier else settings.model)
    if settings.kind == "embedded":
        adapter, billed = _embedded(settings, catalog, embedded), False
    else:
        adapter, billed = _remote(settings, name), bool(settings.key)
    billed = billed if settings.billed is None else settings.billed
    return ModelRoute(
        route_id=f"ai/{name}",
        model=settings.model,
        adapter=adapter,
        billed=billed,
        canary=not billed if settings.canary is None else settings.canary,
        rates=settings.rates,
        simulated=settings.simulated,
    )


def _check_model(model_id: str, catalog: Catalog) -> None:
    model = catalog.get(model_id)
    if model is None:
        raise _WrongSettings(f"the catalog has no model {model_id[:128]!r}: see `gateway models` for its ids")
    if not CHATS.intersection(model.operations):
        raise _WrongSettings(f"{model_id} is not sold as a chat, so no route to it can be used")


def _embedded(settings: RouteSettings, catalog: Catalog, embedded: ModelAdapter | None) -> ModelAdapter:
    model = catalog.get(settings.model)
    if settings.model != EMBEDDED_MODEL and (model is None or EMBEDDED_MODEL not in model.candidates):
        raise _WrongSettings(f"the embedded model is {EMBEDDED_MODEL}: it cannot answer for {settings.model}")
    if settings.base_url or settings.upstream_model or settings.key:
        raise _WrongSettings("an embedded route takes no base_url, upstream_model or key_file")
    if embedded is None:
        raise _WrongSettings("the embedded model is switched off: set embedded = true in [ai], or remove the route")
    return embedded


def _remote(settings: RouteSettings, name: str) -> ModelAdapter:
    known = KINDS.get(settings.kind)
    if known is None:
        raise _WrongSettings(f"kind {settings.kind!r} is not one of {', '.join(KINDS)}, embedded")
    make, usual_url = known
    if settings.key and not KEY.fullmatch(settings.key):
        raise _WrongSettings("key_file must hold the key alone, one line of visible ASCII characters")
    upstream_model = settings.upstream_model
    if settings.kind == "gemini":
        upstream_model = upstream_model.removeprefix("models/")
    if not UPSTREAM_NAME.fullmatch(upstream_model):
        raise _WrongSettings("upstream_model must be the upstream's own name of the model, as its listing has it")
    address = _address(settings, usual_url)
    if not settings.key and urlsplit(address).hostname == urlsplit(usual_url).hostname:
        raise _WrongSettings(f"{usual_url} needs key_file, a file that holds your API key")
    return make(address, upstream_model, settings.key, name)


def _address(settings: RouteSettings, usual_url: str) -> str:
    """Return where the upstream is, without a slash at the end."""
    url = settings.base_url or usual_url
    try:
        parts = urlsplit(url)
        host = parts.hostname if _is_plain(parts) and UPSTREAM_NAME.fullmatch(url) else None
    except ValueError:
        host = None
    if not host:
        raise _WrongSettings("base_url must be http(s)://host[:port][/path], without a user, a query or a fragment")
    if settings.key and url.lower().startswith("http:") and not _is_here(host):
        raise _WrongSettings("the key would be sent over http:// for all to read: use https://, or a loopback address")
    return url.rstrip("/")


def _is_plain(parts: SplitResult) -> bool:
    extras = parts.query or parts.fragment or "@" in parts.netloc
    return parts.scheme in {"http", "https"} and not extras and (parts.port is None or parts.port > 0)


def _is_here(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
