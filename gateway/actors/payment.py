"""A payment as the actors know it, whatever protocol brought it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import orjson

PUBLIC_COLUMNS = (
    *("protocol", "network", "asset", "payer", "pay_to", "amount", "nonce"),
    *("valid_before", "quote_id", "price_version", "challenge_id"),
)
"""What the store has of a payment beside what is sealed."""


@attrs.frozen
class Payment:
    """A payment that passed every check that needs no network.

    `amount` is in atomic units, `valid_before` in seconds since 1970, `nonce` 0x-hex; `body` is what the facilitator
    is sent.  `quoted_at`, in seconds since 1970, and `quoted_head` tell when its quote was issued, where that is known.
    """

    protocol: str
    chain_id: int
    network: str
    asset: str
    payer: str
    pay_to: str
    amount: int
    nonce: str
    valid_before: int
    quote_id: str
    price_version: str
    challenge_id: str | None
    body: Mapping[str, Any] = attrs.field(repr=False)
    quoted_at: int = 0
    quoted_head: int | None = None

    @property
    def key(self) -> tuple[int, str, str, str]:
        """What one authorization is known by: (chain id, asset, authorizer, nonce), lower case."""
        return (self.chain_id, self.asset.lower(), self.payer.lower(), self.nonce.lower())

    @classmethod
    def of_columns(cls, told: Mapping[str, Any]) -> Payment:
        """Return the payment that a row tells of by `PUBLIC_COLUMNS`: enough to be looked for, not to be submitted."""
        chain_id = int(str(told["network"]).partition(":")[2])
        return cls(chain_id=chain_id, body={}, **{name: told[name] for name in PUBLIC_COLUMNS})

    def dump(self) -> bytes:
        """Return the payment as bytes for the store."""
        return orjson.dumps(attrs.asdict(self, recurse=False))  # `body` is JSON as it is

    @classmethod
    def load(cls, data: bytes) -> Payment:
        """Return what `dump` wrote, in this release or in another that knows more or fewer fields."""
        told = orjson.loads(data)
        return cls(**{name: value for name, value in told.items() if name in attrs.fields_dict(cls)})
