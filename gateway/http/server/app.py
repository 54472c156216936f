"""The Quart application of the node: whole requests in, and every failure out as problem+json."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from typing import Any
from urllib.parse import quote, unquote

import attrs
import structlog
import trio
from hypercorn.typing import (
    ASGIReceiveCallable,
    ASGISendCallable,
    HTTPResponseBodyEvent,
    HTTPResponseStartEvent,
    HTTPScope,
)
from quart import Request, Response, request
from quart_trio import QuartTrio
from quart_trio.asgi import TrioASGIHTTPConnection
from structlog.typing import FilteringBoundLogger
from werkzeug.exceptions import HTTPException
from werkzeug.exceptions import MethodNotAllowed as RouteMethodNotAllowed

from gateway import errors
from gateway.errors import GatewayError
from gateway.http import problems

REFUSAL = "gateway.refusal"
"""ASGI extension: the `GatewayError` for which the server stopped reading the body, raised once the route is known."""

_BY_STATUS: dict[int, type[GatewayError]] = {
    kind.status: kind
    for kind in (
        errors.NotAcceptable,
        errors.RequestTimeout,
        errors.LengthRequired,
        errors.ContentTooLarge,
        errors.UriTooLong,
        errors.UnsupportedMediaType,
        errors.ExpectationFailed,
        errors.HeaderFieldsTooLarge,
    )
}
_PATH_CHARACTERS = "/!$&'()*+,;=:@-._~"  # those of RFC 3986 that a path spells as they are

CLIENT_GONE = 499
"""The status of a request whose client left before its answer."""


@attrs.define
class Account:
    """What became of a request for an operation.

    Attributes:
        path: the operation's.
        status: the answer's, or `CLIENT_GONE`.
        code: the problem's, where the answer is one.
        operation_id: what the answer is about, where it is about one.
        replayed: the answer is a stored result.
        seconds: from the end of the request until its answer was made, or its client left.
    """

    path: str
    status: int = CLIENT_GONE
    code: str | None = None
    operation_id: str | None = None
    replayed: bool = False
    seconds: float = 0.0


Serve = Callable[[HTTPScope, bytes, Account], Awaitable[problems.Answer]]
"""Answers a POST of an operation from its ASGI scope and its whole body, or raises the `GatewayError` for it.

It notes in the account which operation its answer is about, and whether that is a stored result.
"""


class WholeRequest(TrioASGIHTTPConnection):
    """One request whose body has arrived before the handler runs.

    quart-trio reads messages beside the handler and cancels it at `http.disconnect`, which hypercorn also says while it
    finishes an answer, so connections were never recycled and never reaped.  Here nothing listens beside the handler;
    the server cancels the whole task of a request when its client is gone.
    """

    app: GatewayApp

    async def __call__(self, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        """Read the body, answer."""
        serve = self.app.operations.get(self.scope["raw_path"]) if self.scope["method"] == "POST" else None
        if serve is not None:
            await self._serve_operation(serve, receive, send)
            return
        incoming = self._create_request_from_scope(send)
        more = True
        while more:
            message = await receive()
            if message["type"] != "http.request":
                return
            incoming.body.append(message.get("body", b""))
            more = message.get("more_body", False)
        incoming.body.set_complete()
        await self._send_response(send, await self.app.handle_request(incoming))

    async def _serve_operation(self, serve: Serve, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        """Answer an operation without Quart's request, response and contexts, which cost more than the operation."""
        body, more = bytearray(), True
        while more:
            message = await receive()
            if message["type"] != "http.request":
                return
            body += message.get("body", b"")
            more = message.get("more_body", False)
        path = self.scope["raw_path"].decode("ascii")
        refusal: Any = (self.scope.get("extensions") or {}).get(REFUSAL)
        if refusal is not None:
            await _send(self.app.render(refusal["error"], path), send)
            return
        account = Account(path)
        try:
            await _send(await self.app.answer_operation(serve, self.scope, bytes(body), account), send)
        finally:
            self.app.account(account)  # nobody waits for that


