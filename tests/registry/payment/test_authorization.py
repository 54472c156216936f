from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
from eth_account import Account
from eth_account.messages import encode_typed_data
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.errors import (
    AmountMismatch,
    AuthorizationExpiresTooLate,
    AuthorizationNotYetValid,
    Erc1271Unsupported,
    Erc6492Unsupported,
    GatewayError,
    MalformedCredential,
    SignatureInvalid,
)
from gateway.registry.payment import Asset, Authorization, Credential, digest, parse_authorization, recover

Signed = Callable[..., tuple[dict[str, str], str]]
N = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141
VECTORS = Path(__file__).parents[4] / "shared" / "vectors" / "payments"


def bounded(examples: int) -> Callable[[Any], Any]:
    return settings(
        max_examples=examples,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture],
    )


def captured() -> list[dict[str, Any]]:
    if not VECTORS.exists():
        if os.environ.get("CI"):
            raise FileNotFoundError(VECTORS)
        pytest.skip("the recorded payments are not beside this checkout", allow_module_level=False)
    payloads = []
    for file in sorted(VECTORS.glob("0*.json")):
        for exchange in json.loads(file.read_text())["exchanges"]:
            decoded = exchange["request"].get("decoded", {})
            if "payment-signature" in decoded:
                payloads.append(decoded["payment-signature"]["payload"])
            if "authorization" in decoded:
                payload = decoded["authorization"]["payload"]
                payloads.append({"authorization": payload, "signature": payload["signature"]})
    return payloads


def test_the_digest_is_the_one_eth_account_signs(asset: Asset, authorization: Authorization) -> None:
    domain = {"name": "USD Coin", "version": "2", "chainId": 8453, "verifyingContract": asset.address}
    types = {
        "TransferWithAuthorization": [
            {"name": name, "type": kind}
            for name, kind in [
                ("from", "address"),
                ("to", "address"),
                ("value", "uint256"),
                ("validAfter", "uint256"),
                ("validBefore", "uint256"),
                ("nonce", "bytes32"),
            ]
        ]
    }
    message = {
        "from": authorization.authorizer,
        "to": authorization.to,
        "value": authorization.value,
        "validAfter": authorization.valid_after,
        "validBefore": authorization.valid_before,
        "nonce": authorization.nonce,
    }
    signable = encode_typed_data(domain, types, message)
    ours = Account._recover_hash(digest(asset, authorization), signature=authorization.signature)
    assert ours == Account.recover_message(signable, signature=authorization.signature) == authorization.authorizer


def test_the_signer_of_an_authorization_is_recovered(asset: Asset, authorization: Authorization) -> None:
    assert recover(asset, authorization) == authorization.authorizer


def test_every_recorded_credential_of_the_four_stock_clients_recovers_to_its_payer(asset: Asset) -> None:
    payloads = captured()
    assert len(payloads) == 11
    for payload in payloads:
        authorization = parse_authorization(payload["authorization"], payload["signature"])
        assert recover(asset, authorization) == authorization.authorizer


def key(asset: Asset, authorization: Authorization) -> tuple[int, str, str, str]:
    return Credential("x402", asset, authorization, "", None, 0).authorization_key()


cases = st.lists(st.booleans(), min_size=64, max_size=64)


def respelled(text: str, upper: list[bool]) -> str:
    digits = text[2:].lower()
    return "0x" + "".join(digit.upper() if upper[place % len(upper)] else digit for place, digit in enumerate(digits))


@given(nonce=st.binary(min_size=32, max_size=32), upper=cases, low_v=st.booleans())
@bounded(40)
def test_two_spellings_of_one_authorization_are_one_value_with_one_key(
    asset: Asset, signed: Signed, nonce: bytes, upper: list[bool], low_v: bool
) -> None:
    fields, signature = signed(nonce="0x" + nonce.hex())
    other = {**fields, **{name: respelled(fields[name], upper) for name in ("from", "to", "nonce")}}
    v = int(signature[-2:], 16)
    tail = f"{v - 27:02x}" if low_v else f"{v:02x}"
    one = parse_authorization(fields, signature)
    two = parse_authorization(other, respelled(signature[:-2] + tail, upper))
    assert one == two
    assert key(asset, one) == key(asset, two)
    assert recover(asset, two) == one.authorizer


