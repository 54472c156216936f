"""A second look at a credential that is about to be refused: a 402 says "nothing was charged", so the chain is asked.

A payment may have been made that this store knows nothing of: the store was restored from a backup, or somebody else
submitted the authorization.  Whoever has paid is never asked to sign again.  A look costs calls of the chain's end
point, so the caller counts it on a quota first.
"""

from __future__ import annotations

import structlog

from gateway.actors.payment import Payment
from gateway.actors.runtime import ActorError, Ref
from gateway.actors.settlement import ChainUnavailable, Expiring, HasCode, Look, Message, Sighting, Standing
from gateway.errors import (
    AuthorizationUsed,
    OperatorNeeded,
    PayerHasCode,
    PaymentRefused,
    SettlementPending,
    SignatureInvalid,
)
from gateway.registry.payment.quote import Quote
from gateway.registry.payment.terms import Credential

log = structlog.get_logger(__name__)

LOOK_WITHIN_S = 20.0
SOON_S = 2.0
ONLY_THE_OPERATOR_S = 60.0
"""When somebody may ask again whose payment only the operator can find."""


def is_due(refused: PaymentRefused, credential: Credential, *, pay_to: str, now: int) -> bool:
    """Return True where the chain may know more: the credential may have settled, or its payer may have code."""
    authorization = credential.authorization
    if credential.payer is None:
        return isinstance(refused, SignatureInvalid)
    return authorization.to == pay_to and authorization.valid_after < now


async def second_look(refused: PaymentRefused, credential: Credential, settlement: Ref[Message]) -> PaymentRefused:
    """Return what a credential is refused with after a look at the chain.

    Raises:
        Made: the payment was made.
        SettlementPending: it may have been made.
        OperatorNeeded: the authorization was used for another transfer.
    """
    if credential.payer is None:
        return await _with_its_code(refused, credential, settlement)
    try:
        seen = await settlement.ask(Look(payment_of(credential)), within=LOOK_WITHIN_S)
    except Expiring:
        return refused
    except (ChainUnavailable, ActorError) as error:
        raise SettlementPending(
            f"the chain cannot be asked whether this payment was made ({error})", retry_after=SOON_S
        ) from error
    match seen.standing:
        case Standing.UNUSED | Standing.EXPIRED:
            return refused
        case Standing.CANCELLED:
            return AuthorizationUsed(f"transaction {seen.transaction} cancelled the authorization")
        case Standing.DIVERTED:
            log.error("payment_diverted", transaction=seen.transaction)
            raise OperatorNeeded(f"transaction {seen.transaction} used the authorization for another transfer")
        case Standing.UNTRACED:
            raise SettlementPending(
                "the authorization is spent on chain, and its transaction cannot be found yet", retry_after=SOON_S
            )
        case Standing.PAID | Standing.SHALLOW:
            raise _made(seen)


class Made(SettlementPending):
    """The payment is on the chain, and no operation of this store was paid with it."""


def _made(seen: Sighting) -> Made:
    log.warning("payment_unknown", transaction=seen.transaction)
    return Made(
        f"transaction {seen.transaction} has made this payment, and this node has no record of what it bought: "
        "keep the credential, and ask the operator",
        retry_after=ONLY_THE_OPERATOR_S,
    )


async def _with_its_code(refused: PaymentRefused, credential: Credential, settlement: Ref[Message]) -> PaymentRefused:
    """Return why a signature is not the payer's: of an account with code the token asks that code."""
    try:
        has_code = await settlement.ask(HasCode(credential.authorization.authorizer), within=LOOK_WITHIN_S)
    except (ChainUnavailable, ActorError):
        return refused
    return PayerHasCode() if has_code else refused


def payment_of(credential: Credential, quote: Quote | None = None) -> Payment:
    """Return a credential as the actors know it: checked, and with its quote, or only to be looked for."""
    chain_id, _, _, nonce = credential.authorization_key()
    return Payment(
        protocol=credential.protocol,
        chain_id=chain_id,
        network=credential.asset.network,
        asset=credential.asset.address,
        payer=credential.authorization.authorizer,
        pay_to=credential.authorization.to,
        amount=quote.amount if quote else credential.authorization.value,
        nonce=nonce,
        valid_before=credential.authorization.valid_before,
        quote_id=quote.quote_id if quote else "",
        price_version=quote.price_version if quote else "",
        challenge_id=credential.challenge_id,
        body=credential.facilitator_body() if quote else {},
        quoted_at=quote.issued_at if quote else 0,
        quoted_head=quote.head if quote else None,
    )
