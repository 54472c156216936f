"""Every fault of the facilitator and of the chain's endpoint (reference: attack cases 20 to 27, 29)."""

from __future__ import annotations

from collections.abc import Iterator

import attrs
import pytest
import trio

from gateway.world.chain import NETWORK, Account, account
from gateway.world.faults import FACILITATOR_MODES, OK, RPC_MODES
from tests.world.scenarios.node_process import NodeProcess
from tests.world.scenarios.purchase import (
    PRICE,
    Calls,
    Protocol,
    Purchase,
    Shop,
    cancellation,
    carries_challenge,
    decoded,
    fresh_key,
    send_as_stranger,
    submission,
    x402,
    x402_payload,
)

pytestmark = pytest.mark.world

BEFORE_SETTLING = ("verify_500", "verify_hang", "garbage", "refuse")
RPC = f"rpc/{NETWORK}"
UNSEEN = "null_block"
"""With this fault balances can be read, so that payments are served, and no payment can be looked for."""


def protocol_of(mode: str) -> Protocol:
    """Both protocols take their turn among the modes."""
    return "mpp" if sum(mode.encode()) % 2 else "x402"


@pytest.mark.parametrize("mode", [mode for mode in FACILITATOR_MODES if mode != OK])
async def test_20_to_25_whatever_the_facilitator_does_the_payer_pays_once_and_gets_the_result(
    shop: Shop, payer: Account, mode: str
) -> None:
    purchase = await shop.order(payer, protocol_of(mode))
    calls = await Calls.from_now(shop)
    await shop.fault("facilitator", mode)
    answer = await shop.send(purchase)
    assert answer.status_code in {200, 503}, answer.text
    assert not carries_challenge(answer)
    if mode in BEFORE_SETTLING:
        assert answer.json()["code"] == "facilitator_unavailable"
        assert await shop.transfers(payer) == []
        assert (await calls.of("search")) == {"search": 0}
    await shop.heal()
    served = await shop.until_served(purchase)
    (transfer,) = await shop.transfers(payer)
    assert transfer.value == PRICE
    assert served.json()["receipt"]["settlement"]["transaction"] == transfer.transaction
    assert (await calls.of("search")) == {"search": 1}
    assert (await shop.send(purchase)).json()["replayed"] is True
    assert len(await shop.transfers(payer)) == 1


@pytest.mark.parametrize("mode", [mode for mode in FACILITATOR_MODES if mode.startswith("settle")])
async def test_22_a_result_whose_settlement_is_unknown_leaves_no_answer_with_a_challenge(
    shop: Shop, payer: Account, node: NodeProcess, mode: str
) -> None:
    purchase = await shop.order(payer, protocol_of(mode))
    bare = Purchase(payer, purchase.body, purchase.key)
    fresh = attrs.evolve(await shop.order(payer, sent=purchase.body), key=purchase.key)
    await shop.fault(RPC, UNSEEN)
    await shop.fault("facilitator", mode)
    answer = await shop.send(purchase)
    assert (answer.status_code, answer.json()["code"]) == (503, "settlement_pending")
    assert int(answer.headers["retry-after"]) >= 1
    operation_id = answer.json()["operationId"]
    claims = node.rows()["authorizations"]
    for again in (purchase, bare, fresh):
        told = await shop.send(again, prefer="wait=0")
        assert told.status_code in {409, 503}, told.text
        assert told.json()["operationId"] == operation_id
        assert not carries_challenge(told)
    assert node.rows()["authorizations"] == claims
    shown = await shop.operation(operation_id)
    assert shown["settlement"]["status"] == "unknown"
    assert "output" not in shown
    assert "Do not sign another payment" in shown["next"]
    await shop.heal()
    served = await shop.until_served(bare)
    assert served.json()["operationId"] == operation_id
    assert len(await shop.transfers(payer)) == 1
    assert (await shop.operation(operation_id))["settlement"]["status"] == "settled"


