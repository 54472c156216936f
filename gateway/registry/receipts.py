"""Receipts: what was asked, what came back, what was paid, signed so that anyone can check it offline.

`signature` is a compact JWS (RFC 7515, `EdDSA` over Ed25519, RFC 8037) whose payload is the RFC 8785 form of the
receipt without `signature`; `kid` is the RFC 7638 thumbprint of the key, found in `/.well-known/jwks.json`.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import attrs
import jwt
import orjson
import rfc8785
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from gateway.registry.canonical import canonical_json

RECEIPT_TYPE = "gateway-receipt+jws"
BLOCK_TYPE = "gateway-ledger-block+jws"


class ReceiptInvalid(Exception):
    """The receipt does not stand: says what is wrong with it."""


def timestamp(milliseconds: int) -> str:
    """Return RFC 3339 UTC with milliseconds."""
    moment = datetime.fromtimestamp(milliseconds // 1000, UTC)
    return f"{moment.isoformat()[:19]}.{milliseconds % 1000:03d}Z"


def _b64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def public_jwk(key: Ed25519PublicKey) -> dict[str, str]:
    """Return the RFC 8037 JWK of a public key; its `kid` is the RFC 7638 thumbprint."""
    required = {"crv": "Ed25519", "kty": "OKP", "x": _b64url(key.public_bytes(Encoding.Raw, PublicFormat.Raw))}
    thumbprint = _b64url(hashlib.sha256(canonical_json(required)).digest())
    return required | {"kid": thumbprint, "use": "sig", "alg": "EdDSA"}


@attrs.frozen
class Signer:
    """Signs receipts with the current key; old public keys stay in the key set for ever."""

    _keys: tuple[Ed25519PrivateKey, ...] = attrs.field(repr=False)
    _jwks: tuple[dict[str, str], ...]
    _heads: dict[str, bytes] = attrs.field(factory=dict, init=False, repr=False, eq=False)
    """The encoded headers of the current key, by their `typ`."""

    @classmethod
    def from_keys(cls, keys: Mapping[int, bytes]) -> Signer:
        """Make a signer of raw 32-byte private keys by version; the highest signs."""
        private = tuple(Ed25519PrivateKey.from_private_bytes(keys[version]) for version in sorted(keys))
        return cls(private, tuple(public_jwk(each.public_key()) for each in private))

    @property
    def key_set(self) -> dict[str, Any]:
        """The JWK set (RFC 7517) to publish."""
        return {"keys": [dict(each) for each in self._jwks]}

    def jws(self, payload: bytes, typ: str) -> str:
        """Return the compact JWS of `payload`: the bytes that PyJWT makes, whose checks of the header cost as much."""
        head = self._heads.get(typ)
        if head is None:
            header = {"alg": "EdDSA", "kid": self._jwks[-1]["kid"], "typ": typ}
            head = self._heads[typ] = _b64url(orjson.dumps(header)).encode()
        signed = b"%b.%b" % (head, base64.urlsafe_b64encode(payload).rstrip(b"="))
        return f"{signed.decode()}.{_b64url(self._keys[-1].sign(signed))}"

    def sign(self, receipt: Mapping[str, Any]) -> dict[str, Any]:
        """Return the receipt with its `signature`."""
        return dict(receipt) | {"signature": self.jws(canonical_json(dict(receipt)), RECEIPT_TYPE)}


def verify_jws(token: str, key_set: Mapping[str, Any], typ: str) -> bytes:
    """Return the payload of a compact JWS by one of the keys; raises `ReceiptInvalid`."""
    try:
        header = jwt.get_unverified_header(token)
    except jwt.PyJWTError as error:
        raise ReceiptInvalid(f"signature is no JWS: {error}") from error
    if header.get("alg") != "EdDSA" or header.get("typ") != typ:
        raise ReceiptInvalid("signature is not an EdDSA signature of this kind")
    if "crit" in header or "b64" in header:
        raise ReceiptInvalid("signature has header parameters that are not known here")
    jwk = _key(key_set, header.get("kid"))
    try:
        payload = jwt.api_jws.decode(token, jwt.PyJWK(jwk, algorithm="EdDSA").key, algorithms=["EdDSA"])
    except (jwt.PyJWTError, ValueError) as error:
        raise ReceiptInvalid(f"the signature does not hold: {error}") from error
    if not isinstance(payload, bytes):
        raise ReceiptInvalid("the signature has no bytes payload")
    return payload


def _key(key_set: Mapping[str, Any], kid: object) -> dict[str, Any]:
    keys = key_set.get("keys")
    if not isinstance(keys, list):
        raise ReceiptInvalid("the key set has no `keys`")
    for jwk in keys:
        if isinstance(jwk, dict) and isinstance(kid, str) and jwk.get("kid") == kid:
            if (jwk.get("kty"), jwk.get("crv")) != ("OKP", "Ed25519"):
                raise ReceiptInvalid(f"key {kid} is no Ed25519 key")
            return jwk
    raise ReceiptInvalid(f"the key set has no key {kid}")


def verify_receipt(receipt: Mapping[str, Any], key_set: Mapping[str, Any]) -> None:
    """Return if the receipt is what the node signed; raises `ReceiptInvalid` with the reason."""
    unsigned = dict(receipt)
    token = unsigned.pop("signature", None)
    if not isinstance(token, str):
        raise ReceiptInvalid("the receipt has no `signature`")
    payload = verify_jws(token, key_set, RECEIPT_TYPE)
    try:
        shown = canonical_json(unsigned)
    except (rfc8785.CanonicalizationError, RecursionError) as error:
        raise ReceiptInvalid(f"the receipt holds what no receipt does: {error}") from error
    if payload != shown:
        raise ReceiptInvalid("the signed receipt differs from the one shown")