CHANGES = {
    "authorizer": "0x70997970C51812dc3A010C7d01b50e0d17dc79C8",
    "to": "0x70997970C51812dc3A010C7d01b50e0d17dc79C8",
}


@given(
    name=st.sampled_from(["authorizer", "to", "value", "valid_after", "valid_before", "nonce"]),
    number=st.integers(1, 2**250),
    nonce=st.binary(min_size=32, max_size=32),
)
@bounded(60)
def test_an_authorization_altered_in_any_member_has_another_signer(
    asset: Asset, authorization: Authorization, name: str, number: int, nonce: bytes
) -> None:
    old = getattr(authorization, name)
    new: Any = CHANGES.get(name, nonce if name == "nonce" else number)
    altered = attrs.evolve(authorization, **{name: new})
    try:
        signer = recover(asset, altered)
    except SignatureInvalid:
        return
    assert (signer == authorization.authorizer) is (new == old)
    assert signer != altered.authorizer or new == old


@given(tampered=st.integers(0, 63), bit=st.integers(0, 7))
@bounded(60)
def test_an_altered_signature_has_another_signer_or_none(
    asset: Asset, authorization: Authorization, tampered: int, bit: int
) -> None:
    raw = bytearray(authorization.signature)
    raw[tampered] ^= 1 << bit
    try:
        altered = parse_authorization(authorization.fields(), "0x" + raw.hex())
        assert recover(asset, altered) != authorization.authorizer
    except SignatureInvalid:
        pass


def test_a_signature_of_another_token_or_chain_has_another_signer(asset: Asset, authorization: Authorization) -> None:
    others = [
        Asset("eip155:1", 1, asset.address, asset.name, asset.version, 6),
        attrs.evolve(asset, name="USDC"),
        attrs.evolve(asset, version="1"),
        attrs.evolve(asset, address="0xA0b86991c6218b36c1d19D4a2e9Eb0cE3606eB48"),
    ]
    for other in others:
        assert recover(other, authorization) != authorization.authorizer


def test_the_wire_form_reads_back_as_the_same_authorization(authorization: Authorization) -> None:
    assert parse_authorization(authorization.fields(), "0x" + authorization.signature.hex()) == authorization


def test_no_log_of_an_authorization_shows_its_signature(authorization: Authorization) -> None:
    assert authorization.signature.hex() not in repr(authorization)
    assert repr(authorization.signature) not in repr(authorization)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("value", "06000"),
        ("value", ""),
        ("value", "-1"),
        ("value", "+1"),
        ("value", "1e3"),
        ("value", "0x10"),
        ("value", "6000.0"),
        ("value", " 6000"),
        ("value", "6000\n"),
        ("value", "6_000"),
        ("value", "٦"),
        ("value", "1" * 79),
        ("validAfter", "00"),
        ("validBefore", "9" * 100_000),
        ("nonce", "0x" + "a" * 63),
        ("nonce", "0x" + "a" * 65),
        ("nonce", "0X" + "a" * 64),
        ("nonce", "a" * 64),
        ("from", "0x" + "a" * 41),
        ("to", "vitalik.eth"),
    ],
)
def test_every_other_spelling_of_a_member_is_malformed(signed: Signed, name: str, text: str) -> None:
    fields, signature = signed()
    with pytest.raises(MalformedCredential, match=name):
        parse_authorization({**fields, name: text}, signature)


@pytest.mark.parametrize("value", [6000, 6000.0, None, True, ["6000"], {"value": "6000"}])
def test_a_member_that_is_no_string_is_malformed(signed: Signed, value: object) -> None:
    fields, signature = signed()
    with pytest.raises(MalformedCredential, match="value is not a string"):
        parse_authorization({**fields, "value": value}, signature)


