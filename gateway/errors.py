"""The one tree of failures: every answer that is not a success is one of these classes.

A class is a kind of problem: its wire code, HTTP status and title are attributes of the class, what happened this
time is in the instance.  Each code is defined once, here, and served at `{base_url}/problems/{code}` (RFC 9457,
spec/readings "Fields").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import attrs

PROBLEMS: dict[str, type[GatewayError]] = {}
"""Every problem kind by its code, in order of definition."""


@attrs.frozen
class Violation:
    """One thing wrong with a request: an RFC 6901 `pointer` into the body and what is wrong there.

    What is wrong with a header points at the whole ("") and names the header in `detail`.
    """

    pointer: str
    detail: str


class GatewayError(Exception):
    """Base of all failures that a client may see.

    Attributes:
        detail: what happened, for a person; never a key, a credential, a signature or a request body.
        errors: every violation found, where the request is at fault.
        operation_id: the operation this is about, where one exists.
        retry_after: seconds after which the same request makes sense again, where the raiser knows better than
            `gateway.http.advice`.
        extra: extension members of the problem document.
        headers: response headers that belong to this answer.
    """

    code: ClassVar[str] = ""
    status: ClassVar[int] = 500
    title: ClassVar[str] = "Gateway error"
    retryable: ClassVar[bool] = False
    next: ClassVar[str | None] = None

    def __init_subclass__(cls) -> None:
        """Enter the class in `PROBLEMS`."""
        super().__init_subclass__()
        if "code" not in cls.__dict__:
            return
        if cls.code in PROBLEMS:
            raise TypeError(f"problem code {cls.code} is defined twice")
        PROBLEMS[cls.code] = cls

    def __init__(
        self,
        detail: str = "",
        *,
        errors: Sequence[Violation] = (),
        operation_id: str | None = None,
        retry_after: float | None = None,
        extra: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.detail = detail or self.title
        super().__init__(self.detail)
        self.errors = tuple(errors)
        self.operation_id = operation_id
        self.retry_after = retry_after
        self.extra = dict(extra or {})
        self.headers = dict(headers or {})


# -- 400: the request is at fault ------------------------------------------------------------------------------------


class InvalidRequest(GatewayError):
    """The body breaks the operation's schema; `errors` holds every violation."""

    code, status, title = "invalid_request", 400, "Invalid request"
    next = "Correct the members named in `errors` and send the request again."


class InvalidJson(GatewayError):
    """The body is not one strict JSON value (RFC 8259, no duplicate names, no NaN, bounded depth and size)."""

    code, status, title = "invalid_json", 400, "The body is not valid JSON"
    next = "Send one UTF-8 JSON object without duplicate member names."


class InvalidHeader(GatewayError):
    """A request header cannot be read."""

    code, status, title = "invalid_header", 400, "Invalid request header"
    next = "Correct the header named in `detail`."


class IdempotencyKeyMissing(GatewayError):
    """The operation requires an `Idempotency-Key`, and nothing else is wrong with the request."""

    code, status, title = "idempotency_key_missing", 400, "Idempotency-Key is required"
    next = "Choose a fresh, unguessable key of 16 to 128 characters and send it as `Idempotency-Key`."


class IdempotencyKeyInvalid(GatewayError):
    """The `Idempotency-Key` is not 8 to 128 visible ASCII characters."""

    code, status, title = "idempotency_key_invalid", 400, "Idempotency-Key is malformed"
    next = "Send 8 to 128 visible ASCII characters, bare or as a quoted string."


class SynthesisUnavailable(GatewayError):
    """`synthesize: true` is not offered and never replaced by raw results."""

    code, status, title = "synthesis_unavailable", 400, "Synthesized answers are unavailable"
    next = "Send `synthesize: false`."


class PaymentHeaderObsolete(GatewayError):
    """A header of an older payment protocol was sent."""

    code, status, title = "payment_header_obsolete", 400, "Obsolete payment header"
    next = "Send an x402 v2 payment as `PAYMENT-SIGNATURE`, or an MPP credential as `Authorization: Payment`."


class PaymentHeaderConflict(GatewayError):
    """More than one payment credential came with one request."""

    code, status, title = "payment_header_conflict", 400, "More than one payment credential"
    next = "Send exactly one credential."


class MalformedCredential(GatewayError):
    """A payment credential cannot be decoded."""

    code, status, title = "malformed_credential", 400, "The payment credential cannot be decoded"
    next = "Send the credential that your payment client made, unchanged, or none to be quoted again."


