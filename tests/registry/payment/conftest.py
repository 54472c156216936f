"""A seller on Base, a payer with a well-known test key, and what passes between them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from eth_account import Account
from eth_account.signers.local import LocalAccount

from gateway.registry.payment import (
    Accepted,
    Asset,
    Authorization,
    Credential,
    Offer,
    Quote,
    QuoteSecrets,
    Terms,
    parse_authorization,
    recover,
)

NOW = 1_795_816_156
PAYER: LocalAccount = Account.from_key("0x5de4111afa1a4b94908f83103eb1f1706367c2e68ca870fc3fb9a804cdab365a")
TYPES = {
    "TransferWithAuthorization": [
        {"name": "from", "type": "address"},
        {"name": "to", "type": "address"},
        {"name": "value", "type": "uint256"},
        {"name": "validAfter", "type": "uint256"},
        {"name": "validBefore", "type": "uint256"},
        {"name": "nonce", "type": "bytes32"},
    ]
}


@pytest.fixture
def now() -> int:
    return NOW


@pytest.fixture(scope="session")
def asset() -> Asset:
    return Asset("eip155:8453", 8453, "0x833589fcd6edb6e08f4c7c32d4f71b54bda02913", "USD Coin", "2", 6)


@pytest.fixture(scope="session")
def terms(asset: Asset) -> Terms:
    return Terms(asset, "0x90F79bf6EB2c4f870365E785982E1f101E93b906", "https://gateway.example/", "gateway.example")


@pytest.fixture(scope="session")
def secrets() -> QuoteSecrets:
    return QuoteSecrets({"k1": b"1" * 32, "k0": b"0" * 32}, "k1")


@pytest.fixture(scope="session")
def quote() -> Quote:
    return Quote(
        quote_id="qt_01JDQ0000000000000000000AB",
        operation="search.paid",
        request_hash="sha256:" + "ab" * 32,
        amount=6000,
        price_version="2026-07-25.3",
        issued_at=NOW,
        expires_at=NOW + 120,
    )


@pytest.fixture(scope="session")
def offer(terms: Terms, secrets: QuoteSecrets, quote: Quote) -> Offer:
    return Offer(
        quote=quote,
        token=secrets.seal(quote, terms),
        terms=terms,
        path="/v1/search/paid",
        title="Paid web search",
        summary="Raw, cited results.",
        deadline_s=12,
        body_example={"query": "x402", "synthesize": False},
        input_schema={"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
    )


@pytest.fixture(scope="session")
def signed(asset: Asset) -> Callable[..., tuple[dict[str, str], str]]:
    """Sign an authorization with the payer's key by eth-account, as every stock client's library does."""

    def sign(**changes: str) -> tuple[dict[str, str], str]:
        fields = {
            "from": PAYER.address,
            "to": "0x90F79bf6EB2c4f870365E785982E1f101E93b906",
            "value": "6000",
            "validAfter": "0",
            "validBefore": str(NOW + 162),
            "nonce": "0x" + "c4" * 32,
            **changes,
        }
        message: dict[str, Any] = {
            name: int(text) if name in {"value", "validAfter", "validBefore"} else text for name, text in fields.items()
        }
        domain = {
            "name": asset.name,
            "version": asset.version,
            "chainId": asset.chain_id,
            "verifyingContract": asset.address,
        }
        signature = PAYER.sign_typed_data(domain, TYPES, {**message, "nonce": bytes.fromhex(fields["nonce"][2:])})
        return fields, "0x" + signature.signature.hex()

    return sign


@pytest.fixture(scope="session")
def authorization(signed: Callable[..., tuple[dict[str, str], str]]) -> Authorization:
    return parse_authorization(*signed())


@pytest.fixture
def pay(asset: Asset, offer: Offer, signed: Callable[..., tuple[dict[str, str], str]]) -> Callable[..., Credential]:
    """Make the credential of a payer who accepted the offer, with members of the authorization changed and signed."""

    def make(**changes: str) -> Credential:
        authorization = parse_authorization(*signed(**changes))
        asked = offer.requirements
        return Credential(
            protocol="x402",
            asset=asset,
            authorization=authorization,
            signer=recover(asset, authorization),
            quote_token=offer.token,
            max_timeout_seconds=asked["maxTimeoutSeconds"],
            accepted=Accepted(
                scheme=asked["scheme"],
                network=asked["network"],
                asset=asked["asset"],
                amount=asked["amount"],
                pay_to=asked["payTo"],
                max_timeout_seconds=asked["maxTimeoutSeconds"],
                extra=asked["extra"],
            ),
            resource=offer.resource,
            extensions=offer.extensions,
        )

    return make
