from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import attrs
import httpx
import pytest
from eth_account import Account
from mpp.client.transport import PaymentTransport
from x402.http.clients.httpx import x402AsyncTransport

from gateway.registry.canonical import result_hash
from gateway.registry.receipts import Signer
from gateway.world import agent, token
from gateway.world.agent import ROUND, client_of, outcome
from gateway.world.demo import STEPS, TAKE_OVER_STEPS

SIGNER = Signer.from_keys({1: bytes(range(32))})
ROUTE = {"routeId": "search/x", "servingAdapters": ["x"], "simulated": True}
OUTPUT = {"results": [{"title": "a", "url": "https://www.example.com/"}], "route": ROUTE}


def answered(**changes: Any) -> dict[str, Any]:
    receipt = {
        "operationId": "op_1",
        "requestHash": "sha256:1",
        "resultHash": result_hash(OUTPUT),
        "charge": {"amountAtomic": "6000"},
        "settlement": {"transaction": "0xaa"},
    }
    return {
        "operationId": "op_1",
        "requestHash": "sha256:1",
        "replayed": False,
        "output": OUTPUT,
        "receipt": SIGNER.sign(receipt),
    } | changes


def judged(body: Any, status: int = 200) -> dict[str, Any]:
    return outcome(httpx.Response(status, json=body), SIGNER.key_set)


def test_a_receipt_of_this_very_answer_proves_it() -> None:
    told = judged(answered(replayed=True))
    assert told == {
        "operationId": "op_1",
        "charged": "6000",
        "transaction": "0xaa",
        "answeredBy": "x",
        "simulated": True,
        "replayed": True,
        "proved": True,
    }


def completion(model: str, route: Mapping[str, Any]) -> dict[str, Any]:
    """A chat completion of OpenAI's form whose receipt speaks of it and of its route."""
    told = {"object": "chat.completion", "model": model, "choices": []}
    about = answered(output=None)
    del about["output"]
    about["receipt"] = SIGNER.sign(
        {name: value for name, value in about["receipt"].items() if name != "signature"}
        | {"resultHash": result_hash(told | {"route": route})}
    )
    return told | {"gateway": about | {"route": route}}


def test_a_completion_is_proved_with_the_route_that_stands_beside_it() -> None:
    told = judged(completion("gateway/fast", ROUTE | {"model": "huggingfacetb/smollm2-135m-instruct"}))
    assert (told["proved"], told["operationId"], told["charged"]) == (True, "op_1", "6000")
    assert told["answeredBy"] == "huggingfacetb/smollm2-135m-instruct"
    assert judged(completion("openai/gpt-5.6-luna", ROUTE))["answeredBy"] == "openai/gpt-5.6-luna"
    assert judged(completion("openai/gpt-5.6-luna", ROUTE) | {"model": "other"})["proved"] is False


@pytest.mark.parametrize(
    "changes",
    [
        {"output": {"results": []}},
        {"operationId": "op_2"},
        {"requestHash": "sha256:2"},
        {"receipt": None},
        {"receipt": answered()["receipt"] | {"charge": {"amountAtomic": "1"}}},
    ],
)
def test_a_receipt_of_something_else_proves_nothing(changes: dict[str, Any]) -> None:
    told = judged(answered(**changes))
    assert told["proved"] is False
    assert told["detail"].startswith("receipt: ") or "signature" in told["detail"]


def test_a_problem_is_told_with_its_code() -> None:
    told = judged({"code": "capability_unavailable", "detail": "no adapter"}, 503)
    assert (told["code"], told["detail"], told["charged"]) == ("capability_unavailable", "no adapter", "0")


def test_a_problem_that_has_a_reason_is_told_with_it() -> None:
    told = judged({"code": "model_unavailable", "detail": "No route.", "reason": "model_not_installed"}, 503)
    assert told["detail"] == "No route. (model_not_installed)"


def test_an_answer_that_is_not_json_is_told() -> None:
    assert outcome(httpx.Response(502, text="<html>"), SIGNER.key_set)["detail"] == "the answer is not JSON"


