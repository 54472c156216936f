from __future__ import annotations

import base64
import hmac
import json
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.registry.canonical import canonical_json
from gateway.registry.receipts import (
    BLOCK_TYPE,
    RECEIPT_TYPE,
    ReceiptInvalid,
    Signer,
    public_jwk,
    timestamp,
    verify_jws,
    verify_receipt,
)

SIGNER = Signer.from_keys({1: b"1" * 32})
ROTATED = Signer.from_keys({1: b"1" * 32, 2: b"2" * 32})
STRANGER = Signer.from_keys({1: b"3" * 32})
RECEIPT: dict[str, Any] = {
    "receiptId": "rcpt_01JDQ0000000000000000000AB",
    "operationId": "op_01JDQ0000000000000000000AB",
    "requestHash": "sha256:" + "ab" * 32,
    "charge": {"amountAtomic": "6000", "decimals": 6, "usd": "0.006000"},
    "settlement": {"status": "settled", "transaction": "0x" + "cd" * 32},
    "payer": "0x19E7E376E7C213B7E7e7e46cc70A5dD086DAff2A",
    "issuedAt": "2026-11-28T00:00:00.000Z",
}
SIGNED = SIGNER.sign(RECEIPT)


def b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def forged(header: dict[str, Any], payload: bytes, sign: Any) -> str:
    signing_input = f"{b64(json.dumps(header).encode())}.{b64(payload)}"
    return f"{signing_input}.{b64(sign(signing_input.encode()))}"


def refused(receipt: dict[str, Any], key_set: Any = None) -> str:
    with pytest.raises(ReceiptInvalid) as caught:
        verify_receipt(receipt, SIGNER.key_set if key_set is None else key_set)
    return str(caught.value)


def test_a_signed_receipt_stands_offline() -> None:
    verify_receipt(SIGNED, SIGNER.key_set)
    verify_receipt(json.loads(json.dumps(SIGNED)), json.loads(json.dumps(SIGNER.key_set)))


def test_another_library_verifies_it_as_an_rfc_8037_jws() -> None:
    (jwk,) = SIGNER.key_set["keys"]
    decoded = jwt.api_jws.decode_complete(SIGNED["signature"], jwt.PyJWK(jwk).key, algorithms=["EdDSA"])
    assert decoded["payload"] == canonical_json(RECEIPT)
    assert decoded["header"] == {"alg": "EdDSA", "typ": RECEIPT_TYPE, "kid": jwk["kid"]}


@pytest.mark.parametrize("payload", [b"", b"a", b"{}", bytes(range(256))])
@pytest.mark.parametrize("signer", [(1, SIGNER), (2, ROTATED)])
def test_a_jws_is_what_pyjwt_makes(signer: tuple[int, Signer], payload: bytes) -> None:
    version, made = signer
    key = Ed25519PrivateKey.from_private_bytes(b"%d" % version * 32)
    for typ in (RECEIPT_TYPE, BLOCK_TYPE, RECEIPT_TYPE):
        headers = {"kid": public_jwk(key.public_key())["kid"], "typ": typ}
        assert made.jws(payload, typ) == jwt.api_jws.encode(payload, key, algorithm="EdDSA", headers=headers)


def test_the_kid_is_the_rfc_8037_thumbprint() -> None:
    key = Ed25519PrivateKey.from_private_bytes(base64.urlsafe_b64decode("nWGxne_9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A="))
    assert public_jwk(key.public_key()) == {
        "kty": "OKP",
        "crv": "Ed25519",
        "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo",
        "kid": "kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k",
        "use": "sig",
        "alg": "EdDSA",
    }


@pytest.mark.parametrize("member", [*RECEIPT, "settlement.transaction", "charge.usd"])
def test_an_altered_member_is_noticed(member: str) -> None:
    altered = json.loads(json.dumps(SIGNED))
    place = altered
    *path, last = member.split(".")
    for name in path:
        place = place[name]
    place[last] = "altered"
    assert "differs" in refused(altered)


@pytest.mark.parametrize("member", list(RECEIPT))
def test_a_missing_member_is_noticed(member: str) -> None:
    assert "differs" in refused({name: value for name, value in SIGNED.items() if name != member})


def test_an_added_member_is_noticed() -> None:
    assert "differs" in refused(SIGNED | {"note": "paid twice"})


@settings(max_examples=200, derandomize=True, deadline=None)
@given(at=st.integers(0, len(SIGNED["signature"]) - 1), letter=st.sampled_from("AZaz09-_."))
def test_no_altered_signature_stands(at: int, letter: str) -> None:
    token = SIGNED["signature"]
    altered = token[:at] + letter + token[at + 1 :]
    if altered == token or _same_bytes(altered, token):
        return
    refused(SIGNED | {"signature": altered})


