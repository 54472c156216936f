"""What a refused credential is answered with when the chain may know more of it than this store."""

from __future__ import annotations

import base64
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest

from gateway import errors
from gateway.actors.runtime import Letter
from gateway.actors.settlement import (
    BlockTime,
    ChainUnavailable,
    Expiring,
    Message,
    Standing,
    Verdict,
    Verification,
)
from tests.http.shop import BODY, LIMITS, OTHER_PAYER, PAYER, Answer, Bank, Shop, open_shop

KEY, OTHER_KEY = "0123456789abcdef0123", "abcdefabcdef01234567"
OTHER_BODY = BODY | {"query": "what is a wave"}
NONCE = b"\x09" * 32
TRANSACTION = "0x" + "aa" * 32
USED = Verification(Verdict.INVALID, "invalid_exact_evm_nonce_already_used")


def paying(quoted: Answer, protocol: str = "x402", **changes: Any) -> dict[str, str]:
    if protocol == "mpp":
        return PAYER.mpp(quoted)
    members: dict[str, Any] = {"nonce": NONCE, "valid_before": int(time.time()) + 400}
    return PAYER.x402(quoted, **members | changes)


@asynccontextmanager
async def restored(tmp_path: Path, protocol: str = "x402") -> AsyncIterator[tuple[Shop, dict[str, str]]]:
    """Yield a shop whose store was restored to a time before a purchase, and the credential of that purchase."""
    for name in ("lost", "restored"):
        (tmp_path / name).mkdir()
    async with open_shop(tmp_path / "lost") as shop:
        headers = paying(await shop.post(key=KEY), protocol)
        assert (await shop.post(key=KEY, headers=headers)).status == 200
        paid = shop.bank.paid
    async with open_shop(tmp_path / "restored") as shop:
        shop.bank.paid, shop.bank.verification, shop.bank.path.head = paid, USED, 150
        yield shop, headers


# -- a restored backup -------------------------------------------------------------------------------------------------


async def test_a_payment_that_was_made_before_the_quote_never_pays_it(tmp_path: Path) -> None:
    async with restored(tmp_path) as (shop, _):
        for key, body in ((OTHER_KEY, OTHER_BODY), (KEY + "4", OTHER_BODY), (KEY + "5", BODY), (OTHER_KEY, OTHER_BODY)):
            stolen = paying(await shop.post(body=body, key=key))
            answer = await shop.post(body=body, key=key, headers=stolen)
            assert (answer.status, answer.code, answer.challenged) == (409, "payment_already_bound", False)
            assert "Nothing was charged" not in answer.json["next"]
        assert (shop.search.runs, len(shop.bank.paid)) == (0, 1)
        assert await shop.store.fetch("SELECT DISTINCT state, settlement FROM operations") == [
            ("failed", "not_settled")
        ]


async def test_a_theft_does_not_bind_the_owners_payment_who_is_served_while_the_quote_lives(tmp_path: Path) -> None:
    async with restored(tmp_path) as (shop, headers):
        stolen = paying(await shop.post(body=OTHER_BODY, key=OTHER_KEY))
        assert (await shop.post(body=OTHER_BODY, key=OTHER_KEY, headers=stolen)).status == 409
        served = await shop.post(key=KEY, headers=headers)
        assert (served.status, shop.search.runs, len(shop.bank.paid)) == (200, 1, 1)
        assert (await shop.post(body=OTHER_BODY, key=OTHER_KEY, headers=stolen)).code == "payment_already_bound"


@pytest.mark.parametrize("protocol", ["x402", "mpp"])
async def test_an_owner_whose_quote_has_expired_is_asked_for_no_other_payment(tmp_path: Path, protocol: str) -> None:
    async with restored(tmp_path, protocol) as (shop, headers):
        shop.clock.ahead_ms = 121_000
        for key in (KEY, OTHER_KEY):
            answer = await shop.post(key=key, headers=headers)
            assert (answer.status, answer.code, answer.challenged) == (503, "settlement_pending", False)
            (transaction,) = shop.bank.paid.values()
            assert transaction in answer.json["detail"]
            assert int(answer.headers["Retry-After"]) > 0
        assert (shop.search.runs, await shop.rows("operations")) == (0, 0)


