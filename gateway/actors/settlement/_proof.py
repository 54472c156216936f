"""What a receipt proves of an authorization.  No input, no output: a transaction's events in, a finding out.

FiatToken emits `AuthorizationUsed(authorizer, nonce)` and then the `Transfer` that the authorization made, so of
several authorizations in one transaction each has the transfer between its own event and the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from itertools import pairwise

import attrs
from eth_utils.crypto import keccak

from gateway.actors.settlement._rpc import Log, Receipt

BALANCE_OF = keccak(text="balanceOf(address)")[:4]
AUTHORIZATION_STATE = keccak(text="authorizationState(address,bytes32)")[:4]
AUTHORIZATION_USED = keccak(text="AuthorizationUsed(address,bytes32)")
AUTHORIZATION_CANCELED = keccak(text="AuthorizationCanceled(address,bytes32)")
TRANSFER = keccak(text="Transfer(address,address,uint256)")
SPENDING = ((AUTHORIZATION_USED,), (AUTHORIZATION_CANCELED,))


@attrs.frozen
class Search:
    """The authorization looked for, as the token knows it.  `valid_before` in seconds, `value` in atomic units."""

    asset: str
    authorizer: str
    pay_to: str
    value: int
    nonce: bytes
    valid_before: int

    @property
    def asset_bytes(self) -> bytes:
        """The token's address as bytes."""
        return bytes.fromhex(self.asset[2:])

    @property
    def state_call(self) -> bytes:
        """The call of `authorizationState` for it."""
        return state_call(self.authorizer, self.nonce)


class Finding(Enum):
    """What a receipt proves of an authorization."""

    NOTHING = "the transaction failed, or is about something else"
    PAID = "used, and it made the transfer that was asked for"
    DIVERTED = "used, and it made another transfer"
    CANCELED = "canceled"
    UNCLEAR = "used, and which transfer it made cannot be told"
    INCOMPLETE = "events are missing"


def spends(log: Log, search: Search) -> bool:
    """Return True if an event says that the authorization was used or canceled."""
    return (
        log.address == search.asset_bytes
        and log.topics[:1] in SPENDING
        and log.topics[1:] == (word_of(search.authorizer), search.nonce)
    )


def read(receipt: Receipt, search: Search) -> Finding:
    """Return what a receipt proves of an authorization."""
    if not receipt.succeeded:
        return Finding.NOTHING
    if any(later.index != earlier.index + 1 for earlier, later in pairwise(receipt.logs)):
        return Finding.INCOMPLETE
    token = [log for log in receipt.logs if log.address == search.asset_bytes]
    event = next((log for log in token if spends(log, search)), None)
    if event is None:
        return Finding.NOTHING
    return Finding.CANCELED if event.topics[0] == AUTHORIZATION_CANCELED else _used(event, token, search)


def _used(event: Log, token: Sequence[Log], search: Search) -> Finding:
    """Return what an authorization was used for; `event` is its `AuthorizationUsed`."""
    made = allotted(token)
    transfer = made.pop(event.index, None)
    if transfer is None:
        return Finding.UNCLEAR  # the token makes one each time, so an event is missing at the receipt's end
    if is_payment(transfer, search):
        return Finding.PAID
    of_others = {log.index for log in made.values()}
    left_over = any(is_payment(log, search) and log.index not in of_others for log in token)
    return Finding.UNCLEAR if left_over else Finding.DIVERTED


def allotted(token: Sequence[Log]) -> dict[int, Log]:
    """Return the transfer that each used authorization made, by the index of its `AuthorizationUsed`.

    It is the first transfer out of the authorizer's account between that event and the next of its kind.
    """
    made: dict[int, Log] = {}
    used: Log | None = None
    for log in token:
        kind = log.topics[:1]
        if kind in SPENDING:
            used = log if kind == (AUTHORIZATION_USED,) else None
        elif used is not None and log.topics[:2] == (TRANSFER, *used.topics[1:2]):
            made[used.index], used = log, None
    return made


def is_payment(log: Log, search: Search) -> bool:
    """Return True if an event is the transfer that was asked for."""
    topics = (TRANSFER, word_of(search.authorizer), word_of(search.pay_to))
    return log.topics == topics and log.data == search.value.to_bytes(32, "big")


def word_of(address: str) -> bytes:
    """Return an address as a word of 32 bytes."""
    return bytes(12) + bytes.fromhex(address[2:])


def balance_call(owner: str) -> bytes:
    """Return the call of `balanceOf`."""
    return BALANCE_OF + word_of(owner)


def state_call(authorizer: str, nonce: bytes) -> bytes:
    """Return the call of `authorizationState`."""
    return AUTHORIZATION_STATE + word_of(authorizer) + nonce