class ExampleQuote(GatewayError):
    """A payment came for the documented example that an empty body is answered with."""

    code, status, title = "example_quote", 400, "The example quote cannot be redeemed"
    next = "Send your own request body, then pay the quote that is bound to it."


class CommandNotFound(GatewayError):
    """The sandbox image has no such executable."""

    code, status, title = "command_not_found", 400, "No such command in the sandbox image"
    next = "Name an executable of the image as the first item of `command`."


class ModelNotFound(GatewayError):
    """The catalog has no such model on this operation."""

    code, status, title = "model_not_found", 400, "No such model"
    next = "Choose an id of `GET /v1/models`."


class UnsupportedParameter(GatewayError):
    """A member of the request asks for something that is not offered here, and would change the result; see `param`."""

    code, status, title = "unsupported_parameter", 400, "Unsupported parameter"
    next = "Leave out the parameter named in `param`."


class ContextLengthExceeded(GatewayError):
    """The messages and the answer asked for do not fit into the model's context window."""

    code, status, title = "context_length_exceeded", 400, "The model's context is too short"
    next = "Send shorter messages, or ask for fewer output tokens."


class RequestTooLarge(GatewayError):
    """The price of the request is over the operation's published maximum; it is never clamped."""

    code, status, title = "request_too_large", 400, "The request is too large to be sold"
    next = "Send shorter messages, or ask for fewer output tokens."


class FundingMismatch(GatewayError):
    """`x-gateway-funding` asks for another funding than the model has."""

    code, status, title = "funding_mismatch", 400, "The model is not funded that way"
    next = "Leave out `x-gateway-funding`, or choose a model that is funded so."


# -- 402: pay, or pay correctly; every one of these carries a fresh challenge ------------------------------------------


class PaymentRequired(GatewayError):
    """The quote of this request; nothing was executed."""

    code, status, title = "payment_required", 402, "Payment required"
    retryable = True
    next = "Sign one of `accepts` (x402 v2) or the WWW-Authenticate challenge (MPP) and send the same request again."


class ExamplePriced(PaymentRequired):
    """The price of the documented example, which an empty body is answered with; it cannot be paid."""

    next = "Send your own request body. Its price can be paid, that of the example cannot."


class PaymentRefused(PaymentRequired):
    """Base of payments that were refused, and that the chain does not show made.

    A kind is retryable where the same client and account are served once they have signed the fresh challenge.
    """

    title = "Payment refused"
    next = "Nothing was charged. Sign the fresh challenge of this answer and send the same request again."


_EXACTLY = (
    "Nothing was charged. Sign exactly what `accepts` or the WWW-Authenticate challenge of this answer says, echo it "
    "unchanged, and send the same request again."
)
_BY_ITS_KEY = (
    "Nothing was charged. Signing again in the same way is refused again. Pay from an account without code, "
    "with an EIP-3009 authorization that is signed by the account's own key."
)


def _refused(
    code: str, title: str, doc: str, *, then: str = PaymentRefused.next or "", retryable: bool = True
) -> type[PaymentRefused]:
    kind: type[PaymentRefused] = type(
        "".join(word.title() for word in code.split("_")),
        (PaymentRefused,),
        {"code": code, "title": title, "__doc__": doc, "next": then, "retryable": retryable},
    )
    kind.__module__ = __name__
    return kind


