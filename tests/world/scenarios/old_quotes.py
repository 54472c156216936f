"""Quotes as a node sealed them before its prices changed."""

from __future__ import annotations

import base64
import time

from gateway.registry.payment import Asset, Quote, QuoteSecrets, Terms
from gateway.world import token
from gateway.world.chain import CHAIN_ID, NETWORK
from tests.world.scenarios.node_process import NodeProcess
from tests.world.scenarios.purchase import Challenge, Shop


def sealed_by_the_node(
    node: NodeProcess,
    shop: Shop,
    challenge: Challenge,
    amount: int,
    age: int,
    ttl: int,
    *,
    operation: str = "search.paid",
) -> str:
    """Seal a quote as the node itself would have done at another price, `age` seconds ago."""
    secrets = QuoteSecrets({"1": (node.data_dir / "keys" / "quote-1.key").read_bytes()}, "1")
    asset = Asset(NETWORK, CHAIN_ID, token.ADDRESS, token.NAME, token.VERSION, token.DECIMALS)
    terms = Terms(asset, shop.world.pay_to, node.url, "127.0.0.1")
    request_hash = challenge.terms["extra"]["quote"].split("~")[9]
    now = int(time.time()) - age
    quote = Quote(
        quote_id="qt_01JDQ0000000000000000000AB",
        operation=operation,
        request_hash="sha256:" + base64.urlsafe_b64decode(request_hash + "=").hex(),
        amount=amount,
        price_version="2026-01-01.1",
        issued_at=now,
        expires_at=now + ttl,
    )
    return secrets.seal(quote, terms)


def repriced(challenge: Challenge, quote: str, amount: int) -> Challenge:
    terms = challenge.terms | {"amount": str(amount), "extra": challenge.terms["extra"] | {"quote": quote}}
    return Challenge(challenge.required | {"accepts": [terms]}, challenge.payment)
