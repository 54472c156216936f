"""Credentials that are wrong, odd or hostile (reference: attack cases 9 to 15, 19, 34, 36, 38 to 40)."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import httpx
import pytest
import trio

from gateway.world.chain import Account
from tests.world.scenarios.node_process import NodeProcess
from tests.world.scenarios.purchase import (
    FREE,
    PAID,
    Calls,
    Challenge,
    Shop,
    body,
    carries_challenge,
    decoded,
    encoded,
    fresh_key,
    high_s,
    mpp,
    mpp_payload,
    signed,
    x402,
    x402_payload,
)

pytestmark = pytest.mark.world

NOTHING = {"verify": 0, "settle": 0, "search": 0}
STRANGER = "0x00000000000000000000000000000000DeaDBeef"
Make = Callable[[Challenge, Account], Mapping[str, str]]


def x402_with(**changes: Any) -> Make:
    def make(challenge: Challenge, payer: Account) -> dict[str, str]:
        return x402(x402_payload(challenge, payer, **changes))

    return make


def mpp_with(**changes: Any) -> Make:
    def make(challenge: Challenge, payer: Account) -> dict[str, str]:
        return mpp(mpp_payload(challenge, payer, **changes))

    return make


def x402_later(name: str, seconds: int) -> Make:
    """A time measured from now."""

    def make(challenge: Challenge, payer: Account) -> dict[str, str]:
        changes: dict[str, Any] = {name: int(time.time()) + seconds}
        return x402(x402_payload(challenge, payer, **changes))

    return make


def x402_signature(change: Callable[[bytes], bytes]) -> Make:
    """The right authorization under a changed signature."""

    def make(challenge: Challenge, payer: Account) -> dict[str, str]:
        payload = x402_payload(challenge, payer)
        signature = bytes.fromhex(payload["payload"]["signature"][2:])
        payload["payload"]["signature"] = "0x" + change(signature).hex()
        return x402(payload)

    return make


def x402_extra(**members: Any) -> Make:
    def make(challenge: Challenge, payer: Account) -> dict[str, str]:
        return x402(x402_payload(challenge, payer, accepted={"extra": challenge.terms["extra"] | members}))

    return make


def permit2(challenge: Challenge, payer: Account) -> dict[str, str]:
    payload = x402_payload(challenge, payer, accepted={"extra": {"assetTransferMethod": "permit2"}})
    payload["payload"] = {"permit2Authorization": {}, "signature": "0x00"}
    return x402(payload)


REFUSED: dict[str, tuple[str, Make]] = {
    "9 underpaid": ("amount_mismatch", x402_with(value=5999)),
    "9 overpaid": ("amount_mismatch", x402_with(value=6001)),
    "9 underpaid over MPP": ("amount_mismatch", mpp_with(value=5999)),
    "9 another amount accepted": ("amount_mismatch", x402_with(value=1, accepted={"amount": "1"})),
    "9 to another payee": ("recipient_mismatch", x402_with(to=STRANGER)),
    "9 to another payee over MPP": ("recipient_mismatch", mpp_with(to=STRANGER)),
    "9 another payee accepted": ("recipient_mismatch", x402_with(to=STRANGER, accepted={"payTo": STRANGER})),
    "9 another asset accepted": ("asset_mismatch", x402_with(accepted={"asset": STRANGER})),
    "9 another chain accepted": ("network_mismatch", x402_with(accepted={"network": "eip155:1"})),
    "9 another scheme accepted": ("terms_mismatch", x402_with(accepted={"scheme": "upto"})),
    "9 another time-out accepted": ("terms_mismatch", x402_with(accepted={"maxTimeoutSeconds": 60})),
    "9 signed for another chain": ("signature_invalid", x402_with(domain={"chainId": 1})),
    "9 signed for another token": ("signature_invalid", x402_with(domain={"verifyingContract": STRANGER})),
    "9 signed in another domain name": ("signature_invalid", x402_with(domain={"name": "USDC"})),
    "9 signed by somebody else": ("signature_invalid", x402_with(authorization={"from": STRANGER})),
    "9 nonce changed after signing": ("signature_invalid", x402_with(authorization={"nonce": "0x" + "11" * 32})),
    "9 MPP signed for another chain": ("signature_invalid", mpp_with(domain={"chainId": 1})),
    "10 expired": ("authorization_expires_too_soon", x402_later("validBefore", -1)),
    "10 expires before it can settle": ("authorization_expires_too_soon", x402_later("validBefore", 20)),
    "11 expires in a day": ("authorization_expires_too_late", x402_later("validBefore", 86_400)),
    "11 never expires": ("authorization_expires_too_late", x402_with(validBefore=2**255)),
    "12 valid later": ("authorization_not_yet_valid", x402_later("validAfter", 60)),
    "13 high s": ("signature_invalid", x402_signature(high_s)),
    "13 64 bytes": ("signature_invalid", x402_signature(lambda signature: signature[:64])),
    "13 v of 29": ("signature_invalid", x402_signature(lambda signature: signature[:64] + b"\x1d")),
    "13 a contract's signature": ("erc1271_unsupported", x402_signature(lambda signature: signature + bytes(31))),
    "13 a counterfactual signature": (
        "erc6492_unsupported",
        x402_signature(lambda signature: signature + bytes.fromhex("6492" * 16)),
    ),
    "13 zeros": ("signature_invalid", x402_signature(lambda _: bytes(64) + b"\x1b")),
    "15 another MPP id": ("challenge_invalid", mpp_with(echo={"id": "A" * 43})),
    "15 another MPP realm": ("challenge_invalid", mpp_with(echo={"realm": "elsewhere.example"})),
    "15 a cheaper MPP request": (
        "challenge_invalid",
        mpp_with(echo={"request": base64.urlsafe_b64encode(b'{"amount":"1"}').rstrip(b"=").decode()}),
    ),
    "15 a longer MPP life": ("challenge_invalid", mpp_with(echo={"expires": "2099-01-01T00:00:00Z"})),
    "15 an MPP digest": ("challenge_invalid", mpp_with(echo={"digest": "sha-256=AAAA"})),
    "15 another MPP opaque": ("challenge_invalid", mpp_with(echo={"opaque": "e30"})),
    "15 another MPP method": ("challenge_invalid", mpp_with(echo={"method": "tempo"})),
    "15 a forged quote": (
        "quote_invalid",
        x402_extra(quote="q1~1~01JDQ0000000000000000000AB~search.paid~1~p~1~1~-~a~b"),
    ),
    "15 no quote": ("quote_missing", x402_with(accepted={"extra": {"name": "USD Coin", "version": "2"}})),
    "another domain accepted": ("terms_mismatch", x402_extra(name="USDC")),
    "Permit2": ("permit2_unsupported", permit2),
    "another transfer method": ("transfer_method_unsupported", x402_extra(assetTransferMethod="erc7710")),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_9_to_15_what_is_not_what_was_offered_is_refused_with_its_name_before_any_call(
    shop: Shop, payer: Account, node: NodeProcess, case: str
) -> None:
    code, make = REFUSED[case]
    sent, key = body(), fresh_key()
    credential = make(await shop.challenge(sent, key), payer)
    before, calls = node.rows(), await Calls.from_now(shop)
    answer = await shop.post(sent, key, credential)
    assert (answer.status_code, answer.json()["code"]) == (402, code), answer.text
    assert await calls.of("verify", "settle", "search") == NOTHING
    assert node.rows() == before
    again = Challenge.of(answer)
    assert (await shop.post(sent, key, x402(x402_payload(again, payer)))).status_code == 200
    assert len(await shop.transfers(payer)) == 1


async def test_13_v_of_0_or_1_and_27_or_28_are_one_payment(shop: Shop, payer: Account) -> None:
    sent, key = body(), fresh_key()
    payload = x402_payload(await shop.challenge(sent, key), payer)
    signature = bytes.fromhex(payload["payload"]["signature"][2:])
    low = json.loads(json.dumps(payload))
    low["payload"]["signature"] = "0x" + (signature[:64] + bytes((signature[64] - 27,))).hex()
    assert (await shop.post(sent, key, x402(low))).status_code == 200
    answer = await shop.post(sent, fresh_key(), x402(payload))
    assert (answer.status_code, answer.json()["code"]) == (409, "payment_already_bound")
    assert len(await shop.transfers(payer)) == 1


async def test_14_an_authorization_spelled_in_another_case_is_the_same_payment(shop: Shop, payer: Account) -> None:
    sent, key = body(), fresh_key()
    payload = x402_payload(await shop.challenge(sent, key), payer)
    assert (await shop.post(sent, key, x402(payload))).status_code == 200
    fields = payload["payload"]["authorization"]
    spelled = {
        "from": fields["from"].lower(),
        "to": "0x" + fields["to"][2:].upper(),
        "nonce": "0x" + fields["nonce"][2:].upper(),
    }
    payload["payload"] = payload["payload"] | {"authorization": fields | spelled}
    answer = await shop.post(sent, fresh_key(), x402(payload))
    assert (answer.status_code, answer.json()["code"]) == (409, "payment_already_bound")
    assert len(await shop.transfers(payer)) == 1


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("value", "06000"),
        ("value", "+6000"),
        ("value", "6e3"),
        ("value", " 6000"),
        ("value", "1" * 79),
        ("validBefore", "0x10"),
        ("nonce", "0x12"),
        ("nonce", "12" * 32),
        ("from", "0x1234"),
        ("to", ""),
    ],
)
async def test_14_another_spelling_of_a_number_is_malformed(
    shop: Shop, payer: Account, node: NodeProcess, member: str, value: str
) -> None:
    sent, key = body(), fresh_key()
    payload = x402_payload(await shop.challenge(sent, key), payer, authorization={member: value})
    before, calls = node.rows(), await Calls.from_now(shop)
    answer = await shop.post(sent, key, x402(payload))
    assert (answer.status_code, answer.json()["code"]) == (400, "malformed_credential")
    assert await calls.of("verify", "settle", "search") == NOTHING
    assert node.rows() == before


def nested(depth: int) -> str:
    return base64.b64encode(b'{"a":' * depth + b"1" + b"}" * depth).decode()


MALFORMED: dict[str, dict[str, str]] = {
    "no base64": {"PAYMENT-SIGNATURE": "%%%"},
    "base64url": {
        "PAYMENT-SIGNATURE": base64.urlsafe_b64encode(b'{"x402Version":2,"a":"\xc3\xbf\xc3\xbe"}').decode() + "_-"
    },
    "no JSON": {"PAYMENT-SIGNATURE": base64.b64encode(b"{not json").decode()},
    "no object": {"PAYMENT-SIGNATURE": encoded([1, 2, 3])},
    "version 1": {"PAYMENT-SIGNATURE": encoded({"x402Version": 1, "payload": {}, "accepted": {}})},
    "no payload": {"PAYMENT-SIGNATURE": encoded({"x402Version": 2, "accepted": {}})},
    "a lone surrogate": {"PAYMENT-SIGNATURE": base64.b64encode(b'{"x402Version":2,"payload":"\\ud800"}').decode()},
    "nested deep": {"PAYMENT-SIGNATURE": nested(1000)},
    "empty": {"PAYMENT-SIGNATURE": ""},
    "invalid UTF-8": {"PAYMENT-SIGNATURE": base64.b64encode(b'{"x402Version":2,"a":"\xff"}').decode()},
    "MPP without a token": {"Authorization": "Payment"},
    "MPP no JSON": {"Authorization": "Payment bm90IGpzb24"},
    "MPP no challenge": {"Authorization": "Payment e30"},
    "MPP nested deep": {"Authorization": f"Payment {nested(1000).rstrip('=')}"},
}


@pytest.mark.parametrize("case", MALFORMED)
async def test_19_a_malformed_credential_is_a_400_and_costs_nothing(shop: Shop, node: NodeProcess, case: str) -> None:
    before, calls = node.rows(), await Calls.from_now(shop)
    answer = await shop.post(body(), fresh_key(), MALFORMED[case])
    assert (answer.status_code, answer.json()["code"]) in [(400, "malformed_credential"), (402, "payment_required")]
    assert answer.status_code == 400 or case == "empty"
    assert await calls.of("verify", "settle", "search") == NOTHING
    assert node.rows() == before


async def test_19_a_credential_over_its_cap_is_refused(shop: Shop, node: NodeProcess) -> None:
    before = node.rows()
    for size in (15_000, 17_000, 100_000):
        answer = await shop.post(body(), fresh_key(), {"PAYMENT-SIGNATURE": "A" * size})
        assert answer.status_code in {400, 431}
        assert answer.headers["content-type"] == "application/problem+json"
    assert node.rows() == before


BAD_BODIES: list[tuple[Any, set[str]]] = [
    ({"query": "", "maxResults": 11, "synthesize": "no"}, {"/query", "/maxResults", "/synthesize"}),
    ({}, {"/query", "/synthesize"}),
    ({"query": "x"}, {"/synthesize"}),
    ({"query": "x", "synthesize": False, "extra": 1, "more": 2}, {"/extra", "/more"}),
    ({"query": 7, "synthesize": False, "language": "EN", "region": "us"}, {"/query", "/language", "/region"}),
    ({"query": "x" * 2001, "synthesize": False, "maxResults": 1.5}, {"/query", "/maxResults"}),
    ({"query": "x", "synthesize": False, "region": "US\n"}, {"/region"}),
    ([], {""}),
    ("text", {""}),
    (7, {""}),
]


@pytest.mark.parametrize("path", [FREE, PAID])
@pytest.mark.parametrize(("sent", "pointers"), BAD_BODIES, ids=[str(number) for number in range(len(BAD_BODIES))])
async def test_34_bad_input_is_a_400_with_every_pointer_whoever_pays(
    shop: Shop, payer: Account, node: NodeProcess, path: str, sent: Any, pointers: set[str]
) -> None:
    credential = (await shop.order(payer)).credential
    before, calls = node.rows(), await Calls.from_now(shop)
    answer = await shop.post(sent, fresh_key(), credential, path=path)
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request"), answer.text
    assert {each["pointer"] for each in answer.json()["errors"]} == pointers
    assert not carries_challenge(answer)
    assert node.rows() == before
    assert await calls.of("verify", "settle", "search") == NOTHING
    assert await shop.transfers(payer) == []


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"nul",
        b'{"query":"a","query":"b","synthesize":false}',
        b'{"query":NaN}',
        b"\xff\xfe",
        b'{"a":' * 40 + b"1" + b"}" * 40,
    ],
)
async def test_34_what_is_no_strict_json_is_a_400_whoever_pays(
    shop: Shop, payer: Account, node: NodeProcess, content: bytes
) -> None:
    credential = (await shop.order(payer)).credential
    before, calls = node.rows(), await Calls.from_now(shop)
    for path in (FREE, PAID):
        headers = {"Content-Type": "application/json", "Idempotency-Key": fresh_key(), **credential}
        answer = await shop.client.post(shop.url + path, content=content, headers=headers)
        assert answer.status_code == 400, answer.text
        assert not carries_challenge(answer)
    assert node.rows() == before
    assert await calls.of("verify", "settle", "search") == NOTHING


@pytest.mark.parametrize("key", [None, "", "short", "x" * 129, "tab\tin it", '"unclosed 12345', "\x7f" * 16])
async def test_34_a_bad_key_is_a_400_whoever_pays(
    shop: Shop, payer: Account, node: NodeProcess, key: str | None
) -> None:
    credential = (await shop.order(payer)).credential
    before, calls = node.rows(), await Calls.from_now(shop)
    for path in (FREE, PAID):
        answer = await shop.post(body(), key, credential, path=path)
        assert answer.status_code == 400, answer.text
        assert answer.json()["code"] in {"idempotency_key_missing", "idempotency_key_invalid", "bad_request"}
    assert node.rows() == before
    assert await calls.of("verify", "settle", "search") == NOTHING


async def test_34_synthesis_is_refused_before_any_claim(shop: Shop, payer: Account, node: NodeProcess) -> None:
    credential = (await shop.order(payer)).credential
    before = node.rows()
    answer = await shop.post({"query": "x", "synthesize": True}, fresh_key(), credential)
    assert (answer.status_code, answer.json()["code"]) == (400, "synthesis_unavailable")
    assert node.rows() == before


@pytest.mark.parametrize(
    ("status", "code", "content", "more"),
    [
        (400, "idempotency_key_invalid", b"{}", [("Idempotency-Key", "another-key-of-the-same-request")]),
        (413, "content_too_large", b'{"query":"' + b"x" * 70_000 + b'"}', []),
        (415, "unsupported_media_type", b"query=x", [("Content-Type", "application/x-www-form-urlencoded")]),
    ],
)
async def test_34_a_request_that_cannot_be_taken_is_refused_whoever_pays(
    shop: Shop,
    payer: Account,
    node: NodeProcess,
    status: int,
    code: str,
    content: bytes,
    more: list[tuple[str, str]],
) -> None:
    credential = (await shop.order(payer)).credential
    before, calls = node.rows(), await Calls.from_now(shop)
    sent = json.dumps(body()).encode() if content == b"{}" else content
    media = [] if any(name == "Content-Type" for name, _ in more) else [("Content-Type", "application/json")]
    headers = [("Idempotency-Key", fresh_key()), *media, *more, *credential.items()]
    answer = await shop.client.post(f"{shop.url}{PAID}", content=sent, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert not carries_challenge(answer)
    assert node.rows() == before
    assert await calls.of("verify", "settle", "search") == NOTHING


async def raw(node: NodeProcess, request: bytes) -> bytes:
    """Send bytes as they are and return the whole answer."""
    stream = await trio.open_tcp_stream("127.0.0.1", node.port)
    answer = b""
    with trio.move_on_after(10):
        async with stream:
            await stream.send_all(request)
            while chunk := await stream.receive_some(65536):
                answer += chunk
    return answer


@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("POST", "/v1/search/%70aid"),
        ("POST", "//v1/search/paid"),
        ("POST", "/v1//search/paid"),
        ("POST", "/v1/search/paid/"),
        ("POST", "/v1/search/paid%0a"),
        ("POST", "/v1/search/paid%00"),
        ("POST", "/v1/search/./paid"),
        ("POST", "/v1/x/../search/paid"),
        ("POST", "/v1/search/paid;x=1"),
        ("POST", "/V1/search/paid"),
        ("GET", "/v1/search/paid"),
        ("HEAD", "/v1/search/paid"),
        ("OPTIONS", "/v1/search/paid"),
        ("PUT", "/v1/search/paid"),
    ],
)
async def test_36_no_other_spelling_of_a_path_reaches_the_operation(
    shop: Shop, node: NodeProcess, method: str, target: str
) -> None:
    before, calls = node.rows(), await Calls.from_now(shop)
    content = json.dumps(body()).encode()
    head = (
        f"{method} {target} HTTP/1.1\r\nHost: 127.0.0.1:{node.port}\r\nConnection: close\r\n"
        f"Idempotency-Key: {fresh_key()}\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    answer = await raw(node, head.encode() + content)
    status = int(answer.split(b" ", 2)[1])
    assert status in {404, 405, 204, 400}, answer
    assert status != 204 or method == "OPTIONS"
    assert node.rows() == before
    assert await calls.of("verify", "settle", "search") == NOTHING


async def test_38_no_answer_of_a_paid_route_may_be_kept_by_a_shared_cache(shop: Shop, payer: Account) -> None:
    quoted = await shop.post(body(), fresh_key())
    assert (quoted.status_code, quoted.headers["cache-control"]) == (402, "no-store")
    purchase = await shop.order(payer)
    served, replayed = await shop.send(purchase), await shop.send(purchase)
    for answer in (served, replayed):
        assert (answer.status_code, answer.headers["cache-control"]) == (200, "private")
    others = [
        await shop.post({}, fresh_key(), purchase.credential),
        await shop.post(body("other"), purchase.key),
        await shop.post(purchase.body, fresh_key(), purchase.credential),
        await shop.client.get(f"{shop.url}{PAID}"),
        await shop.client.get(f"{shop.url}/v1/nothing"),
    ]
    for answer in others:
        assert answer.status_code >= 400
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["content-type"] == "application/problem+json"
    shown = await shop.client.get(f"{shop.url}/v1/operations/{served.json()['operationId']}")
    assert shown.headers["cache-control"] == "private, no-store"


async def test_39_neither_logs_nor_problems_nor_the_store_tell_a_credential_a_key_or_a_result(
    shop: Shop, payer: Account, payers: Iterator[Account], node: NodeProcess
) -> None:
    secret_query = f"confidential {fresh_key()}"
    sent, key = body(secret_query), fresh_key()
    challenge = await shop.challenge(sent, key)
    good, other = x402_payload(challenge, payer), mpp_payload(challenge, next(payers), value=1)
    bad = x402_payload(challenge, payer, value=1)
    problems = [await shop.post(sent, key, x402(bad)), await shop.post(sent, key, mpp(other))]
    served = await shop.post(sent, key, x402(good))
    assert served.status_code == 200
    problems += [await shop.post(sent, fresh_key(), x402(good)), await shop.post(body("x"), key, x402(good))]
    snippets = [each["snippet"] for each in served.json()["output"]["results"]]
    told = "".join(answer.text for answer in problems)
    signatures = [each["payload"]["signature"][2:] for each in (good, bad, other)]
    credentials = [*x402(good).values(), *x402(bad).values(), *mpp(other).values()]
    for secret in [*signatures, *credentials, key]:
        assert secret not in told
        assert secret not in node.log
    at_rest = node.at_rest()
    for secret in [*signatures, *credentials, key, secret_query, *snippets, payer.private_key[2:]]:
        assert secret.encode() not in at_rest, secret
    assert secret_query not in node.log


async def test_40_a_flood_of_bad_signatures_reaches_no_facilitator(
    shop: Shop, payer: Account, node: NodeProcess
) -> None:
    sent, key = body(), fresh_key()
    challenge = await shop.challenge(sent, key)
    fields, _ = signed(payer, challenge)
    before, calls = node.rows(), await Calls.from_now(shop)
    statuses: list[int] = []

    async def send(number: int) -> None:
        payload = x402_payload(
            challenge,
            payer,
            authorization=fields | {"nonce": f"0x{number:064x}"},
            signature=bytes(31) + b"\x01" * 33 + b"\x1b",
        )
        statuses.append((await shop.post(sent, fresh_key(), x402(payload))).status_code)

    async with trio.open_nursery() as nursery:
        for number in range(200):
            nursery.start_soon(send, number)
    assert statuses == [402] * 200
    assert await calls.of("verify", "settle", "search") == NOTHING
    assert node.rows() == before


@pytest.mark.parametrize(
    ("member", "code"),
    [
        ("value", "amount_mismatch"),
        ("validAfter", "authorization_not_yet_valid"),
        ("validBefore", "authorization_expires_too_late"),
    ],
)
@pytest.mark.parametrize("number", [2**256 - 1, int("1" * 78), int("9" * 78)])
@pytest.mark.parametrize("protocol", ["x402", "mpp"])
async def test_14_a_number_of_78_digits_is_refused_by_what_it_means(
    shop: Shop, payer: Account, node: NodeProcess, protocol: str, number: int, member: str, code: str
) -> None:
    sent, key = body(), fresh_key()
    challenge = await shop.challenge(sent, key)
    named: dict[str, Any] = {member: number} if number < 2**256 else {}
    payload = (x402_payload if protocol == "x402" else mpp_payload)(challenge, payer, **named)
    members = payload["payload"] if protocol == "mpp" else payload["payload"]["authorization"]
    members[member] = str(number)
    before, calls = node.rows(), await Calls.from_now(shop)
    answer = await shop.post(sent, key, (x402 if protocol == "x402" else mpp)(payload))
    assert (answer.status_code, answer.json()["code"]) == (402, code)
    assert await calls.of("verify", "settle", "search") == NOTHING
    assert node.rows() == before


@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("spell", [base64.b64encode, base64.urlsafe_b64encode])
@pytest.mark.parametrize("protocol", ["x402", "mpp"])
async def test_a_credential_is_read_in_both_alphabets(
    shop: Shop, payer: Account, protocol: str, spell: Callable[[bytes], bytes], *, padded: bool
) -> None:
    sent, key = body("?>~" * 20), fresh_key()
    challenge = await shop.challenge(sent, key)
    payload = (x402_payload if protocol == "x402" else mpp_payload)(challenge, payer) | {"more": "?>~" * 20}
    text = spell(json.dumps(payload).encode()).decode()
    text = text if padded else text.rstrip("=")
    headers = {"PAYMENT-SIGNATURE": text} if protocol == "x402" else {"Authorization": f"Payment {text}"}
    assert (await shop.post(sent, key, headers)).status_code == 200
    assert len(await shop.transfers(payer)) == 1


async def test_null_members_of_the_echo_are_as_absent(shop: Shop, payer: Account) -> None:
    """The session of the stock MCP client writes every member that it knows of."""
    sent, key = body(), fresh_key()
    payload = x402_payload(await shop.challenge(sent, key), payer)
    payload["resource"] = {"url": payload["resource"]["url"]} | dict.fromkeys(
        ("description", "mimeType", "serviceName", "tags", "iconUrl")
    )
    payload["accepted"]["outputSchema"] = payload["accepted"]["extra"]["assetTransferMethod"] = None
    payload["extensions"] = None
    assert (await shop.post(sent, key, x402(payload))).status_code == 200
    assert len(await shop.transfers(payer)) == 1


async def test_the_proof_of_version_1_is_ignored_beside_that_of_version_2(shop: Shop, payer: Account) -> None:
    order = await shop.order(payer)
    answer = await shop.post(order.body, order.key, order.credential | {"X-PAYMENT": encoded({"x402Version": 1})})
    assert answer.status_code == 200
    assert len(await shop.transfers(payer)) == 1


async def test_an_obsolete_header_counts_where_it_says_something_else(shop: Shop, payer: Account) -> None:
    order = await shop.order(payer)
    (proof,) = order.credential.values()
    for name in ("X-402-Payment", "X-402-Receipt"):
        answer = await shop.post(order.body, order.key, order.credential | {name: "e30="})
        assert (answer.status_code, answer.json()["code"]) == (400, "payment_header_obsolete")
    answer = await shop.post(order.body, order.key, order.credential | {"X-402-Receipt": proof})
    assert answer.status_code == 200


def test_the_shared_node_has_logged_no_defect(node: NodeProcess) -> None:
    assert node.defects() == []


async def test_obsolete_payment_headers_are_named(shop: Shop, node: NodeProcess) -> None:
    before = node.rows()
    for name in ("X-PAYMENT", "X-402-Payment", "X-402-Receipt"):
        answer = await shop.post(body(), fresh_key(), {name: "e30="})
        assert (answer.status_code, answer.json()["code"]) == (400, "payment_header_obsolete")
        assert not carries_challenge(answer)
    assert node.rows() == before


async def test_a_challenge_says_the_same_in_its_header_and_its_body(shop: Shop) -> None:
    answer = await shop.post(body(), fresh_key())
    header, told = decoded(answer.headers["payment-required"]), answer.json()
    assert {name: told[name] for name in header} == header
    assert isinstance(answer, httpx.Response)
    assert told["price"]["amountAtomic"] == header["accepts"][0]["amount"] == "6000"
