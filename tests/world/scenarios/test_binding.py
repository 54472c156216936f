"""What a key, a credential and a quote are bound to (reference: attack cases 1 to 8, 16 to 18)."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import trio

from gateway.world.chain import Account
from tests.world.scenarios.node_process import NodeProcess
from tests.world.scenarios.purchase import (
    Calls,
    Challenge,
    Protocol,
    Purchase,
    Shop,
    body,
    carries_challenge,
    decoded,
    fresh_key,
    mpp,
    mpp_payload,
    x402,
    x402_payload,
)

pytestmark = pytest.mark.world


async def at_once(shop: Shop, purchases: list[Purchase]) -> list[httpx.Response]:
    """Send all purchases in the same moment."""
    answers: list[httpx.Response] = []

    async def send(purchase: Purchase) -> None:
        answers.append(await shop.send(purchase))

    async with trio.open_nursery() as nursery:
        for purchase in purchases:
            nursery.start_soon(send, purchase)
    return answers


def substance(answer: httpx.Response) -> str:
    """Return a 200 without what tells the first answer from a replay."""
    told = answer.json()
    assert told.pop("replayed") in {True, False}
    payment = {name: answer.headers.get(name) for name in ("payment-response", "payment-receipt")}
    return json.dumps([told, payment], sort_keys=True)


@pytest.mark.parametrize("protocol", ["x402", "mpp"])
async def test_1_one_credential_sent_eight_times_at_once_runs_and_settles_once(
    shop: Shop, payer: Account, protocol: Protocol
) -> None:
    purchase = await shop.order(payer, protocol)
    calls = await Calls.from_now(shop)
    answers = await at_once(shop, [purchase] * 8)
    assert [answer.status_code for answer in answers] == [200] * 8
    assert len({substance(answer) for answer in answers}) == 1
    assert sorted(answer.json()["replayed"] for answer in answers) == [False] + [True] * 7
    assert await calls.of("verify", "settle", "search") == {"verify": 1, "settle": 1, "search": 1}
    assert len(await shop.transfers(payer)) == 1


async def test_2_a_used_credential_under_another_key_is_bound_already(shop: Shop, payer: Account) -> None:
    purchase = await shop.order(payer)
    assert (await shop.send(purchase)).status_code == 200
    calls = await Calls.from_now(shop)
    answer = await shop.post(purchase.body, fresh_key(), purchase.credential)
    assert (answer.status_code, answer.json()["code"]) == (409, "payment_already_bound")
    assert not carries_challenge(answer)
    assert await calls.of("verify", "settle", "search") == {"verify": 0, "settle": 0, "search": 0}


async def test_3_a_credential_echoing_another_resource_is_refused_before_any_call(shop: Shop, payer: Account) -> None:
    sent, key = body(), fresh_key()
    payload = x402_payload(await shop.challenge(sent, key), payer)
    payload["resource"] = payload["resource"] | {"url": payload["resource"]["url"].replace("/paid", "/other")}
    calls = await Calls.from_now(shop)
    answer = await shop.post(sent, key, x402(payload))
    assert (answer.status_code, answer.json()["code"]) == (402, "terms_mismatch")
    assert await calls.of("verify", "settle", "search") == {"verify": 0, "settle": 0, "search": 0}


async def test_3_without_an_echoed_resource_the_first_claim_wins(shop: Shop, payer: Account) -> None:
    sent, key = body(), fresh_key()
    payload = x402_payload(await shop.challenge(sent, key), payer)
    del payload["resource"]
    assert (await shop.post(sent, key, x402(payload))).status_code == 200
    answer = await shop.post(sent, fresh_key(), x402(payload))
    assert (answer.status_code, answer.json()["code"]) == (409, "payment_already_bound")
    assert len(await shop.transfers(payer)) == 1


@pytest.mark.parametrize("protocol", ["x402", "mpp"])
async def test_4_a_credential_sent_again_after_completion_replays_the_stored_answer(
    shop: Shop, payer: Account, protocol: Protocol
) -> None:
    purchase = await shop.order(payer, protocol)
    first = await shop.send(purchase)
    calls = await Calls.from_now(shop)
    again = await shop.send(purchase)
    assert (first.json()["replayed"], again.json()["replayed"]) == (False, True)
    assert "idempotency-replayed" not in first.headers
    assert again.headers["idempotency-replayed"] == "true"
    assert substance(again) == substance(first)
    assert await calls.of("verify", "settle", "search") == {"verify": 0, "settle": 0, "search": 0}


async def test_5_a_key_used_for_another_body_is_a_conflict_paid_or_not(
    shop: Shop, payer: Account, payers: Iterator[Account], node: NodeProcess
) -> None:
    purchase = await shop.order(payer)
    assert (await shop.send(purchase)).status_code == 200
    other = body("something else")
    credential = (await shop.order(next(payers), sent=other)).credential
    before, calls = node.rows(), await Calls.from_now(shop)
    for headers in ({}, credential, purchase.credential):
        answer = await shop.post(other, purchase.key, headers)
        assert (answer.status_code, answer.json()["code"]) == (409, "idempotency_key_reused")
        assert not carries_challenge(answer)
    assert node.rows() == before
    assert await calls.of("verify", "settle", "search") == {"verify": 0, "settle": 0, "search": 0}


async def test_6_a_fresh_credential_for_a_completed_key_stays_untouched(
    shop: Shop, payer: Account, node: NodeProcess
) -> None:
    sent, key = body(), fresh_key()
    challenge = await shop.challenge(sent, key)
    assert (await shop.post(sent, key, x402(x402_payload(challenge, payer)))).status_code == 200
    before, calls = node.rows(), await Calls.from_now(shop)
    spare = x402(x402_payload(challenge, payer))
    answer = await shop.post(sent, key, spare)
    assert (answer.status_code, answer.json()["replayed"]) == (200, True)
    assert node.rows() == before
    assert await calls.of("verify", "settle", "search") == {"verify": 0, "settle": 0, "search": 0}
    assert len(await shop.transfers(payer)) == 1
    assert (await shop.post(sent, fresh_key(), spare)).status_code == 200


async def test_7_a_completed_key_replays_without_a_credential(shop: Shop, payer: Account) -> None:
    purchase = await shop.order(payer)
    first = await shop.send(purchase)
    answer = await shop.post(purchase.body, purchase.key)
    assert substance(answer) == substance(first)
    quoted = await shop.post(purchase.body, f'"{purchase.key}"')
    assert substance(quoted) == substance(first)


@pytest.mark.parametrize("rounds", range(3))
async def test_8_of_two_credentials_for_one_key_one_wins_and_the_other_stays_unused(
    shop: Shop, payer: Account, node: NodeProcess, rounds: int
) -> None:
    sent, key = body(f"two for one {rounds}"), fresh_key()
    challenge = await shop.challenge(sent, key)
    before = node.rows()["authorizations"]
    both = [Purchase(payer, sent, key, x402(x402_payload(challenge, payer))) for _ in range(2)]
    answers = await at_once(shop, both)
    assert [answer.status_code for answer in answers] == [200, 200]
    assert len({substance(answer) for answer in answers}) == 1
    assert len(await shop.transfers(payer)) == 1
    assert node.rows()["authorizations"] == before + 1


@pytest.mark.parametrize("rule", ["draft", "pympp"])
async def test_16_an_mpp_nonce_by_either_rule_is_taken(shop: Shop, payer: Account, rule: str) -> None:
    sent, key = body(), fresh_key()
    payload = mpp_payload(await shop.challenge(sent, key), payer, rule=rule)  # type: ignore[arg-type]  # one of the rules
    answer = await shop.post(sent, key, mpp(payload))
    assert answer.status_code == 200
    receipt = decoded(answer.headers["payment-receipt"])
    assert receipt["challengeId"] == payload["challenge"]["id"]
    assert [each.transaction for each in await shop.transfers(payer)] == [receipt["reference"]]


async def test_16_an_mpp_nonce_by_no_rule_is_refused_before_any_call(shop: Shop, payer: Account) -> None:
    sent, key = body(), fresh_key()
    calls = await Calls.from_now(shop)
    answer = await shop.post(sent, key, mpp(mpp_payload(await shop.challenge(sent, key), payer, rule="random")))
    assert (answer.status_code, answer.json()["code"]) == (402, "nonce_mismatch")
    assert await calls.of("verify", "settle", "search") == {"verify": 0, "settle": 0, "search": 0}


@pytest.mark.parametrize("protocol", ["x402", "mpp"])
async def test_17_a_quote_pays_for_no_other_body(
    shop: Shop, payer: Account, node: NodeProcess, protocol: Protocol
) -> None:
    purchase = await shop.order(payer, protocol)
    before, calls = node.rows(), await Calls.from_now(shop)
    answer = await shop.post(body("another body"), purchase.key, purchase.credential)
    assert (answer.status_code, answer.json()["code"]) == (409, "quote_conflict")
    assert not carries_challenge(answer)
    assert node.rows() == before
    assert await calls.of("verify", "settle", "search") == {"verify": 0, "settle": 0, "search": 0}
    assert (await shop.send(purchase)).status_code == 200


async def test_18_two_credentials_in_one_request_are_refused_and_neither_is_claimed(
    shop: Shop, payer: Account, node: NodeProcess
) -> None:
    sent, key = body(), fresh_key()
    challenge = await shop.challenge(sent, key)
    one, two = x402(x402_payload(challenge, payer)), mpp(mpp_payload(challenge, payer))
    before = node.rows()
    for pair in (
        [*one.items(), *two.items()],
        [*one.items(), *one.items()],
        [*two.items(), *two.items()],
        [*two.items(), ("Payment-Authorization", two["Authorization"])],
    ):
        answer = await shop.client.post(
            f"{shop.url}/v1/search/paid", json=sent, headers=[("Idempotency-Key", key), *pair]
        )
        assert (answer.status_code, answer.json()["code"]) == (400, "payment_header_conflict")
        assert not carries_challenge(answer)
    assert node.rows() == before
    assert (await shop.post(sent, key, one)).status_code == 200


async def test_the_payment_identifier_is_a_second_name_of_the_operation(shop: Shop, payer: Account) -> None:
    sent, key, name = body(), fresh_key(), f"pay_{secrets.token_hex(12)}"
    challenge = await shop.challenge(sent, key)
    credential = x402(x402_payload(challenge, payer, payment_id=name))
    first = await shop.post(sent, key, credential)
    assert first.status_code == 200
    assert substance(await shop.post(sent, name)) == substance(first)
    assert substance(await shop.post(sent, fresh_key(), credential)) == substance(first)
    assert len(await shop.transfers(payer)) == 1


async def test_a_key_and_a_payment_identifier_that_name_two_operations_are_a_conflict(
    shop: Shop, payer: Account
) -> None:
    sent, one, two, name = body(), fresh_key(), fresh_key(), f"pay_{secrets.token_hex(12)}"
    challenge = await shop.challenge(sent, one)
    named = x402(x402_payload(challenge, payer, payment_id=name))
    assert (await shop.post(sent, one, named)).status_code == 200
    assert (await shop.post(sent, two, x402(x402_payload(challenge, payer)))).status_code == 200
    answer = await shop.post(sent, two, named)
    assert (answer.status_code, answer.json()["code"]) == (409, "idempotency_key_reused")
    assert not carries_challenge(answer)


async def test_an_example_quote_is_never_redeemed(shop: Shop, payer: Account, node: NodeProcess) -> None:
    probe = await shop.client.post(f"{shop.url}/v1/search/paid")
    assert probe.status_code == 402
    assert probe.json()["quote"]["example"] is True
    challenge = Challenge.of(probe)
    before, calls = node.rows(), await Calls.from_now(shop)
    example = challenge.required["extensions"]["bazaar"]["info"]["input"]["body"]
    for credential in (x402(x402_payload(challenge, payer)), mpp(mpp_payload(challenge, payer))):
        for sent in (example, dict[str, Any]()):
            answer = await shop.post(sent, fresh_key(), credential)
            assert answer.status_code == 400, answer.text
            assert not carries_challenge(answer)
    assert node.rows() == before
    assert await calls.of("verify", "settle") == {"verify": 0, "settle": 0}
