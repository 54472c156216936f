"""What a presented payment costs the network that it comes from."""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from gateway import errors
from gateway.actors import quota as quotas
from gateway.actors.operations.in_hand import REFUSALS_AT_ONCE
from gateway.actors.runtime import Inbox, open_runtime
from gateway.actors.settlement import Look, Sighting, Standing, Verdict, Verification
from gateway.http.counting import spend
from tests.http.shop import BODY, LIMITS, OTHER_PAYER, PAYER, Answer, Payer, Shop, open_shop, together

KEY = "0123456789abcdef0123"
ELSEWHERE = "198.51.100.7"
INVALID = Verification(Verdict.INVALID, "insufficient_funds")
TWO = LIMITS | {"payment_attempts": 2}


def fresh(number: int) -> str:
    return f"{number:020d}"


def stranger() -> Payer:
    return Payer(os.urandom(32))


async def refused(shop: Shop, quoted: Answer, number: int = 0, **more: str) -> Answer:
    """Present a payment of somebody without funds."""
    shop.bank.verification = INVALID
    answer = await shop.post(key=fresh(number), headers=stranger().x402(quoted), **more)
    shop.bank.verification = Verification(Verdict.VALID)
    return answer


async def test_refused_payments_of_one_network_end_at_its_quota(tmp_path: Path) -> None:
    async with open_shop(tmp_path, limits=LIMITS | {"payment_attempts": 12}) as shop:
        quoted = await shop.post(key=KEY)
        shop.bank.verification = INVALID
        keys = iter(map(fresh, range(64)))
        answers = await together(64, lambda: shop.post(key=next(keys), headers=stranger().x402(quoted)))
        assert Counter(answer.status for answer in answers) == {402: 12, 429: 52}
        assert {answer.code for answer in answers if answer.status == 402} == {"insufficient_funds"}
        over = next(answer for answer in answers if answer.status == 429)
        assert (over.code, over.json["quota"], over.challenged) == ("quota_exceeded", "payment_attempts", False)
        assert 0 < int(over.headers["Retry-After"]) <= 60
        assert over.headers["RateLimit"].startswith('"payment_attempts";r=0;t=')
        assert over.headers["RateLimit-Policy"] == '"payment_attempts";q=12;w=60'
        assert (shop.bank.verified, await shop.rows("operations"), await shop.rows("authorizations")) == (12, 12, 12)


async def test_a_refused_payment_tells_its_own_reason_when_no_quote_is_left(tmp_path: Path) -> None:
    async with open_shop(tmp_path, limits=LIMITS | {"unpaid_quotes": 1}) as shop:
        quoted = await shop.post(key=KEY)
        answer = await refused(shop, quoted)
        assert (answer.status, answer.code, answer.challenged) == (402, "insufficient_funds", True)
        assert answer.headers["RateLimit"].startswith('"payment_attempts";r=119;t=')
        assert (await shop.post(key=KEY)).json["quota"] == "unpaid_quotes"


async def test_a_payment_that_is_refused_without_asking_anybody_costs_no_attempt(tmp_path: Path) -> None:
    async with open_shop(tmp_path, limits=LIMITS | {"payment_attempts": 1}) as shop:
        quoted = await shop.post(key=KEY)
        for _ in range(3):
            answer = await shop.post(key=KEY, headers=PAYER.x402(quoted, to=OTHER_PAYER.address))
            assert (answer.status, answer.code) == (402, "recipient_mismatch")
        assert (await shop.buy(key=KEY)).status == 200


async def test_a_verified_payment_is_given_back_its_attempt(tmp_path: Path) -> None:
    async with open_shop(tmp_path, limits=LIMITS | {"payment_attempts": 1}) as shop:
        for number in range(5):
            assert (await shop.buy(key=fresh(number))).status == 200


async def test_an_attempt_is_given_back_while_the_paid_call_still_runs(tmp_path: Path) -> None:
    async with open_shop(tmp_path, limits=LIMITS | {"payment_attempts": 1}) as shop:
        shop.search.hold()
        quoted = [await shop.post(key=fresh(number)) for number in range(3)]
        answers: list[Answer] = []

        async def pay(number: int) -> None:
            answers.append(await shop.post(key=fresh(number), headers=PAYER.x402(quoted[number])))

        async with trio.open_nursery() as nursery:
            for number in range(3):
                shop.search.begun = trio.Event()
                nursery.start_soon(pay, number)
                with trio.fail_after(10):
                    await shop.search.begun.wait()
            shop.search.gate.set()
        assert [answer.status for answer in answers] == [200, 200, 200]


async def test_a_failed_execution_costs_no_attempt(tmp_path: Path) -> None:
    async with open_shop(tmp_path, limits=LIMITS | {"payment_attempts": 1}) as shop:
        shop.search.failure = errors.ExecutorFailed()
        assert [(await shop.buy(key=fresh(number))).status for number in range(3)] == [502] * 3


