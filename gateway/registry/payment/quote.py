"""Quotes that need no store: all that a redemption must know later travels in a token under an HMAC.

A token reads `q1~kid~ulid~operation~amount~priceVersion~issuedAt~ttl~head~requestHash~mac`, in characters that need no
escape in JSON, in a URL or in a header.  The HMAC-SHA256 covers that text and the seller's network, token and payee.
`head` is `x` in a quote of the example, and `-` where the block is not known, as in the quotes of earlier releases.
"""

from __future__ import annotations

import base64
import hmac
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

import attrs

from gateway.errors import QuoteInvalid, QuoteMissing

if TYPE_CHECKING:
    from gateway.registry.payment.terms import Terms

_QUOTE_ID = re.compile(r"qt_[0-9A-HJKMNP-TV-Z]{26}")
_REQUEST_HASH = re.compile(r"sha256:[0-9a-f]{64}")
_NAME = re.compile(r"[A-Za-z0-9._:-]{1,48}")
_HEAD = re.compile(r"[0-9]{1,15}")
_KID = re.compile(r"[A-Za-z0-9._-]{1,16}")
_MAX_TOKEN = 299
_MIN_SECRET = 32


@attrs.frozen
class Quote:
    """A price promised for one request for a while.

    Attributes:
        quote_id: `qt_` and a ULID.
        operation: id of the operation, `search.paid`.
        request_hash: `sha256:` and 64 hex digits, of the canonical request.
        amount: atomic units of the token.
        price_version: the price list that it was made from.
        issued_at: Unix seconds.
        expires_at: Unix seconds; from then on it is not honoured.
        example: made for the documented example in place of a body; never redeemable.
        head: the latest block that the node knew then: a payment in it, or before it, was made for something else.
    """

    quote_id: str = attrs.field(validator=attrs.validators.matches_re(_QUOTE_ID))
    operation: str = attrs.field(validator=attrs.validators.matches_re(_NAME))
    request_hash: str = attrs.field(validator=attrs.validators.matches_re(_REQUEST_HASH))
    amount: int = attrs.field(validator=[attrs.validators.ge(0), attrs.validators.lt(10**30)])
    price_version: str = attrs.field(validator=attrs.validators.matches_re(_NAME))
    issued_at: int = attrs.field(validator=attrs.validators.ge(0))
    expires_at: int
    example: bool = False
    head: int | None = attrs.field(
        default=None,
        validator=attrs.validators.optional([attrs.validators.ge(0), attrs.validators.lt(10**15)]),
    )


@attrs.frozen
class QuoteSecrets:
    """The node's quote secrets: one seals, all of them open, so that a secret is rotated by adding the next one.

    Attributes:
        secrets: by key id (1 to 16 of `A-Za-z0-9._-`), each at least 32 bytes.
        current: id of the one that seals.

    Raises:
        ValueError: a key id or a secret is out of these bounds, or `current` is none of them.
    """

    secrets: Mapping[str, bytes] = attrs.field(repr=False)
    current: str

    def __attrs_post_init__(self) -> None:
        """Refuse secrets that could not protect anything."""
        if self.current not in self.secrets:
            raise ValueError(f"there is no quote secret {self.current!r}")
        for kid, secret in self.secrets.items():
            if _KID.fullmatch(kid) is None:
                raise ValueError(f"quote secret id {kid!r} is not 1 to 16 of A-Za-z0-9._-")
            if len(secret) < _MIN_SECRET:
                raise ValueError(f"quote secret {kid!r} is shorter than {_MIN_SECRET} bytes")

    def seal(self, quote: Quote, terms: Terms) -> str:
        """Write the quote as a token under the current secret.

        Returns:
            Fewer than 300 ASCII characters.
        """
        text = "~".join(
            (
                "q1",
                self.current,
                quote.quote_id.removeprefix("qt_"),
                quote.operation,
                str(quote.amount),
                quote.price_version,
                str(quote.issued_at),
                str(quote.expires_at - quote.issued_at),
                _written(quote),
                _base64url(bytes.fromhex(quote.request_hash.removeprefix("sha256:"))),
            )
        )
        token = f"{text}~{_quote_mac(self.secrets[self.current], text, terms)}"
        if len(token) > _MAX_TOKEN:
            raise ValueError(f"a quote token of {len(token)} characters")
        return token

    def open(self, token: str | None, terms: Terms) -> Quote:
        """Read a token that this node sealed on the same terms; whether it has expired is for `check` to say.

        Raises:
            QuoteMissing: there is no token.
            QuoteInvalid: it was not sealed with one of these secrets for this network, token and payee.
        """
        if token is None:
            raise QuoteMissing
        if len(token) > _MAX_TOKEN or not token.isascii():
            raise QuoteInvalid
        text, _, mac = token.rpartition("~")
        parts = text.split("~")
        if len(parts) != 10 or parts[0] != "q1":
            raise QuoteInvalid
        secret = self.secrets.get(parts[1])
        if secret is None or not hmac.compare_digest(mac, _quote_mac(secret, text, terms)):
            raise QuoteInvalid
        _, _, ulid, operation, amount, price_version, issued_at, ttl, head, request_hash = parts
        return Quote(
            quote_id=f"qt_{ulid}",
            operation=operation,
            request_hash="sha256:" + base64.urlsafe_b64decode(request_hash + "=").hex(),
            amount=int(amount),
            price_version=price_version,
            issued_at=int(issued_at),
            expires_at=int(issued_at) + int(ttl),
            example=head == "x",
            head=int(head) if _HEAD.fullmatch(head) else None,
        )

    def challenge_id(self, bound: str) -> str:
        """Compute the id of an MPP challenge whose parameters, joined, are `bound` (draft-httpauth-payment 5.1.2.1)."""
        return _challenge_mac(self.secrets[self.current], bound)

    def made_challenge_id(self, challenge_id: str, bound: str) -> bool:
        """Tell, in constant time, whether the id was computed over `bound` with any of the secrets."""
        claimed = challenge_id.encode()
        made = [hmac.compare_digest(claimed, _challenge_mac(key, bound).encode()) for key in self.secrets.values()]
        return any(made)


def _written(quote: Quote) -> str:
    """Write the block that a quote was made at; releases that do not know it read it as no example."""
    if quote.example:
        return "x"
    return "-" if quote.head is None else str(quote.head)


def _base64url(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _quote_mac(secret: bytes, text: str, terms: Terms) -> str:
    # The zero byte keeps quotes apart from challenges: no realm, and so no challenge, holds one.
    bound = f"quote\0{terms.asset.network}\0{terms.asset.address}\0{terms.pay_to}\0{text}"
    return _base64url(hmac.digest(secret, bound.encode(), "sha256"))


def _challenge_mac(secret: bytes, bound: str) -> str:
    return _base64url(hmac.digest(secret, bound.encode(), "sha256"))
