"""Nodes of two releases over one database: the schema goes first, then node after node."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from importlib.resources import as_file
from pathlib import Path

import httpx
import pytest
import trio

from gateway.actors.runtime import open_runtime
from gateway.actors.store import Statement, StoreRefused, open_postgresql, schema
from gateway.actors.store.postgresql_settings import PostgresqlSettings
from gateway.migrating import migrate_server, standing_of_server
from gateway.world.world import World
from tests.reliability.forge import Forge
from tests.reliability.pair import Pair
from tests.reliability.test_kill import Campaign

pytestmark = pytest.mark.world

KNOWN = len(schema.load(schema.shipped(), "postgresql"))
ADDED = f"""-- A later release remembers the region of a call; releases that know {KNOWN} migrations do without.
-- serves {KNOWN}
ALTER TABLE operations ADD COLUMN region TEXT;
"""


def later_release(directory: Path, sql: str) -> Path:
    """The migrations of this release and one more."""
    with as_file(schema.shipped()) as shipped:
        shutil.copytree(shipped, directory)
    (directory / f"{KNOWN + 1:04}_later.sql").write_text(sql)
    return directory


@pytest.fixture
def pair(
    world: World, customer: httpx.AsyncClient, forge: Forge, tmp_path: Path, postgresql_url: str
) -> Iterator[Pair]:
    made = Pair.of(world, customer, tmp_path / "pair", postgresql_url, launch=forge.launch)
    yield made
    made.kill()


async def test_nodes_of_this_release_go_on_and_come_back_over_a_schema_that_serves_them(
    pair: Pair, postgresql_url: str, tmp_path: Path
) -> None:
    await pair.start()
    one, two = pair.shops
    settings = PostgresqlSettings(postgresql_url)
    later = later_release(tmp_path / "later", ADDED)
    campaign = Campaign(pair.one, one, one.world.payers, random.Random("rolling"))
    before = await campaign.orders()
    await campaign.collect(before, {})

    standing = await trio.to_thread.run_sync(standing_of_server, settings, later)
    assert [(node.node, node.served) for node in standing.nodes] == [("one", True), ("two", True)]
    applied = await trio.to_thread.run_sync(migrate_server, settings, later)
    assert [each.version for each in applied] == [KNOWN + 1]

    during = await campaign.orders()
    await campaign.collect(during, {})
    await trio.to_thread.run_sync(pair.one.restart)
    async with open_runtime() as runtime, open_postgresql(runtime, settings, node="later", migrations=later) as store:
        ((operation_id,),) = await store.fetch("SELECT MIN(operation_id) FROM operations")
        named = {"operation_id": operation_id, "region": "north"}
        await store.commit(
            Statement("UPDATE operations SET region = :region WHERE operation_id = :operation_id", named, rows=1)
        )
        after = await campaign.orders()
        await campaign.collect(after, {})
        ((alive,),) = await store.fetch("SELECT COUNT(*) FROM nodes WHERE lease_until >= :store_ms")
        assert alive == 3
    campaign.shop = two
    await campaign.collect([*before, *during, *after], {})
    await campaign.audit()
    for node in pair.nodes:
        assert node.defects() == []


async def test_a_schema_that_does_not_serve_the_nodes_that_run_is_told_and_refuses_their_release(
    pair: Pair, postgresql_url: str, tmp_path: Path
) -> None:
    await trio.to_thread.run_sync(pair.one.start)
    settings = PostgresqlSettings(postgresql_url)
    later = later_release(tmp_path / "later", "ALTER TABLE operations ADD COLUMN region TEXT;\n")
    standing = await trio.to_thread.run_sync(standing_of_server, settings, later)
    assert [(node.node, node.served) for node in standing.nodes] == [("one", False)]
    await trio.to_thread.run_sync(migrate_server, settings, later)
    pair.one.kill()
    pair.one.spawn()
    assert await trio.to_thread.run_sync(pair.one.wait, 30) == 3
    assert "newer release" in pair.one.log
    async with open_runtime() as runtime:
        with pytest.raises(StoreRefused, match="newer release"):
            async with open_postgresql(runtime, settings, node="old"):
                pass