@pytest.mark.parametrize("mode", [mode for mode in RPC_MODES if mode != OK])
async def test_22_whatever_the_endpoint_of_the_chain_does_the_payer_pays_once_and_gets_the_result(
    shop: Shop, payer: Account, mode: str
) -> None:
    purchase = await shop.order(payer, protocol_of(mode))
    calls = await Calls.from_now(shop)
    await shop.fault(RPC, mode)
    answer = await shop.send(purchase)
    assert answer.status_code in {200, 503}, answer.text
    assert not carries_challenge(answer)
    await shop.heal()
    served = await shop.until_served(purchase)
    (transfer,) = await shop.transfers(payer)
    assert served.json()["receipt"]["settlement"]["transaction"] == transfer.transaction
    assert (await calls.of("search")) == {"search": 1}


@pytest.mark.parametrize("rpc", ["drop_logs", "lag", "null_block"])
@pytest.mark.parametrize("facilitator", ["settle_hang_after", "settle_no_tx"])
async def test_22_two_faults_at_once_still_make_one_payment(
    shop: Shop, payer: Account, facilitator: str, rpc: str
) -> None:
    purchase = await shop.order(payer)
    await shop.fault(RPC, rpc)
    await shop.fault("facilitator", facilitator)
    answer = await shop.send(purchase)
    assert answer.status_code in {200, 503}, answer.text
    assert not carries_challenge(answer)
    await shop.heal()
    await shop.until_served(purchase)
    assert len(await shop.transfers(payer)) == 1


async def test_24_a_success_without_a_transfer_releases_nothing(shop: Shop, payer: Account) -> None:
    purchase = await shop.order(payer)
    await shop.fault("facilitator", "settle_no_tx")
    answer = await shop.send(purchase)
    assert (answer.status_code, answer.json()["code"]) == (503, "settlement_pending")
    assert await shop.transfers(payer) == []
    shown = await shop.operation(answer.json()["operationId"], purchase.key)
    assert "output" not in shown
    await shop.heal()
    await shop.until_served(purchase)


async def test_25_a_settlement_that_the_facilitator_calls_failed_is_delivered_when_the_chain_shows_it(
    shop: Shop, payer: Account
) -> None:
    purchase = await shop.order(payer)
    await shop.fault("facilitator", "settle_500_before")
    await shop.fault(RPC, UNSEEN)
    assert (await shop.send(purchase)).json()["code"] == "settlement_pending"
    receipt = await send_as_stranger(shop, submission(purchase.credential))
    await shop.fault("facilitator", "ok")
    await trio.sleep(1)
    await shop.heal()
    served = await shop.until_served(purchase)
    assert served.json()["receipt"]["settlement"]["transaction"] == receipt["transactionHash"]
    assert len(await shop.transfers(payer)) == 1


async def test_26_an_authorization_that_a_stranger_settled_first_counts_as_paid_and_is_delivered_once(
    shop: Shop, payer: Account
) -> None:
    purchase = await shop.order(payer)
    receipt = await send_as_stranger(shop, submission(purchase.credential))
    served = await shop.until_served(purchase)
    assert served.json()["receipt"]["settlement"]["transaction"] == receipt["transactionHash"]
    other = await shop.post(purchase.body, fresh_key(), purchase.credential)
    assert (other.status_code, other.json()["code"]) == (409, "payment_already_bound")
    assert len(await shop.transfers(payer)) == 1


async def test_27_a_payment_cancelled_during_the_run_withholds_the_result_and_holds_the_payer(
    shop: Shop, payer: Account, payers: Iterator[Account], node: NodeProcess
) -> None:
    purchase = await shop.order(payer)
    calls = await Calls.from_now(shop)
    await shop.fault("facilitator", "settle_500_before")
    pending = await shop.send(purchase)
    assert pending.json()["code"] == "settlement_pending"
    await send_as_stranger(shop, cancellation(payer, purchase.credential))
    await shop.heal()
    operation_id = pending.json()["operationId"]
    shown = await shop.ended(operation_id, purchase.key)
    assert (shown["state"], shown["settlement"]["status"]) == ("FAILED", "not_settled")
    assert "output" not in shown
    assert await shop.transfers(payer) == []
    assert node.balances()["hold"] == 0
    again = await shop.send(purchase)
    assert again.status_code in {402, 503}, again.text
    held = await shop.send(await shop.order(payer))
    assert (held.status_code, held.json()["code"]) == (503, "payer_on_hold")
    assert not carries_challenge(held)
    # The kept result is bought again by who has the key and pays, without running again.
    successor = next(payers)
    challenge = await shop.challenge(purchase.body, purchase.key)
    served = await shop.post(purchase.body, purchase.key, x402(x402_payload(challenge, successor)))
    assert served.status_code == 200, served.text
    assert served.json()["operationId"] == operation_id
    assert await calls.of("search") == {"search": 1}
    assert len(await shop.transfers(successor)) == 1
    assert await shop.transfers(payer) == []


