"""Steps 4 to 7 of the one road: the key, the quota, availability, quote and payment."""

from __future__ import annotations

import base64
import json
import time
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from gateway import errors
from gateway.actors.retention import sweep
from gateway.actors.settlement import Standing, Verdict, Verification
from gateway.actors.store import Statement
from gateway.actors.store_time import confirmed
from gateway.http.pipeline import Pipeline
from gateway.registry.receipts import verify_receipt
from gateway.registry.table import OPERATIONS
from tests.http.shop import BODY, LIMITS, OTHER_PAYER, PAYER, PEPPERS, Answer, Shop, open_shop, together

KEY = "0123456789abcdef0123"
OTHER_KEY = "fedcba9876543210fedc"
WEAK_KEY = "password"
OTHER_BODY = BODY | {"query": "what is an ebb"}
ELSEWHERE = "198.51.100.7"
NOW_OR_NEVER = {"Prefer": "wait=0"}
DAY_MS = 24 * 3600 * 1000
OPTIONAL = {name: attrs.evolve(each, key_required=False) for name, each in OPERATIONS.items()}


def paying(quoted: Answer, payer: Any = PAYER, **more: Any) -> dict[str, str]:
    header: dict[str, str] = payer.x402(quoted, **more)
    return header


# -- what an answer looks like -----------------------------------------------------------------------------------------


async def test_a_free_call_is_answered_with_a_receipted_envelope(tmp_path: Path) -> None:
    async with open_shop(tmp_path) as shop:
        answer = await shop.post("search.free", key=KEY)
        verify_receipt(answer.json["receipt"], shop.signer.key_set)
    assert answer.status == 200
    assert (answer.json["state"], answer.json["replayed"]) == ("RECEIPTED", False)
    assert answer.json["receipt"]["funding"] == "free"
    assert answer.json["output"]["route"]["routeId"] == "search:one"
    assert answer.headers["Cache-Control"] == "private"
    assert answer.headers["RateLimit"].startswith('"free_search";r=11;t=')
    assert answer.headers["RateLimit-Policy"] == '"free_search";q=12;w=60'


async def test_a_quote_carries_both_challenges_and_stores_nothing(tmp_path: Path) -> None:
    async with open_shop(tmp_path) as shop:
        quoted = await shop.post(key=KEY)
        stored = [await shop.rows(table) for table in ("operations", "idempotency_keys", "authorizations")]
    assert (quoted.status, quoted.code) == (402, "payment_required")
    assert quoted.challenged
    assert quoted.headers["Cache-Control"] == "no-store"
    assert quoted.json["price"]["usd"] == "0.006000"
    assert quoted.json["accepts"][0]["amount"] == "6000"
    assert "example" not in quoted.json["quote"]
    assert stored == [0, 0, 0]


@pytest.mark.parametrize(("protocol", "header"), [("x402", "PAYMENT-RESPONSE"), ("mpp", "Payment-Receipt")])
async def test_a_paid_call_is_charged_as_quoted_and_replays_with_its_payment_headers(
    tmp_path: Path, protocol: str, header: str
) -> None:
    async with open_shop(tmp_path) as shop:
        quoted = await shop.post(key=KEY)
        headers = getattr(PAYER, protocol)(quoted)
        first = await shop.post(key=KEY, headers=headers)
        verify_receipt(first.json["receipt"], shop.signer.key_set)
        again = await shop.post(key=KEY, headers=headers)
        unpaid = await shop.post(key=KEY)
        assert shop.search.runs == 1
    assert first.json["receipt"]["charge"]["usd"] == quoted.json["price"]["usd"]
    assert first.json["receipt"]["quoteId"] == quoted.json["quote"]["quoteId"]
    assert first.json["requestHash"] == quoted.json["quote"]["requestHash"]
    assert "Idempotency-Replayed" not in first.headers
    for replay in (again, unpaid):
        assert replay.status == 200
        assert replay.json == first.json | {"replayed": True}
        assert replay.headers["Idempotency-Replayed"] == "true"
        assert replay.headers["Cache-Control"] == "private"
        assert replay.headers[header] == first.headers[header]


async def test_the_probe_is_quoted_for_the_example_and_never_redeemed(tmp_path: Path) -> None:
    async with open_shop(tmp_path) as shop:
        probed = await shop.post(body=b"")
        paid_as_it_came = await shop.post(body=b"", headers=paying(probed))
        paid_with_a_body = await shop.post(body=OPERATIONS["search.paid"].example, key=KEY, headers=paying(probed))
        assert await shop.rows("operations") == 0
    assert (probed.status, probed.challenged) == (402, True)
    assert probed.json["quote"]["example"] is True
    assert (probed.code, probed.json["error"]) == ("payment_required", "Payment required")
    assert "cannot be paid" in probed.json["detail"]
    assert "your own request body" in probed.json["next"]
    assert (paid_as_it_came.status, paid_as_it_came.code) == (400, "example_quote")
    assert (paid_with_a_body.status, paid_with_a_body.code) == (400, "example_quote")


# -- 4: the key --------------------------------------------------------------------------------------------------------


async def test_a_completed_key_replays_and_leaves_another_payment_untouched(tmp_path: Path) -> None:
    async with open_shop(tmp_path) as shop:
        first = await shop.buy(key=KEY)
        fresh = paying(await shop.post(key=OTHER_KEY), OTHER_PAYER)
        replay = await shop.post(key=KEY, headers=fresh)
        assert replay.json == first.json | {"replayed": True}
        assert (await shop.rows("authorizations"), len(shop.bank.paid)) == (1, 1)
        assert (await shop.post(key=OTHER_KEY, headers=fresh)).status == 200


async def test_a_completed_key_replays_whatever_payment_that_is_refused_comes_along(tmp_path: Path) -> None:
    async with open_shop(tmp_path) as shop:
        await shop.buy(key=KEY)
        quoted = await shop.post(key=OTHER_KEY)
        for headers in (
            paying(quoted, value=1),
            paying(quoted, valid_before=int(time.time()) + 1),
            PAYER.mpp(quoted) | {},
        ):
            assert (await shop.post(key=KEY, headers=headers)).json["replayed"] is True
        malformed = await shop.post(key=KEY, headers={"PAYMENT-SIGNATURE": "e30="})
        assert (malformed.status, malformed.code) == (400, "malformed_credential")


