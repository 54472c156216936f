"""Whether a payment arrives whole: a transfer by authorization is simulated, and what it brings is measured.

A token that takes a fee, or gives less for another reason, takes the payer's money without paying the quoted amount:
each payment then waits for the operator.  Nothing is sent: an account of this moment is given a balance for the length
of one `eth_call`, by a state override, which not every end point has.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from typing import Any

from coincurve import PrivateKey
from eth_hash.auto import keccak

from gateway.doctor._check import Check, failed, fine, note
from gateway.registry.payment.asset import Asset, address_word, checksum
from gateway.registry.payment.authorization import Authorization, digest

Ask = Callable[..., Awaitable[Any]]
"""Makes one JSON-RPC call of an end point: method and parameters; raises `Refused` of the caller's choice."""

BALANCE_OF = keccak(b"balanceOf(address)")[:4]
TRANSFER = keccak(b"transferWithAuthorization(address,address,uint256,uint256,uint256,bytes32,uint8,bytes32,bytes32)")[
    :4
]
METER = "0x" + "6d" * 20
"""Where the measuring code stands during the call."""
METER_CODE = bytes.fromhex(
    "366000600037"  # memory = calldata
    "6020611000602460206000515afa50"  # balanceOf(payee) of the token -> 0x1000
    "602061106060443603604460006000515af161104052"  # the transfer, and whether it succeeded -> 0x1040
    "6020611020602460206000515afa50"  # balanceOf(payee) -> 0x1020
    "6060611000f3"  # these three words
)
"""Calldata: the token, `balanceOf(payee)`, the transfer.  Returns three words: before, after, and 1 if it succeeded."""
SLOTS = 64
NAMESPACED = int("52c63247e1f47db19d5ce0460030c497f067ca4cebf71ba98eeadabe20bace00", 16)
"""Where OpenZeppelin's upgradeable ERC-20 keeps its balances (ERC-7201)."""
MARK = 10**15
FOREVER = 2**40
BLIND = "a token that takes a fee is not seen before it is paid"
BY_HAND = "make one small payment by hand and see that it arrives whole"


async def transfer(name: str, asset: Asset, pay_to: str, ask: Ask, refused: type[Exception]) -> Check:
    """Simulate one payment; `ask` raises `refused` where the end point answers with an error."""
    key = PrivateKey(os.urandom(32))
    payer = checksum("0x" + keccak(key.public_key.format(compressed=False)[1:])[12:].hex())
    try:
        slot = await _slot(asset, payer, ask)
        if slot is None:
            what = "the end point ignores state overrides, or the token keeps its balances in an unknown place"
            return note(name, f"no transfer can be simulated: {what}", BLIND, BY_HAND)
        amount = 10**asset.decimals
        overrides = {
            METER: {"code": "0x" + METER_CODE.hex()},
            asset.address: {"stateDiff": {slot: _word(2 * amount)}},
        }
        data = _measured(asset, payer, pay_to, amount, key)
        told = await ask("eth_call", {"to": METER, "data": "0x" + data.hex()}, "latest", overrides)
        before, after, succeeded = (int(told[2 + 64 * place : 66 + 64 * place], 16) for place in range(3))
    except (refused, ValueError, TypeError):
        return note(name, "no transfer can be simulated: the end point takes no state override", BLIND, BY_HAND)
    if not succeeded:
        return failed(
            name,
            "the token refuses a simulated payment",
            "no payment can settle",
            "see that the token is not paused, that it does not block pay_to, and that it is the right [payment] asset",
        )
    if after - before != amount:
        return failed(
            name,
            f"a simulated payment of {amount} brings the payee {after - before}",
            "the token takes payers' money without paying the price, so each payment ends with the operator",
            "set [payment] asset to a token that takes no fee",
        )
    return fine(name, f"a simulated payment of {amount} arrives whole")


async def _slot(asset: Asset, payer: str, ask: Ask) -> str | None:
    """Return the storage slot of a payer's balance: of all places that are usual, the one whose mark is told."""
    holder = address_word(payer)
    bases = [number.to_bytes(32, "big") for number in (*range(SLOTS), NAMESPACED)]
    slots = [keccak(holder + base) for base in bases] + [keccak(base + holder) for base in bases]  # Solidity, Vyper
    marks = {"0x" + slot.hex(): _word(MARK + place) for place, slot in enumerate(slots)}
    call = {"to": asset.address, "data": "0x" + (BALANCE_OF + holder).hex()}
    told = int(await ask("eth_call", call, "latest", {asset.address: {"stateDiff": marks}}), 16) - MARK
    return "0x" + slots[told].hex() if 0 <= told < len(slots) else None


def _measured(asset: Asset, payer: str, pay_to: str, amount: int, key: PrivateKey) -> bytes:
    """Return the calldata of the measuring code: a signed payment of `amount`, between two looks at the payee."""
    nonce = os.urandom(32)
    signature = key.sign_recoverable(
        digest(asset, Authorization(payer, checksum(pay_to), amount, 0, FOREVER, nonce, b"")), hasher=None
    )
    words = [address_word(payer), address_word(pay_to), *(each.to_bytes(32, "big") for each in (amount, 0, FOREVER))]
    words += [nonce, (signature[64] + 27).to_bytes(32, "big"), signature[:32], signature[32:64]]
    look = BALANCE_OF + address_word(pay_to)
    return address_word(asset.address) + look + TRANSFER + b"".join(words)


def _word(value: int) -> str:
    return f"0x{value:064x}"
