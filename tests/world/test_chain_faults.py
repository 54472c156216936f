from __future__ import annotations

from typing import Any

import httpx
import pytest

from gateway.world import token
from gateway.world.chain import NETWORK, TRANSFER_TOPIC, Rpc
from gateway.world.chain_faults import LAG_BLOCKS, RANGE_LIMIT
from gateway.world.world import World

pytestmark = pytest.mark.world

TARGET = f"rpc/{NETWORK}"
MINTS = {"address": token.ADDRESS, "topics": [TRANSFER_TOPIC], "fromBlock": "0x0", "toBlock": "0x3"}


async def ask(client: httpx.AsyncClient, world: World, method: str, *parameters: Any) -> dict[str, Any]:
    body = {"jsonrpc": "2.0", "id": 7, "method": method, "params": list(parameters)}
    told: dict[str, Any] = (await client.post(world.node_rpc_url, json=body)).json()
    assert told["id"] == 7
    return told


async def test_a_sound_endpoint_passes_calls_and_batches_on(world: World, client: httpx.AsyncClient) -> None:
    assert (await ask(client, world, "eth_chainId"))["result"] == "0x2105"
    results = await Rpc(world.node_rpc_url, client).batch([("eth_chainId", []), ("net_version", [])])
    assert results == ["0x2105", "8453"]


async def test_calls_count_by_method(world: World, client: httpx.AsyncClient) -> None:
    before = (await client.get(world.faults_url)).json()["rpc"][NETWORK].get("eth_gasPrice", 0)
    await Rpc(world.node_rpc_url, client).batch([("eth_gasPrice", []), ("eth_gasPrice", [])])
    assert (await client.get(world.faults_url)).json()["rpc"][NETWORK]["eth_gasPrice"] == before + 2


async def test_lag_hides_the_newest_blocks_without_an_error(
    world: World, client: httpx.AsyncClient, fault: Any
) -> None:
    direct = Rpc(world.rpc_url, client)
    while int(await direct.call("eth_blockNumber"), 16) < LAG_BLOCKS + 4:
        await direct.call("evm_mine")
    await fault(TARGET, "lag")
    before = int(await direct.call("eth_blockNumber"), 16)
    seen = int((await ask(client, world, "eth_blockNumber"))["result"], 16)
    head = int(await direct.call("eth_blockNumber"), 16)
    assert before - LAG_BLOCKS <= seen <= head - LAG_BLOCKS
    assert int((await ask(client, world, "eth_getBlockByNumber", "latest", False))["result"]["number"], 16) < head
    assert (await ask(client, world, "eth_getBlockByNumber", hex(head + LAG_BLOCKS), False))["result"] is None
    newest = await direct.call("eth_getBlockByNumber", "latest", False)
    assert (await ask(client, world, "eth_getBlockByHash", newest["hash"], False))["result"] is None
    assert (await ask(client, world, "eth_getLogs", MINTS | {"toBlock": "latest"}))["result"]
    assert (await ask(client, world, "eth_getLogs", MINTS | {"fromBlock": hex(head), "toBlock": "latest"}))[
        "result"
    ] == []


async def test_a_wrong_chain_says_another_id(world: World, client: httpx.AsyncClient, fault: Any) -> None:
    await fault(TARGET, "wrong_chain")
    assert (await ask(client, world, "eth_chainId"))["result"] == "0x5"
    assert (await ask(client, world, "eth_blockNumber"))["result"]


async def test_a_null_block_answers_no_block(world: World, client: httpx.AsyncClient, fault: Any) -> None:
    await fault(TARGET, "null_block")
    assert (await ask(client, world, "eth_getBlockByNumber", "latest", False))["result"] is None
    assert (await ask(client, world, "eth_blockNumber"))["result"]


async def test_a_wide_range_is_refused_and_a_narrow_one_is_not(
    world: World, client: httpx.AsyncClient, fault: Any
) -> None:
    await fault(TARGET, "range_limit")
    wide = await ask(client, world, "eth_getLogs", MINTS | {"toBlock": hex(RANGE_LIMIT)})
    assert "limited" in wide["error"]["message"]
    assert (await ask(client, world, "eth_getLogs", MINTS | {"toBlock": hex(RANGE_LIMIT - 1)}))["result"]


async def test_logs_are_lost_without_an_error(world: World, client: httpx.AsyncClient, fault: Any) -> None:
    whole = (await ask(client, world, "eth_getLogs", MINTS))["result"]
    await fault(TARGET, "drop_logs")
    assert (await ask(client, world, "eth_getLogs", MINTS))["result"] == whole[1::2]


async def test_refusals_of_the_whole_endpoint(world: World, client: httpx.AsyncClient, fault: Any) -> None:
    await fault(TARGET, "http_429")
    answer = await client.post(world.node_rpc_url, json={"jsonrpc": "2.0", "id": 1, "method": "eth_chainId"})
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
    await fault(TARGET, "html")
    answer = await client.post(world.node_rpc_url, json={"jsonrpc": "2.0", "id": 1, "method": "eth_chainId"})
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html")
    await fault(TARGET, "hang")
    with pytest.raises(httpx.ReadTimeout):
        await client.post(world.node_rpc_url, json={"jsonrpc": "2.0", "id": 1, "method": "eth_chainId"}, timeout=0.3)


@pytest.mark.parametrize("body", [b"", b"{}", b"[1]", b"7", b"null"])
async def test_what_is_no_call_is_refused_as_json_rpc_does(
    world: World, client: httpx.AsyncClient, body: bytes
) -> None:
    assert (await client.post(world.node_rpc_url, content=body)).json()["error"]["code"] == -32700


async def test_bad_parameters_end_nothing(world: World, client: httpx.AsyncClient, fault: Any) -> None:
    await fault(TARGET, "lag")
    body = {"jsonrpc": "2.0", "id": 7, "method": "eth_getLogs", "params": []}
    assert (await client.post(world.node_rpc_url, json=body)).json()["error"]["code"] == -32602
