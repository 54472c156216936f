"""A payment as the actors know it, whatever protocol brought it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import orjson


@attrs.frozen
class Payment:
    """A payment that passed every check that needs no network.

    `amount` is in atomic units, `valid_before` in seconds since 1970, `nonce` 0x-hex; `body` is what the facilitator
    is sent.
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

    @property
    def key(self) -> tuple[int, str, str, str]:
        """What one authorization is known by: (chain id, asset, authorizer, nonce), lower case."""
        return (self.chain_id, self.asset.lower(), self.payer.lower(), self.nonce.lower())

    def dump(self) -> bytes:
        """Return the payment as bytes for the store."""
        return orjson.dumps(attrs.asdict(self))

    @classmethod
    def load(cls, data: bytes) -> Payment:
        """Return what `dump` wrote."""
        return cls(**orjson.loads(data))