async def test_a_completed_key_replays_although_nothing_can_be_sold_now(tmp_path: Path) -> None:
    async with open_shop(tmp_path) as shop:
        await shop.buy(key=KEY)
        shop.search.closed = errors.OperationUnavailable(retry_after=5)
        shop.bank.path.proven_until = float("-inf")
        assert (await shop.post(key=KEY)).json["replayed"] is True


async def test_a_key_is_a_bearer_secret(tmp_path: Path) -> None:
    async with open_shop(tmp_path) as shop:
        first = await shop.buy(key=KEY)
        from_elsewhere = await shop.post(key=KEY, peer=ELSEWHERE)
        assert from_elsewhere.json == first.json | {"replayed": True}


async def test_the_quoted_and_the_bare_form_are_one_key(tmp_path: Path) -> None:
    async with open_shop(tmp_path) as shop:
        await shop.post("search.free", key=KEY)
        assert (await shop.post("search.free", key=f'"{KEY}"')).json["replayed"] is True


@pytest.mark.parametrize("body", [OTHER_BODY, BODY | {"maxResults": 4}])
async def test_the_same_caller_gets_409_for_the_key_of_another_request(tmp_path: Path, body: Any) -> None:
    async with open_shop(tmp_path) as shop:
        await shop.buy(key=KEY)
        answer = await shop.post(body=body, key=KEY)
        assert (answer.status, answer.code, answer.challenged) == (409, "idempotency_key_reused", False)
        assert "operationId" not in answer.json


@pytest.mark.parametrize("body", [BODY | {"maxResults": 3}, BODY | {"maxResults": 3.0, "language": "en"}])
async def test_defaults_spelled_out_are_the_same_request(tmp_path: Path, body: Any) -> None:
    async with open_shop(tmp_path) as shop:
        await shop.buy(key=KEY)
        assert (await shop.post(body=body, key=KEY)).json["replayed"] is True


async def test_another_caller_finds_a_key_of_another_request_fresh(tmp_path: Path) -> None:
    async with open_shop(tmp_path) as shop:
        first = await shop.buy(key=KEY)
        other = await shop.buy(OTHER_BODY, key=KEY, payer=OTHER_PAYER, peer=ELSEWHERE)
        assert other.json["operationId"] != first.json["operationId"]
        assert (await shop.post(key=KEY)).json["operationId"] == first.json["operationId"]


async def test_the_same_payer_gets_409_from_wherever_it_calls(tmp_path: Path) -> None:
    async with open_shop(tmp_path) as shop:
        await shop.buy(key=KEY)
        quoted = await shop.post(body=OTHER_BODY, key=KEY, peer=ELSEWHERE)
        answer = await shop.post(body=OTHER_BODY, key=KEY, peer=ELSEWHERE, headers=paying(quoted))
        assert (answer.status, answer.code) == (409, "idempotency_key_reused")
        assert len(shop.bank.paid) == 1


async def test_a_weak_key_is_found_from_its_own_network_only(tmp_path: Path) -> None:
    async with open_shop(tmp_path) as shop:
        first = await shop.buy(key=WEAK_KEY)
        assert (await shop.post(key=WEAK_KEY)).json["operationId"] == first.json["operationId"]
        assert (await shop.post(key=WEAK_KEY, peer=ELSEWHERE)).status == 402
        assert (await shop.post(body=OTHER_BODY, key=WEAK_KEY, peer=ELSEWHERE)).status == 402
        assert (await shop.post(body=OTHER_BODY, key=WEAK_KEY)).code == "idempotency_key_reused"


async def test_keys_outlive_a_restart_and_a_new_pepper(tmp_path: Path) -> None:
    async with open_shop(tmp_path) as shop:
        first = await shop.buy(key=KEY)
    async with open_shop(tmp_path, peppers=PEPPERS | {2: b"P" * 32}) as shop:
        assert (await shop.post(key=KEY)).json == first.json | {"replayed": True}
        assert (await shop.post(body=OTHER_BODY, key=KEY)).code == "idempotency_key_reused"
        await shop.buy(key=OTHER_KEY)
        newest = await shop.store.fetch("SELECT DISTINCT pepper FROM idempotency_keys ORDER BY pepper")
        assert newest == [(1,), (2,)]
        assert (await shop.post(key=OTHER_KEY)).json["replayed"] is True


async def test_the_payment_identifier_is_a_second_name_of_the_operation(tmp_path: Path) -> None:
    name = "pay_0123456789abcdef"
    async with open_shop(tmp_path) as shop:
        quoted = await shop.post(key=KEY)
        first = await shop.post(key=KEY, headers=paying(quoted, payment_id=name))
        under_both = await shop.post(key=OTHER_KEY, headers=paying(quoted, payment_id=name))
        as_key = await shop.post(key=name)
        for replay in (under_both, as_key):
            assert replay.json == first.json | {"replayed": True}
        assert len(shop.bank.paid) == 1


@pytest.mark.parametrize("second", [BODY, OTHER_BODY])
async def test_key_and_payment_identifier_of_two_operations_conflict(tmp_path: Path, second: Any) -> None:
    name = "pay_0123456789abcdef"
    async with open_shop(tmp_path) as shop:
        await shop.buy(key=KEY)
        quoted = await shop.post(body=second, key=OTHER_KEY)
        await shop.post(body=second, key=OTHER_KEY, headers=paying(quoted, payment_id=name))
        answer = await shop.post(key=KEY, headers=paying(quoted, payment_id=name))
        assert (answer.status, answer.code, answer.challenged) == (409, "idempotency_key_reused", False)
        assert len(shop.bank.paid) == 2


