"""The dollar of the local world: our own EIP-3009 token, placed where stock clients look for the real one."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

import attrs

ADDRESS = "0x833589fCD6eDb6E08f4c7C32D4f71b54bdA02913"
NAME = "USD Coin"
VERSION = "2"
DECIMALS = 6


@attrs.frozen
class TokenCode:
    """The compiled `token.sol`; `storage` maps variables to slots, `runtime` is the code as it stands on a chain."""

    abi: list[dict[str, Any]]
    runtime: str
    storage: dict[str, int]
    source_sha256: str
    compiler: str


def token_code() -> TokenCode:
    """Return the compiled token that ships with the project."""
    artifact = json.loads((files(__name__) / "token.json").read_text())
    return TokenCode(
        abi=artifact["abi"],
        runtime=artifact["runtime"],
        storage=artifact["storage"],
        source_sha256=artifact["sourceSha256"],
        compiler=artifact["compiler"],
    )
