"""The public routes: the operations, and what can be read without one."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from importlib.resources import files
from typing import Any

import attrs
import orjson
import structlog
from hypercorn.typing import HTTPScope
from quart import Response, g, request

from gateway import __version__, errors
from gateway.actors import idempotency as keys
from gateway.actors.runtime import ActorError
from gateway.http import openai_wire, problems
from gateway.http.models import ModelsPage, add_models
from gateway.http.operation_view import view
from gateway.http.pipeline import Incoming, Node, Pipeline
from gateway.http.request_headers import Headers, idempotency_key
from gateway.http.server import Account, GatewayApp, Serve
from gateway.registry.operation import Operation

OPERATION_ID = re.compile(r"op_[0-9A-HJKMNP-TV-Z]{26}\Z")
DOCUMENT = re.compile(r"[a-z0-9-]{1,64}\Z")
DEFAULT_BODY_CAP = 4096
PUBLIC = {"Cache-Control": "public, max-age=300"}
LIVE = {"Cache-Control": "no-store"}
HEALTH = ("/healthz", "/readyz")
LONGEST_PATH = 200

log = structlog.get_logger(__name__)


@attrs.frozen(eq=False)
class Readiness:
    """What `/readyz` reports: `check` names what is not ready, with reasons."""

    check: Callable[[], Any]


def build_app(
    table: Mapping[str, Operation],
    node: Node,
    *,
    base_url: str,
    key_set: Mapping[str, Any],
    readiness: Readiness,
    models: ModelsPage,
) -> GatewayApp:
    """Return the application of a node."""
    by_path = {operation.path: operation for operation in table.values()}

    def body_cap(path: str) -> int:
        return by_path[path].body_cap if path in by_path else DEFAULT_BODY_CAP

    app = GatewayApp(
        base_url=base_url,
        body_cap=body_cap,
        vital_paths=HEALTH,
        encoded_prefixes=("/v1/models/",),
        dress=_dressed,
    )
    for operation in table.values():
        app.add_operation(operation.path, _serve(Pipeline.of(operation, node)))
    _add_lookups(app, node)
    add_models(app, models)
    _add_hints(app)
    _add_documents(app, base_url, key_set)
    _add_health(app, readiness)
    _add_log(app)
    return app


def _dressed(failure: errors.GatewayError, path: str) -> errors.GatewayError:
    return openai_wire.dressed(failure) if openai_wire.speaks_openai(path) else failure


def _serve(pipeline: Pipeline) -> Serve:
    async def serve(scope: HTTPScope, body: bytes, account: Account) -> problems.Answer:
        answer = await pipeline.call(Incoming(_headers(scope), body, _peer(scope)))
        account.operation_id, account.replayed = answer.operation_id, answer.replayed
        return 200, dict(answer.headers), answer.body

    return serve


def _tell(account: Account) -> None:
    """Log what became of a request for an operation."""
    tell = log.debug if account.code == errors.PaymentRequired.code else log.info
    told = {"code": account.code, "operationId": account.operation_id}
    if account.code is None:
        told = {"operationId": account.operation_id} if account.operation_id is not None else {}
    tell("request", method="POST", path=account.path, status=account.status, ms=_ms(account.seconds), **told)


def _add_log(app: GatewayApp) -> None:
    """Log every answer; a health check only when it fails."""

    async def begin() -> None:
        g.asked_at = time.perf_counter()

    async def tell(response: Response) -> Response:
        if request.path not in HEALTH or response.status_code >= 500:
            path = request.path[:LONGEST_PATH]
            ms = _ms(time.perf_counter() - g.asked_at)
            log.info("request", method=request.method, path=path, status=response.status_code, ms=ms)
        return response

    app.before_request_funcs.setdefault(None, []).insert(0, begin)
    app.after_request(tell)
    app.accountants.append(_tell)


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 1)


def _headers(scope: Any) -> Headers:
    return [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in scope["headers"]]


def _peer(scope: Any) -> str:
    client = scope.get("client")
    return str(client[0]) if client else "0.0.0.0"  # noqa: S104 - a caller without an address, not a bind


def _json(document: Any, headers: Mapping[str, str], status: int = 200) -> Response:
    return Response(orjson.dumps(document), status=status, headers={"Content-Type": "application/json", **headers})


def _add_lookups(app: GatewayApp, node: Node) -> None:
    @app.get("/v1/operations/<operation_id>")
    async def show_operation(operation_id: str) -> Response:
        if not OPERATION_ID.match(operation_id):
            raise errors.OperationNotFound
        headers = _headers(request.scope)
        key = idempotency_key(headers, required=False)
        names = node.naming.names(key, node.callers.network(_peer(request.scope), headers)) if key else ()
        try:
            shown = await node.idempotency.ask(keys.Show(operation_id, names), within=10)
        except ActorError as error:
            raise errors.StoreUnavailable(retry_after=1) from error
        pause = {} if shown.state.ended else {"Retry-After": "2"}
        private = {"Cache-Control": "private, no-store"}
        return _json(view(shown), private | pause)


def _add_hints(app: GatewayApp) -> None:
    @app.post("/v1/responses")
    async def responses() -> Response:
        raise errors.NotFound("This node has no Responses API. Send the chat to /v1/chat/completions.")


def _add_documents(app: GatewayApp, base_url: str, key_set: Mapping[str, Any]) -> None:
    @app.get("/.well-known/jwks.json")
    async def jwks() -> Response:
        return _json(key_set, PUBLIC)

    @app.get("/problems")
    async def list_problems() -> Response:
        listed = [problems.describe(code, base_url=base_url) for code in errors.PROBLEMS]
        return _json({"problems": listed}, PUBLIC)

    @app.get("/problems/<code>")
    async def show_problem(code: str) -> Response:
        status, headers, body = problems.describe_as(request.headers.get("Accept", ""), code, base_url=base_url)
        return Response(body, status=status, headers=headers)

    @app.get("/docs/<name>")
    async def show_document(name: str) -> Response:
        page = files("gateway.registry.search") / "corpus" / f"{name}.md"
        if not DOCUMENT.match(name) or not page.is_file():
            raise errors.NotFound
        headers = {"Content-Type": "text/markdown; charset=utf-8", **PUBLIC}
        return Response(page.read_bytes(), status=200, headers=headers)


def _add_health(app: GatewayApp, readiness: Readiness) -> None:
    @app.get("/healthz")
    async def healthz() -> Response:
        return _json({"status": "alive", "version": __version__}, LIVE)

    @app.get("/readyz")
    async def readyz() -> Response:
        faults = await readiness.check()
        status = 503 if faults else 200
        return _json({"status": "not_ready" if faults else "ready", "faults": faults}, LIVE, status)
