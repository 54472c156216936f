from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gateway.cli import main
from gateway.registry.canonical import result_hash
from gateway.registry.receipts import Signer

SIGNER = Signer.from_keys({1: bytes(32)})
OUTPUT = {"results": [], "coverage": "web"}


def receipt(**changes: Any) -> dict[str, Any]:
    unsigned: dict[str, Any] = {
        "receiptId": "rcpt_1",
        "operationId": "op_1",
        "operation": "search.paid",
        "requestHash": "sha256:1",
        "resultHash": result_hash(OUTPUT),
        "charge": {"amountAtomic": "6000", "usd": "0.006000"},
        "settlement": {"transaction": "0x12"},
        "issuedAt": "2026-11-27T00:00:00.000Z",
    }
    return SIGNER.sign(unsigned) | changes


def answer(**changes: Any) -> dict[str, Any]:
    whole = {"operationId": "op_1", "requestHash": "sha256:1", "receipt": receipt(), "output": OUTPUT}
    return whole | changes


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "jwks.json").write_text(json.dumps(SIGNER.key_set))
    return tmp_path


def put(folder: Path, content: Any, name: str = "receipt.json") -> str:
    (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))
    return str(folder / name)


def verify(*arguments: str, given: str | None = None) -> Result:
    return CliRunner().invoke(main, ["receipts", "verify", *arguments], input=given)


def test_a_receipt_and_a_whole_answer_hold_by_the_key_set_beside_them(folder: Path) -> None:
    told = verify(put(folder, receipt()), put(folder, answer(), "answer.json"))
    assert told.exit_code == 0
    assert told.stdout.count("holds: search.paid, 0.006000 USD, transaction 0x12") == 2


def test_a_free_receipt_says_so(folder: Path) -> None:
    unsigned = {name: each for name, each in receipt().items() if name != "signature"}
    free = SIGNER.sign(unsigned | {"charge": {"amountAtomic": "0"}, "settlement": {"transaction": None}})
    assert "holds: search.paid, free, issued" in verify(put(folder, free)).stdout


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (receipt(charge={"amountAtomic": "1"}), "differs from the one shown"),
        (receipt(signature="x.y.z"), "signature is no JWS"),
        (answer(output={"results": ["another"]}), "resultHash of the receipt is"),
        (answer(requestHash="sha256:2"), "requestHash of the receipt is sha256:1, of the answer sha256:2"),
        (answer(operationId="op_2"), "operationId of the receipt"),
        ({"code": "payment_required"}, "neither a receipt nor an answer"),
        ([], "neither a receipt nor an answer"),
        ("no json", "not JSON"),
        (receipt(more=2**60), "exceeds safe integer domain"),
        (answer(output={"more": 2**60}), "exceeds safe integer domain"),
    ],
)
def test_what_does_not_hold_is_told_with_its_reason(folder: Path, content: Any, fault: str) -> None:
    told = verify(put(folder, content))
    assert told.exit_code == 1
    assert fault in told.stdout


def test_one_fault_fails_all_and_json_tells_each(folder: Path) -> None:
    told = verify(put(folder, receipt()), put(folder, answer(output={}), "wrong.json"), "--json")
    assert told.exit_code == 1
    document = json.loads(told.stdout)
    assert [each["fault"] is None for each in document["receipts"]] == [True, False]
    assert document["ok"] is False


def test_a_receipt_of_another_node_has_no_key_here(folder: Path) -> None:
    other = Signer.from_keys({1: bytes([1] * 32)})
    unsigned = {name: each for name, each in receipt().items() if name != "signature"}
    assert "the key set has no key" in verify(put(folder, other.sign(unsigned))).stdout


def test_standard_input_is_verified_with_a_named_key_set(folder: Path) -> None:
    told = verify("-", "--keys", str(folder / "jwks.json"), given=json.dumps(answer()))
    assert told.exit_code == 0


def test_no_key_set_or_no_file_is_wrong_usage(tmp_path: Path) -> None:
    told = verify(put(tmp_path, receipt()))
    assert told.exit_code == 2
    assert "/.well-known/jwks.json" in told.stderr
    keys = put(tmp_path, {"keys": "none"}, "jwks.json")
    assert verify(put(tmp_path, receipt())).exit_code == 2
    put(tmp_path, "{", "jwks.json")
    assert verify(put(tmp_path, receipt()), "--keys", keys).exit_code == 2
    put(tmp_path, SIGNER.key_set, "jwks.json")
    assert verify(str(tmp_path / "none.json")).exit_code == 2
    assert verify().exit_code == 2
