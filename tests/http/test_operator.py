from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import attrs
import httpx
import pytest
import trio

from gateway import __version__
from gateway.actors.runtime import Phase
from gateway.config import structure
from gateway.node import Running, open_node

PATHS = (
    "/",
    "/nodes",
    "/actors",
    "/operations",
    "/operations/op_1",
    "/models",
    "/models/history",
    "/sandbox",
    "/metrics",
    "/nothing",
)


@attrs.frozen
class Operated:
    node: Running
    public: httpx.AsyncClient
    stranger: httpx.AsyncClient
    operator: httpx.AsyncClient

    async def buy(self, key: str = "a key of a test") -> str:
        body = {"query": "idempotency", "synthesize": False}
        answer = await self.public.post("/v1/search/free", json=body, headers={"Idempotency-Key": key})
        assert answer.status_code == 200, answer.text
        return str(answer.json()["operationId"])


@pytest.fixture
async def operated(tmp_path: Path) -> AsyncIterator[Operated]:
    listen = {"listen": ["127.0.0.1:0"], "operator_listen": "127.0.0.1:0", "data_dir": str(tmp_path)}
    tree = {"node": listen, "ai": {"embedded": False}, "sandbox": {"enabled": False}}
    async with open_node(structure(tree), operator=True) as node:
        assert node.operator is not None
        headers = {"Authorization": f"Bearer {(tmp_path / 'operator.token').read_text().strip()}"}
        async with (
            httpx.AsyncClient(base_url=node.urls[0]) as public,
            httpx.AsyncClient(base_url=node.operator) as stranger,
            httpx.AsyncClient(base_url=node.operator, headers=headers) as operator,
        ):
            yield Operated(node, public, stranger, operator)


# -- who may ask -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [None, "Bearer", "Bearer wrong", "Basic dXNlcjpwYXNz", "bearer \u00fc"])
async def test_without_the_token_every_path_is_401_and_tells_nothing(operated: Operated, given: str | None) -> None:
    headers = {} if given is None else {"Authorization": given.encode("latin-1")}
    for path in PATHS:
        for method in ("GET", "POST", "OPTIONS"):
            answer = await operated.stranger.request(method, path, headers=headers)  # type: ignore[arg-type]  # bytes too
            assert answer.status_code == 401
            assert answer.headers["WWW-Authenticate"] == 'Bearer realm="operator"'
            assert answer.headers["Content-Type"] == "application/problem+json"
            assert answer.json()["code"] == "unauthorized"


async def test_the_scheme_is_case_insensitive(operated: Operated) -> None:
    token = operated.operator.headers["Authorization"].partition(" ")[2]
    assert (await operated.stranger.get("/actors", headers={"Authorization": f"bEARER {token}"})).status_code == 200


async def test_no_path_of_the_operator_is_public(operated: Operated) -> None:
    headers = {"Authorization": operated.operator.headers["Authorization"]}
    for path in PATHS:
        assert (await operated.public.get(path, headers=headers)).status_code == 404


async def test_unknown_paths_and_methods_are_problems(operated: Operated) -> None:
    assert (await operated.operator.get("/nothing")).json()["code"] == "not_found"
    assert (await operated.operator.post("/actors")).json()["code"] == "method_not_allowed"


async def test_no_answer_may_be_kept_by_a_cache(operated: Operated) -> None:
    for path in PATHS:
        assert (await operated.operator.get(path)).headers["Cache-Control"] == "no-store"


# -- what is seen ------------------------------------------------------------------------------------------------------


async def test_the_summary_tells_of_store_settlement_routes_exposure_and_actors(operated: Operated) -> None:
    await operated.buy()
    told = (await operated.operator.get("/")).json()
    assert told["store"] == {"writable": True, "reason": None, "since": told["store"]["since"], "shared": False}
    assert [(each["node"], each["alive"]) for each in told["nodes"]] == [("node-1", True)]
    assert told["settlement"] == {
        "configured": False,
        "open": False,
        "reason": "payment_not_configured",
        "head": None,
    }
    assert told["exposure"] == {"unsettledAtomic": "0", "payers": 0}
    assert told["operations"] == {"receipted": 1}
    assert {each["route"]: each["availability"] for each in told["routes"]} == {"search/embedded-index": "available"}
    assert [each["actor"] for each in told["actors"]] == [each.actor for each in operated.node.runtime.health()]
    assert {each["phase"] for each in told["actors"]} == {Phase.READY.value}


async def test_the_nodes_of_the_store_are_listed(operated: Operated) -> None:
    (told,) = (await operated.operator.get("/nodes")).json()["nodes"]
    assert (told["node"], told["alive"], told["epoch"]) == ("node-1", True, 1)
    assert told["release"].startswith(f"{__version__}+schema.")
    assert told["openOperations"] == 0


async def test_operations_are_listed_and_shown(operated: Operated) -> None:
    bought = [await operated.buy(f"key number {index}") for index in range(3)]
    told = (await operated.operator.get("/operations", params={"limit": "2"})).json()["operations"]
    assert [each["operationId"] for each in told] == bought[:0:-1]
    assert (await operated.operator.get("/operations?state=FAILED")).json() == {"operations": []}
    shown = (await operated.operator.get(f"/operations/{bought[0]}")).json()
    assert shown["receipt"]["operationId"] == bought[0]
    assert shown["transitions"][0]["state"] == "CLAIMED"