def test_the_round_buys_over_both_protocols_and_asks_for_each_again() -> None:
    assert {each.protocol for each in ROUND} == {"free", "x402", "mpp"}
    assert sum(1 if each.protocol == "free" else 2 for each in ROUND) == STEPS


@pytest.mark.parametrize(("protocol", "transport"), [("x402", x402AsyncTransport), ("mpp", PaymentTransport)])
def test_the_clients_are_the_stock_ones(protocol: str, transport: type) -> None:
    client = client_of(protocol, "http://127.0.0.1:1", Account.from_key(bytes(range(1, 33))))
    assert isinstance(client._transport, transport)


# -- the agent among several nodes, which are played -------------------------------------------------------------------

DEATH = 0
CLOSED = (503, {"code": "capability_unavailable", "detail": "no adapter"})
LATER = (409, {"code": "operation_in_progress", "retryable": True})
REQUIRED = {
    "x402Version": 2,
    "resource": {"url": "http://127.0.0.1/v1/search/paid", "description": "a search", "mimeType": "application/json"},
    "accepts": [
        {
            "scheme": "exact",
            "network": "eip155:8453",
            "asset": token.ADDRESS,
            "amount": "6000",
            "payTo": "0x00000000000000000000000000000000DeaDBeef",
            "maxTimeoutSeconds": 60,
            "extra": {"name": token.NAME, "version": token.VERSION},
        }
    ],
    "extensions": {},
}
PRICE = (402, REQUIRED | {"price": {"amountAtomic": "6000"}})
STARTING, OPEN = ({"gateway": {"commerce": {"reason": reason}}} for reason in ("starting", None))
Answer = tuple[int, Mapping[str, Any]]


@attrs.define(eq=False)
class Played:
    """A node that gives the answers of its part, the last one again and again; `DEATH` cuts the connection.

    `models` is what it says of a model, one look after the other.
    """

    part: list[Answer]
    models: list[Mapping[str, Any]] = attrs.field(factory=lambda: [OPEN])
    url: str = ""
    asked: list[Mapping[str, str]] = attrs.field(factory=list)
    paths: list[str] = attrs.field(factory=list)


def handler_of(played: Played) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if not self.path.startswith("/v1/models/"):
                self.answer(200, SIGNER.key_set)
                return
            played.paths.append(self.path)
            self.answer(200, played.models.pop(0) if len(played.models) > 1 else played.models[0])

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            played.asked.append({name.lower(): value for name, value in self.headers.items()})
            status, body = played.part.pop(0) if len(played.part) > 1 else played.part[0]
            if status != DEATH:
                self.answer(status, body)

        def answer(self, status: int, body: Mapping[str, Any]) -> None:
            encoded = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(encoded)))
            if status == 402:
                self.send_header("PAYMENT-REQUIRED", base64.b64encode(encoded).decode())
            self.end_headers()
            self.wfile.write(encoded)

        def log_message(self, format: str, *_: object) -> None:  # noqa: A002 - its name in the base
            pass

    return Handler


@contextmanager
def playing(played: Played) -> Iterator[None]:
    with ThreadingHTTPServer(("127.0.0.1", 0), handler_of(played)) as server:
        played.url = f"http://127.0.0.1:{server.server_port}"
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()


Play = Callable[..., tuple[list[dict[str, Any]], Sequence[Played]]]


@pytest.fixture
def play(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Play:
    """Return what lets the agent buy from nodes of given parts: its lines, and the nodes with what they were asked."""
    key_file = tmp_path / "key"
    key_file.write_text("0x" + "11" * 32)

    def run(
        *parts: list[Answer] | Played, options: Sequence[str] = ()
    ) -> tuple[list[dict[str, Any]], Sequence[Played]]:
        nodes = [part if isinstance(part, Played) else Played(part) for part in parts]
        with ExitStack() as stage:
            for node in nodes:
                stage.enter_context(playing(node))
            gateways = [part for node in nodes for part in ("--gateway", node.url)]
            assert agent.main([*gateways, "--key-file", str(key_file), *options]) == 0
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()], nodes

    return run


