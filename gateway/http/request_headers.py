"""The request headers that an operation reads: the key, the caller, the patience and the payment."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Sequence

import attrs

from gateway.errors import (
    IdempotencyKeyInvalid,
    IdempotencyKeyMissing,
    InvalidHeader,
    PaymentHeaderConflict,
    PaymentHeaderObsolete,
    UnsupportedMediaType,
    Violation,
)
from gateway.registry.sealing import caller_network

KEY_LENGTHS = (8, 128)
MAX_WAIT_S = 25.0
X402_V1 = "x-payment"
OBSOLETE = ("x-402-payment", "x-402-receipt")
QUOTED = re.compile(r'"((?:[\x20\x21\x23-\x5b\x5d-\x7e]|\\["\\])*)"\Z')
UTF_8 = re.compile(r"(?:\s*charset\s*=\s*\"?utf-?8\"?\s*;?)+\s*", re.IGNORECASE)
BARE = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?\Z")

Headers = Sequence[tuple[str, str]]
"""Name and value of every header line, names in lower case."""


def values(headers: Headers, name: str) -> list[str]:
    """Return the values of every line of a header."""
    return [value.strip() for each, value in headers if each == name]


def idempotency_key(headers: Headers, *, required: bool) -> str | None:
    """Return the key; the quoted (RFC 8941) and the bare form name the same key.

    Raises `IdempotencyKeyMissing` or `IdempotencyKeyInvalid`.
    """
    lines = values(headers, "idempotency-key")
    if not lines:
        if required:
            raise IdempotencyKeyMissing(errors=[Violation("", "the header Idempotency-Key is required")])
        return None
    if len(lines) > 1:
        raise _invalid_key("is sent more than once")
    quoted = QUOTED.match(lines[0])
    key = re.sub(r"\\(.)", r"\1", quoted[1]) if quoted else lines[0]
    shortest, longest = KEY_LENGTHS
    if not quoted and (not BARE.match(key) or key.startswith('"')):
        raise _invalid_key("must be visible ASCII, bare or as a quoted string")
    if not shortest <= len(key) <= longest:
        raise _invalid_key(f"must have {shortest} to {longest} characters")
    return key


def _invalid_key(detail: str) -> IdempotencyKeyInvalid:
    return IdempotencyKeyInvalid(
        f"Idempotency-Key {detail}", errors=[Violation("", f"the header Idempotency-Key {detail}")]
    )


def require_json(headers: Headers) -> None:
    """Return if the body is declared as JSON in UTF-8, not encoded further; raises `UnsupportedMediaType`."""
    declared = values(headers, "content-type")
    essence, _, parameters = declared[0].partition(";") if len(declared) == 1 else ("", "", "")
    if essence.strip().lower() != "application/json":
        raise UnsupportedMediaType("the body is not declared as application/json")
    if parameters.strip() and not UTF_8.fullmatch(parameters):
        raise UnsupportedMediaType("the body is not declared as UTF-8")
    if any(each.lower() != "identity" for each in values(headers, "content-encoding")):
        raise UnsupportedMediaType("the body has a Content-Encoding")


def patience(headers: Headers) -> float:
    """Return how many seconds the caller waits for an operation in flight: `Prefer: wait=N` (RFC 7240), at most 25."""
    if any(name == "respond-async" for name, _ in _preferences(headers)):
        return 0.0
    longest = longest_wait(headers)
    return MAX_WAIT_S if longest is None else min(float(longest), MAX_WAIT_S)


def longest_wait(headers: Headers) -> int | None:
    """Return the seconds of `Prefer: wait=N`, after which the caller wants an answer whatever still runs, if any."""
    for name, value in _preferences(headers):
        if name == "wait" and re.fullmatch(r"[0-9]{1,6}", value):
            return int(value)
    return None


def _preferences(headers: Headers) -> Iterator[tuple[str, str]]:
    """Yield what `Prefer` says (RFC 7240): names in lower case, with their values."""
    for line in values(headers, "prefer"):
        for preference in line.split(","):
            name, _, value = preference.partition(";")[0].strip().lower().partition("=")
            yield name.strip(), value.strip(' "')


def funding(headers: Headers) -> str | None:
    """Return what `x-gateway-funding` says, `paid` or `free`; None: it is absent.  Raises `InvalidHeader`."""
    said = {value.strip().lower() for value in values(headers, "x-gateway-funding")}
    if not said:
        return None
    if len(said) > 1 or not said <= {"paid", "free"}:
        raise InvalidHeader("x-gateway-funding must be `paid` or `free`")
    return said.pop()


@attrs.frozen
class PaymentHeader:
    """A payment credential as it stands in its header."""

    protocol: str
    value: str = attrs.field(repr=False)


def payment_header(headers: Headers) -> PaymentHeader | None:
    """Return the one payment credential of a request.

    Headers of older protocols are ignored beside a current one that says the same.  The proof of x402 version 1 is so
    beside one of version 2 whatever it says, for it never reads the same: clients that send both mean one payment.

    Raises `PaymentHeaderConflict` where there is more than one, `PaymentHeaderObsolete` for an older one that counts.
    """
    signatures = [PaymentHeader("x402", value) for value in values(headers, "payment-signature")]
    credentials = [
        PaymentHeader("mpp", value)
        for name in ("authorization", "payment-authorization")
        for value in values(headers, name)
        if value.partition(" ")[0].lower() == "payment"
    ]
    found = signatures + credentials
    if len(found) > 1:
        raise PaymentHeaderConflict
    current = found[0] if found else None
    for name in (X402_V1, *OBSOLETE):
        said = values(headers, name)
        if not said or (current is not None and all(value == current.value for value in said)):
            continue
        if name != X402_V1 or not signatures:
            beside = "" if current is None else ", and says something else than the current one"
            raise PaymentHeaderObsolete(f"{name} belongs to an older protocol{beside}")
    return current


Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@attrs.frozen
class CallerAddress:
    """Finds out which network a request comes from, believing configured proxies only."""

    trusted: tuple[Network, ...]

    @classmethod
    def of(cls, proxies: Sequence[str]) -> CallerAddress:
        """Make one that trusts these addresses and networks."""
        return cls(tuple(ipaddress.ip_network(each, strict=False) for each in proxies))

    def network(self, peer: str, headers: Headers) -> str:
        """Return the caller's network: `X-Forwarded-For` is read from the right, past trusted proxies only."""
        address = peer
        hops = [hop.strip() for line in values(headers, "x-forwarded-for") for hop in line.split(",")]
        while hops and self.trusts(address):
            claimed = _address(hops.pop())
            if claimed is None:
                break
            address = claimed
        return caller_network(address)

    def trusts(self, address: str) -> bool:
        """Whether an address is a configured proxy's."""
        parsed = ipaddress.ip_address(address.partition("%")[0])
        if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is not None:
            parsed = parsed.ipv4_mapped
        return any(parsed.version == network.version and parsed in network for network in self.trusted)


def _address(hop: str) -> str | None:
    """Return the address of a forwarded hop, without port or brackets; None if it is none."""
    bracketed = re.fullmatch(r"\[([^\]]+)\](?::[0-9]+)?", hop)
    plain = bracketed[1] if bracketed else hop.partition(":")[0] if hop.count(":") == 1 else hop
    try:
        return str(ipaddress.ip_address(plain))
    except ValueError:
        return None
