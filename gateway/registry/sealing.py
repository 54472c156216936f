"""Sealing: what the store holds of requests, payments and outputs is unreadable without a key.

Each operation has a data key of its own.  It is wrapped by the node's key while the operation is open (recovery needs
it) and by (pepper, idempotency key), so that afterwards only the caller's key opens the result.  AES-256-GCM
throughout; the associated data names the operation and the part, so that no ciphertext can stand in another's place.
"""

from __future__ import annotations

import hmac
import ipaddress
import secrets
from collections.abc import Mapping
from functools import cached_property, lru_cache

import attrs
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

NONCE_SIZE = 12
LAST_VERSION = 999_999_999
"""Key files have no higher number."""
WEAK_KEY_LENGTH = 16
"""Idempotency keys shorter than this are scoped to the caller's network as well (spec/readings)."""


class SealBroken(Exception):
    """A sealed value cannot be opened: another key, or altered bytes."""


class KeyMissing(SealBroken):
    """A sealed value is under a version of the node key that this node does not have: another node may open it."""


def new_data_key() -> bytes:
    """Return a fresh 256-bit key."""
    return secrets.token_bytes(32)


def seal(key: bytes, operation_id: str, part: str, plain: bytes) -> bytes:
    """Encrypt `plain` as `part` of an operation: nonce and ciphertext."""
    nonce = secrets.token_bytes(NONCE_SIZE)
    return nonce + AESGCM(key).encrypt(nonce, plain, f"{operation_id}/{part}".encode())


def unseal(key: bytes, operation_id: str, part: str, sealed: bytes) -> bytes:
    """Decrypt what `seal` made; raises `SealBroken`."""
    try:
        return AESGCM(key).decrypt(sealed[:NONCE_SIZE], sealed[NONCE_SIZE:], f"{operation_id}/{part}".encode())
    except (InvalidTag, ValueError) as error:
        raise SealBroken(f"{part} of {operation_id} cannot be opened") from error


@attrs.frozen
class NodeSeal:
    """Wraps data keys for the node itself, with rotating node keys: the version stands before the wrapped key."""

    keys: Mapping[int, bytes] = attrs.field(repr=False)

    def wrap(self, operation_id: str, data_key: bytes) -> bytes:
        """Wrap under the current node key."""
        version = max(self.keys)
        return version.to_bytes(4, "big") + seal(self.keys[version], operation_id, "node", data_key)

    def unwrap(self, operation_id: str, wrapped: bytes) -> bytes:
        """Unwrap; raises `SealBroken`, of that `KeyMissing` where another node may have the key."""
        version = int.from_bytes(wrapped[:4], "big")
        key = self.keys.get(version)
        if key is None:
            kind = KeyMissing if 0 < version <= LAST_VERSION else SealBroken
            raise kind(f"node key {version}, which wraps {operation_id}, is missing")
        return unseal(key, operation_id, "node", wrapped[4:])


@attrs.frozen
class KeyName:
    """What a caller's key becomes: the HMAC that the store knows it by, and the secret that wraps data keys.

    The secret is derived when it is first needed: most look-ups find nothing to open.
    """

    pepper: int
    hmac: str
    _pepper_key: bytes = attrs.field(repr=False)
    _spoken: bytes = attrs.field(repr=False)

    @classmethod
    def of(cls, pepper: int, pepper_key: bytes, spoken: bytes) -> KeyName:
        """Name a key, with the scope that it is spoken in, under one pepper."""
        return cls(pepper, hmac.digest(pepper_key, spoken, "sha256").hex(), pepper_key, spoken)

    @cached_property
    def _secret(self) -> bytes:
        return HKDF(SHA256(), 32, self._pepper_key, b"gateway idempotency key").derive(self._spoken)

    def wrap(self, operation_id: str, data_key: bytes) -> bytes:
        """Wrap the operation's data key so that only the holder of the idempotency key opens it."""
        return seal(self._secret, operation_id, "key", data_key)

    def unwrap(self, operation_id: str, wrapped: bytes) -> bytes:
        """Unwrap; raises `SealBroken`."""
        return unseal(self._secret, operation_id, "key", wrapped)


@attrs.frozen
class Naming:
    """Turns keys and callers into names under the node's peppers; none of them can be read back from the store."""

    peppers: Mapping[int, bytes] = attrs.field(repr=False)
    _newest_first: tuple[tuple[int, bytes], ...] = attrs.field(init=False, repr=False, factory=tuple)

    def __attrs_post_init__(self) -> None:
        """Order the peppers once."""
        object.__setattr__(self, "_newest_first", tuple(sorted(self.peppers.items(), reverse=True)))

    def names(self, key: str, network: str) -> tuple[KeyName, ...]:
        """Return the names of a key under every pepper, the current one first.  `network` is from `caller_network`."""
        scoped = f"network:{network}\n{key}" if len(key) < WEAK_KEY_LENGTH else f"key:\n{key}"
        spoken = scoped.encode()
        return tuple(KeyName.of(version, pepper, spoken) for version, pepper in self._newest_first)

    def network_names(self, network: str) -> tuple[str, ...]:
        """Return the names of a caller's network under every pepper, the current one first."""
        return self._each(f"network:{network}")

    def payer_names(self, payer: str) -> tuple[str, ...]:
        """Return the names of a payer's address under every pepper, the current one first."""
        return self._each(f"payer:{payer.lower()}")

    def generated_keys(self, quote_id: str) -> tuple[str, ...]:
        """Return the keys that a caller without one has for a quote, the one told to it first (spec/readings)."""
        return self._each(f"generated:{quote_id}")

    def _each(self, spoken: str) -> tuple[str, ...]:
        said = spoken.encode()
        return tuple(hmac.digest(pepper, said, "sha256").hex() for _, pepper in self._newest_first)


@lru_cache(maxsize=4096)
def caller_network(address: str) -> str:
    """Return the network that stands for a caller: IPv4 /32 (also when mapped into IPv6) or IPv6 /64."""
    parsed = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped is not None:
            return str(parsed.ipv4_mapped)
        return str(ipaddress.ip_network((parsed, 64), strict=False))
    return str(parsed)
