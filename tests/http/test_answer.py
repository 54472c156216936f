from __future__ import annotations

import base64
import json
from typing import Any

import attrs
import orjson
import pytest

from gateway.actors.operations import Ended
from gateway.http.answer import outgoing, receipt_headers

RECEIPT: dict[str, Any] = {
    "payer": "0x19E7E376E7C213B7E7e7e46cc70A5dD086DAff2A",
    "charge": {"amountAtomic": "6000"},
    "settlement": {"transaction": "0x" + "ab" * 32, "network": "eip155:8453"},
    "issuedAt": "2026-11-28T01:02:03.456Z",
}
PAID = Ended("op_1", "search.paid", "sha256:0", {"route": {}}, {"attempt": 1}, RECEIPT, "x402", None, replayed=False)


def test_the_envelope_has_the_members_of_the_interface() -> None:
    assert orjson.loads(outgoing(PAID).body) == {
        "operationId": "op_1",
        "state": "RECEIPTED",
        "replayed": False,
        "requestHash": "sha256:0",
        "receipt": RECEIPT,
        "output": {"route": {}},
        "execution": {"attempt": 1},
    }


def test_a_replay_says_so_in_header_and_body() -> None:
    answer = outgoing(attrs.evolve(PAID, replayed=True))
    assert answer.headers["Idempotency-Replayed"] == "true"
    assert orjson.loads(answer.body)["replayed"] is True


@pytest.mark.parametrize("replayed", [True, False])
def test_no_answer_is_for_shared_caches(replayed: bool) -> None:
    assert outgoing(attrs.evolve(PAID, replayed=replayed)).headers["Cache-Control"] == "private"


def test_the_payment_header_is_that_of_the_protocol_that_paid() -> None:
    response = json.loads(base64.b64decode(receipt_headers(PAID)["PAYMENT-RESPONSE"]))
    assert response == {
        "success": True,
        "payer": RECEIPT["payer"],
        "transaction": "0x" + "ab" * 32,
        "network": "eip155:8453",
        "amount": "6000",
    }
    receipt = receipt_headers(attrs.evolve(PAID, protocol="mpp", challenge_id="chal"))["Payment-Receipt"]
    assert json.loads(base64.urlsafe_b64decode(receipt + "==")) == {
        "method": "evm",
        "status": "success",
        "reference": "0x" + "ab" * 32,
        "timestamp": "2026-11-28T01:02:03Z",
        "challengeId": "chal",
        "chainId": 8453,
    }
    assert receipt_headers(attrs.evolve(PAID, protocol=None)) == {}
