from __future__ import annotations

from typing import Any

import httpx
import pytest
from eth_account import Account
from mpp.client.transport import PaymentTransport
from x402.http.clients.httpx import x402AsyncTransport

from gateway.registry.canonical import result_hash
from gateway.registry.receipts import Signer
from gateway.world.agent import ROUND, client_of, outcome
from gateway.world.demo import STEPS

SIGNER = Signer.from_keys({1: bytes(range(32))})
OUTPUT = {"results": [{"title": "a", "url": "https://www.example.com/"}]}


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
        "replayed": True,
        "proved": True,
    }


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


def test_an_answer_that_is_not_json_is_told() -> None:
    assert outcome(httpx.Response(502, text="<html>"), SIGNER.key_set)["detail"] == "the answer is not JSON"


def test_the_round_buys_over_both_protocols_and_asks_for_each_again() -> None:
    assert {each.protocol for each in ROUND} == {"free", "x402", "mpp"}
    assert sum(1 if each.protocol == "free" else 2 for each in ROUND) == STEPS


@pytest.mark.parametrize(("protocol", "transport"), [("x402", x402AsyncTransport), ("mpp", PaymentTransport)])
def test_the_clients_are_the_stock_ones(protocol: str, transport: type) -> None:
    client = client_of(protocol, "http://127.0.0.1:1", Account.from_key(bytes(range(1, 33))))
    assert isinstance(client._transport, transport)