QuoteMissing = _refused(
    "quote_missing",
    "The payment names no quote",
    "`accepted.extra.quote` or `opaque.quote` is absent.",
    then="Nothing was charged. Echo the entry of `accepts` that you sign whole, with its `extra.quote` (x402), "
    "or the challenge with its `opaque` (MPP).",
    retryable=False,
)
QuoteInvalid = _refused(
    "quote_invalid", "The quote was not issued by this node", "The HMAC of the quote does not hold."
)
QuoteExpired = _refused("quote_expired", "The quote has expired", "The quote's `expiresAt` has passed.")
ChallengeInvalid = _refused(
    "challenge_invalid",
    "The challenge was not issued by this node",
    "An MPP challenge whose id or parameters were altered.",
    then=_EXACTLY,
)
NonceMismatch = _refused(
    "nonce_mismatch",
    "The nonce is not bound to the challenge",
    "Neither nonce rule of MPP `evm` authorizations holds.",
    then="Nothing was charged. Derive the nonce from the challenge's id and realm, as draft-evm-charge says.",
    retryable=False,
)
AmountMismatch = _refused(
    "amount_mismatch", "Wrong amount", "The authorized value is not the quoted amount.", then=_EXACTLY
)
RecipientMismatch = _refused("recipient_mismatch", "Wrong recipient", "`to` is not the quoted payee.", then=_EXACTLY)
AssetMismatch = _refused("asset_mismatch", "Wrong asset", "The accepted asset is not the quoted token.", then=_EXACTLY)
NetworkMismatch = _refused(
    "network_mismatch", "Wrong network", "The accepted network is not the quoted chain.", then=_EXACTLY
)
TermsMismatch = _refused(
    "terms_mismatch",
    "The accepted terms are not those offered",
    "Scheme, timeout, resource or extensions differ from the offer.",
    then=_EXACTLY,
)
SignatureInvalid = _refused(
    "signature_invalid",
    "The signature is not the payer's",
    "The EIP-712 signer is not `authorization.from`.",
    then="Nothing was charged. Sign with the key of `authorization.from`, as r, s and v in 65 bytes, in the EIP-712 "
    "domain that `accepts` names. Signing again in the same way is refused again.",
    retryable=False,
)
PayerHasCode = _refused(
    "payer_has_code",
    "The payer's account has code",
    "The account is a contract or has delegated to one (EIP-7702); the token asks that code, not the account's key.",
    then=_BY_ITS_KEY,
    retryable=False,
)
AuthorizationExpiresTooSoon = _refused(
    "authorization_expires_too_soon",
    "The authorization expires too soon",
    "`validBefore` does not outlive the run.",
    then="Nothing was charged. See that your clock is right, and sign the fresh challenge with a `validBefore` of now "
    "and `maxTimeoutSeconds`.",
)
AuthorizationExpiresTooLate = _refused(
    "authorization_expires_too_late",
    "The authorization expires too late",
    "`validBefore` is more than `maxTimeoutSeconds` and five minutes away.",
    then="Nothing was charged. See that your clock is right, and sign the fresh challenge with a `validBefore` of now "
    "and `maxTimeoutSeconds`.",
)
AuthorizationNotYetValid = _refused(
    "authorization_not_yet_valid",
    "The authorization is not yet valid",
    "`validAfter` has not passed.",
    then="Nothing was charged. Sign the fresh challenge with a `validAfter` of 0.",
)
AuthorizationUsed = _refused(
    "authorization_used",
    "The authorization was cancelled",
    "The chain shows an `AuthorizationCanceled` of its nonce.",
)
InsufficientFunds = _refused(
    "insufficient_funds",
    "Insufficient funds",
    "The payer's balance does not cover the amount beside what is unsettled.",
    then="Nothing was charged. Fund the account, or pay from another one, before you sign again.",
    retryable=False,
)
PaymentRejected = _refused(
    "payment_rejected",
    "The facilitator rejected the payment",
    "`/verify` answered isValid: false; its reason is in `detail`.",
    then="Nothing was charged. Mend what `detail` says before you sign again, or pay from another account.",
    retryable=False,
)
Permit2Unsupported = _refused(
    "permit2_unsupported",
    "Permit2 is not accepted",
    "Only EIP-3009 authorizations are accepted.",
    then=_BY_ITS_KEY,
    retryable=False,
)
Erc1271Unsupported = _refused(
    "erc1271_unsupported",
    "Contract signatures are not accepted",
    "ERC-1271 signatures are refused; sign with an account key.",
    then=_BY_ITS_KEY,
    retryable=False,
)
Erc6492Unsupported = _refused(
    "erc6492_unsupported",
    "Counterfactual signatures are not accepted",
    "ERC-6492 signatures are refused.",
    then=_BY_ITS_KEY,
    retryable=False,
)
TransferMethodUnsupported = _refused(
    "transfer_method_unsupported",
    "This transfer method is not accepted",
    "Only EIP-3009 `transferWithAuthorization` is accepted.",
    then=_BY_ITS_KEY,
    retryable=False,
)
SettlementFailed = _refused(
    "settlement_failed",
    "The earlier payment was proven not to have settled",
    "The chain decided: it did not and cannot settle.",
)


# -- 401: the operator's own listener ---------------------------------------------------------------------------------


class Unauthorized(GatewayError):
    """The operator's listener was asked without its bearer token."""

    code, status, title = "unauthorized", 401, "The operator's token is required"
    next = "Send the content of the node's operator token file as `Authorization: Bearer TOKEN`."


# -- 404, 405, 408, 413, 415, 431: transport ---------------------------------------------------------------------------


class NotFound(GatewayError):
    """No such resource."""

    code, status, title = "not_found", 404, "Not found"
    next = "Correct the path: letter case, and a slash at its end, count."


class OperationNotFound(GatewayError):
    """No operation has this id."""

    code, status, title = "operation_not_found", 404, "No such operation"
    next = "Check the operationId. Operations are forgotten 400 days after they ended, refused payments minutes after."