@pytest.mark.parametrize("name", ["from", "to", "value", "validAfter", "validBefore", "nonce"])
def test_a_missing_member_is_malformed(signed: Signed, name: str) -> None:
    fields, signature = signed()
    del fields[name]
    with pytest.raises(MalformedCredential, match=name):
        parse_authorization(fields, signature)


@pytest.mark.parametrize("name", ["value", "validAfter", "validBefore"])
def test_the_largest_number_is_that_of_uint256(asset: Asset, signed: Signed, name: str) -> None:
    fields, signature = signed(**{name: str(2**256 - 1)})
    largest = parse_authorization(fields, signature)
    assert largest.fields()[name] == str(2**256 - 1)
    assert recover(asset, largest) == largest.authorizer


@pytest.mark.parametrize(
    ("name", "refusal"),
    [
        ("value", AmountMismatch),
        ("validAfter", AuthorizationNotYetValid),
        ("validBefore", AuthorizationExpiresTooLate),
    ],
)
@pytest.mark.parametrize("number", [str(2**256), "9" * 78])
def test_a_number_over_uint256_is_refused_by_what_it_means(
    signed: Signed, name: str, refusal: type[GatewayError], number: str
) -> None:
    fields, signature = signed()
    with pytest.raises(refusal, match="over the largest uint256"):
        parse_authorization({**fields, name: number}, signature)


@pytest.mark.parametrize(
    ("signature", "refusal"),
    [
        (None, MalformedCredential),
        (b"\0" * 65, MalformedCredential),
        ("", MalformedCredential),
        ("0x", MalformedCredential),
        ("0x" + "1" * 129, MalformedCredential),
        ("1" * 130, MalformedCredential),
        ("0x" + "11" * 63, MalformedCredential),
        ("0x" + "11" * 64, SignatureInvalid),
        ("0x" + "11" * 64 + "02", SignatureInvalid),
        ("0x" + "11" * 64 + "1a", SignatureInvalid),
        ("0x" + "11" * 64 + "25", SignatureInvalid),
        ("0x" + "11" * 32 + f"{N // 2 + 1:064x}" + "1b", SignatureInvalid),
        ("0x" + "11" * 66, Erc1271Unsupported),
        ("0x" + "11" * 1000, Erc1271Unsupported),
        ("0x" + "11" * 65 + "6492" * 16, Erc6492Unsupported),
        ("0x" + "6492" * 16, Erc6492Unsupported),
    ],
)
def test_a_signature_that_the_token_would_not_take_is_refused_by_name(
    signed: Signed, signature: object, refusal: type[GatewayError]
) -> None:
    fields, _ = signed()
    with pytest.raises(refusal):
        parse_authorization(fields, signature)


def test_the_high_twin_of_a_good_signature_is_refused(signed: Signed) -> None:
    fields, signature = signed()
    raw = bytes.fromhex(signature[2:])
    twin = raw[:32] + (N - int.from_bytes(raw[32:64], "big")).to_bytes(32, "big") + bytes((55 - raw[64],))
    with pytest.raises(SignatureInvalid, match="high s"):
        parse_authorization(fields, "0x" + twin.hex())


@pytest.mark.parametrize("r", [0, N, N + 1, 2**256 - 1, 5])
def test_a_signature_of_no_key_is_refused(asset: Asset, signed: Signed, r: int) -> None:
    fields, _ = signed()
    authorization = parse_authorization(fields, f"0x{r:064x}{1:064x}1b")
    with pytest.raises(SignatureInvalid):
        recover(asset, authorization)


def test_a_zero_s_is_the_signature_of_no_key(asset: Asset, signed: Signed) -> None:
    fields, signature = signed()
    authorization = parse_authorization(fields, signature[:66] + "0" * 64 + "1b")
    with pytest.raises(SignatureInvalid):
        recover(asset, authorization)
