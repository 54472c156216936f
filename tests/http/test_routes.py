"""What is served over a real socket: operations, look-ups, documents and health."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import httpx
import pytest
import structlog
import trio

from gateway.actors.store import Statement
from gateway.errors import PROBLEMS
from gateway.http.models import ModelsPage
from gateway.http.routes import Readiness, build_app
from gateway.http.server import ServerLimits, bind, serve
from gateway.logs import log_lines
from gateway.registry.ai.catalog import CATALOG
from gateway.registry.ai.choice import standing
from gateway.registry.ai.listing import Selling
from gateway.registry.qualification import Proofs
from tests.http.shop import BODY, PAYER, TERMS, Answer, Shop, open_shop

KEY = "0123456789abcdef0123"
PAID, FREE = "/v1/search/paid", "/v1/search/free"


@attrs.frozen(eq=False)
class Site:
    shop: Shop
    client: httpx.AsyncClient
    faults: list[dict[str, str]]

    async def ask(self, path: str = PAID, *, body: Any = BODY, **headers: str) -> httpx.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.client.post(path, json=body, headers=named)

    async def buy(self, key: str = KEY, body: Any = BODY) -> httpx.Response:
        quoted = await self.ask(idempotency_key=key, body=body)
        required = Answer(402, {"PAYMENT-REQUIRED": quoted.headers["payment-required"]}, b"")
        return await self.client.post(PAID, json=body, headers={"idempotency-key": key} | PAYER.x402(required))


async def heard(client: httpx.AsyncClient, request: bytes) -> dict[str, Any]:
    """Return the JSON that answers what no HTTP client would send."""
    stream = await trio.open_tcp_stream("127.0.0.1", client.base_url.port or 0)
    received = b""
    with trio.fail_after(10):
        async with stream:
            await stream.send_all(request)
            async for chunk in stream:
                received += chunk
    answer: dict[str, Any] = json.loads(received.partition(b"\r\n\r\n")[2])
    return answer


@asynccontextmanager
async def open_site(directory: Path) -> AsyncIterator[Site]:
    faults: list[dict[str, str]] = []

    async def check() -> list[dict[str, str]]:
        return faults

    async with open_shop(directory) as shop, trio.open_nursery() as nursery:
        app = build_app(
            shop.table,
            shop.node,
            base_url=TERMS.base_url,
            key_set=shop.signer.key_set,
            readiness=Readiness(check),
            models=ModelsPage(
                CATALOG,
                partial(standing, CATALOG, (), Proofs(trio.current_time).of),
                lambda: Selling(TERMS.base_url, TERMS, None, free_per_minute=12),
            ),
        )
        stop = trio.Event()
        listener = bind("127.0.0.1:0")
        urls = await nursery.start(partial(serve, app, [listener], limits=ServerLimits(drain_s=2), stop=stop))
        async with httpx.AsyncClient(base_url=urls[0]) as client:
            yield Site(shop, client, faults)
        stop.set()


# -- operations --------------------------------------------------------------------------------------------------------


async def test_an_operation_is_sold_over_the_wire(tmp_path: Path) -> None:
    async with open_site(tmp_path) as site:
        bought = await site.buy()
        assert (bought.status_code, bought.headers["content-type"]) == (200, "application/json")
        assert bought.headers["cache-control"] == "private"
        again = await site.ask(idempotency_key=KEY)
        assert again.headers["idempotency-replayed"] == "true"
        assert again.headers["payment-response"] == bought.headers["payment-response"]


@pytest.mark.parametrize("path", [PAID, FREE])
async def test_only_post_reaches_an_operation(tmp_path: Path, path: str) -> None:
    async with open_site(tmp_path) as site:
        for method in ("GET", "HEAD", "PUT", "PATCH", "DELETE", "QUERY"):
            answer = await site.client.request(method, path)
            assert (answer.status_code, answer.headers["allow"]) == (405, "OPTIONS, POST")
        options = await site.client.options(path)
        assert (options.status_code, options.headers["allow"]) == (204, "OPTIONS, POST")


@pytest.mark.parametrize(
    "path", ["/v1/search/paid/", "/v1//search/paid", "/v1/search/%70aid", "/v1/search/paid%0a", "/V1/search/paid"]
)
async def test_other_spellings_of_a_path_are_nothing(tmp_path: Path, path: str) -> None:
    async with open_site(tmp_path) as site:
        answer = await site.ask(path, idempotency_key=KEY)
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found")


async def test_a_body_over_the_operation_s_cap_is_refused(tmp_path: Path) -> None:
    async with open_site(tmp_path) as site:
        answer = await site.ask(body=BODY | {"query": "a" * 70_000}, idempotency_key=KEY)
        assert (answer.status_code, answer.json()["code"]) == (413, "content_too_large")


@pytest.mark.parametrize("header", ["idempotency_key", "payment_signature"])
async def test_a_failure_is_a_problem_of_its_path_that_no_cache_keeps(tmp_path: Path, header: str) -> None:
    async with open_site(tmp_path) as site:
        answer = await site.ask(**{header: "?"})
        assert answer.status_code == 400
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.headers["cache-control"] == "no-store"
        assert answer.json()["instance"] == PAID
        assert answer.json()["code"] in PROBLEMS


# -- look-ups ----------------------------------------------------------------------------------------------------------


async def test_anybody_sees_where_an_operation_stands_and_the_key_shows_its_output(tmp_path: Path) -> None:
    async with open_site(tmp_path) as site:
        bought = (await site.buy()).json()
        path = f"/v1/operations/{bought['operationId']}"
        stranger = await site.client.get(path)
        wrong = await site.client.get(path, headers={"idempotency-key": "another key of somebody"})
        owner = await site.client.get(path, headers={"idempotency-key": f'"{KEY}"'})
    for answer in (stranger, wrong):
        shown = answer.json()
        assert (answer.status_code, shown["state"]) == (200, "RECEIPTED")
        assert shown["receipt"] == bought["receipt"]
        assert "output" not in shown
        assert "tide" not in answer.text
    assert owner.json()["output"] == bought["output"]
    assert owner.json()["execution"] == bought["execution"]
    assert "no-store" in owner.headers["cache-control"]
    states = [each["state"] for each in stranger.json()["transitions"]]
    assert states[0] == "CLAIMED"
    assert states[-1] == "RECEIPTED"
    assert stranger.json()["settlement"]["status"] == "settled"
    assert stranger.json()["next"]


async def test_a_weak_key_shows_its_output_to_its_own_network(tmp_path: Path) -> None:
    async with open_site(tmp_path) as site:
        bought = (await site.buy("password")).json()
        shown = await site.client.get(
            f"/v1/operations/{bought['operationId']}", headers={"idempotency-key": "password"}
        )
        assert shown.json()["output"] == bought["output"]
        elsewhere = await site.shop.post("search.free", key="password", peer="198.51.100.7")
        assert elsewhere.json["replayed"] is False


async def test_an_operation_in_flight_says_when_to_ask_again(tmp_path: Path) -> None:
    async with open_site(tmp_path) as site, trio.open_nursery() as nursery:
        site.shop.search.hold()
        nursery.start_soon(partial(site.ask, FREE, idempotency_key=KEY))
        await site.shop.search.begun.wait()
        found = await site.shop.store.fetch("SELECT operation_id FROM operations")
        shown = await site.client.get(f"/v1/operations/{found[0][0]!s}")
        assert shown.json()["state"] == "CLAIMED"
        assert shown.headers["retry-after"] == "2"
        assert shown.json()["receipt"] is None
        site.shop.search.gate.set()


@pytest.mark.parametrize(
    "name",
    ["op_01JDQ0000000000000000000AB", "op_1", "01JDQ0000000000000000000AB", "op_01jdq0000000000000000000ab", "x"],
)
async def test_an_operation_that_is_not_there_is_a_404(tmp_path: Path, name: str) -> None:
    async with open_site(tmp_path) as site:
        answer = await site.client.get(f"/v1/operations/{name}")
        assert (answer.status_code, answer.json()["code"]) == (404, "operation_not_found")


async def test_a_broken_seal_is_told_and_crashes_nothing(tmp_path: Path) -> None:
    async with open_site(tmp_path) as site:
        bought = (await site.buy()).json()
        await site.shop.store.commit(
            Statement("UPDATE operations SET sealed_output = :junk", {"junk": b"junk"}, rows=1)
        )
        path = f"/v1/operations/{bought['operationId']}"
        with_key = await site.client.get(path, headers={"idempotency-key": KEY})
        assert (with_key.status_code, with_key.json()["code"]) == (503, "operator_needed")
        assert (await site.client.get(path)).status_code == 200
        assert all(each.crashes == 0 for each in site.shop.runtime.health())


async def test_a_row_that_makes_no_sense_costs_its_own_asker_only(tmp_path: Path) -> None:
    async with open_site(tmp_path) as site:
        bought = (await site.buy()).json()
        await site.shop.store.commit(Statement("UPDATE operations SET state = 'nonsense'", rows=1))
        assert (await site.client.get(f"/v1/operations/{bought['operationId']}")).status_code == 500
        assert (await site.ask(idempotency_key=KEY)).status_code == 500
        assert (await site.ask(FREE, idempotency_key="another key of mine")).status_code == 200
        assert all(each.crashes == 0 for each in site.shop.runtime.health())


# -- documents and health ----------------------------------------------------------------------------------------------


async def test_every_problem_stands_at_its_type(tmp_path: Path) -> None:
    async with open_site(tmp_path) as site:
        listed = (await site.client.get("/problems")).json()["problems"]
        assert [each["code"] for each in listed] == list(PROBLEMS)
        for each in listed:
            path = each["type"].removeprefix(TERMS.base_url)
            assert (await site.client.get(path)).json() == each
        assert (await site.client.get("/problems/no_such_code")).status_code == 404


async def test_the_key_set_is_public(tmp_path: Path) -> None:
    async with open_site(tmp_path) as site:
        answer = await site.client.get("/.well-known/jwks.json")
        assert answer.json() == site.shop.signer.key_set
        assert "public" in answer.headers["cache-control"]


async def test_the_documentation_is_served_and_nothing_beside_it(tmp_path: Path) -> None:
    async with open_site(tmp_path) as site:
        page = await site.client.get("/docs/receipts")
        assert (page.status_code, page.headers["content-type"]) == (200, "text/markdown; charset=utf-8")
        for path in ("/docs/nothing", "/docs/..%2f__init__", "/docs/README", "/docs/receipts.md"):
            assert (await site.client.get(path)).status_code == 404


async def test_readiness_names_what_is_not_ready(tmp_path: Path) -> None:
    async with open_site(tmp_path) as site:
        assert (await site.client.get("/readyz")).json() == {"status": "ready", "faults": []}
        site.faults.append({"part": "store", "reason": "disk_full"})
        answer = await site.client.get("/readyz")
        assert (answer.status_code, answer.json()["faults"]) == (503, site.faults)
        assert (await site.client.get("/healthz")).status_code == 200


# -- the log -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def logged() -> Any:
    stream = io.StringIO()
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    structlog.reset_defaults()
    log_lines(logging.DEBUG, stream)
    yield stream
    structlog.reset_defaults()
    root.handlers[:], root.level = handlers, level
    logging.captureWarnings(capture=False)


async def test_the_log_tells_every_answer_and_no_secret(tmp_path: Path, logged: io.StringIO) -> None:
    canary = "kanarienvogel"
    body = BODY | {"query": canary}
    async with open_site(tmp_path) as site:
        quoted = await site.ask(idempotency_key=KEY, body=body)
        header = PAYER.x402(Answer(402, {"PAYMENT-REQUIRED": quoted.headers["payment-required"]}, b""))
        bought = await site.client.post(PAID, json=body, headers={"idempotency-key": KEY} | header)
        site.shop.search.failure = RuntimeError("a defect")  # type: ignore[assignment]  # an executor that crashes
        await site.ask(FREE, idempotency_key="another key of mine", body=body)
        await site.ask(idempotency_key="short", body=body)
        await site.client.get(
            f"/v1/operations/{bought.json()['operationId']}?{canary}", headers={"idempotency-key": KEY}
        )
        await site.client.get("/healthz")
    lines = [json.loads(line) for line in logged.getvalue().splitlines()]
    told = [
        (each["method"], each["path"], each["status"], each.get("operationId"))
        for each in lines
        if each["event"] == "request"
    ]
    operation_id = bought.json()["operationId"]
    assert told[:2] == [("POST", PAID, 402, None), ("POST", PAID, 200, operation_id)]
    assert [each[:3] for each in told[2:]] == [
        ("POST", FREE, 500),
        ("POST", PAID, 400),
        ("GET", f"/v1/operations/{operation_id}", 200),
    ]
    assert any("exception" in each for each in lines)
    secrets = [
        KEY,
        "another key of mine",
        canary,
        header["PAYMENT-SIGNATURE"],
        quoted.headers["payment-required"],
        PAYER.secret.hex(),
        bought.json()["receipt"]["signature"],
    ]
    assert not [secret for secret in secrets if secret in logged.getvalue()]


@pytest.mark.parametrize(
    ("header", "code"),
    [
        (b"Content-Length: many", "bad_request"),
        (b"Transfer-Encoding: gzip", "length_required"),
        (b"X: " + b"y" * 20_000, "header_fields_too_large"),
        (b"Content-Length: 9999999", "content_too_large"),
        (b"Content-Length: 2\r\nExpect: more", "expectation_failed"),
    ],
)
async def test_openais_clients_can_read_also_what_is_refused_before_any_route(
    tmp_path: Path, header: bytes, code: str
) -> None:
    async with open_site(tmp_path) as site:
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: gateway\r\nConnection: close\r\n" + header
        told = await heard(site.client, head + b"\r\n\r\n")
        assert (told["code"], told["error"]["code"]) == (code, code)
        assert told["error"]["message"]