class MethodNotAllowed(GatewayError):
    """The resource does not answer this method; `Allow` names those it does."""

    code, status, title = "method_not_allowed", 405, "Method not allowed"
    next = "Use a method that `Allow` names."


class NotAcceptable(GatewayError):
    """No representation fits `Accept`."""

    code, status, title = "not_acceptable", 406, "Not acceptable"
    next = "Ask for `application/json`."


class RequestTimeout(GatewayError):
    """The request did not arrive in time; nothing was executed."""

    code, status, title = "request_timeout", 408, "The request did not arrive in time"
    retryable = True
    next = "Send the whole request again, with the same Idempotency-Key."


class LengthRequired(GatewayError):
    """The body's length is not declared in a way this node reads."""

    code, status, title = "length_required", 411, "Length required"
    next = "Send `Content-Length` or `Transfer-Encoding: chunked`."


class ContentTooLarge(GatewayError):
    """The body is over the operation's cap."""

    code, status, title = "content_too_large", 413, "The request body is too large"
    next = "Send a body within the operation's cap."


class UriTooLong(GatewayError):
    """The request target is too long."""

    code, status, title = "uri_too_long", 414, "URI too long"
    next = "Send a shorter request target."


class UnsupportedMediaType(GatewayError):
    """The body is not of the media type that this operation reads."""

    code, status, title = "unsupported_media_type", 415, "Unsupported media type"
    next = "Send the body as `Content-Type: application/json`, in UTF-8, without Content-Encoding."


class ExpectationFailed(GatewayError):
    """An `Expect` other than `100-continue`."""

    code, status, title = "expectation_failed", 417, "Expectation failed"
    next = "Send no `Expect`, or `Expect: 100-continue`."


class HeaderFieldsTooLarge(GatewayError):
    """The request's header section is over the cap."""

    code, status, title = "header_fields_too_large", 431, "Request header fields too large"
    next = "Send fewer or shorter header fields."


class BadRequest(GatewayError):
    """The request is not well-formed HTTP."""

    code, status, title = "bad_request", 400, "Malformed HTTP request"
    next = "Send well-formed HTTP."


# -- 409: the key, the quote or the payment already means something else -----------------------------------------------


class IdempotencyKeyReused(GatewayError):
    """The same caller used this key for another request."""

    code, status, title = "idempotency_key_reused", 409, "The idempotency key names another request"
    next = "Use a fresh Idempotency-Key for a new request."


class OperationInProgress(GatewayError):
    """The operation that this key names is still running."""

    code, status, title = "operation_in_progress", 409, "The operation is in progress"
    retryable = True
    next = "Send the same request with the same Idempotency-Key again after `Retry-After`, or poll the operation."


class QuoteConflict(GatewayError):
    """The quote was issued for another request."""

    code, status, title = "quote_conflict", 409, "The quote belongs to another request"
    next = "Ask for a quote of this request (send it without payment) and pay that one."


class PaymentAlreadyBound(GatewayError):
    """The authorization was presented for another operation before."""

    code, status, title = "payment_already_bound", 409, "The payment is bound to another operation"
    next = "Send the request that this payment was first sent with, with its key."


class ExecutionReconciliation(GatewayError):
    """A run may have happened and its outcome is lost: never run again, never charged."""

    code, status, title = "execution_reconciliation", 409, "The execution cannot be repeated"
    next = "Use a fresh Idempotency-Key. Nothing was charged."


class ResultExpired(GatewayError):
    """The stored output is past its retention; the receipt stands."""

    code, status, title = "result_expired", 409, "The stored result has expired"
    next = "The receipt is in `receipt`. Use a fresh Idempotency-Key to buy a new result."


class ResolutionRefused(GatewayError):
    """An operator's decision that the operation does not wait for, or that the chain contradicts; nothing changed."""

    code, status, title = "resolution_refused", 409, "The decision cannot be recorded"
    next = "Look at the operation and at the chain, then decide again."


# -- 429 ---------------------------------------------------------------------------------------------------------------


class QuotaExceeded(GatewayError):
    """The caller's published quota is used up; a free call is never turned into a paid one."""

    code, status, title = "quota_exceeded", 429, "Quota exceeded"
    retryable = True
    next = "Wait for `Retry-After` seconds."


# -- 500, 502, 503: this node or what it depends on --------------------------------------------------------------------