async def test_a_tombstoned_key_answers_with_the_receipt_and_is_never_charged_again(tmp_path: Path) -> None:
    async with open_shop(tmp_path) as shop:
        first = await shop.buy(key=KEY)
        await sweep(shop.store, confirmed(shop.clock() + 8 * DAY_MS))
        unpaid = await shop.post(key=KEY)
        paid = await shop.post(key=KEY, headers=paying(await shop.post(key=OTHER_KEY)))
        for answer in (unpaid, paid):
            assert (answer.status, answer.code, answer.challenged) == (409, "result_expired", False)
            assert answer.json["receipt"] == first.json["receipt"]
        assert len(shop.bank.paid) == 1


async def test_a_result_whose_seal_is_broken_is_the_operators_business_and_costs_nobody_else(tmp_path: Path) -> None:
    async with open_shop(tmp_path) as shop:
        await shop.buy(key=KEY)
        await shop.buy(key=OTHER_KEY)
        await shop.store.fetch("SELECT 1")
        await _alter(shop, "UPDATE idempotency_keys SET key_wrap = :wrap WHERE key_hmac = :hmac", KEY)
        assert (await shop.post(key=KEY)).code == "operator_needed"
        assert (await shop.post(key=OTHER_KEY)).json["replayed"] is True


async def _alter(shop: Shop, sql: str, key: str) -> None:
    from gateway.actors.store import Statement

    hmac = shop.node.naming.names(key, "")[0].hmac
    await shop.store.commit(Statement(sql, {"wrap": b"x" * 60, "hmac": hmac}, rows=1))


# -- together ----------------------------------------------------------------------------------------------------------


async def test_sixty_four_equal_paid_requests_are_one_operation_and_one_quota(tmp_path: Path) -> None:
    async with open_shop(tmp_path, limits=LIMITS | {"paid": 1}) as shop:
        headers = paying(await shop.post(key=KEY))
        answers = await together(64, lambda: shop.post(key=KEY, headers=headers))
        assert [answer.status for answer in answers] == [200] * 64
        assert len({str(answer.json | {"replayed": True}) for answer in answers}) == 1
        assert sum(not answer.json["replayed"] for answer in answers) == 1
        assert (shop.search.runs, len(shop.bank.paid), await shop.rows("operations")) == (1, 1, 1)


async def test_sixty_four_equal_free_requests_are_one_operation_and_one_quota(tmp_path: Path) -> None:
    async with open_shop(tmp_path, limits=LIMITS | {"free_search": 1}) as shop:
        answers = await together(64, lambda: shop.post("search.free", key=KEY))
        assert [answer.status for answer in answers] == [200] * 64
        assert (shop.search.runs, await shop.rows("operations")) == (1, 1)


async def test_one_authorization_under_sixty_four_keys_is_one_operation(tmp_path: Path) -> None:
    async with open_shop(tmp_path) as shop:
        headers = paying(await shop.post(key=KEY))
        keys = iter(f"{number:020d}" for number in range(64))
        answers = await together(64, lambda: shop.post(key=next(keys), headers=headers))
        served = [answer for answer in answers if answer.status == 200]
        refused = [answer for answer in answers if answer.status != 200]
        assert len(served) == 1
        assert {answer.code for answer in refused} == {"payment_already_bound"}
        assert not any(answer.challenged or "operationId" in answer.json for answer in refused)
        assert (shop.search.runs, len(shop.bank.paid), await shop.rows("operations")) == (1, 1, 1)


async def test_two_payments_for_one_key_are_one_sale_and_one_untouched_payment(tmp_path: Path) -> None:
    async with open_shop(tmp_path) as shop:
        quoted = await shop.post(key=KEY)
        payments = iter([paying(quoted), paying(quoted, OTHER_PAYER)])
        answers = await together(2, lambda: shop.post(key=KEY, headers=next(payments)))
        assert [answer.status for answer in answers] == [200, 200]
        assert (len(shop.bank.paid), await shop.rows("authorizations")) == (1, 1)


async def test_equal_requests_share_a_failure_and_do_not_run_one_after_another(tmp_path: Path) -> None:
    async with open_shop(tmp_path) as shop:
        shop.search.failure = errors.ExecutorFailed("no engine answered")
        headers = paying(await shop.post(key=KEY))
        answers = await together(16, lambda: shop.post(key=KEY, headers=headers))
        assert {(answer.status, answer.code, answer.challenged) for answer in answers} == {
            (502, "executor_failed", False)
        }
        assert (shop.search.runs, len(shop.bank.paid)) == (1, 0)
        shop.search.failure = None
        again = await shop.post(key=KEY, headers=headers)
        assert (again.status, again.json["execution"]["attempt"]) == (200, 2)
        assert again.json["operationId"] == answers[0].json["operationId"]


async def test_whoever_waits_behind_a_bad_payment_goes_on_with_a_good_one(tmp_path: Path) -> None:
    async with open_shop(tmp_path) as shop:
        quoted = await shop.post(key=KEY)
        payments = iter([paying(quoted, value=1), paying(quoted, OTHER_PAYER)])
        answers = await together(2, lambda: shop.post(key=KEY, headers=next(payments)))
        assert sorted(answer.status for answer in answers) == [200, 402]


async def test_an_operation_in_flight_is_waited_for_and_replayed(tmp_path: Path) -> None:
    late: list[Answer] = []
    async with open_shop(tmp_path) as shop:
        shop.search.hold()
        headers = paying(await shop.post(key=KEY))

        async def wait_for_it(headers: dict[str, str]) -> None:
            late.append(await shop.post(key=KEY, headers=headers))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(_ask, shop, KEY, headers)
            await shop.search.begun.wait()
            nursery.start_soon(wait_for_it, headers)
            nursery.start_soon(wait_for_it, {})
            for _ in range(3):
                await wait_all_tasks_blocked(0.05)
            assert late == []
            shop.search.gate.set()
        assert [answer.json["replayed"] for answer in late] == [True, True]
        assert shop.search.runs == 1


async def _ask(shop: Shop, key: str, headers: dict[str, str]) -> None:
    await shop.post(key=key, headers=headers)