async def test_a_sandbox_that_is_switched_off_says_so(operated: Operated) -> None:
    assert (await operated.operator.get("/sandbox")).json() == {"open": False, "reason": "switched_off"}


async def test_a_sandbox_without_an_image_names_what_mends_it(tmp_path: Path) -> None:
    listen = {"listen": ["127.0.0.1:0"], "operator_listen": "127.0.0.1:0", "data_dir": str(tmp_path)}
    (tmp_path / "images").mkdir()
    tree = {"node": listen, "ai": {"embedded": False}, "sandbox": {"image": str(tmp_path / "images")}}
    async with open_node(structure(tree), operator=True) as node:
        headers = {"Authorization": f"Bearer {(tmp_path / 'operator.token').read_text().strip()}"}
        async with httpx.AsyncClient(base_url=str(node.operator), headers=headers) as operator:
            with trio.fail_after(20):
                while (told := (await operator.get("/sandbox")).json())["reason"] == "starting":  # noqa: ASYNC110 - looks
                    await trio.sleep(0.02)
    assert (told["open"], told["reason"]) == (False, "sandbox.image_missing")
    assert "gateway sandbox build" in told["fix"]


async def test_an_unknown_operation_is_404(operated: Operated) -> None:
    answer = await operated.operator.get("/operations/op_none")
    assert (answer.status_code, answer.json()["code"]) == (404, "operation_not_found")


@pytest.mark.parametrize("query", ["state=sold", "limit=0", "limit=1001", "limit=x", "limit=-1"])
async def test_a_wrong_query_is_400_and_names_the_parameter(operated: Operated, query: str) -> None:
    answer = await operated.operator.get(f"/operations?{query}")
    assert answer.status_code == 400
    assert answer.json()["errors"][0]["pointer"] == f"#query/{query.partition('=')[0]}"


async def test_the_metrics_count_what_the_node_did(operated: Operated) -> None:
    await operated.buy()
    await operated.buy()
    page = await operated.operator.get("/metrics")
    assert page.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    for line in (
        'gateway_requests_total{operation="search.free",status="200"} 2.0',
        'gateway_executions_total{operation="search.free",outcome="served"} 1.0',
        "gateway_replays_total 1.0",
        'gateway_operations{state="receipted"} 1.0',
        "gateway_unsettled_exposure_atomic 0.0",
        'gateway_actor_mailbox_depth{actor="store"} 0.0',
        'gateway_actor_restarts_total{actor="operations"} 0.0',
        'gateway_route_available{route="search/embedded-index"} 1.0',
        "gateway_settlement_open 0.0",
        "gateway_store_writable 1.0",
        "gateway_nodes 1.0",
    ):
        assert line in page.text.splitlines()
    assert 'gateway_request_seconds_count{operation="search.free"} 2.0' in page.text
    assert 'gateway_probe_age_seconds{route="search/embedded-index"}' in page.text


async def test_a_store_that_cannot_be_read_is_told_and_everything_else_too(operated: Operated, tmp_path: Path) -> None:
    (tmp_path / "gateway.db").rename(tmp_path / "elsewhere.db")
    with trio.fail_after(30):
        while (await operated.operator.get("/")).json()["store"]["writable"]:  # noqa: ASYNC110 - told by no event
            await trio.sleep(0.05)
    told = (await operated.operator.get("/")).json()
    assert told["store"]["reason"] == "file_replaced"
    assert told["actors"]
    page = await operated.operator.get("/metrics")
    assert page.status_code == 200
    assert "gateway_store_writable 0.0" in page.text
    (tmp_path / "elsewhere.db").rename(tmp_path / "gateway.db")


# -- decisions ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "pointers"),
    [
        ({}, ["/why"]),
        ({"why": " "}, ["/why"]),
        ({"why": 1}, ["/why"]),
        ({"why": "x" * 1001}, ["/why"]),
        ({"why": "lost", "paidBy": "0x12"}, ["/paidBy"]),
        ({"why": "lost", "paidby": None, "who": "me"}, ["/paidby", "/who"]),
        ([], [""]),
    ],
)
async def test_a_decision_that_says_nothing_is_400_with_every_pointer(
    operated: Operated, body: object, pointers: list[str]
) -> None:
    answer = await operated.operator.post("/operations/op_1/resolve", json=body)
    assert answer.status_code == 400
    assert [each["pointer"] for each in answer.json()["errors"]] == pointers


async def test_a_decision_is_json(operated: Operated) -> None:
    answer = await operated.operator.post("/operations/op_1/resolve", data={"why": "lost"})
    assert answer.status_code == 415


async def test_only_an_operation_that_waits_can_be_decided(operated: Operated) -> None:
    unknown = await operated.operator.post("/operations/op_none/resolve", json={"why": "lost"})
    assert unknown.status_code == 404
    bought = await operated.buy()
    refused = await operated.operator.post(f"/operations/{bought}/resolve", json={"why": "lost"})
    assert (refused.status_code, refused.json()["operationId"]) == (409, bought)