class InternalError(GatewayError):
    """A defect of the node.  A payment that came along may be settled; the same key then replays the result."""

    code, status, title = "internal_error", 500, "Internal error"
    retryable = True
    next = (
        "Send the same request with the same Idempotency-Key, and the same payment if there was one, "
        "again: what was completed is replayed, and nothing is charged twice."
    )


class ExecutorFailed(GatewayError):
    """The executor started and failed (search, scrape); nothing was charged."""

    code, status, title = "executor_failed", 502, "The executor failed closed"
    retryable = True
    next = "Nothing was charged. The same request, key and payment may be sent again."


class EngineBlocked(ExecutorFailed):
    """The search engine refused to answer (403, CAPTCHA, all engines unresponsive): not an empty result."""

    code, title = "engine_blocked", "The search engine blocked the request"


class ExecutionFailed(GatewayError):
    """The execution started and failed; nothing was charged."""

    code, status, title = "execution_failed", 503, "The execution failed"
    retryable = True
    next = "Nothing was charged. The same request, key and payment may be sent again."


class ExecutionCancelled(GatewayError):
    """The caller of a free call left before its answer; the call was stopped."""

    code, status, title = "execution_cancelled", 503, "The execution was stopped"
    retryable = True
    next = "Send the same request with the same key again."


class OperationUnavailable(GatewayError):
    """Nothing qualified can serve this operation now."""

    code, status, title = "operation_unavailable", 503, "The operation is unavailable"
    retryable = True
    next = "Nothing was charged. Send the same request again after `Retry-After`."


class ModelUnavailable(OperationUnavailable):
    """The catalog has the model, and no qualified route to it now; it is never replaced by another model."""

    code, title = "model_unavailable", "The model is unavailable"
    next = "Nothing was charged. Send the same request again after `Retry-After`, or choose an available model."


class CapabilityUnavailable(GatewayError):
    """No qualified route can serve what this request asks for (a language, a region, a length)."""

    code, status, title = "capability_unavailable", 503, "The requested capability is unavailable"
    next = "Nothing was charged. Leave out what `detail` says cannot be served."


class OperationNotCallable(GatewayError):
    """The operation is listed as a preview."""

    code, status, title = "operation_not_callable", 503, "The operation is a preview and cannot be called"
    next = "Use another operation."


class CapacityExhausted(GatewayError):
    """The node is at its capacity; nothing was started."""

    code, status, title = "capacity_exhausted", 503, "No capacity"
    retryable = True
    next = "Nothing was charged. Send the same request with the same key and payment again after `Retry-After`."


class StoreUnavailable(GatewayError):
    """The durable store cannot be written or read; nothing was acknowledged."""

    code, status, title = "store_unavailable", 503, "The durable store is unavailable"
    retryable = True
    next = "Sign no other payment. Send the same request with the same key and payment again after `Retry-After`."


class FacilitatorUnavailable(GatewayError):
    """The payment could not be verified; it was not sent to settlement and nothing was executed."""

    code, status, title = "facilitator_unavailable", 503, "The payment cannot be verified now"
    retryable = True
    next = "Sign no other payment. Send the same request with the same payment again after `Retry-After`."


class SettlementUnavailable(GatewayError):
    """No settlement path is open, so nothing is quoted."""

    code, status, title = "settlement_unavailable", 503, "Payments cannot be settled now"
    retryable = True
    next = "Nothing was charged. Send the same request again after `Retry-After`."


class SettlementPending(GatewayError):
    """The payment may have settled; the chain decides, and the result is kept."""

    code, status, title = "settlement_pending", 503, "The settlement is not yet decided"
    retryable = True
    next = "Do not sign another payment. Send the same request with the same key again after `Retry-After`."


class OperatorNeeded(GatewayError):
    """The operation waits for a decision of the operator."""

    code, status, title = "operator_needed", 503, "The operation waits for the operator"
    next = "Do not sign another payment. Poll the operation."


class ExposureLimit(GatewayError):
    """Too much is unsettled, for this payer or the node; the payment was not claimed."""

    code, status, title = "exposure_limit", 503, "Too much is unsettled"
    retryable = True
    next = "Nothing was charged. Send the same request with the same key and payment again after `Retry-After`."


class PayerOnHold(GatewayError):
    """An earlier payment of this payer failed to settle after its result was made."""

    code, status, title = "payer_on_hold", 503, "The payer is on hold"
    retryable = True
    next = "Nothing was charged. Wait for `Retry-After` seconds, or pay from another account."


class ShuttingDown(GatewayError):
    """The node drains; nothing was started."""

    code, status, title = "shutting_down", 503, "The node is shutting down"
    retryable = True
    next = "Nothing was started. Send the same request with the same key again."
