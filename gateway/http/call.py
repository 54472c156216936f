"""The names that a request goes by: what its operation is known by, and who calls."""

from __future__ import annotations

import math
from collections.abc import Callable

import attrs

from gateway.http.asked import Asked
from gateway.registry.sealing import KeyName, Naming

KEY_HEADER = "Idempotency-Key"


@attrs.frozen
class Call:
    """A request with the names that it goes by; `told_key` is the key that was made for a caller without one.

    `fresh` says that nothing can be known yet by these names: the only key was made for this very request, and no
    payment came along.  `until` is when the caller wants its answer whatever still runs, on trio's clock.
    """

    asked: Asked
    names: tuple[tuple[KeyName, ...], ...]
    told_key: str | None
    network_names: tuple[str, ...]
    payer_names: tuple[str, ...]
    authorization: tuple[int, str, str, str] | None
    fresh: bool = False
    until: float = math.inf

    @classmethod
    def of(cls, asked: Asked, naming: Naming, *, made_key: Callable[[], str] | None) -> Call:
        """Name a request: by the caller's key, or one that is made for it, and by the payment-identifier of x402.

        A paid request without a key goes by the key of the quote that it pays; a free one by what `made_key` makes.
        """
        credential, quote = asked.credential, asked.quote
        spoken: list[str] = []
        told_key = None
        if asked.key is not None:
            spoken.append(asked.key)
        elif made_key is not None:
            spoken.append(told_key := made_key())
        elif quote is not None and not quote.example:
            spoken += naming.generated_keys(quote.quote_id)
            told_key = spoken[0]
        if credential is not None and credential.payment_id is not None:
            spoken.append(credential.payment_id)
        payer = credential.payer if credential else None
        return cls(
            asked,
            tuple(naming.names(each, asked.network) for each in dict.fromkeys(spoken)),
            told_key,
            naming.network_names(asked.network),
            naming.payer_names(payer) if payer else (),
            credential.authorization_key() if credential else None,
            fresh=asked.key is None and made_key is not None and credential is None,
        )

    @property
    def reader(self) -> str | None:
        """The payer, in lower case, whose call alone this request may read; "" where none is proven, None: any.

        A request with a payment but without a key goes by its quote, which more than the payer may know.
        """
        credential = self.asked.credential
        if credential is None or self.asked.key is not None:
            return None
        return (credential.payer or "").lower()

    @property
    def lane(self) -> list[tuple[str, str]]:
        """What keeps it apart from others with the same key."""
        return [(versions[0].hmac, self.asked.valid.request_hash) for versions in self.names]

    @property
    def callers(self) -> tuple[tuple[str, ...], ...]:
        """The names of the caller, of its network and its payer, under every pepper."""
        return (self.network_names, self.payer_names) if self.payer_names else (self.network_names,)

    @property
    def counted_as(self) -> tuple[str, str]:
        """What quotas count the caller by: its network, and its payer where a signature tells one.

        Under the oldest pepper, which every node of a store has while a newer one is brought to them.
        """
        return self.network_names[-1], (self.payer_names or self.network_names)[-1]

    @property
    def more_headers(self) -> dict[str, str]:
        """The key that the caller is told."""
        return {} if self.told_key is None else {KEY_HEADER: self.told_key}
