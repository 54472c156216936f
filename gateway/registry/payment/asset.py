"""The payment token: where it lives on chain, and the EIP-712 domain that authorizations of it are signed in."""

from __future__ import annotations

import re
from functools import cached_property, lru_cache

import attrs
from eth_hash.auto import keccak

_ADDRESS = re.compile(r"0x[0-9a-fA-F]{40}")
_DOMAIN_TYPE = keccak(b"EIP712Domain(string name,string version,uint256 chainId,address verifyingContract)")


def checksum(address: str) -> str:
    """Write an address in its EIP-55 form, whatever the case of its hex digits.

    Raises:
        ValueError: it is not `0x` and 40 hex digits.
    """
    if _ADDRESS.fullmatch(address) is None:
        raise ValueError("not an address: expected 0x and 40 hex digits")
    return _checksum(address[2:].lower())


@lru_cache(maxsize=4096)
def _checksum(plain: str) -> str:
    pattern = keccak(plain.encode()).hex()
    return "0x" + "".join(
        digit.upper() if int(nibble, 16) > 7 else digit for digit, nibble in zip(plain, pattern, strict=False)
    )


def usd(amount: int, decimals: int) -> str:
    """Write atomic units of a dollar token as a decimal string with all its places: 6000 of 6 -> `0.006000`."""
    whole, part = divmod(amount, 10**decimals)
    return f"{whole}.{part:0{decimals}d}" if decimals else str(whole)


def address_word(address: str) -> bytes:
    """Encode an address as the 32-byte word of the EVM ABI."""
    return bytes(12) + bytes.fromhex(address[2:])


@attrs.frozen
class Asset:
    """An EIP-3009 token on one EVM chain.

    Attributes:
        network: CAIP-2 name of the chain, `eip155:8453`.
        chain_id: the same chain as a number.
        address: the token contract, EIP-55.
        name: `name` of the token's EIP-712 domain (`USD Coin` on Base, `USDC` on Base Sepolia).
        version: `version` of that domain.
        decimals: decimal places of one unit.
    """

    network: str
    chain_id: int
    address: str = attrs.field(converter=checksum)
    name: str
    version: str
    decimals: int

    def __attrs_post_init__(self) -> None:
        """Refuse a network that is not the chain's CAIP-2 name."""
        if self.network != f"eip155:{self.chain_id}":
            raise ValueError(f"network {self.network!r} is not eip155:{self.chain_id}")

    @cached_property
    def domain_separator(self) -> bytes:
        """The EIP-712 domain separator, 32 bytes."""
        return keccak(
            _DOMAIN_TYPE
            + keccak(self.name.encode())
            + keccak(self.version.encode())
            + self.chain_id.to_bytes(32, "big")
            + address_word(self.address)
        )