def test_the_steps_of_the_round_go_from_node_to_node(play: Play) -> None:
    lines, nodes = play([CLOSED], [CLOSED], [CLOSED])
    urls = [node.url for node in nodes]
    assert [line["gateway"] for line in lines] == [urls[index % 3] for index in range(STEPS)]
    tags, looks = sum(line["protocol"] != "free" for line in lines), 2 * sum(each.starts for each in ROUND)
    assert sum(len(node.asked) for node in nodes) == STEPS + tags + looks


def test_every_paid_step_tells_the_price_that_was_asked(play: Play) -> None:
    lines, _ = play([PRICE])
    assert {(line["protocol"] == "free", line["price"]) for line in lines} == {(True, None), (False, "6000")}


def test_a_model_that_is_starting_is_waited_for_and_the_wait_is_told_once(play: Play) -> None:
    lines, (node,) = play(Played([CLOSED], [STARTING, STARTING, OPEN]))
    assert [line["waits"] for line in lines if "waits" in line] == ["gateway/fast is not open yet: starting"]
    assert node.paths[:3] == ["/v1/models/gateway%2Ffast"] * 3
    assert len([line for line in lines if "step" in line]) == STEPS


def test_a_sandbox_that_is_starting_is_waited_for_and_the_wait_is_told_once(play: Play) -> None:
    starting = (503, {"code": "operation_unavailable", "detail": "not yet", "reason": "starting"})
    before = STEPS - 2 + sum(2 for each in ROUND if each.protocol != "free" and not each.starts)
    lines, _ = play(Played([*[CLOSED] * before, starting, starting, CLOSED], [OPEN]))
    assert [line["waits"] for line in lines if "waits" in line] == ["sandbox.execute is not open yet: starting"]
    assert len([line for line in lines if "step" in line]) == STEPS


def test_a_model_that_stays_closed_is_called_and_its_reason_told(play: Play) -> None:
    closed = {"gateway": {"commerce": {"reason": "no_route"}}}
    lines, _ = play(Played([(503, {"code": "model_unavailable", "detail": "no route"})], [closed]))
    assert [line["code"] for line in lines] == ["model_unavailable"] * STEPS


def test_a_request_whose_node_dies_goes_to_another_as_it_was_and_back_in_the_end(play: Play) -> None:
    served, again = (200, answered(replayed=True)), (200, answered(replayed=True))
    lines, (first, second) = play([PRICE, (DEATH, {}), again], [LATER, LATER, served], options=["--take-over"])
    assert [(line["step"], line["gateway"], line.get("joined")) for line in lines] == [
        ("taken over", second.url, True),
        ("taken over, again", first.url, None),
    ]
    assert len(lines) == TAKE_OVER_STEPS
    assert all(line["proved"] and line["charged"] == "6000" for line in lines)
    unpaid, *paid = first.asked
    assert "payment-signature" not in unpaid
    sent = [(each["idempotency-key"], each["payment-signature"]) for each in (*paid, *second.asked)]
    assert len(sent) == 5
    assert set(sent) == {(unpaid["idempotency-key"], paid[0]["payment-signature"])}


def test_a_node_that_answers_before_it_is_killed_is_told(play: Play) -> None:
    lines, (_, second) = play([PRICE, (200, answered())], [CLOSED], options=["--take-over"])
    assert [(line["status"], line["detail"]) for line in lines] == [(None, "answered 200: was not killed")]
    assert second.asked == []


def test_nothing_is_paid_where_nothing_is_sold(play: Play) -> None:
    lines, (first, second) = play([CLOSED], [CLOSED], options=["--take-over"])
    assert [(line["step"], line["code"]) for line in lines] == [("taken over", "capability_unavailable")]
    assert (len(first.asked), second.asked) == (1, [])


def test_a_take_over_that_fails_is_told_with_its_reason_and_is_the_last_step(play: Play) -> None:
    refused = (503, {"code": "settlement_pending", "detail": "not settled", "retryable": False})
    lines, _ = play([PRICE, (DEATH, {})], [refused], options=["--take-over"])
    assert [(line["status"], line["detail"]) for line in lines] == [(503, "not settled")]
