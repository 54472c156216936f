"""The wire form of x402 version 2, scheme `exact`, EIP-3009 transfers only: three headers of base64 over JSON.

Written in standard base64 with padding, read in base64 and base64url, padded or not.

Source: the x402 specification (x402-specification-v2, transports-v2/http, schemes/exact/scheme_exact_evm).
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from typing import Any, Final

import orjson

from gateway.errors import MalformedCredential, Permit2Unsupported, TransferMethodUnsupported
from gateway.registry.payment.authorization import parse_authorization, recover
from gateway.registry.payment.extensions import BAZAAR, PAYMENT_IDENTIFIER
from gateway.registry.payment.members import (
    integer,
    json_object,
    members,
    optional_members,
    optional_text,
    present,
    text,
    unbase64,
)
from gateway.registry.payment.terms import Accepted, Credential, Offer, Terms

HEADER: Final = "PAYMENT-SIGNATURE"
MAX_CREDENTIAL: Final = 16 * 1024
"""Longest `PAYMENT-SIGNATURE` that is decoded, in characters."""

_PAYMENT_ID = re.compile(r"[A-Za-z0-9_-]{16,128}")


def payment_required(offer: Offer, error: str | None = None) -> dict[str, Any]:
    """Write an offer as a `PaymentRequired` object, the decoded `PAYMENT-REQUIRED` header.

    Args:
        offer: what is asked for.
        error: why payment is (still) required, for the payer's log.

    Returns:
        A JSON object whose `extensions` are shared between offers: read it, never change it.
    """
    return {
        "x402Version": 2,
        "error": error or _asking(offer),
        "resource": offer.resource,
        "accepts": [offer.requirements],
        "extensions": offer.extensions,
    }


def _asking(offer: Offer) -> str:
    if offer.quote.amount > 10**offer.terms.asset.decimals:
        return f"Payment required: {offer.usd} USD, over the cap of stock clients; raise their max_amount_per_payment"
    return "Payment required"


def encode(value: Mapping[str, Any]) -> str:
    """Write a JSON object as a header value: standard base64 with padding."""
    return base64.b64encode(orjson.dumps(value)).decode()


def decode_payment_signature(value: str, terms: Terms) -> Credential:
    """Read a `PAYMENT-SIGNATURE` header and recover who signed it in the domain of the seller's token.

    What is signed is brought to canonical form; what is echoed is kept for `check`.  Cost is linear in the header.

    Raises:
        MalformedCredential: it is no x402 version 2 payload of an EIP-3009 authorization (400).
        PaymentRefused: the transfer method or kind of signature is one that this node does not take (402).
    """
    if len(value) > MAX_CREDENTIAL:
        raise MalformedCredential(f"{HEADER} is longer than {MAX_CREDENTIAL} characters")
    payload = json_object(unbase64(value, HEADER), HEADER)
    if payload.get("x402Version") != 2:
        raise MalformedCredential("x402Version is not 2")
    signed = members(payload, "payload")
    accepted = _accepted(members(payload, "accepted"))
    _refuse_other_methods(signed, accepted)
    authorization = parse_authorization(members(signed, "authorization"), signed.get("signature"))
    extensions = present(optional_members(payload, "extensions") or {})
    resource = optional_members(payload, "resource")
    return Credential(
        protocol="x402",
        asset=terms.asset,
        authorization=authorization,
        signer=recover(terms.asset, authorization),
        quote_token=optional_text(accepted.extra, "quote"),
        max_timeout_seconds=accepted.max_timeout_seconds,
        payment_id=_payment_id(extensions),
        accepted=accepted,
        resource=None if resource is None else present(resource),
        extensions={name: extensions[name] for name in (PAYMENT_IDENTIFIER, BAZAAR) if name in extensions},
    )


def payment_response(*, payer: str, transaction: str, network: str, amount: int | None = None) -> str:
    """Write the `PAYMENT-RESPONSE` header of a settled payment.

    Args:
        payer: EIP-55 address.
        transaction: hash of the settling transaction.
        network: CAIP-2 name of the chain.
        amount: atomic units that moved.
    """
    settled = {"success": True, "payer": payer, "transaction": transaction, "network": network}
    return encode(settled if amount is None else {**settled, "amount": str(amount)})


def payment_failed(*, reason: str, message: str, payer: str, transaction: str, network: str) -> str:
    """Write the `PAYMENT-RESPONSE` header of a payment that could not be settled.

    Args:
        reason: code of the problem.
        message: what happened, for the payer's log.
        payer: EIP-55 address.
        transaction: hash of the transaction that was tried, or empty.
        network: CAIP-2 name of the chain.
    """
    failed = {"success": False, "errorReason": reason, "errorMessage": message}
    return encode({**failed, "payer": payer, "transaction": transaction, "network": network})


def _accepted(fields: Mapping[str, Any]) -> Accepted:
    return Accepted(
        scheme=text(fields, "scheme"),
        network=text(fields, "network"),
        asset=text(fields, "asset"),
        amount=text(fields, "amount"),
        pay_to=text(fields, "payTo"),
        max_timeout_seconds=integer(fields, "maxTimeoutSeconds"),
        extra=present(optional_members(fields, "extra") or {}),
    )


def _refuse_other_methods(signed: Mapping[str, Any], accepted: Accepted) -> None:
    method = accepted.extra.get("assetTransferMethod", "eip3009")
    if method == "permit2" or signed.get("permit2Authorization") is not None:
        raise Permit2Unsupported
    if method != "eip3009":
        raise TransferMethodUnsupported


def _payment_id(extensions: Mapping[str, Any]) -> str | None:
    declared = optional_members(extensions, PAYMENT_IDENTIFIER)
    info = None if declared is None else optional_members(declared, "info")
    payment_id = None if info is None else info.get("id")
    if payment_id is None:
        return None
    if not isinstance(payment_id, str) or _PAYMENT_ID.fullmatch(payment_id) is None:
        raise MalformedCredential("the payment identifier is not 16 to 128 of A-Za-z0-9_-")
    return payment_id