@pytest.mark.parametrize("prefer", ["wait=0", "respond-async", "return=minimal, wait=0"])
@pytest.mark.parametrize("paid", [True, False])
async def test_who_does_not_wait_is_told_where_the_operation_is(tmp_path: Path, prefer: str, paid: bool) -> None:
    async with open_shop(tmp_path) as shop, trio.open_nursery() as nursery:
        shop.search.hold()
        headers = paying(await shop.post(key=KEY))
        nursery.start_soon(_ask, shop, KEY, headers)
        await shop.search.begun.wait()
        answer = await shop.post(key=KEY, headers=(headers if paid else {}) | {"Prefer": prefer})
        shop.search.gate.set()
    assert (answer.status, answer.code, answer.challenged) == (409, "operation_in_progress", False)
    assert answer.json["operationId"].startswith("op_")
    assert int(answer.headers["Retry-After"]) > 0


@pytest.mark.parametrize("operation", ["search.paid", "search.free"])
@pytest.mark.parametrize("key", [KEY, None])
async def test_a_running_request_is_answered_when_its_caller_wants_it(
    tmp_path: Path, operation: str, key: str | None
) -> None:
    async with open_shop(tmp_path, table=OPTIONAL) as shop:
        shop.search.hold()
        payment = paying(await shop.post(key=key)) if operation == "search.paid" else {}
        began = trio.current_time()
        with trio.fail_after(60):
            answer = await shop.post(operation, key=key, headers=payment | {"Prefer": "wait=1"})
        assert (answer.status, answer.code, answer.challenged) == (409, "operation_in_progress", False)
        assert answer.headers["Preference-Applied"] == "wait=1"
        assert trio.current_time() - began >= 1
        shop.search.gate.set()
        key = key or answer.headers["Idempotency-Key"]
        served = await shop.post(operation, key=key)
        assert (served.status, served.json["operationId"]) == (200, answer.json["operationId"])
        assert shop.search.runs == 1


async def test_a_request_that_is_served_in_time_tells_that_the_wait_was_applied(tmp_path: Path) -> None:
    async with open_shop(tmp_path) as shop:
        headers = paying(await shop.post(key=KEY)) | {"Prefer": "respond-async, wait=60"}
        for replayed in (False, True):
            answer = await shop.post(key=KEY, headers=headers)
            assert (answer.status, answer.json["replayed"]) == (200, replayed)
            assert answer.headers["Preference-Applied"] == "wait=60"
        assert "Preference-Applied" not in (await shop.post(key=KEY)).headers


async def test_a_request_whose_wait_ends_while_it_settles_is_told_not_to_sign_again(tmp_path: Path) -> None:
    async with open_shop(tmp_path) as shop:
        shop.bank.standing = Standing.UNTRACED
        headers = paying(await shop.post(key=KEY))
        answer = await shop.post(key=KEY, headers=headers | {"Prefer": "wait=4"})
        assert (answer.status, answer.code, answer.challenged) == (503, "settlement_pending", False)
        shop.bank.standing = None
        assert (await shop.post(key=KEY)).status == 200
        assert len(shop.bank.paid) == 1


async def test_a_client_that_hangs_up_after_paying_finds_its_result(tmp_path: Path) -> None:
    async with open_shop(tmp_path) as shop:
        shop.search.hold()
        headers = paying(await shop.post(key=KEY))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_ask, shop, KEY, headers)
            await shop.search.begun.wait()
            nursery.cancel_scope.cancel()
        shop.search.gate.set()
        answer = await shop.post(key=KEY)
        assert (answer.status, answer.json["replayed"]) == (200, True)
        assert (shop.search.runs, len(shop.bank.paid)) == (1, 1)


# -- 5: free quota -----------------------------------------------------------------------------------------------------


async def test_the_free_quota_is_exact_under_six_hundred_calls(tmp_path: Path) -> None:
    async with open_shop(tmp_path, limits=LIMITS | {"free_search": 50}) as shop:
        keys = iter(f"{number:020d}" for number in range(600))
        answers = await together(600, lambda: shop.post("search.free", key=next(keys)))
        assert sorted(answer.status for answer in answers) == [200] * 50 + [429] * 550
        assert shop.search.runs == 50
        refused = next(answer for answer in answers if answer.status == 429)
        assert (refused.code, refused.json["quota"]) == ("quota_exceeded", "free_search")
        assert 0 < int(refused.headers["Retry-After"]) <= 60
        assert refused.headers["RateLimit"].startswith('"free_search";r=0;t=')


async def test_free_calls_on_a_billed_engine_share_a_budget_of_the_whole_node(tmp_path: Path) -> None:
    async with open_shop(tmp_path, limits=LIMITS | {"billed:search/brave": 2}) as shop:
        shop.search.billed = "billed:search/brave"
        answers = [await shop.post("search.free", key=f"{number:020d}") for number in range(3)]
        assert [answer.status for answer in answers] == [200, 200, 429]
        assert answers[2].json["quota"] == "billed:search/brave"
        again = await shop.post("search.free", key=f"{0:020d}")
        assert (again.status, again.json["replayed"]) == (200, True)
        shop.search.billed = None
        assert (await shop.post("search.free", key=f"{4:020d}")).status == 200


async def test_a_used_up_free_quota_is_never_turned_into_a_sale(tmp_path: Path) -> None:
    async with open_shop(tmp_path, limits=LIMITS | {"free_search": 0}) as shop:
        headers = paying(await shop.post(key=KEY))
        answer = await shop.post("search.free", key=OTHER_KEY, headers=headers)
        assert (answer.status, answer.code, answer.challenged) == (429, "quota_exceeded", False)
        assert (await shop.rows("operations"), shop.bank.verified) == (0, 0)


async def test_a_payment_on_a_free_route_is_ignored(tmp_path: Path) -> None:
    async with open_shop(tmp_path) as shop:
        headers = paying(await shop.post(key=KEY))
        answer = await shop.post("search.free", key=OTHER_KEY, headers=headers)
        assert (answer.status, answer.json["receipt"]["funding"]) == (200, "free")
        assert (shop.bank.verified, await shop.rows("authorizations")) == (0, 0)


async def test_a_free_call_that_nothing_can_serve_is_given_back(tmp_path: Path) -> None:
    async with open_shop(tmp_path, limits=LIMITS | {"free_search": 1}) as shop:
        shop.search.closed = errors.CapabilityUnavailable()
        assert (await shop.post("search.free", key=KEY)).code == "capability_unavailable"
        shop.search.closed = None
        assert (await shop.post("search.free", key=KEY)).status == 200


