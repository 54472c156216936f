from __future__ import annotations

import itertools

import attrs
import pytest

from gateway.actors.settlement import Search
from gateway.actors.settlement._proof import Finding, read, spends
from gateway.actors.settlement._rpc import Log, Receipt
from tests.actors.settlement.toy_chain import (
    ASSET,
    PAYEE,
    PAYER,
    PRICE,
    STRANGER,
    Event,
    canceled,
    event,
    nonce_of,
    transfer,
    used,
)

OURS, OTHERS = nonce_of(1), nonce_of(2)
SEARCH = Search(ASSET, PAYER, PAYEE, PRICE, OURS, 2_000_000_000)
HASH = "0x" + "22" * 32


def log_of(each: Event, index: int) -> Log:
    topics = tuple(bytes.fromhex(topic[2:]) for topic in each["topics"])
    return Log(bytes.fromhex(each["address"][2:]), topics, bytes.fromhex(each["data"][2:]), index, 9, HASH)


def receipt(*events: Event, succeeded: bool = True, first: int = 3) -> Receipt:
    logs = tuple(log_of(each, first + place) for place, each in enumerate(events))
    return Receipt(HASH, "0x" + "33" * 32, 9, succeeded, logs)


NOISE = (event(STRANGER, b"\7" * 32), transfer(token=STRANGER), event(ASSET, b"\x08" * 32, data=b"x"), event(ASSET))


@pytest.mark.parametrize(
    ("events", "finding"),
    [
        ((used(OURS), transfer()), Finding.PAID),
        ((), Finding.NOTHING),
        ((transfer(),), Finding.NOTHING),
        ((used(OTHERS), transfer()), Finding.NOTHING),
        ((used(OURS, STRANGER), transfer()), Finding.NOTHING),
        ((canceled(OURS),), Finding.CANCELED),
        ((canceled(OURS), transfer()), Finding.CANCELED),
        ((canceled(OTHERS), used(OURS), transfer()), Finding.PAID),
        ((used(OURS), transfer(value=PRICE - 1)), Finding.DIVERTED),
        ((used(OURS), transfer(to=STRANGER)), Finding.DIVERTED),
        ((used(OURS), transfer(token=STRANGER)), Finding.UNCLEAR),
        ((used(OURS),), Finding.UNCLEAR),
        ((used(OURS), transfer(sender=STRANGER)), Finding.UNCLEAR),
        ((transfer(), used(OURS)), Finding.UNCLEAR),
        ((transfer(), used(OURS), transfer(to=STRANGER)), Finding.UNCLEAR),
        # two authorizations of one payer and one price in one transaction: each has a transfer of its own
        ((used(OTHERS), transfer(), used(OURS), transfer()), Finding.PAID),
        ((used(OURS), transfer(), used(OTHERS), transfer()), Finding.PAID),
        ((used(OURS), transfer(to=STRANGER), used(OTHERS), transfer()), Finding.DIVERTED),
        ((used(OTHERS), transfer(), used(OURS), transfer(to=STRANGER)), Finding.DIVERTED),
        ((used(OURS), used(OTHERS), transfer()), Finding.UNCLEAR),
        # a batch of a contract wallet: other calls stand between and around
        ((*NOISE, used(OURS), *NOISE[:2], transfer(), *NOISE), Finding.PAID),
        ((used(OURS), NOISE[2], transfer()), Finding.PAID),
        ((used(OURS, STRANGER), transfer(sender=STRANGER), used(OURS), transfer()), Finding.PAID),
        ((used(OURS), transfer(), transfer(to=STRANGER)), Finding.PAID),
    ],
)
def test_what_the_events_of_a_transaction_prove(events: tuple[Event, ...], finding: Finding) -> None:
    assert read(receipt(*events), SEARCH) is finding


def test_a_failed_transaction_proves_nothing() -> None:
    assert read(receipt(used(OURS), transfer(), succeeded=False), SEARCH) is Finding.NOTHING


def test_addresses_are_compared_as_bytes() -> None:
    search = attrs.evolve(SEARCH, asset=ASSET.upper().replace("X", "x"), authorizer=PAYER.lower(), pay_to=PAYEE.lower())
    assert read(receipt(used(OURS), transfer()), search) is Finding.PAID


def test_no_loss_of_events_turns_a_payment_into_a_refusal() -> None:
    events = (transfer(token=STRANGER), used(OTHERS), transfer(), used(OURS), transfer(), used(nonce_of(3)), transfer())
    whole = receipt(*events)
    allowed = {Finding.PAID, Finding.UNCLEAR, Finding.INCOMPLETE, Finding.NOTHING}
    for lost in itertools.chain.from_iterable(itertools.combinations(range(len(events)), n) for n in range(4)):
        logs = tuple(log for place, log in enumerate(whole.logs) if place not in lost)
        assert read(attrs.evolve(whole, logs=logs), SEARCH) in allowed


def test_a_gap_is_seen() -> None:
    whole = receipt(used(OURS), transfer(token=STRANGER), transfer(to=STRANGER))
    assert read(attrs.evolve(whole, logs=(whole.logs[0], whole.logs[2])), SEARCH) is Finding.INCOMPLETE


def test_an_event_of_another_contract_spends_nothing() -> None:
    assert spends(log_of(used(OURS), 0), SEARCH)
    assert not spends(attrs.evolve(log_of(used(OURS), 0), address=bytes(20)), SEARCH)
    assert not spends(log_of(transfer(), 0), SEARCH)
    assert not spends(log_of(event(ASSET), 0), SEARCH)
