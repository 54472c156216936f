"""A failed attempt whose payment may have been made: nobody is asked for another before the chain has decided."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway.actors.settlement import ChainUnavailable, Standing, Verdict, Verification
from gateway.errors import ExecutorFailed
from tests.http.shop import LIMITS, OTHER_PAYER, PAYER, Answer, Shop, open_shop

KEY = "0123456789abcdef0123"
NONCE = b"\x09" * 32
TRANSACTION = "0x" + "aa" * 32
REFUSED = Verification(Verdict.INVALID, "invalid_exact_evm_nonce_already_used")


@asynccontextmanager
async def undecided(tmp_path: Path, attempts: int = 120) -> AsyncIterator[tuple[Shop, Answer]]:
    """Yield a shop in which a payment was refused while the chain could not be read, and its quote."""
    async with open_shop(tmp_path, limits=LIMITS | {"payment_attempts": attempts}) as shop:
        quoted = await shop.post(key=KEY)
        shop.bank.verification, shop.bank.away = REFUSED, ChainUnavailable("rpc_timeout")
        answer = await shop.post(key=KEY, headers=PAYER.x402(quoted, nonce=NONCE))
        assert (answer.status, answer.code, answer.challenged) == (503, "settlement_pending", False)
        yield shop, quoted


async def ask(shop: Shop, quoted: Answer, payer: str) -> Answer:
    """Send the request of the undecided attempt again: without a payment, or with another one."""
    return await shop.post(
        key=KEY, headers={"none": {}, "own": PAYER.x402(quoted), "other": OTHER_PAYER.x402(quoted)}[payer]
    )


WHO = pytest.mark.parametrize("payer", ["none", "own", "other"])


@WHO
async def test_nobody_is_asked_for_another_payment_while_the_chain_cannot_be_read(tmp_path: Path, payer: str) -> None:
    async with undecided(tmp_path) as (shop, quoted):
        for standing in (None, Standing.UNTRACED):
            if standing is not None:
                shop.bank.away, shop.bank.standing = None, standing
            answer = await ask(shop, quoted, payer)
            assert (answer.status, answer.code, answer.challenged) == (503, "settlement_pending", False)
        assert shop.search.runs == 0


@WHO
async def test_the_payment_that_was_made_is_what_the_next_attempt_runs_on(tmp_path: Path, payer: str) -> None:
    async with undecided(tmp_path) as (shop, quoted):
        shop.bank.away, shop.bank.paid["0x" + NONCE.hex()] = None, TRANSACTION
        answer = await ask(shop, quoted, payer)
        assert (answer.status, answer.json["receipt"]["settlement"]["transaction"]) == (200, TRANSACTION)
        assert len(shop.bank.paid) == 1


@WHO
async def test_once_the_chain_shows_it_unpaid_another_is_asked_for_and_taken(tmp_path: Path, payer: str) -> None:
    async with undecided(tmp_path) as (shop, quoted):
        shop.bank.away, shop.bank.standing = None, Standing.CANCELLED
        assert (await ask(shop, quoted, "none")).status == 402
        shop.bank.standing, shop.bank.verification = None, Verification(Verdict.VALID)
        answer = await ask(shop, quoted, payer)
        assert answer.status == (402 if payer == "none" else 200)
        assert "0x" + NONCE.hex() not in shop.bank.paid


async def test_a_payment_that_comes_too_late_by_now_is_not_run_on(tmp_path: Path) -> None:
    async with undecided(tmp_path) as (shop, quoted):
        shop.bank.away, shop.bank.verification = None, Verification(Verdict.VALID)
        shop.clock.ahead_ms = 3_000_000
        answer = await ask(shop, quoted, "none")
        assert (answer.status, shop.search.runs) == (402, 0)


async def test_each_look_at_an_undecided_payment_costs_an_attempt(tmp_path: Path) -> None:
    async with undecided(tmp_path, attempts=3) as (shop, quoted):
        codes = [(await ask(shop, quoted, "none")).code for _ in range(4)]
        assert codes == ["settlement_pending"] * 2 + ["quota_exceeded"] * 2


@WHO
async def test_a_chain_that_is_behind_the_facilitator_is_no_reason_for_another_payment(
    tmp_path: Path, payer: str
) -> None:
    async with open_shop(tmp_path) as shop:
        quoted = await shop.post(key=KEY)
        shop.bank.verification, shop.bank.standing = REFUSED, Standing.UNUSED
        first = await shop.post(key=KEY, headers=PAYER.x402(quoted, nonce=NONCE))
        again = await ask(shop, quoted, payer)
        for answer in (first, again):
            assert (answer.status, answer.code, answer.challenged) == (503, "settlement_pending", False)
        shop.bank.standing, shop.bank.paid["0x" + NONCE.hex()] = None, TRANSACTION
        served = await ask(shop, quoted, payer)
        assert (served.status, served.json["receipt"]["settlement"]["transaction"]) == (200, TRANSACTION)
        assert len(shop.bank.paid) == 1


async def test_an_attempt_that_could_not_decide_it_either_leaves_it_undecided(tmp_path: Path) -> None:
    async with undecided(tmp_path) as (shop, quoted):
        shop.bank.verification = Verification(Verdict.UNAVAILABLE, "timeout")
        for payer in ("none", "none", "other"):
            answer = await ask(shop, quoted, payer)
            assert (answer.status, answer.code, answer.challenged) == (503, "facilitator_unavailable", False)
        shop.bank.away, shop.bank.paid["0x" + NONCE.hex()] = None, TRANSACTION
        shop.bank.verification = REFUSED
        assert (await ask(shop, quoted, "none")).status == 200


async def test_a_payment_that_turns_out_valid_is_decided_whatever_becomes_of_its_run(tmp_path: Path) -> None:
    async with undecided(tmp_path) as (shop, quoted):
        shop.bank.verification, shop.search.failure = Verification(Verdict.VALID), ExecutorFailed()
        assert (await ask(shop, quoted, "none")).status == 502
        shop.search.failure = None
        assert (await ask(shop, quoted, "none")).status == 402