async def test_networks_are_counted_apart_and_an_ipv6_64_together(tmp_path: Path) -> None:
    async with open_shop(tmp_path, limits=LIMITS | {"free_search": 1}) as shop:
        peers = ["192.0.2.1", "192.0.2.2", "2001:db8::1", "2001:db8:0:1::1", "::ffff:192.0.2.1", "2001:db8::ffff"]
        statuses = [
            (await shop.post("search.free", key=f"{number:020d}", peer=peer)).status
            for number, peer in enumerate(peers)
        ]
        assert statuses == [200, 200, 200, 200, 429, 429]


async def test_a_redeemed_quote_is_given_back(tmp_path: Path) -> None:
    async with open_shop(tmp_path, limits=LIMITS | {"unpaid_quotes": 2}) as shop:
        for number in range(4):
            assert (await shop.buy(key=f"{number:020d}")).status == 200
        assert (await shop.post(key=KEY)).status == 402
        assert (await shop.post(key=KEY)).status == 402
        over = await shop.post(key=KEY)
        assert (over.status, over.json["quota"], over.challenged) == (429, "unpaid_quotes", False)


async def test_paid_calls_are_counted_by_payer(tmp_path: Path) -> None:
    async with open_shop(tmp_path, limits=LIMITS | {"paid": 1}) as shop:
        assert (await shop.buy(key=KEY)).headers["RateLimit"].startswith('"paid";r=0;t=')
        assert (await shop.buy(key=OTHER_KEY, peer=ELSEWHERE)).status == 429
        assert (await shop.buy(key=OTHER_KEY, payer=OTHER_PAYER)).status == 200


# -- 6: availability ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("body", [b"", BODY])
async def test_what_cannot_run_now_is_not_quoted(tmp_path: Path, body: Any) -> None:
    async with open_shop(tmp_path) as shop:
        headers = paying(await shop.post(key=KEY))
        shop.search.closed = errors.OperationUnavailable("nothing is proven", extra={"reason": "unproven"})
        unpaid = await shop.post(body=body, key=None if body == b"" else KEY)
        paid = await shop.post(key=KEY, headers=headers)
        for answer in (unpaid, paid):
            assert (answer.status, answer.code, answer.challenged) == (503, "operation_unavailable", False)
            assert answer.json["reason"] == "unproven"
            assert int(answer.headers["Retry-After"]) > 0
        assert (shop.bank.verified, await shop.rows("operations")) == (0, 0)


async def test_what_cannot_be_settled_now_is_not_quoted(tmp_path: Path) -> None:
    async with open_shop(tmp_path) as shop:
        shop.bank.path.proven_until, shop.bank.path.reason = float("-inf"), "facilitator_timeout"
        answer = await shop.post(key=KEY)
        assert (answer.status, answer.code, answer.challenged) == (503, "settlement_unavailable", False)
        assert answer.json["reason"] == "facilitator_timeout"


@pytest.mark.parametrize("skew_ms", [11_000, -11_000])
async def test_a_node_whose_clock_is_far_from_the_store_s_neither_quotes_nor_judges_a_payment(
    tmp_path: Path, skew_ms: int
) -> None:
    """Its own clock might take what has expired, or refuse what is valid; results stand, free calls go on."""
    async with open_shop(tmp_path) as shop:
        bought = await shop.buy(key=KEY)
        other = KEY[::-1]
        quoted = await shop.post(key=other)
        shop.clock.skew_ms = skew_ms
        for headers in ({}, PAYER.x402(quoted)):
            answer = await shop.post(key=other, headers=headers)
            assert (answer.status, answer.code, answer.challenged) == (503, "settlement_unavailable", False)
            assert (answer.json["reason"], answer.json["retryable"]) == ("clock_skew", True)
        assert (shop.bank.verified, await shop.rows("operations")) == (1, 1)
        replay = await shop.post(key=KEY)
        assert replay.json == bought.json | {"replayed": True}
        assert (await shop.post("search.free", key=KEY[1:])).status == 200
        shop.clock.skew_ms = None
        assert (await shop.post(key=other, headers=PAYER.x402(quoted))).status == 200


async def test_no_challenge_is_told_by_a_clock_that_went_wrong_while_the_operation_ran(tmp_path: Path) -> None:
    async with open_shop(tmp_path) as shop:
        quoted = await shop.post(key=KEY)
        shop.bank.verification = Verification(Verdict.INVALID, "insufficient_funds")

        def goes_wrong() -> int | None:
            return 60_000 if shop.bank.verified else None

        pipeline = shop.pipelines["search.paid"]
        shop.pipelines["search.paid"] = Pipeline.of(
            pipeline.operation, attrs.evolve(pipeline.node, clock_skew=goes_wrong)
        )
        answer = await shop.post(key=KEY, headers=PAYER.x402(quoted))
        assert (answer.status, answer.json["reason"], answer.challenged) == (503, "clock_skew", False)


async def test_a_node_without_payments_sells_nothing_and_serves_free(tmp_path: Path) -> None:
    async with open_shop(tmp_path, terms=None) as shop:
        answer = await shop.post(key=KEY)
        assert (answer.status, answer.json["reason"]) == (503, "payment_not_configured")
        assert (await shop.post(key=KEY, headers={"PAYMENT-SIGNATURE": "x"})).status == 503
        assert (await shop.post("search.free", key=OTHER_KEY)).status == 200


# -- 7: quote or payment -----------------------------------------------------------------------------------------------


