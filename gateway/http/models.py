"""`GET /v1/models` and one model of it: what can be called now, at what price, and why the rest cannot."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import attrs
import orjson
from quart import Response, request

from gateway import errors
from gateway.http.server import GatewayApp
from gateway.registry.ai.catalog import Catalog
from gateway.registry.ai.choice import Standing
from gateway.registry.ai.listing import Selling, model_list, model_object

PATH = "/v1/models"
FRESH = {"Cache-Control": "public, max-age=1"}
"""A proof may end at any moment, so a copy is asked for again soon; the tag makes that cheap."""


@attrs.frozen(eq=False)
class ModelsPage:
    """What the list is made from, looked at anew for every answer.

    Attributes:
        catalog: its rows, in their order.
        standing: what can be said of an id of it now; see `gateway.registry.ai.choice.standing`.
        selling: what is the same for all of them now.
    """

    catalog: Catalog
    standing: Callable[[str], Standing]
    selling: Callable[[], Selling]


@attrs.frozen
class _Made:
    """A rendered list, and what it was rendered from."""

    standings: tuple[Standing, ...]
    selling: Selling
    body: bytes
    tag: str


class _List:
    """The rendered list, made again only when something else can be said: expiry of a proof is such a change."""

    def __init__(self, page: ModelsPage) -> None:
        self._page = page
        self._made: _Made | None = None

    def now(self) -> _Made:
        page, made = self._page, self._made
        standings, selling = tuple(page.standing(model_id) for model_id in page.catalog.models), page.selling()
        if made is None or made.selling != selling or made.standings != standings:
            body, tag = _rendered(model_list(page.catalog, standings, selling))
            made = self._made = _Made(standings, selling, body, tag)
        return made


def add_models(app: GatewayApp, page: ModelsPage) -> None:
    """Serve the list of models, and each of them under its id, its slash percent-encoded or not."""
    listed = _List(page)

    @app.get(PATH)
    async def list_models() -> Response:
        made = listed.now()
        return _answer(made.body, made.tag)

    @app.get(f"{PATH}/<path:model_id>")
    async def show_model(model_id: str) -> Response:
        if page.catalog.get(model_id) is None:
            raise errors.NotFound(f"The catalog has no model {model_id[:128]!r}.", extra={"param": "model"})
        return _answer(*_rendered(model_object(page.catalog, page.standing(model_id), page.selling())))


def _rendered(document: dict[str, Any]) -> tuple[bytes, str]:
    """Return a document's bytes and the tag that names them."""
    body = orjson.dumps(document)
    return body, hashlib.sha256(body).hexdigest()[:32]


def _answer(body: bytes, tag: str) -> Response:
    headers = {**FRESH, "ETag": f'"{tag}"'}
    if request.if_none_match.contains_weak(tag):
        return Response("", status=304, headers=headers)
    return Response(body, status=200, headers={**headers, "Content-Type": "application/json"})
