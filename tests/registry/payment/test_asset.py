from __future__ import annotations

import random

import pytest
from eth_account.messages import encode_typed_data
from eth_utils.address import to_checksum_address

from gateway.registry.payment import Asset, checksum, usd


def test_an_address_in_any_case_has_one_checksum_form_and_it_is_eip_55s() -> None:
    digits = random.Random(55)
    for _ in range(200):
        plain = f"{digits.getrandbits(160):040x}"
        assert checksum("0x" + plain.upper()) == checksum("0x" + plain) == to_checksum_address("0x" + plain)


@pytest.mark.parametrize(
    "text", ["", "0x", "0x" + "a" * 39, "0x" + "a" * 41, "0X" + "a" * 40, "a" * 40, "0x" + "g" * 40, "0x" + "٣" * 40]
)
def test_what_is_no_address_has_no_checksum_form(text: str) -> None:
    with pytest.raises(ValueError, match="not an address"):
        checksum(text)


@pytest.mark.parametrize(
    ("amount", "decimals", "text"),
    [(6000, 6, "0.006000"), (0, 6, "0.000000"), (1, 6, "0.000001"), (2_621_440, 6, "2.621440"), (5, 0, "5")],
)
def test_an_amount_is_written_with_all_its_places(amount: int, decimals: int, text: str) -> None:
    assert usd(amount, decimals) == text


def test_the_domain_separator_is_the_one_eth_account_computes(asset: Asset) -> None:
    domain = {"name": "USD Coin", "version": "2", "chainId": 8453, "verifyingContract": asset.address}
    theirs = encode_typed_data(domain, {"Nothing": [{"name": "x", "type": "uint256"}]}, {"x": 0})
    assert asset.domain_separator == theirs.header


def test_a_network_that_is_not_the_chain_is_refused(asset: Asset) -> None:
    with pytest.raises(ValueError, match="eip155:84532"):
        Asset("eip155:8453", 84532, asset.address, "USDC", "2", 6)
