from __future__ import annotations

from pathlib import Path

import httpx
import psutil
import pytest

from gateway import config
from gateway.world import world as worlds
from gateway.world.child import ChildFailed
from gateway.world.world import World, open_world

pytestmark = pytest.mark.world


def test_the_nodes_configuration_is_one_that_the_node_takes(world: World, tmp_path: Path) -> None:
    taken = config.load(world.node_config(tmp_path / "node", 8402), {})
    assert taken.base_url == "http://127.0.0.1:8402"
    assert taken.data_dir == tmp_path / "node" / "data"
    assert taken.payment.configured
    assert (taken.payment.asset, taken.payment.pay_to) == (world.token, world.pay_to)
    assert taken.payment.rpc_urls == (world.node_rpc_url,)
    assert taken.payment.facilitator_url == world.facilitator_url
    assert [(each.kind, each.base_url) for each in taken.search.adapter] == [("searxng", world.search_url)]
    (route,) = taken.ai.route
    assert (route.model, route.base_url, route.simulated) == ("openai/gpt-5.6-luna", world.ai_url, True)
    assert Path(route.key_file).read_text()
    assert taken.ai.embedded


def test_the_payers_are_enough_and_none_is_the_payee(world: World) -> None:
    assert len({each.address for each in world.payers}) >= 8
    assert world.pay_to not in {each.address for each in world.payers}


async def test_nothing_is_left_of_a_world_that_has_ended(tmp_path: Path) -> None:
    before = {each.pid for each in psutil.Process().children(recursive=True)}
    async with open_world(tmp_path, block_time=None) as world:
        during = {each.pid for each in psutil.Process().children(recursive=True)} - before
        assert len(during) >= 2
    assert {each.pid for each in psutil.Process().children(recursive=True)} <= before
    async with httpx.AsyncClient(timeout=2) as client:
        for url in (world.rpc_url, world.facilitator_url, world.faults_url):
            with pytest.raises(httpx.ConnectError):
                await client.get(url)


async def test_a_facilitator_that_cannot_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worlds, "FACILITATOR_MODULE", "gateway.world.no_such_module")
    with pytest.RaisesGroup(pytest.RaisesExc(ChildFailed, match="no_such_module"), flatten_subgroups=True):
        async with open_world(tmp_path, block_time=None):
            raise AssertionError