async def test_a_quote_that_does_not_say_its_block_is_told_from_the_payment_by_time(tmp_path: Path) -> None:
    async with restored(tmp_path) as (shop, _):
        shop.bank.path.head = None
        for made_s, status in ((-60, 409), (60, 200)):
            stolen = paying(await shop.post(key=OTHER_KEY))
            shop.bank.block_time = int(time.time()) + made_s
            assert (await shop.post(key=OTHER_KEY, headers=stolen)).status == status


async def test_a_payment_whose_time_could_not_be_read_is_no_credit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve = Bank.serve

    def without_times(bank: Bank, letter: Letter[Message]) -> None:
        if isinstance(letter.message, BlockTime):
            letter.refuse(ChainUnavailable("rpc_timeout"))
        else:
            serve(bank, letter)

    async with restored(tmp_path) as (shop, _):
        shop.bank.path.head = None
        stolen = paying(await shop.post(body=OTHER_BODY, key=OTHER_KEY))
        with monkeypatch.context() as patched:
            patched.setattr(Bank, "serve", without_times)
            answer = await shop.post(body=OTHER_BODY, key=OTHER_KEY, headers=stolen)
            assert (answer.status, answer.code) == (503, "settlement_pending")
        for headers in (stolen, {}):
            answer = await shop.post(body=OTHER_BODY, key=OTHER_KEY, headers=headers)
            assert answer.status != 200
        assert shop.search.runs == 0


# -- before any 402 ----------------------------------------------------------------------------------------------------

REFUSALS: dict[str, tuple[int, dict[str, Any]]] = {
    "quote_expired": (121_000, {}),
    "authorization_expires_too_soon": (0, {"valid_before": int(time.time()) + 5}),
    "authorization_expires_too_late": (0, {"valid_before": int(time.time()) + 40_000}),
    "amount_mismatch": (0, {"value": 5999}),
}


async def refused(shop: Shop, case: str, **changes: Any) -> Answer:
    ahead_ms, wrong = REFUSALS[case]
    quoted = await shop.post(key=KEY)
    shop.clock.ahead_ms = ahead_ms
    return await shop.post(key=KEY, headers=paying(quoted, **wrong | changes))


@pytest.mark.parametrize("case", REFUSALS)
@pytest.mark.parametrize(
    ("standing", "code"),
    [
        (Standing.PAID, "settlement_pending"),
        (Standing.SHALLOW, "settlement_pending"),
        (Standing.UNTRACED, "settlement_pending"),
        (Standing.DIVERTED, "operator_needed"),
    ],
)
async def test_what_the_chain_shows_used_is_asked_for_no_other_payment(
    tmp_path: Path, case: str, standing: Standing, code: str
) -> None:
    async with open_shop(tmp_path) as shop:
        shop.bank.paid["0x" + NONCE.hex()] = TRANSACTION
        shop.bank.standing = standing
        answer = await refused(shop, case)
        assert (answer.status, answer.code, answer.challenged) == (503, code, False)
        assert "Do not sign another payment" in answer.json["next"]
        assert await shop.rows("operations") == 0


@pytest.mark.parametrize("case", REFUSALS)
@pytest.mark.parametrize("standing", [Standing.UNUSED, Standing.EXPIRED, Standing.CANCELLED])
async def test_what_the_chain_shows_unpaid_is_refused_with_a_challenge(
    tmp_path: Path, case: str, standing: Standing
) -> None:
    async with open_shop(tmp_path) as shop:
        shop.bank.standing = standing
        answer = await refused(shop, case)
        code = "authorization_used" if standing is Standing.CANCELLED else case
        assert (answer.status, answer.code, answer.challenged) == (402, code, True)
        assert shop.bank.looks == 1


async def test_a_chain_that_cannot_be_read_is_no_reason_for_another_payment(tmp_path: Path) -> None:
    async with open_shop(tmp_path) as shop:
        shop.bank.away = ChainUnavailable("rpc_timeout")
        answer = await refused(shop, "quote_expired")
        assert (answer.status, answer.code, answer.challenged) == (503, "settlement_pending", False)
        assert "rpc_timeout" in answer.json["detail"]


async def test_an_authorization_that_expired_unused_a_moment_ago_is_refused_at_once(tmp_path: Path) -> None:
    async with open_shop(tmp_path) as shop:
        shop.bank.away = Expiring("authorization_expiring")
        answer = await refused(shop, "authorization_expires_too_soon")
        assert (answer.status, answer.code) == (402, "authorization_expires_too_soon")


