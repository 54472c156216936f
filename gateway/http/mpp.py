"""The wire form of the HTTP `Payment` scheme with method `evm`, intent `charge`, EIP-3009 authorizations only.

Source: draft-httpauth-payment-01, draft-evm-charge-00.  Two rules for the authorization's nonce are in use (pympp and
mppx differ), so both are accepted: each binds the signature to one challenge.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

import attrs
import orjson
from eth_hash.auto import keccak

from gateway.errors import (
    ChallengeInvalid,
    MalformedCredential,
    NetworkMismatch,
    NonceMismatch,
    PaymentRefused,
    Permit2Unsupported,
    SignatureInvalid,
    TransferMethodUnsupported,
)
from gateway.registry.payment.asset import checksum
from gateway.registry.payment.authorization import Authorization, parse_authorization, recover
from gateway.registry.payment.members import json_object, members, optional_text, text, unbase64
from gateway.registry.payment.quote import Quote, QuoteSecrets
from gateway.registry.payment.terms import Credential, Offer, Terms

CREDENTIAL: Final = "the Payment credential"
MAX_CREDENTIAL: Final = 16 * 1024
"""Longest `Authorization` value that is decoded, in characters."""

_METHOD: Final = "evm"
_INTENT: Final = "charge"
_SOURCE = re.compile(r"did:pkh:eip155:([1-9][0-9]{0,15}):(0x[0-9a-fA-F]{40})")


def challenge(offer: Offer, secrets: QuoteSecrets) -> str:
    """Write an offer as the value of a `WWW-Authenticate` header.

    `expires` is the end of the time that a signed authorization must live through, which is when stock clients let it
    end; the quote itself ends earlier.
    """
    request = _charge_request(offer.quote.amount, offer.terms)
    expires = _rfc3339(offer.quote.issued_at + offer.max_timeout_seconds)
    opaque = _canonical({"quote": offer.token})
    bound = _bound(offer.terms.realm, _METHOD, _INTENT, request, expires, "", opaque)
    parameters = {
        "id": secrets.challenge_id(bound),
        "realm": offer.terms.realm,
        "method": _METHOD,
        "intent": _INTENT,
        "request": request,
        "expires": expires,
        "description": _quotable(offer.title),
        "opaque": opaque,
    }
    return "Payment " + ", ".join(f'{name}="{value}"' for name, value in parameters.items())


def decode_authorization(value: str, terms: Terms, secrets: QuoteSecrets) -> Credential:
    """Read an `Authorization: Payment` value and recover who signed it in the domain of the seller's token.

    The echoed challenge is verified here, but a challenge that this node does not know (any more) is only noted as the
    credential's `fault`, which `check` raises: a replay of a completed call needs no live challenge.

    Raises:
        MalformedCredential: it is no credential of the scheme (400).
        PaymentRefused: another method, credential type or kind of signature than this node takes (402).
    """
    credential = json_object(unbase64(_token(value), CREDENTIAL), CREDENTIAL)
    echo = _Echo.read(members(credential, "challenge"))
    if (echo.method, echo.intent) != (_METHOD, _INTENT):
        raise ChallengeInvalid("the only challenge on offer is of method evm, intent charge")
    payload = members(credential, "payload")
    _refuse_other_types(payload)
    authorization = parse_authorization(payload, payload.get("signature"))
    source = optional_text(credential, "source")
    fault: PaymentRefused | None = None
    quote: Quote | None = None
    try:
        quote = echo.open(terms, secrets)
        _check_nonce(authorization, echo)
        _check_source(source, authorization, terms)
    except PaymentRefused as refused:
        fault = refused.with_traceback(None)
    return Credential(
        protocol="mpp",
        asset=terms.asset,
        authorization=authorization,
        signer=recover(terms.asset, authorization),
        quote_token=echo.quote_token,
        max_timeout_seconds=0 if quote is None else echo.expires_at - quote.issued_at,
        challenge_id=echo.id,
        fault=fault,
    )


def nonces(challenge_id: str, realm: str) -> tuple[bytes, bytes]:
    """Derive the two nonces that bind an authorization to a challenge: the draft's (also mppx's) and pympp's."""
    return keccak(f"{challenge_id}{realm}".encode()), keccak(orjson.dumps([challenge_id, realm]))


