from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from gateway.actors.runtime import open_runtime
from gateway.actors.store import Engine, Statement
from gateway.config import Configuration, ConfigurationError, structure
from gateway.opening import open_engine
from gateway.shared_keys import SELECT_KNOWN, known_keys
from gateway.shared_terms import Terms, join_terms, running

PAY_TO, OTHER = "0x90F79bf6EB2c4f870365E785982E1f101E93b906", "0x15d34AAf54267DB7D7c367839AAf71A00a2C6A65"
TOKEN = "0x036CbD53842c5426634e7929541eC2318f3dCF7e"
BOUGHT: dict[str, Any] = {
    "pay_to": PAY_TO,
    "facilitator_url": "http://127.0.0.1:1",
    "rpc_urls": ["http://127.0.0.1:1"],
}


def configured(directory: Path, name: str, url: str, **payment: Any) -> Configuration:
    return structure(
        {
            "node": {"data_dir": str(directory), "name": name},
            "store": {"url": url, "lease_ms": 500} if url else {},
            "payment": BOUGHT | payment,
        }
    )


@asynccontextmanager
async def joined(configuration: Configuration) -> AsyncIterator[Engine]:
    async with open_runtime() as runtime, open_engine(runtime, configuration) as store:
        await join_terms(store, configuration)
        yield store


async def refusal(configuration: Configuration) -> ConfigurationError:
    async with open_runtime() as runtime, open_engine(runtime, configuration) as store:
        with pytest.raises(ConfigurationError) as caught:
            await join_terms(store, configuration)
    return caught.value


@pytest.mark.parametrize(
    ("payment", "where"),
    [
        ({"pay_to": OTHER}, "/payment/pay_to"),
        ({"asset": TOKEN}, "/payment/asset"),
        ({"network": "eip155:84532"}, "/payment/network"),
    ],
)
async def test_a_node_on_other_terms_than_a_running_one_is_refused_and_told_what_to_do(
    tmp_path: Path, postgresql_url: str, payment: dict[str, Any], where: str
) -> None:
    async with joined(configured(tmp_path, "one", postgresql_url)):
        error = await refusal(configured(tmp_path, "two", postgresql_url, **payment))
        (violation,) = error.violations
        assert violation.pointer == where
        assert "on node one" in violation.detail
        assert "stop every node" in violation.detail
        async with joined(configured(tmp_path, "three", postgresql_url, pay_to=PAY_TO.lower())):
            pass


async def test_terms_that_no_running_node_has_any_more_are_replaced_and_that_is_logged(
    tmp_path: Path, postgresql_url: str
) -> None:
    async with joined(configured(tmp_path, "one", postgresql_url)):
        pass
    with capture_logs() as logs:
        async with (
            joined(configured(tmp_path, "one", postgresql_url, pay_to=OTHER)),
            joined(configured(tmp_path, "two", postgresql_url, pay_to=OTHER)),
        ):
            await refusal(configured(tmp_path, "three", postgresql_url))
    (changed,) = [each for each in logs if each["event"] == "payment_terms_changed"]
    assert PAY_TO.lower() in changed["was"]
    assert OTHER.lower() in changed["now"]


async def test_the_lease_that_a_killed_node_left_is_waited_for(tmp_path: Path, postgresql_url: str) -> None:
    async with joined(configured(tmp_path, "one", postgresql_url)):
        pass
    async with joined(configured(tmp_path, "two", postgresql_url)) as store:
        alive = "UPDATE nodes SET lease_until = :store_ms + 300 WHERE node = 'one'"
        await store.commit(Statement(alive, rows=1))
        name = "UPDATE node_facts SET value = :value WHERE name = 'terms:one'"
        await store.commit(Statement(name, {"value": f"1 eip155:8453 {TOKEN} {OTHER}"}, rows=1))
        await join_terms(store, configured(tmp_path, "two", postgresql_url))


async def test_the_one_node_of_a_file_may_change_its_terms(tmp_path: Path) -> None:
    for pay_to in (PAY_TO, OTHER, PAY_TO):
        async with joined(configured(tmp_path, "one", "", pay_to=pay_to)):
            pass
    async with joined(configured(tmp_path, "renamed", "", pay_to=OTHER)) as store:
        facts = await store.fetch(SELECT_KNOWN)
    assert known_keys(facts) == {}
    terms = Terms("eip155:8453", "0x833589fcd6edb6e08f4c7c32d4f71b54bda02913", PAY_TO.lower())
    assert running(facts, ["one", "renamed", "unknown"], "renamed") == {"one": terms}


async def test_a_node_that_is_not_paid_joins_any_store(tmp_path: Path, postgresql_url: str) -> None:
    async with (
        joined(configured(tmp_path, "one", postgresql_url)),
        joined(configured(tmp_path, "two", postgresql_url, pay_to="", facilitator_url="", rpc_urls=[])) as store,
    ):
        names = [name for name, _ in await store.fetch(SELECT_KNOWN)]
    assert names == ["terms", "terms:one"]