def _same_bytes(one: str, other: str) -> bool:
    """Base64url has spare bits at the end of a part, in which two spellings of the same bytes differ."""
    parts = one.split(".")
    if len(parts) != 3:
        return False
    decoded = [[base64.urlsafe_b64decode(part + "==") for part in token.split(".")] for token in (one, other)]
    return decoded[0] == decoded[1]


def test_a_stranger_s_signature_is_refused_whatever_kid_it_claims() -> None:
    assert "no key" in refused(STRANGER.sign(RECEIPT))
    (ours,) = SIGNER.key_set["keys"]
    key = Ed25519PrivateKey.from_private_bytes(b"3" * 32)
    header = {"alg": "EdDSA", "typ": RECEIPT_TYPE, "kid": ours["kid"]}
    assert "does not hold" in refused(RECEIPT | {"signature": forged(header, canonical_json(RECEIPT), key.sign)})


def test_a_receipt_outlives_the_rotation_of_the_key() -> None:
    verify_receipt(SIGNED, ROTATED.key_set)
    newer = ROTATED.sign(RECEIPT)
    verify_receipt(newer, ROTATED.key_set)
    assert "no key" in refused(newer)
    assert next(key["kid"] for key in ROTATED.key_set["keys"]) == SIGNER.key_set["keys"][0]["kid"]


@pytest.mark.parametrize("algorithm", ["none", "None", "HS256", "ES256", "RS256", "Ed25519"])
def test_no_other_algorithm_is_taken(algorithm: str) -> None:
    (jwk,) = SIGNER.key_set["keys"]
    public = base64.urlsafe_b64decode(jwk["x"] + "=")
    header = {"alg": algorithm, "typ": RECEIPT_TYPE, "kid": jwk["kid"]}
    token = forged(header, canonical_json(RECEIPT), lambda data: hmac.digest(public, data, "sha256"))
    refused(RECEIPT | {"signature": token})
    refused(RECEIPT | {"signature": token.rpartition(".")[0] + "."})


@pytest.mark.parametrize("more", [{"crit": ["exp"]}, {"b64": False, "crit": ["b64"]}, {"b64": False}])
def test_header_parameters_that_are_not_known_are_refused(more: dict[str, Any]) -> None:
    key = Ed25519PrivateKey.from_private_bytes(b"1" * 32)
    header = {"alg": "EdDSA", "typ": RECEIPT_TYPE, "kid": SIGNER.key_set["keys"][0]["kid"]} | more
    refused(RECEIPT | {"signature": forged(header, canonical_json(RECEIPT), key.sign)})


def test_a_signature_of_another_kind_of_document_is_refused() -> None:
    token = SIGNER.jws(canonical_json(RECEIPT), BLOCK_TYPE)
    assert "of this kind" in refused(RECEIPT | {"signature": token})
    assert verify_jws(token, SIGNER.key_set, BLOCK_TYPE) == canonical_json(RECEIPT)


@pytest.mark.parametrize(
    "key_set",
    [
        {},
        {"keys": None},
        {"keys": []},
        {"keys": [None, 1, "x"]},
        {"keys": [{"kid": SIGNER.key_set["keys"][0]["kid"]}]},
        {"keys": [SIGNER.key_set["keys"][0] | {"kty": "oct", "k": "AAAA"}]},
        {"keys": [SIGNER.key_set["keys"][0] | {"x": "AAAA"}]},
        {"keys": [{**SIGNER.key_set["keys"][0], "x": None}]},
    ],
)
def test_a_key_set_that_cannot_verify_it_is_a_reason(key_set: dict[str, Any]) -> None:
    refused(SIGNED, key_set)


@pytest.mark.parametrize("signature", [None, 1, "", "a", "a.b", "a.b.c", "..", "e30.e30.e30", "\u20ac"])
def test_what_is_no_signature_is_a_reason(signature: Any) -> None:
    refused(RECEIPT | {"signature": signature})


@pytest.mark.parametrize("value", [float("nan"), 2**60, "\ud800"])
def test_a_receipt_that_has_no_canonical_form_is_a_reason(value: Any) -> None:
    refused(SIGNED | {"note": value})


def test_a_receipt_nested_without_end_is_a_reason() -> None:
    nested: Any = []
    for _ in range(5000):
        nested = [nested]
    refused(SIGNED | {"note": nested})


def test_the_private_key_is_never_shown() -> None:
    assert "private" not in repr(SIGNER).lower()


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [(0, "1970-01-01T00:00:00.000Z"), (1_795_816_156_007, "2026-11-27T21:49:16.007Z")],
)
def test_times_are_utc_with_milliseconds(milliseconds: int, text: str) -> None:
    assert timestamp(milliseconds) == text