async def test_a_payment_of_another_request_is_a_conflict(tmp_path: Path) -> None:
    async with open_shop(tmp_path) as shop:
        headers = paying(await shop.post(body=OTHER_BODY, key=OTHER_KEY))
        answer = await shop.post(key=KEY, headers=headers)
        assert (answer.status, answer.code, answer.challenged) == (409, "quote_conflict", False)
        assert await shop.rows("operations") == 0


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"value": 5999}, "amount_mismatch"),
        ({"value": 6001}, "amount_mismatch"),
        ({"to": OTHER_PAYER.address}, "recipient_mismatch"),
        ({"valid_before": int(time.time()) + 5}, "authorization_expires_too_soon"),
        ({"valid_before": int(time.time()) + 40_000}, "authorization_expires_too_late"),
        ({"valid_after": int(time.time()) + 600}, "authorization_not_yet_valid"),
        ({"valid_before": 2**256 - 1}, "authorization_expires_too_late"),
        ({"valid_after": 2**256 - 1}, "authorization_not_yet_valid"),
        ({"value": 2**256 - 1}, "amount_mismatch"),
    ],
)
async def test_a_wrong_payment_is_refused_here_with_a_fresh_challenge(
    tmp_path: Path, changes: dict[str, Any], code: str
) -> None:
    async with open_shop(tmp_path) as shop:
        quoted = await shop.post(key=KEY)
        answer = await shop.post(key=KEY, headers=paying(quoted, **changes))
        assert (answer.status, answer.code, answer.challenged) == (402, code, True)
        assert answer.json["error"] == code
        assert answer.json["quote"]["quoteId"] != quoted.json["quote"]["quoteId"]
        assert (shop.bank.verified, await shop.rows("operations")) == (0, 0)
        assert (await shop.post(key=KEY, headers=paying(answer))).status == 200


async def test_an_expired_quote_is_asked_for_again(tmp_path: Path) -> None:
    async with open_shop(tmp_path) as shop:
        headers = paying(await shop.post(key=KEY), valid_before=int(time.time()) + 400)
        shop.clock.ahead_ms = 121_000
        answer = await shop.post(key=KEY, headers=headers)
        assert (answer.status, answer.code, answer.challenged) == (402, "quote_expired", True)


async def test_a_live_quote_is_honoured_after_a_price_change(tmp_path: Path) -> None:
    dearer = {"search.paid": attrs.evolve(OPERATIONS["search.paid"], price=lambda _: 9_000)}
    async with open_shop(tmp_path) as shop:
        headers = paying(await shop.post(key=KEY))
    async with open_shop(tmp_path, table=dearer) as shop:
        assert (await shop.post(key=OTHER_KEY)).json["price"]["amountAtomic"] == "9000"
        bought = await shop.post(key=KEY, headers=headers)
        assert bought.json["receipt"]["charge"]["amountAtomic"] == "6000"


async def test_a_bound_payment_never_meets_a_fresh_challenge(tmp_path: Path) -> None:
    async with open_shop(tmp_path) as shop:
        headers = paying(await shop.post(key=KEY))
        assert (await shop.post(key=KEY, headers=headers)).status == 200
        for ahead_ms in (0, 121_000, 3_600_000):
            shop.clock.ahead_ms = ahead_ms
            for body in (BODY, OTHER_BODY):
                answer = await shop.post(body=body, key=OTHER_KEY, headers=headers)
                assert (answer.status, answer.code, answer.challenged) == (409, "payment_already_bound", False)


async def test_a_payment_copied_from_the_chain_gives_no_access_and_spends_no_quota(tmp_path: Path) -> None:
    async with open_shop(tmp_path, limits=LIMITS | {"paid": 2}) as shop:
        quoted = await shop.post(key=KEY)
        signed = paying(quoted, nonce=b"\x07" * 32, valid_before=int(time.time()) + 162)
        bought = await shop.post(key=KEY, headers=signed)
        assert bought.status == 200
        for number in range(5):
            thief = f"{number:020d}"
            own_quote = await shop.post(key=thief, peer=ELSEWHERE)
            copied = paying(own_quote, nonce=b"\x07" * 32, valid_before=int(time.time()) + 162)
            answer = await shop.post(key=thief, peer=ELSEWHERE, headers=copied)
            assert (answer.status, answer.code, answer.challenged) == (409, "payment_already_bound", False)
            assert "operationId" not in answer.json
            assert bought.json["operationId"] not in answer.body.decode()
            reused = await shop.post(body=OTHER_BODY, key=KEY, peer=ELSEWHERE, headers=copied)
            assert reused.code == "payment_already_bound"
        assert (await shop.buy(key=OTHER_KEY)).status == 200


async def test_a_payment_that_the_facilitator_refuses_is_asked_for_again(tmp_path: Path) -> None:
    async with open_shop(tmp_path) as shop:
        shop.bank.verification = Verification(Verdict.INVALID, "insufficient_funds")
        refused = await shop.buy(key=KEY)
        assert (refused.status, refused.code, refused.challenged) == (402, "insufficient_funds", True)
        shop.bank.verification = Verification(Verdict.VALID)
        assert (await shop.post(key=KEY, headers=paying(refused, OTHER_PAYER))).status == 200
        assert len(shop.bank.paid) == 1


async def test_equal_requests_with_a_refused_payment_are_each_challenged_for_themselves(tmp_path: Path) -> None:
    async with open_shop(tmp_path) as shop:
        headers = paying(await shop.post(key=KEY))
        shop.bank.verification = Verification(Verdict.INVALID, "insufficient_funds")
        answers = await together(8, lambda: shop.post(key=KEY, headers=headers))
        assert {(answer.status, answer.challenged) for answer in answers} == {(402, True)}
        assert len({answer.json["quote"]["quoteId"] for answer in answers}) == 8
        assert shop.bank.verified == 1


async def test_a_facilitator_that_cannot_be_asked_is_no_reason_for_another_payment(tmp_path: Path) -> None:
    async with open_shop(tmp_path) as shop:
        shop.bank.verification = Verification(Verdict.UNAVAILABLE, "status_500")
        headers = paying(await shop.post(key=KEY))
        answer = await shop.post(key=KEY, headers=headers)
        assert (answer.status, answer.code, answer.challenged) == (503, "facilitator_unavailable", False)
        shop.bank.verification = Verification(Verdict.VALID)
        assert (await shop.post(key=KEY, headers=headers)).status == 200


