"""Payment as plain values and decisions: the token, signed authorizations, quotes, offers and the local checks.

Nothing here does I/O or waits.  The wire forms of both protocols stand in `gateway.http.x402` and `gateway.http.mpp`.
"""

from __future__ import annotations

from gateway.registry.payment.asset import Asset, checksum, usd
from gateway.registry.payment.authorization import Authorization, digest, parse_authorization, recover
from gateway.registry.payment.checks import check
from gateway.registry.payment.quote import Quote, QuoteSecrets
from gateway.registry.payment.terms import Accepted, Credential, Offer, Terms

__all__ = [
    "Accepted",
    "Asset",
    "Authorization",
    "Credential",
    "Offer",
    "Quote",
    "QuoteSecrets",
    "Terms",
    "check",
    "checksum",
    "digest",
    "parse_authorization",
    "recover",
    "usd",
]
