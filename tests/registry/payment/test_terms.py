from __future__ import annotations

from collections.abc import Callable

import attrs
import orjson
import pytest
from x402.schemas import PaymentPayload, PaymentRequirements

from gateway.registry.payment import Asset, Authorization, Credential, Offer, Terms

Pay = Callable[..., Credential]


def test_an_authorization_must_live_through_quote_run_and_settlement(offer: Offer) -> None:
    assert offer.max_timeout_seconds == 120 + 12 + 30
    assert attrs.evolve(offer, deadline_s=0.5).max_timeout_seconds == 151


def test_an_offer_names_its_resource_under_the_public_address(offer: Offer) -> None:
    assert offer.resource["url"] == "https://gateway.example/v1/search/paid"
    assert offer.resource["tags"] == ["search"]


def test_an_offer_says_its_price_in_dollars(offer: Offer) -> None:
    assert offer.usd == "0.006000"


def test_terms_write_addresses_in_their_checksum_form(terms: Terms) -> None:
    assert attrs.evolve(terms, pay_to=terms.pay_to.lower()) == terms


@pytest.mark.parametrize("change", [{"realm": ""}, {"realm": 'a"b'}, {"realm": "a|b"}, {"service": "x" * 33}])
def test_terms_that_a_header_could_not_carry_are_refused(terms: Terms, change: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="must match"):
        attrs.evolve(terms, **change)  # type: ignore[arg-type]


def test_an_authorization_is_named_as_the_chain_names_it(pay: Pay, authorization: Authorization) -> None:
    assert pay().authorization_key() == (
        8453,
        "0x833589fcd6edb6e08f4c7c32d4f71b54bda02913",
        authorization.authorizer.lower(),
        "0x" + "c4" * 32,
    )


def test_only_a_signature_proves_a_payer(pay: Pay, authorization: Authorization) -> None:
    credential = pay()
    assert credential.payer == authorization.authorizer
    assert attrs.evolve(credential, signer="0x90F79bf6EB2c4f870365E785982E1f101E93b906").payer is None


def test_the_facilitator_is_sent_what_its_own_models_read(pay: Pay, offer: Offer) -> None:
    body = pay().facilitator_body()
    payload = PaymentPayload.model_validate(body["paymentPayload"])
    assert PaymentRequirements.model_validate(body["paymentRequirements"]) == payload.accepted
    assert body["paymentRequirements"] == offer.requirements
    assert payload.resource is not None
    assert payload.resource.url == "https://gateway.example/v1/search/paid"


def test_the_facilitator_is_sent_nothing_that_a_payer_could_have_slipped_in(pay: Pay, offer: Offer) -> None:
    deep: list[object] = []
    for _ in range(900):
        deep = [deep]
    echoed = {**offer.extensions, "payment-identifier": {"info": {"required": False}, "schema": deep}}
    accepted = pay().accepted
    assert accepted is not None
    credential = attrs.evolve(
        pay(), extensions=echoed, accepted=attrs.evolve(accepted, extra={**accepted.extra, "paymentFlow": "upfront"})
    )
    body = credential.facilitator_body()
    assert set(body["paymentPayload"]["extensions"]) == {"bazaar"}
    assert "paymentFlow" not in body["paymentPayload"]["accepted"]["extra"]
    orjson.dumps(body)


def test_an_mpp_credential_is_sent_to_the_facilitator_as_the_same_x402_transfer(pay: Pay, asset: Asset) -> None:
    x402 = pay()
    mpp = Credential("mpp", asset, x402.authorization, x402.signer, x402.quote_token, 162, challenge_id="c")
    body = mpp.facilitator_body()
    assert body["paymentPayload"]["payload"] == x402.facilitator_body()["paymentPayload"]["payload"]
    assert body["paymentRequirements"]["amount"] == "6000"
    assert "quote" not in body["paymentRequirements"]["extra"]
    PaymentPayload.model_validate(body["paymentPayload"])


def test_no_log_of_a_credential_shows_what_could_be_replayed(pay: Pay, offer: Offer) -> None:
    credential = pay()
    assert credential.authorization.signature.hex() not in repr(credential)
    assert offer.token not in repr(credential)
    assert offer.token not in repr(offer)