def receipt(transaction: str, timestamp: int, challenge_id: str, chain_id: int) -> str:
    """Write the value of a `Payment-Receipt` header.

    Args:
        transaction: hash of the settling transaction.
        timestamp: when it was seen settled, Unix seconds.
        challenge_id: the challenge that was paid.
        chain_id: where.
    """
    return _canonical(
        {
            "method": _METHOD,
            "status": "success",
            "reference": transaction,
            "timestamp": _rfc3339(timestamp),
            "challengeId": challenge_id,
            "chainId": chain_id,
        }
    )


@attrs.frozen
class _Echo:
    """The challenge as a payer returned it; a parameter that is absent counts as the empty string."""

    id: str
    realm: str
    method: str
    intent: str
    request: str
    expires: str
    digest: str
    header: str
    opaque: str

    @classmethod
    def read(cls, fields: Mapping[str, Any]) -> _Echo:
        """Read the `challenge` member of a credential."""
        required = [text(fields, name) for name in ("id", "realm", "method", "intent", "request")]
        return cls(
            *required, *(optional_text(fields, name) or "" for name in ("expires", "digest", "header", "opaque"))
        )

    @property
    def quote_token(self) -> str | None:
        """Our quote in an echoed `opaque`; one that is not ours has none."""
        try:
            quote = json_object(unbase64(self.opaque, "opaque")).get("quote")
        except MalformedCredential:
            return None
        return quote if isinstance(quote, str) else None

    def open(self, terms: Terms, secrets: QuoteSecrets) -> Quote:
        """Verify that this node made the challenge, on these terms, and open its quote."""
        bound = _bound(self.realm, self.method, self.intent, self.request, self.expires, self.digest, self.opaque)
        if not secrets.made_challenge_id(self.id, bound) or self.header:
            raise ChallengeInvalid
        if self.realm != terms.realm:
            raise ChallengeInvalid("the challenge is of another realm")
        quote = secrets.open(self.quote_token, terms)
        if self.request != _charge_request(quote.amount, terms):
            raise ChallengeInvalid("the challenge is of other terms")
        return quote

    @property
    def expires_at(self) -> int:
        """When the challenge ends, Unix seconds; only of a challenge that this node made."""
        return int(datetime.fromisoformat(self.expires).timestamp())


def _check_nonce(authorization: Authorization, echo: _Echo) -> None:
    if authorization.nonce not in nonces(echo.id, echo.realm):
        raise NonceMismatch


def _check_source(source: str | None, authorization: Authorization, terms: Terms) -> None:
    if source is None:
        return
    named = _SOURCE.fullmatch(source)
    if named is None or checksum(named[2]) != authorization.authorizer:
        raise SignatureInvalid("source is not the did:pkh of the authorizer")
    if named[1] != str(terms.asset.chain_id):
        raise NetworkMismatch("source is of another chain")


def _refuse_other_types(payload: Mapping[str, Any]) -> None:
    kind = text(payload, "type")
    if kind == "permit2":
        raise Permit2Unsupported
    if kind in {"transaction", "hash"}:
        raise TransferMethodUnsupported(f"{kind} credentials are not accepted; send an authorization")
    if kind != "authorization":
        raise TransferMethodUnsupported


def _token(value: str) -> str:
    if len(value) > MAX_CREDENTIAL:
        raise MalformedCredential(f"{CREDENTIAL} is longer than {MAX_CREDENTIAL} characters")
    scheme, _, token = value.strip(" \t").partition(" ")
    if scheme.lower() != "payment":
        raise MalformedCredential("the credential is not of the Payment scheme")
    return token.strip(" \t")


def _charge_request(amount: int, terms: Terms) -> str:
    return _canonical(
        {
            "amount": str(amount),
            "currency": terms.asset.address,
            "recipient": terms.pay_to,
            "methodDetails": {
                "chainId": terms.asset.chain_id,
                "credentialTypes": ["authorization"],
                "decimals": terms.asset.decimals,
            },
        }
    )


def _bound(*slots: str) -> str:
    return "|".join(slots)


def _canonical(value: Mapping[str, Any]) -> str:
    # Of ASCII strings and small integers, as here, this is the RFC 8785 form, which clients write again on their own.
    return base64.urlsafe_b64encode(orjson.dumps(value, option=orjson.OPT_SORT_KEYS)).rstrip(b"=").decode()


def _rfc3339(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _quotable(words: str) -> str:
    """Keep what a quoted-string may hold unescaped."""
    return "".join(letter for letter in words if " " <= letter <= "~" and letter not in '"\\')