async def _send(answer: problems.Answer, send: ASGISendCallable) -> None:
    status, headers, content = answer
    lines = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    lines.append((b"content-length", str(len(content)).encode()))
    await send(HTTPResponseStartEvent(type="http.response.start", status=status, headers=lines))
    await send(HTTPResponseBodyEvent(type="http.response.body", body=content, more_body=False))


class GatewayApp(QuartTrio):
    """Quart without its pages: no static files, no redirects, no HTML errors.

    Args:
        base_url: public origin of the node, without a slash at the end.
        body_cap: bytes a request body may have, by path.
        vital_paths: paths that are answered even where the node has no place for another connection.
        encoded_prefixes: path prefixes under which percent-encoded spellings are legitimate.
        dress: how the failure of a request for a path is to look there, beside being a problem; a copy of it.
        log: gets defects of the node; by default structlog's.
    """

    asgi_http_class = WholeRequest

    def __init__(
        self,
        import_name: str = "gateway.http",
        *,
        base_url: str,
        body_cap: Callable[[str], int],
        vital_paths: Collection[str] = (),
        encoded_prefixes: Sequence[str] = (),
        dress: Callable[[GatewayError, str], GatewayError] = lambda failure, _: failure,
        log: FilteringBoundLogger | None = None,
    ) -> None:
        super().__init__(import_name, static_folder=None)
        self.base_url = base_url
        self.body_cap = body_cap
        self.vital_paths = frozenset(vital_paths)
        self.encoded_prefixes = tuple(encoded_prefixes)
        self.dress = dress
        self.log: FilteringBoundLogger = log or structlog.get_logger("gateway.http")
        self.operations: dict[bytes, Serve] = {}
        self.accountants: list[Callable[[Account], None]] = []
        """Hear of each request for an operation, once its answer has been written."""
        self.url_map.merge_slashes = False
        self.config.update(MAX_CONTENT_LENGTH=None, BODY_TIMEOUT=None, RESPONSE_TIMEOUT=None)  # the server's business
        self.before_request(self._admit)
        self.register_error_handler(Exception, self._answer)

    def render(self, error: GatewayError, instance: str) -> problems.Answer:
        """Render the answer to a failure, for the layers beneath Quart too; it never fails itself."""
        try:
            return problems.render(self.dress(error, instance), base_url=self.base_url, instance=instance)
        except TypeError as defect:
            self.log.exception("http.defect", exc_info=defect, problem=error.code)
            told = self.dress(errors.InternalError(), instance)
            return problems.render(told, base_url=self.base_url, instance=instance)

    def add_url_rule(self, rule: str, *args: Any, **kwargs: Any) -> None:
        """Add a route; one that ends in a slash would redirect, so only the root may."""
        if rule != "/" and rule.endswith("/"):
            raise ValueError(f"the route {rule} must not end in a slash")
        super().add_url_rule(rule, *args, **kwargs)

    def add_operation(self, path: str, serve: Serve) -> None:
        """Let `serve` answer POST on `path`; every other method of it is answered by Quart's routing."""

        async def passed_by() -> Response:
            raise errors.InternalError

        self.add_url_rule(path, endpoint=path, view_func=passed_by, methods=["POST"])
        self.operations[path.encode("ascii")] = serve

    async def answer_operation(self, serve: Serve, scope: HTTPScope, body: bytes, account: Account) -> problems.Answer:
        """Return the answer of an operation, its failure rendered; a defect is logged and answered as one."""
        began = time.perf_counter()
        try:
            answer = await serve(scope, body, account)
            account.status = answer[0]
        except GatewayError as failure:
            account.status, account.code, account.operation_id = failure.status, failure.code, failure.operation_id
            return self.render(failure, account.path)
        except Exception as defect:
            account.status = errors.InternalError.status
            self.log.exception("http.defect", exc_info=defect, method="POST", path=account.path)
            return self.render(errors.InternalError(), account.path)
        finally:
            account.seconds = time.perf_counter() - began
        return answer

    def account(self, account: Account) -> None:
        """Let the accountants hear what became of a request."""
        for hear in self.accountants:
            hear(account)

    async def handle_user_exception(self, error: Any, *more: Any) -> Any:
        """Answer a failure of a handler; groups are answered as the one failure that they amount to."""
        failure = more[-1] if more else error  # newer Quarts pass their context first
        if not isinstance(failure, BaseExceptionGroup):
            return await super().handle_user_exception(error, *more)
        cancelled, other = failure.split(trio.Cancelled)
        if cancelled is None:
            return await self._answer(_worst(failure))
        if other is not None:
            self.log.error("http.defect", exc_info=other, method=request.method, path=request.path)
        raise cancelled

    async def make_default_options_response(self, *_: Any) -> Response:
        """Answer OPTIONS with the methods of the resource."""
        adapter = self.create_url_adapter(request)
        methods = adapter.allowed_methods() if adapter is not None else ()
        return _options(methods)

    async def _admit(self) -> Response | None:
        """Refuse what must not reach a handler: unknown resources and methods, retired spellings, refused bodies."""
        raw_path = request.scope["raw_path"].decode("ascii")
        if raw_path == "*" and request.method == "OPTIONS":
            return _options(("GET", "HEAD", "OPTIONS", "POST"))
        if not self._is_canonical(raw_path):
            raise errors.NotFound("No resource has this path.")
        if request.routing_exception is not None:
            raise request.routing_exception
        refusal = (request.scope.get("extensions") or {}).get(REFUSAL)
        if refusal is not None:
            raise refusal["error"]
        return None

    def _is_canonical(self, raw_path: str) -> bool:
        """Whether a path is spelled in the one way that names a resource."""
        if not raw_path.startswith("/") or "//" in raw_path:
            return False
        return (
            "%" not in raw_path
            or raw_path.startswith(self.encoded_prefixes)
            or quote(unquote(raw_path), safe=_PATH_CHARACTERS) == raw_path
        )

    async def _answer(self, error: Exception) -> HTTPException | tuple[bytes, int, dict[str, str]]:
        if isinstance(error, HTTPException) and error.response is not None:
            return error
        failure = error if isinstance(error, GatewayError) else _known(error)
        if failure is None:
            self.log.error("http.defect", exc_info=error, method=request.method, path=request.path)
            failure = errors.InternalError()
        status, headers, body = self.render(failure, _instance(request))
        return body, status, headers


