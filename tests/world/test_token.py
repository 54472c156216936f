from __future__ import annotations

import hashlib
from importlib.resources import files

from gateway.world import token


def test_the_compiled_token_is_of_the_source_beside_it() -> None:
    source = (files(token) / "token.sol").read_bytes()
    assert hashlib.sha256(source).hexdigest() == token.token_code().source_sha256


def test_the_owner_has_a_slot_of_its_own() -> None:
    storage = token.token_code().storage
    assert storage["owner"] == 0
    assert len(set(storage.values())) == len(storage)


def test_both_forms_of_an_authorized_transfer_are_there() -> None:
    named = [each for each in token.token_code().abi if each.get("name") == "transferWithAuthorization"]
    assert sorted(len(each["inputs"]) for each in named) == [7, 9]