@pytest.mark.parametrize("changes", [{"to": OTHER_PAYER.address}, {"valid_after": 2**39, "valid_before": 2**40}])
async def test_what_cannot_have_paid_here_costs_no_look(tmp_path: Path, changes: dict[str, Any]) -> None:
    async with open_shop(tmp_path) as shop:
        answer = await refused(shop, "quote_expired", **changes)
        assert (answer.status, shop.bank.looks) == (402, 0)
        assert (await shop.post(key=KEY)).status == 402
        assert shop.bank.looks == 0


async def test_looks_are_counted_before_they_are_made(tmp_path: Path) -> None:
    async with open_shop(tmp_path, limits=LIMITS | {"payment_attempts": 3}) as shop:
        codes = [(await refused(shop, "amount_mismatch")).code for _ in range(5)]
        assert codes == ["amount_mismatch"] * 3 + ["quota_exceeded"] * 2
        assert shop.bank.looks == 3


async def test_a_theft_costs_its_network_an_attempt(tmp_path: Path) -> None:
    async with restored(tmp_path) as (shop, _):
        quoted = await shop.post(key=OTHER_KEY)
        codes = [(await shop.post(key=OTHER_KEY, headers=paying(quoted))).code for _ in range(121)]
        assert codes == ["payment_already_bound"] * 120 + ["quota_exceeded"]


async def test_a_failed_attempt_that_was_paid_since_goes_on_although_its_quote_has_expired(tmp_path: Path) -> None:
    async with open_shop(tmp_path) as shop:
        headers = paying(await shop.post(key=KEY))
        shop.search.failure = errors.ExecutorFailed()
        assert (await shop.post(key=KEY, headers=headers)).status == 502
        shop.bank.paid["0x" + NONCE.hex()], shop.bank.verification = TRANSACTION, USED
        shop.search.failure, shop.clock.ahead_ms = None, 121_000
        served = await shop.post(key=KEY, headers=headers)
        assert (served.status, served.json["receipt"]["settlement"]["transaction"]) == (200, TRANSACTION)


# -- accounts with code ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("has_code", "code"), [(True, "payer_has_code"), (False, "signature_invalid")])
async def test_a_signature_that_is_not_the_payers_is_told_from_an_account_with_code(
    tmp_path: Path, *, has_code: bool, code: str
) -> None:
    async with open_shop(tmp_path) as shop:
        if has_code:
            shop.bank.with_code.add(PAYER.address)
        headers = _signed_by_another(await shop.post(key=KEY))
        answer = await shop.post(key=KEY, headers=headers)
        assert (answer.status, answer.code, answer.json["retryable"]) == (402, code, False)
        assert answer.challenged
        assert ("account without code" in answer.json["next"]) is has_code


@pytest.mark.parametrize(
    ("reason", "has_code", "code"),
    [
        ("invalid_exact_evm_payload_signature", True, "payer_has_code"),
        ("invalid_exact_evm_payload_signature", False, "signature_invalid"),
        ("invalid_exact_evm_transaction_simulation_failed", True, "payer_has_code"),
        ("invalid_exact_evm_payload_undeployed_smart_wallet", True, "payer_has_code"),
        ("network_mismatch", True, "payment_rejected"),
    ],
)
async def test_a_signature_that_the_facilitator_refuses_is_told_from_an_account_with_code(
    tmp_path: Path, *, reason: str, has_code: bool, code: str
) -> None:
    async with open_shop(tmp_path) as shop:
        if has_code:
            shop.bank.with_code.add(PAYER.address)
        shop.bank.verification = Verification(Verdict.INVALID, reason)
        answer = await shop.buy(key=KEY)
        assert (answer.status, answer.code, answer.json["retryable"]) == (402, code, False)


async def test_a_settlement_that_an_account_with_code_cannot_make_says_so(tmp_path: Path) -> None:
    async with open_shop(tmp_path) as shop:
        shop.bank.with_code.add(PAYER.address)
        shop.bank.standing = Standing.EXPIRED
        answer = await shop.buy(key=KEY)
        assert (answer.status, answer.code, answer.json["retryable"]) == (402, "payer_has_code", False)


def _signed_by_another(quoted: Answer) -> dict[str, str]:
    header = OTHER_PAYER.x402(quoted)["PAYMENT-SIGNATURE"]
    payload = orjson.loads(base64.b64decode(header))
    payload["payload"]["authorization"]["from"] = PAYER.address
    return {"PAYMENT-SIGNATURE": base64.b64encode(orjson.dumps(payload)).decode()}
