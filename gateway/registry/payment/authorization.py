"""EIP-3009 `transferWithAuthorization`: one canonical form, its EIP-712 digest by hand, and who signed it.

Two spellings of one authorization (case of hex digits, `v` as 0/1 or 27/28) become equal values here, so nothing later
can take them for two payments.  What the token contract would refuse (a high `s`, a compact signature) is refused too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import attrs
from coincurve import PublicKey
from eth_hash.auto import keccak

from gateway.errors import (
    AmountMismatch,
    AuthorizationExpiresTooLate,
    AuthorizationNotYetValid,
    Erc1271Unsupported,
    Erc6492Unsupported,
    MalformedCredential,
    SignatureInvalid,
)
from gateway.registry.payment.asset import Asset, address_word, checksum
from gateway.registry.payment.members import text

_TYPE = keccak(
    b"TransferWithAuthorization(address from,address to,uint256 value,"
    b"uint256 validAfter,uint256 validBefore,bytes32 nonce)"
)
_ATOMIC = re.compile(r"0|[1-9][0-9]{0,77}")
_NONCE = re.compile(r"0x[0-9a-fA-F]{64}")
_OVER_UINT256 = {
    "value": AmountMismatch,
    "validAfter": AuthorizationNotYetValid,
    "validBefore": AuthorizationExpiresTooLate,
}
_SIGNATURE = re.compile(r"0x(?:[0-9a-fA-F]{2})+")
_ERC6492_MAGIC = bytes.fromhex("6492" * 16)
_CURVE_ORDER: Final = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141


@attrs.frozen
class Authorization:
    """A signed transfer order in canonical form.

    Attributes:
        authorizer: whose tokens move (`from`), EIP-55.
        to: who receives them, EIP-55.
        value: atomic units.
        valid_after: Unix seconds; the chain takes it only later than this.
        valid_before: Unix seconds; the chain takes it only earlier than this.
        nonce: 32 bytes, used once per authorizer.
        signature: r, s, v in 65 bytes with the low `s` and `v` 27 or 28.
    """

    authorizer: str
    to: str
    value: int
    valid_after: int
    valid_before: int
    nonce: bytes
    signature: bytes = attrs.field(repr=False)

    def fields(self) -> dict[str, str]:
        """Write the canonical wire form of everything but the signature, as both protocols carry it."""
        return {
            "from": self.authorizer,
            "to": self.to,
            "value": str(self.value),
            "validAfter": str(self.valid_after),
            "validBefore": str(self.valid_before),
            "nonce": "0x" + self.nonce.hex(),
        }


def digest(asset: Asset, authorization: Authorization) -> bytes:
    """Hash what the payer signed: the EIP-712 digest of `TransferWithAuthorization` in the token's domain, 32 bytes."""
    message = keccak(
        b"".join(
            (
                _TYPE,
                address_word(authorization.authorizer),
                address_word(authorization.to),
                authorization.value.to_bytes(32, "big"),
                authorization.valid_after.to_bytes(32, "big"),
                authorization.valid_before.to_bytes(32, "big"),
                authorization.nonce,
            )
        )
    )
    return keccak(b"\x19\x01" + asset.domain_separator + message)


def recover(asset: Asset, authorization: Authorization) -> str:
    """Recover the EIP-55 address whose key made the signature; the caller compares it with `authorizer`.

    Raises:
        SignatureInvalid: no key can have made it.
    """
    signature = authorization.signature
    compact = signature[:64] + bytes((signature[64] - 27,))
    try:
        key = PublicKey.from_signature_and_message(compact, digest(asset, authorization), hasher=None)
    except Exception:  # noqa: BLE001 -- coincurve raises ValueError or bare Exception by stage
        raise SignatureInvalid("the signature belongs to no key") from None
    return checksum("0x" + keccak(key.format(compressed=False)[1:])[12:].hex())


def parse_authorization(fields: Mapping[str, Any], signature: Any) -> Authorization:
    """Read the members `from, to, value, validAfter, validBefore, nonce` and a hex signature into canonical form.

    Raises:
        MalformedCredential: a member is missing, no string, or not in its one allowed spelling.
        AmountMismatch, AuthorizationNotYetValid, AuthorizationExpiresTooLate: the number is over uint256, so that no
            signature of it can be made.
        SignatureInvalid: 64-byte (EIP-2098) signature, another `v` than 0, 1, 27, 28, or an `s` that the token refuses.
        Erc6492Unsupported, Erc1271Unsupported: the signature is a contract's.
    """
    return Authorization(
        authorizer=_address(fields, "from"),
        to=_address(fields, "to"),
        value=_atomic(fields, "value"),
        valid_after=_atomic(fields, "validAfter"),
        valid_before=_atomic(fields, "validBefore"),
        nonce=_nonce(fields),
        signature=_canonical_signature(signature),
    )


def _address(fields: Mapping[str, Any], name: str) -> str:
    try:
        return checksum(text(fields, name))
    except ValueError:
        raise MalformedCredential(f"{name} is not an address") from None


def _atomic(fields: Mapping[str, Any], name: str) -> int:
    digits = text(fields, name)
    if _ATOMIC.fullmatch(digits) is None:
        raise MalformedCredential(f"{name} is not a plain decimal string of at most 78 digits")
    number = int(digits)
    if number >= 2**256:
        raise _OVER_UINT256[name](f"{name} is over the largest uint256")
    return number


def _nonce(fields: Mapping[str, Any]) -> bytes:
    nonce = text(fields, "nonce")
    if _NONCE.fullmatch(nonce) is None:
        raise MalformedCredential("nonce is not 0x and 64 hex digits")
    return bytes.fromhex(nonce[2:])


def _canonical_signature(signature: Any) -> bytes:
    if not isinstance(signature, str) or _SIGNATURE.fullmatch(signature) is None:
        raise MalformedCredential("signature is not 0x and whole bytes in hex")
    raw = bytes.fromhex(signature[2:])
    if raw.endswith(_ERC6492_MAGIC):
        raise Erc6492Unsupported
    if len(raw) > 65:
        raise Erc1271Unsupported
    if len(raw) == 64:
        raise SignatureInvalid("compact (EIP-2098) signatures are not accepted; send r, s and v in 65 bytes")
    if len(raw) != 65:
        raise MalformedCredential("signature is not 65 bytes")
    v = raw[64] if raw[64] >= 27 else raw[64] + 27
    if v not in {27, 28}:
        raise SignatureInvalid("the recovery byte of the signature is none of 0, 1, 27, 28")
    if int.from_bytes(raw[32:64], "big") > _CURVE_ORDER // 2:
        raise SignatureInvalid("the signature has a high s, which the token refuses (EIP-2)")
    return raw[:64] + bytes((v,))