def _instance(incoming: Request) -> str:
    return str(incoming.scope["raw_path"].decode("ascii"))


def _options(methods: Iterable[str]) -> Response:
    response = Response("", status=204)
    response.headers.clear()  # a 204 has neither type nor length
    response.headers["Allow"] = ", ".join(sorted(methods))
    return response


def _known(error: BaseException) -> GatewayError | None:
    """Translate a failure that Quart or werkzeug raised; none if it is a defect."""
    if not isinstance(error, HTTPException) or error.code is None or error.code >= 500:
        return None
    if isinstance(error, RouteMethodNotAllowed):
        allowed = ", ".join(sorted(error.valid_methods or ()))
        return errors.MethodNotAllowed(f"This resource answers {allowed}.", headers={"Allow": allowed})
    if error.code == 404:
        return errors.NotFound("No resource has this path.")
    return _BY_STATUS.get(error.code, errors.BadRequest)()


def _worst(group: BaseExceptionGroup[BaseException]) -> Exception:
    """Return the failure that speaks for a group: the group itself if any of them is a defect, else the gravest."""
    leaves = list(_leaves(group))
    known = [leaf if isinstance(leaf, GatewayError) else _known(leaf) for leaf in leaves]
    failures = [failure for failure in known if failure is not None]
    if len(failures) == len(leaves):
        return max(failures, key=lambda failure: failure.status)
    return group if isinstance(group, Exception) else RuntimeError(repr(group))


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error