async def test_a_payment_that_nobody_could_verify_costs_no_attempt(tmp_path: Path) -> None:
    async with open_shop(tmp_path, limits=LIMITS | {"payment_attempts": 1}) as shop:
        shop.bank.verification = Verification(Verdict.UNAVAILABLE, "timeout")
        answers = [await shop.buy(key=fresh(number)) for number in range(3)]
        assert {(answer.status, answer.code) for answer in answers} == {(503, "facilitator_unavailable")}


async def test_a_refused_payment_costs_an_attempt_also_where_the_chain_cannot_tell(tmp_path: Path) -> None:
    async with open_shop(tmp_path, limits=TWO) as shop:
        shop.bank.verification, shop.bank.standing = INVALID, Standing.UNTRACED
        answers = [await shop.buy(key=fresh(number)) for number in range(3)]
        assert [answer.code for answer in answers] == ["settlement_pending", "settlement_pending", "quota_exceeded"]


async def test_a_node_that_takes_no_more_orders_costs_no_attempt(tmp_path: Path) -> None:
    async with open_shop(tmp_path, limits=LIMITS | {"payment_attempts": 1, "paid": 0}) as shop:
        answers = [await shop.buy(key=fresh(number)) for number in range(2)]
        assert {answer.json["quota"] for answer in answers} == {"paid"}


async def test_a_completed_key_is_replayed_whatever_was_attempted(tmp_path: Path) -> None:
    async with open_shop(tmp_path, limits=TWO) as shop:
        quoted = await shop.post(key=KEY)
        headers = PAYER.x402(quoted)
        assert (await shop.post(key=KEY, headers=headers)).status == 200
        for number in range(3):
            await refused(shop, quoted, number)
        assert (await shop.buy(key=fresh(9))).json["quota"] == "payment_attempts"
        again = [await shop.post(key=KEY, headers=more) for more in (headers, {}, OTHER_PAYER.x402(quoted))]
        assert [(answer.status, answer.json["replayed"]) for answer in again] == [(200, True)] * 3


async def test_networks_attempt_apart(tmp_path: Path) -> None:
    async with open_shop(tmp_path, limits=TWO) as shop:
        quoted = await shop.post(key=KEY)
        answers = [await refused(shop, quoted, number) for number in range(3)]
        assert [answer.status for answer in answers] == [402, 402, 429]
        assert (await refused(shop, quoted, 4, peer=ELSEWHERE)).status == 402
        assert (await shop.buy(key=KEY, peer=ELSEWHERE)).status == 200


async def test_a_window_later_payments_are_tried_again(tmp_path: Path) -> None:
    async with open_shop(tmp_path, limits=TWO) as shop:
        quoted = await shop.post(key=KEY)
        assert [(await refused(shop, quoted, number)).status for number in range(3)] == [402, 402, 429]
        shop.clock.ahead_ms += 61_000
        valid_before = int(time.time()) + 61 + 162
        later = await shop.post(key=KEY, body=BODY, headers=PAYER.x402(quoted, valid_before=valid_before))
        assert later.status == 200


async def test_a_crowd_of_refused_payments_is_looked_for_a_few_at_a_time(tmp_path: Path) -> None:
    async with open_shop(tmp_path) as shop, trio.open_nursery() as nursery:
        quoted = await shop.post(key=KEY)
        shop.bank.verification, shop.bank.looking = INVALID, []
        answers: list[Answer] = []

        async def present(number: int) -> None:
            answers.append(await shop.post(key=fresh(number), headers=stranger().x402(quoted)))

        for number in range(3 * REFUSALS_AT_ONCE):
            nursery.start_soon(present, number)
        for _ in range(1000):
            await wait_all_tasks_blocked(0.02)
            letters, shop.bank.looking = shop.bank.looking, []
            assert len(letters) <= REFUSALS_AT_ONCE
            for letter in letters:
                assert isinstance(letter.message, Look)
                letter.answer(letter.message, Sighting(Standing.UNUSED, 101))
            if len(answers) == 3 * REFUSALS_AT_ONCE:
                break
        assert {answer.code for answer in answers} == {"insufficient_funds"}
        assert len(answers) == 3 * REFUSALS_AT_ONCE


async def test_a_quota_that_is_silent_waits_for_the_store_and_says_so(autojump_clock: MockClock) -> None:
    async def silent(inbox: Inbox[quotas.Message]) -> None:
        inbox.ready()
        kept = [letter async for letter in inbox]
        assert kept

    async with open_runtime(grace=0.1) as runtime:
        ref = await runtime.start("quota", silent)
        with pytest.raises(errors.StoreUnavailable) as caught:
            await spend(ref, "free_search", "192.0.2.1")
    assert caught.value.extra == {"reason": "store_unavailable"}