async def test_while_the_chain_has_not_decided_nobody_is_challenged(tmp_path: Path) -> None:
    async with open_shop(tmp_path, settle_wait_s=0.2) as shop:
        shop.bank.standing = Standing.SHALLOW
        headers = paying(await shop.post(key=KEY))
        first = await shop.post(key=KEY, headers=headers)
        unpaid = await shop.post(key=KEY, headers=NOW_OR_NEVER)
        fresh = paying(await shop.post(key=OTHER_KEY))
        repaid = await shop.post(key=KEY, headers=fresh | NOW_OR_NEVER)
        for answer in (first, unpaid, repaid):
            assert (answer.status, answer.code, answer.challenged) == (503, "settlement_pending", False)
            assert answer.json["operationId"].startswith("op_")
            assert int(answer.headers["Retry-After"]) > 0
        shop.bank.standing = None
        served = await shop.post(key=KEY)
        assert (served.status, len(shop.bank.paid)) == (200, 1)


async def test_a_result_whose_settlement_failed_is_bought_again_without_running_again(tmp_path: Path) -> None:
    async with open_shop(tmp_path) as shop:
        shop.bank.standing = Standing.EXPIRED
        failed = await shop.buy(key=KEY)
        assert (failed.status, failed.code, failed.challenged) == (402, "settlement_failed", True)
        shop.bank.standing = None
        shop.search.closed = errors.OperationUnavailable()
        again = await shop.post(key=KEY, headers=paying(failed, OTHER_PAYER))
        assert (again.status, again.json["output"]["run"], shop.search.runs) == (200, 1, 1)


# -- callers without a key ---------------------------------------------------------------------------------------------


async def test_a_paid_call_without_a_key_is_told_one_and_uses_it_by_itself(tmp_path: Path) -> None:
    async with open_shop(tmp_path, table=OPTIONAL) as shop:
        quoted = await shop.post()
        key = quoted.headers["Idempotency-Key"]
        headers = paying(quoted)
        first = await shop.post(headers=headers)
        assert (first.status, first.headers["Idempotency-Key"]) == (200, key)
        for replay in (await shop.post(key=key), await shop.post(headers=headers)):
            assert replay.json == first.json | {"replayed": True}
        shop.clock.ahead_ms = 3_600_000
        assert (await shop.post(headers=headers)).json["replayed"] is True
        assert len(shop.bank.paid) == 1
        assert (await shop.post()).headers["Idempotency-Key"] != key


async def test_a_paid_call_without_a_key_is_known_again_after_a_new_pepper(tmp_path: Path) -> None:
    async with open_shop(tmp_path, table=OPTIONAL) as shop:
        headers = paying(await shop.post())
        await shop.post(headers=headers)
    async with open_shop(tmp_path, table=OPTIONAL, peppers=PEPPERS | {2: b"P" * 32}) as shop:
        assert (await shop.post(headers=headers)).json["replayed"] is True


def forged(credential: dict[str, str], payer: Any) -> dict[str, str]:
    """Put another payer's name on a credential, whose signature then is nobody's."""
    payload = json.loads(base64.b64decode(credential["PAYMENT-SIGNATURE"]))
    payload["payload"]["authorization"]["from"] = payer.address
    return {"PAYMENT-SIGNATURE": base64.b64encode(json.dumps(payload).encode()).decode()}


async def test_a_keyless_result_is_read_by_the_payer_who_paid_it_only(tmp_path: Path) -> None:
    async with open_shop(tmp_path, table=OPTIONAL) as shop:
        quoted = await shop.post()
        bought = await shop.post(headers=paying(quoted))
        stranger = paying(quoted, OTHER_PAYER)
        for theirs in (stranger, OTHER_PAYER.mpp(quoted), forged(stranger, PAYER)):
            answer = await shop.post(headers=theirs, peer=ELSEWHERE)
            assert (answer.status, answer.code, answer.challenged) == (409, "quote_conflict", False)
            assert bought.json["operationId"] not in answer.body.decode()
        for again in (paying(quoted), PAYER.mpp(quoted)):
            assert (await shop.post(headers=again, peer=ELSEWHERE)).json == bought.json | {"replayed": True}
        key = quoted.headers["Idempotency-Key"]
        assert (await shop.post(key=key, peer=ELSEWHERE)).json["replayed"] is True
        await sweep(shop.store, confirmed(shop.clock() + 8 * DAY_MS))
        assert (await shop.post(headers=paying(quoted))).code == "result_expired"
        late = await shop.post(headers=stranger, peer=ELSEWHERE)
        assert (late.code, "receipt" in late.json) == ("quote_conflict", False)
        assert len(shop.bank.paid) == 1


@pytest.mark.parametrize("patient", [{}, NOW_OR_NEVER])
async def test_a_keyless_call_that_runs_is_awaited_by_its_payer_only(tmp_path: Path, patient: dict[str, str]) -> None:
    async with open_shop(tmp_path, table=OPTIONAL) as shop:
        quoted = await shop.post()
        shop.search.hold()
        answers: list[Answer] = []

        async def send(headers: dict[str, str]) -> None:
            answers.append(await shop.post(headers=headers))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send, paying(quoted))
            await shop.search.begun.wait()
            nursery.start_soon(send, paying(quoted, OTHER_PAYER) | patient)
            await wait_all_tasks_blocked(0.05)
            shop.search.gate.set()
        found = {answer.status: answer for answer in answers}
        assert found.keys() == {200, 409}
        assert (found[409].code, "operationId" in found[409].json) == ("quote_conflict", False)
        assert len(shop.bank.paid) == 1


async def test_a_keyless_call_of_a_leaver_is_not_read_by_another_payer(tmp_path: Path) -> None:
    async with open_shop(tmp_path, table=OPTIONAL) as shop:
        quoted = await shop.post()
        shop.search.hold()
        with trio.CancelScope() as leaving:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(partial(shop.post, headers=paying(quoted)))
                await shop.search.begun.wait()
                leaving.cancel()
        shop.search.gate.set()
        answer = await shop.post(headers=paying(quoted, OTHER_PAYER))
        assert (answer.status, answer.code) == (409, "quote_conflict")
        assert (await shop.post(headers=paying(quoted))).json["replayed"] is True


