"""What a seller asks (`Terms`, `Offer`) and what a payer presents (`Credential`), the same for both protocols."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property
from typing import Any, Literal

import attrs

from gateway.errors import PaymentRefused
from gateway.registry.payment.asset import Asset, checksum, usd
from gateway.registry.payment.authorization import Authorization
from gateway.registry.payment.extensions import BAZAAR, declare
from gateway.registry.payment.quote import Quote

SETTLEMENT_MARGIN_S = 30
"""How long an authorization signed at the last moment of a quote outlives the operation's deadline."""

_MAX_DESCRIPTION = 120


def _without_slash(url: str) -> str:
    return url.rstrip("/")


@attrs.frozen
class Terms:
    """The standing terms of a seller.

    Attributes:
        asset: the token it is paid in.
        pay_to: who receives it, EIP-55.
        base_url: public address of the node, without a trailing slash.
        realm: protection space of MPP challenges: the host name of `base_url`.
        quote_ttl_s: seconds that a quote is honoured.
        service: what the seller is called in listings, at most 32 ASCII characters.
    """

    asset: Asset
    pay_to: str = attrs.field(converter=checksum)
    base_url: str = attrs.field(converter=_without_slash)
    realm: str = attrs.field(validator=attrs.validators.matches_re(r"[A-Za-z0-9.:\[\]-]{1,255}"))
    quote_ttl_s: int = 120
    service: str = attrs.field(default="gateway", validator=attrs.validators.matches_re(r"[\x20-\x7e]{1,32}"))


@attrs.frozen
class Offer:
    """A quote with everything that a 402 says about it.

    Attributes:
        quote: the price of this request.
        token: the quote sealed, as it goes to the payer and comes back.
        terms: the seller's standing terms.
        path: path of the operation, `/v1/search/paid`.
        title: the operation in a few words.
        summary: the operation in a sentence.
        deadline_s: seconds that a run of the operation may take.
        body_example: the documented example of the body.
        input_schema: JSON Schema of the body.
    """

    quote: Quote
    token: str = attrs.field(repr=False)
    terms: Terms
    path: str
    title: str
    summary: str
    deadline_s: float
    body_example: Mapping[str, Any] = attrs.field(repr=False)
    input_schema: Mapping[str, Any] = attrs.field(repr=False)

    @property
    def max_timeout_seconds(self) -> int:
        """Seconds that an authorization signed now must live: quote, run and settlement one after the other."""
        return self.terms.quote_ttl_s + math.ceil(self.deadline_s) + SETTLEMENT_MARGIN_S

    @property
    def usd(self) -> str:
        """The amount as a decimal string with all its places."""
        return usd(self.quote.amount, self.terms.asset.decimals)

    @property
    def requirements(self) -> dict[str, Any]:
        """The offer as an x402 v2 `PaymentRequirements` object."""
        return requirements(
            self.terms.asset, self.terms.pay_to, self.quote.amount, self.max_timeout_seconds, quote_token=self.token
        )

    @cached_property
    def resource(self) -> dict[str, Any]:
        """The offered resource as an x402 v2 `ResourceInfo` object."""
        return {
            "url": self.terms.base_url + self.path,
            "description": f"{self.title}: {self.summary}"[:_MAX_DESCRIPTION],
            "mimeType": "application/json",
            "serviceName": self.terms.service,
            "tags": [self.quote.operation.partition(".")[0][:32]],
        }

    @property
    def extensions(self) -> dict[str, Any]:
        """The x402 extensions declared with the offer; shared between offers, to be read only."""
        return declare(self.body_example, self.input_schema)


@attrs.frozen
class Accepted:
    """The terms that an x402 payer says it accepted, as it spelled them."""

    scheme: str
    network: str
    asset: str
    amount: str
    pay_to: str
    max_timeout_seconds: int
    extra: Mapping[str, Any]


@attrs.frozen
class Credential:
    """A payment credential of either protocol, decoded and its signer recovered, not yet checked against an offer.

    Attributes:
        protocol: which of the two carried it.
        asset: the token in whose EIP-712 domain the signer was recovered.
        authorization: the signed transfer order in canonical form.
        signer: EIP-55 address that made the signature.
        quote_token: the token echoed by the payer.
        max_timeout_seconds: the life that the offer asked of the authorization.
        payment_id: the payer's own name for the payment (x402 `payment-identifier`).
        challenge_id: id of the MPP challenge.
        accepted: the x402 terms echoed by the payer.
        resource: the x402 resource echoed by the payer.
        extensions: the x402 extensions echoed by the payer.
        fault: what decoding found wrong that does not matter to a replay; `check` raises it.
    """

    protocol: Literal["x402", "mpp"]
    asset: Asset
    authorization: Authorization
    signer: str
    quote_token: str | None = attrs.field(repr=False)
    max_timeout_seconds: int
    payment_id: str | None = None
    challenge_id: str | None = None
    accepted: Accepted | None = attrs.field(default=None, repr=False)
    resource: Mapping[str, Any] | None = attrs.field(default=None, repr=False)
    extensions: Mapping[str, Any] = attrs.field(factory=dict, repr=False)
    fault: PaymentRefused | None = attrs.field(default=None, eq=False)

    @property
    def payer(self) -> str | None:
        """Who pays, if the signature proves it; anybody may copy it from the chain once it has settled."""
        return self.signer if self.signer == self.authorization.authorizer else None

    def authorization_key(self) -> tuple[int, str, str, str]:
        """Name the authorization as the chain does: chain id, token, authorizer and nonce, in lower-case hex."""
        return (
            self.asset.chain_id,
            self.asset.address.lower(),
            self.authorization.authorizer.lower(),
            "0x" + self.authorization.nonce.hex(),
        )

    def facilitator_body(self) -> dict[str, Any]:
        """Write the body of a facilitator's `/verify` and `/settle`, in canonical spelling; only after `check`.

        An MPP credential becomes the x402 `exact` payload of the same signed transfer.  Of what the payer echoed only
        `resource` and `bazaar` go along, which facilitators list, and which `check` held against the offer.
        """
        terms = requirements(
            self.asset,
            self.authorization.to,
            self.authorization.value,
            self.max_timeout_seconds,
            quote_token=self.quote_token if self.protocol == "x402" else None,
        )
        payload: dict[str, Any] = {
            "x402Version": 2,
            "payload": {
                "authorization": self.authorization.fields(),
                "signature": "0x" + self.authorization.signature.hex(),
            },
            "accepted": terms,
        }
        if self.resource is not None:
            payload["resource"] = dict(self.resource)
        if BAZAAR in self.extensions:
            payload["extensions"] = {BAZAAR: self.extensions[BAZAAR]}
        return {"x402Version": 2, "paymentPayload": payload, "paymentRequirements": terms}


def requirements(
    asset: Asset, pay_to: str, amount: int, max_timeout_seconds: int, *, quote_token: str | None
) -> dict[str, Any]:
    """Write an x402 v2 `PaymentRequirements` object for an EIP-3009 transfer."""
    extra = {"name": asset.name, "version": asset.version, "assetTransferMethod": "eip3009"}
    return {
        "scheme": "exact",
        "network": asset.network,
        "asset": asset.address,
        "amount": str(amount),
        "payTo": pay_to,
        "maxTimeoutSeconds": max_timeout_seconds,
        "extra": extra if quote_token is None else {**extra, "quote": quote_token},
    }
