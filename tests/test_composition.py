from __future__ import annotations

from pathlib import Path
from typing import Any

from gateway.back_ends import adapters_of
from gateway.composition import asset_of, policies_of, terms_of
from gateway.config import Configuration, structure

PAYMENT = {
    "network": "eip155:84532",
    "asset": "0x036cbd53842c5426634e7929541ec2318f3dcf7e",
    "asset_name": "USDC",
    "pay_to": "0x" + "b" * 40,
    "facilitator_url": "http://127.0.0.1:1",
    "rpc_urls": ["http://127.0.0.1:2"],
}


def configured(**sections: Any) -> Configuration:
    return structure({"node": {"base_url": "https://node.example"}} | sections)


def test_the_token_is_the_configured_one_in_checksum_form() -> None:
    asset = asset_of(configured(payment=PAYMENT))
    assert (asset.network, asset.chain_id, asset.name, asset.version) == ("eip155:84532", 84532, "USDC", "2")
    assert asset.address == "0x036CbD53842c5426634e7929541eC2318f3dCF7e"


def test_the_terms_are_those_of_the_public_address() -> None:
    terms = terms_of(configured(payment=PAYMENT))
    assert terms is not None
    assert (terms.base_url, terms.realm, terms.quote_ttl_s) == ("https://node.example", "node.example", 120)


def test_without_a_payee_nothing_is_sold() -> None:
    assert terms_of(configured()) is None


def test_every_quota_of_the_configuration_is_a_policy() -> None:
    policies = policies_of(configured(quota={"free_search": 3}))
    assert set(policies) == {"free_search", "free_ai", "scrape", "audio", "unpaid_quotes", "payment_attempts", "paid"}
    assert policies["free_search"].limit == 3


def test_every_engine_that_bills_has_a_daily_budget_of_free_calls(tmp_path: Path) -> None:
    key = tmp_path / "brave.key"
    key.write_text("a key")
    settings = [{"kind": "brave", "key_file": str(key)}, {"kind": "searxng", "base_url": "http://127.0.0.1:1"}]
    configuration = configured(search={"adapter": settings}, quota={"billed_daily": 7})
    policies = policies_of(configuration, adapters_of(configuration))
    budget = policies["billed:search/brave"]
    assert (budget.limit, budget.window_s) == (7, 86_400)
    assert "billed:search/searxng" not in policies