async def test_a_kept_keyless_result_is_sold_again_to_its_payer_only(tmp_path: Path) -> None:
    async with open_shop(tmp_path, table=OPTIONAL) as shop:
        quoted = await shop.post()
        shop.bank.standing = Standing.EXPIRED
        assert (await shop.post(headers=paying(quoted))).code == "settlement_failed"
        await shop.store.commit(Statement("DELETE FROM payer_holds"))
        shop.bank.standing = None
        stranger = await shop.post(headers=paying(quoted, OTHER_PAYER))
        assert (stranger.status, stranger.code) == (409, "quote_conflict")
        served = await shop.post(headers=paying(quoted))
        assert (served.status, shop.search.runs) == (200, 1)


@pytest.mark.parametrize("standing", [Standing.EXPIRED, Standing.CANCELLED])
async def test_a_failed_settlement_is_told_in_the_header_of_x402(tmp_path: Path, standing: Standing) -> None:
    async with open_shop(tmp_path) as shop:
        quoted = await shop.post(key=KEY)
        shop.bank.standing = standing
        failed = await shop.post(key=KEY, headers=paying(quoted))
        assert (failed.status, failed.code, failed.challenged) == (402, "settlement_failed", True)
        told = json.loads(base64.b64decode(failed.headers["PAYMENT-RESPONSE"]))
        assert told["transaction"] in shop.bank.paid.values()
        assert told == {
            "success": False,
            "errorReason": "settlement_failed",
            "errorMessage": failed.json["detail"],
            "payer": PAYER.address,
            "transaction": told["transaction"],
            "network": "eip155:8453",
        }
        assert failed.json["settlement"] == {"status": "failed", "transaction": told["transaction"]}


async def test_a_failed_settlement_of_mpp_has_no_header_of_its_own(tmp_path: Path) -> None:
    async with open_shop(tmp_path) as shop:
        quoted = await shop.post(key=KEY)
        shop.bank.standing = Standing.EXPIRED
        failed = await shop.post(key=KEY, headers=PAYER.mpp(quoted))
        assert (failed.status, failed.code) == (402, "settlement_failed")
        assert not {"PAYMENT-RESPONSE", "Payment-Receipt"} & failed.headers.keys()


async def test_only_a_decided_settlement_is_told_as_failed(tmp_path: Path) -> None:
    async with open_shop(tmp_path, settle_wait_s=0.2) as shop:
        quoted = await shop.post(key=KEY)
        shop.bank.verification = Verification(Verdict.INVALID, "insufficient_funds")
        refused = await shop.post(key=KEY, headers=paying(quoted))
        shop.bank.verification, shop.bank.standing = Verification(Verdict.VALID), Standing.UNTRACED
        pending = await shop.post(key=KEY, headers=paying(quoted))
        assert (refused.status, pending.status) == (402, 503)
        for answer in (quoted, refused, pending):
            assert "PAYMENT-RESPONSE" not in answer.headers
        shop.bank.standing = None


async def test_a_refused_payment_does_not_take_the_quote_from_another_payer(tmp_path: Path) -> None:
    async with open_shop(tmp_path, table=OPTIONAL) as shop:
        quoted = await shop.post()
        shop.bank.verification = Verification(Verdict.INVALID, "insufficient_funds")
        assert (await shop.post(headers=paying(quoted))).status == 402
        shop.bank.verification = Verification(Verdict.VALID)
        assert (await shop.post(headers=paying(quoted, OTHER_PAYER))).status == 200


async def test_a_free_call_without_a_key_is_told_one(tmp_path: Path) -> None:
    async with open_shop(tmp_path, table=OPTIONAL) as shop:
        first = await shop.post("search.free")
        replay = await shop.post("search.free", key=first.headers["Idempotency-Key"])
        assert replay.json == first.json | {"replayed": True}
        assert (await shop.post("search.free")).json["operationId"] != first.json["operationId"]


async def test_a_key_that_was_made_for_a_call_is_not_looked_up(tmp_path: Path) -> None:
    async with open_shop(tmp_path, table=OPTIONAL) as shop:
        before = shop.node.idempotency.health().handled
        told = (await shop.post("search.free")).headers["Idempotency-Key"]
        assert shop.node.idempotency.health().handled == before
        await shop.post("search.free", key=told)
        assert shop.node.idempotency.health().handled == before + 1


async def test_a_callers_own_key_is_not_told_back(tmp_path: Path) -> None:
    async with open_shop(tmp_path, table=OPTIONAL) as shop:
        assert "Idempotency-Key" not in (await shop.post(key=KEY)).headers
        assert "Idempotency-Key" not in (await shop.buy(key=KEY)).headers


# -- who calls ---------------------------------------------------------------------------------------------------------


async def test_a_forwarded_address_is_believed_from_configured_proxies_only(tmp_path: Path) -> None:
    async with open_shop(tmp_path, limits=LIMITS | {"free_search": 1}, proxies=("192.0.2.0/24",)) as shop:
        forged = [{"X-Forwarded-For": f"203.0.113.{number}"} for number in range(3)]
        through = [
            (await shop.post("search.free", key=f"{number:020d}", headers=each)).status
            for number, each in enumerate(forged)
        ]
        around = [
            (await shop.post("search.free", key=f"{number + 10:020d}", headers=each, peer=ELSEWHERE)).status
            for number, each in enumerate(forged)
        ]
        assert (through, around) == ([200, 200, 200], [200, 429, 429])


async def test_a_failed_call_that_somebody_paid_for_runs_again_without_another_payment(tmp_path: Path) -> None:
    async with open_shop(tmp_path) as shop:
        headers = paying(await shop.post(key=KEY), nonce=b"\x09" * 32)
        shop.bank.paid["0x" + "09" * 32] = "0x" + "aa" * 32
        shop.bank.verification = Verification(Verdict.INVALID, "nonce_already_used")
        shop.search.failure = errors.ExecutorFailed()
        assert (await shop.post(key=KEY, headers=headers)).status == 502
        shown = await shop.post(key=KEY)
        assert (shown.status, shown.challenged) == (502, False)
        shop.search.failure = None
        served = await shop.post(key=KEY)
        assert (served.status, served.json["receipt"]["settlement"]["transaction"]) == (200, "0x" + "aa" * 32)