async def test_29_an_executor_that_fails_charges_nothing_and_the_same_request_runs_again(
    shop: Shop, payer: Account
) -> None:
    purchase = await shop.order(payer)
    calls = await Calls.from_now(shop)
    await shop.fault("search", "blocked")
    answer = await shop.send(purchase)
    assert answer.status_code == 502, answer.text
    assert answer.json()["retryable"] is True
    assert not carries_challenge(answer)
    assert await shop.transfers(payer) == []
    assert await calls.of("settle") == {"settle": 0}
    await shop.heal()
    served = await shop.until_served(purchase)
    assert served.json()["execution"]["attempt"] == 2
    assert served.json()["operationId"] == answer.json()["operationId"]
    assert len(await shop.transfers(payer)) == 1


async def test_29_an_engine_that_never_answers_charges_nothing(shop: Shop, payer: Account) -> None:
    purchase = await shop.order(payer, "mpp")
    calls = await Calls.from_now(shop)
    await shop.fault("search", "hang")
    answer = await shop.send(purchase)
    assert answer.status_code == 502, answer.text
    assert not carries_challenge(answer)
    assert await calls.of("settle") == {"settle": 0}
    await shop.heal()
    await shop.until_served(purchase)
    assert len(await shop.transfers(payer)) == 1


async def test_29_a_failed_run_may_be_paid_with_another_authorization_and_the_first_is_never_settled(
    shop: Shop, payer: Account, payers: Iterator[Account]
) -> None:
    purchase = await shop.order(payer)
    await shop.fault("search", "blocked")
    assert (await shop.send(purchase)).status_code == 502
    await shop.heal()
    other = next(payers)
    challenge = await shop.challenge(purchase.body, purchase.key)
    second = Purchase(other, purchase.body, purchase.key, x402(x402_payload(challenge, other)))
    await shop.until_served(second)
    assert (await shop.send(purchase)).json()["replayed"] is True
    elsewhere = await shop.post(purchase.body, fresh_key(), purchase.credential)
    assert (elsewhere.status_code, elsewhere.json()["code"]) == (409, "payment_already_bound")
    assert (len(await shop.transfers(payer)), len(await shop.transfers(other))) == (0, 1)


async def test_an_empty_page_is_a_result_and_is_charged(shop: Shop, payer: Account) -> None:
    purchase = await shop.order(payer)
    await shop.fault("search", "empty")
    served = await shop.send(purchase)
    assert (served.status_code, served.json()["output"]["results"]) == (200, [])
    assert len(await shop.transfers(payer)) == 1


async def test_a_payer_without_funds_is_refused_with_a_fresh_challenge_and_runs_nothing(shop: Shop) -> None:
    poor = account(f"poor {fresh_key()}")
    purchase = await shop.order(poor)
    calls = await Calls.from_now(shop)
    answer = await shop.send(purchase)
    assert (answer.status_code, answer.json()["code"]) == (402, "insufficient_funds"), answer.text
    assert carries_challenge(answer)
    assert await calls.of("search", "settle") == {"search": 0, "settle": 0}


async def test_the_receipt_headers_of_a_recovered_payment_name_its_transaction(shop: Shop, payer: Account) -> None:
    purchase = await shop.order(payer)
    await shop.fault("facilitator", "settle_wrong_payer")
    served = await shop.until_served(purchase)
    told = decoded(served.headers["payment-response"])
    (transfer,) = await shop.transfers(payer)
    assert (told["payer"], told["transaction"], told["amount"]) == (payer.address, transfer.transaction, str(PRICE))


def test_the_shared_node_has_logged_no_defect(node: NodeProcess) -> None:
    assert node.defects() == []
    assert node.balances()["hold"] == 0
