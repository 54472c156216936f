from __future__ import annotations

import attrs
import orjson

from gateway.actors.payment import PUBLIC_COLUMNS, Payment

PAYMENT = Payment(
    protocol="x402",
    chain_id=8453,
    network="eip155:8453",
    asset="0x833589fCD6eDb6E08f4c7C32D4f71b54bdA02913",
    payer="0x70997970C51812dc3A010C7d01b50e0d17dc79C8",
    pay_to="0x90F79bf6EB2c4f870365E785982E1f101E93b906",
    amount=6000,
    nonce="0x" + "AB" * 32,
    valid_before=1_795_816_400,
    quote_id="qt_1",
    price_version="2026-07-25.3",
    challenge_id=None,
    body={"x402Version": 2, "paymentPayload": {"payload": {"signature": "0xdeadbeef"}}},
)


def test_a_payment_survives_the_store() -> None:
    assert Payment.load(PAYMENT.dump()) == PAYMENT


def test_a_payment_of_a_release_that_knows_more_or_less_of_it_can_be_read() -> None:
    told = orjson.loads(PAYMENT.dump())
    assert Payment.load(orjson.dumps(told | {"of_a_later_release": 1})) == PAYMENT
    of_an_earlier_one = {name: value for name, value in told.items() if not name.startswith("quoted_")}
    assert Payment.load(orjson.dumps(of_an_earlier_one)) == PAYMENT


def test_a_payment_can_be_looked_for_by_its_public_columns() -> None:
    told = {name: getattr(PAYMENT, name) for name in PUBLIC_COLUMNS}
    assert Payment.of_columns(told | {"more": 1}) == attrs.evolve(PAYMENT, body={})


def test_case_makes_no_second_authorization() -> None:
    other = attrs.evolve(
        PAYMENT,
        asset=PAYMENT.asset.lower(),
        payer=PAYMENT.payer.upper().replace("0X", "0x"),
        nonce=PAYMENT.nonce.lower(),
    )
    assert other.key == PAYMENT.key


def test_a_payment_is_known_by_chain_asset_authorizer_and_nonce() -> None:
    assert attrs.evolve(PAYMENT, amount=1, quote_id="qt_2", protocol="mpp").key == PAYMENT.key
    assert attrs.evolve(PAYMENT, chain_id=1).key != PAYMENT.key
    assert attrs.evolve(PAYMENT, nonce="0x" + "00" * 32).key != PAYMENT.key


def test_a_payment_shown_in_a_log_shows_no_signature() -> None:
    assert "deadbeef" not in repr(PAYMENT)
