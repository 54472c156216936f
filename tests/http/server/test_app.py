"""Facts about the application: routes have one spelling, and every failure of a handler is a problem."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

import pytest
import structlog
import trio
from hypercorn.typing import HTTPScope
from quart import Response, abort, request
from structlog.testing import LogCapture
from werkzeug.exceptions import HTTPException

from gateway import errors
from gateway.http.problems import Answer
from gateway.http.server import Account, GatewayApp
from gateway.http.server.app import CLIENT_GONE, REFUSAL


@pytest.fixture
def capture() -> LogCapture:
    return LogCapture()


@pytest.fixture
def app(capture: LogCapture) -> GatewayApp:
    log = structlog.wrap_logger(None, processors=[capture])
    app = GatewayApp(
        base_url="https://node.example", body_cap=lambda _: 100, encoded_prefixes=("/v1/models/",), log=log
    )

    @app.post("/v1/search")
    async def search() -> dict[str, str]:
        return {"served": request.path}

    @app.get("/v1/models/<path:model>")
    async def model(model: str) -> dict[str, str]:
        return {"model": model}

    @app.get("/v1/caf<name>")
    async def coffee(name: str) -> dict[str, str]:
        return {"name": name}

    return app


def problem(answer: Any, body: Any) -> tuple[int, str]:
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert answer.headers["Cache-Control"] == "no-store"
    assert body["status"] == answer.status_code
    return answer.status_code, body["code"]


async def post(app: GatewayApp, path: str, sent: list[Any], **extensions: object) -> None:
    """Post `{}` by ASGI alone; what is answered is added to `sent`."""
    scope = {
        "type": "http",
        "http_version": "1.1",
        "asgi": {"version": "3.0"},
        "method": "POST",
        "scheme": "http",
        "path": unquote(path),
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(b"host", b"t")],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 2),
        "extensions": extensions,
        "state": {},
    }

    async def receive() -> Any:
        return {"type": "http.request", "body": b"{}", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)  # type: ignore[arg-type]


async def failing(app: GatewayApp, error: BaseException) -> tuple[int, str]:
    """Return status and code of the answer to a handler that raises `error`."""

    @app.get("/fails")
    async def fails() -> str:
        raise error

    answer = await app.test_client().get("/fails")
    return problem(answer, await answer.get_json(force=True))


@pytest.mark.parametrize(
    "path",
    [
        "/v1/search/",
        "//v1/search",
        "/v1//search",
        "///v1/search",
        "/v1/%73earch",
        "/v1%2fsearch",
        "/v1%2Fsearch",
        "/%2Fv1/search",
        "/v1/search%00",
        "/v1/search%0a",
        "/v1/search%2f",
        "/v1/search%",
        "/v1/search%ff",
        "/v1/./search",
        "/v1/x/../search",
        "/V1/search",
        "/v1/search;x=1",
        "/",
    ],
)
async def test_another_spelling_of_a_path_is_404_and_never_the_handler(app: GatewayApp, path: str) -> None:
    sent: list[Any] = []
    await post(app, path, sent)
    assert sent[0]["status"] == 404
    assert b"not_found" in sent[1]["body"]


async def test_encoded_spellings_are_served_where_they_are_legitimate(app: GatewayApp) -> None:
    client = app.test_client()
    for path in ("/v1/models/openai/gpt-5", "/v1/models/openai%2Fgpt-5", "/v1/models/openai%2fgpt-5"):
        answer = await client.get(path)
        assert await answer.get_json() == {"model": "openai/gpt-5"}


async def test_a_path_with_letters_that_must_be_encoded_is_served(app: GatewayApp) -> None:
    answer = await app.test_client().get("/v1/caf%C3%A9")
    assert await answer.get_json() == {"name": "é"}


async def test_an_unknown_path_is_a_problem_that_names_it(app: GatewayApp) -> None:
    answer = await app.test_client().get("/v1/nothing?secret=1")
    body = await answer.get_json(force=True)
    assert problem(answer, body) == (404, "not_found")
    assert body["instance"] == "/v1/nothing"


async def test_a_wrong_method_names_the_right_ones(app: GatewayApp) -> None:
    answer = await app.test_client().delete("/v1/search")
    assert problem(answer, await answer.get_json(force=True)) == (405, "method_not_allowed")
    assert answer.headers["Allow"] == "OPTIONS, POST"


def test_a_route_that_would_redirect_cannot_be_added(app: GatewayApp) -> None:
    with pytest.raises(ValueError, match="must not end in a slash"):
        app.get("/v1/things/")(lambda: "")


def test_no_static_files_are_served(app: GatewayApp) -> None:
    assert {rule.endpoint for rule in app.url_map.iter_rules()} == {"search", "model", "coffee"}


async def test_a_failure_of_the_node_is_its_problem(app: GatewayApp) -> None:
    failure = errors.StoreUnavailable("no disk", retry_after=0.2, extra={"disk": 1}, headers={"X-Disk": "1"})

    @app.get("/fails")
    async def fails() -> str:
        raise failure

    answer = await app.test_client().get("/fails")
    body = await answer.get_json(force=True)
    assert problem(answer, body) == (503, "store_unavailable")
    assert (answer.headers["Retry-After"], answer.headers["X-Disk"]) == ("1", "1")
    assert (body["detail"], body["disk"]) == ("no disk", 1)


async def test_a_defect_is_an_internal_error_that_tells_nothing_and_is_logged(
    app: GatewayApp, capture: LogCapture
) -> None:
    defect = KeyError("sk_live_secret")

    @app.get("/fails")
    async def fails() -> str:
        raise defect

    answer = await app.test_client().get("/fails")
    text = await answer.get_data(as_text=True)
    assert answer.status_code == 500
    assert "secret" not in text
    [entry] = capture.entries
    assert (entry["event"], entry["exc_info"], entry["path"]) == ("http.defect", defect, "/fails")


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (400, (400, "bad_request")),
        (403, (400, "bad_request")),
        (404, (404, "not_found")),
        (405, (405, "method_not_allowed")),
        (406, (406, "not_acceptable")),
        (408, (408, "request_timeout")),
        (411, (411, "length_required")),
        (413, (413, "content_too_large")),
        (414, (414, "uri_too_long")),
        (415, (415, "unsupported_media_type")),
        (417, (417, "expectation_failed")),
        (418, (400, "bad_request")),
        (431, (431, "header_fields_too_large")),
        (500, (500, "internal_error")),
        (503, (500, "internal_error")),
    ],
)
async def test_every_failure_of_the_framework_is_a_problem(
    app: GatewayApp, status: int, expected: tuple[int, str]
) -> None:
    with pytest.raises(HTTPException) as caught:
        abort(status)
    assert await failing(app, caught.value) == expected


async def test_the_gravest_failure_speaks_for_a_group(app: GatewayApp) -> None:
    group = ExceptionGroup("", [errors.NotFound(), ExceptionGroup("", [errors.CapacityExhausted()])])
    assert await failing(app, group) == (503, "capacity_exhausted")


async def test_a_defect_in_a_group_is_an_internal_error(app: GatewayApp, capture: LogCapture) -> None:
    group = ExceptionGroup("", [errors.CapacityExhausted(), ExceptionGroup("", [KeyError()])])
    assert await failing(app, group) == (500, "internal_error")
    assert [entry["exc_info"] for entry in capture.entries] == [group]


async def test_a_failure_inside_a_handlers_nursery_is_its_problem(app: GatewayApp) -> None:
    @app.get("/fails")
    async def fails() -> str:
        async def task() -> None:
            raise errors.CapacityExhausted("full")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(task)
            nursery.start_soon(trio.sleep_forever)
        return "never"

    answer = await app.test_client().get("/fails")
    assert problem(answer, await answer.get_json(force=True)) == (503, "capacity_exhausted")


async def test_a_failure_after_the_handler_is_a_problem(app: GatewayApp, capture: LogCapture) -> None:
    @app.after_request
    async def spoil(response: Response) -> Response:
        if response.status_code == 200:
            raise KeyError
        return response

    answer = await app.test_client().post("/v1/search")
    assert problem(answer, await answer.get_json(force=True)) == (500, "internal_error")


async def test_a_failure_of_the_framework_itself_is_a_problem(
    app: GatewayApp, capture: LogCapture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Any:
        raise RuntimeError

    monkeypatch.setattr(app, "preprocess_request", fail)
    answer = await app.test_client().post("/v1/search")
    assert problem(answer, await answer.get_json(force=True)) == (500, "internal_error")


async def test_an_extension_member_that_is_no_json_is_a_defect_not_a_silence(
    app: GatewayApp, capture: LogCapture
) -> None:
    assert await failing(app, errors.NotFound(extra={"x": object()})) == (500, "internal_error")
    assert capture.entries[0]["problem"] == "not_found"


# -- operations --------------------------------------------------------------------------------------------------------

OPERATION = "/v1/run"


def served_by(app: GatewayApp, failure: Exception | None, sent: list[Any]) -> None:
    """Add an operation; what it is accounted as is added to `sent`."""

    async def serve(scope: HTTPScope, body: bytes, account: Account) -> Answer:
        assert (scope["method"], body) == ("POST", b"{}")
        await trio.lowlevel.checkpoint()
        if failure is not None:
            raise failure
        account.operation_id, account.replayed = "op_1", True
        return 200, {"X-Served": "yes"}, b"{}"

    app.add_operation(OPERATION, serve)
    app.accountants.append(sent.append)


def accounted(account: Account) -> tuple[int, str | None, str | None, bool]:
    assert (account.path, account.seconds > 0) == (OPERATION, True)
    return account.status, account.code, account.operation_id, account.replayed


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (None, (200, None, "op_1", True)),
        (errors.CapacityExhausted(operation_id="op_2"), (503, "capacity_exhausted", "op_2", False)),
        (KeyError("a defect"), (500, None, None, False)),
    ],
)
async def test_a_request_for_an_operation_is_accounted_for_once_its_answer_is_written(
    app: GatewayApp, failure: Exception | None, expected: object
) -> None:
    sent: list[Any] = []
    served_by(app, failure, sent)
    await post(app, OPERATION, sent)
    head, body, account = sent
    assert (head["type"], body["type"]) == ("http.response.start", "http.response.body")
    assert head["status"] == account.status
    assert accounted(account) == expected


async def test_a_request_whose_client_left_is_accounted_for_too(app: GatewayApp) -> None:
    sent: list[Any] = []
    served_by(app, None, sent)
    with trio.CancelScope() as left:
        left.cancel()
        await post(app, OPERATION, sent)
    (account,) = sent
    assert accounted(account) == (CLIENT_GONE, None, None, False)


async def test_what_the_server_refused_is_no_operations_request(app: GatewayApp) -> None:
    sent: list[Any] = []
    served_by(app, None, sent)
    await post(app, OPERATION, sent, **{REFUSAL: {"error": errors.RequestTimeout()}})
    assert [message.get("status") for message in sent] == [408, None]
