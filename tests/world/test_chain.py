from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from gateway.world import token
from gateway.world.chain import PAYER_FUNDS, PAYERS, Rpc, RpcRefused, account, open_chain

pytestmark = pytest.mark.world


async def test_the_token_stands_where_stock_clients_look(tmp_path: Path, client: httpx.AsyncClient) -> None:
    async with open_chain(tmp_path, block_time=None) as chain:
        rpc = Rpc(chain.rpc_url, client)
        assert await rpc.call("eth_chainId") == hex(8453)
        assert await rpc.call("eth_getCode", token.ADDRESS, "latest") == token.token_code().runtime
        assert await rpc.call("eth_call", {"to": token.ADDRESS, "data": "0x313ce567"}, "latest") == f"0x{6:064x}"
        assert len({each.address for each in chain.payers}) == len(chain.payers) == PAYERS
        for payer in chain.payers:
            (minted,) = await rpc.transfers(payer.address)
            assert (minted.value, minted.sender) == (PAYER_FUNDS, f"0x{0:040x}")
        assert await rpc.transfers(chain.pay_to.address) == []
    assert chain.child.returncode is not None


async def test_blocks_come_by_themselves(tmp_path: Path, client: httpx.AsyncClient) -> None:
    async with open_chain(tmp_path, block_time=0.1) as chain:
        rpc = Rpc(chain.rpc_url, client)
        first = int(await rpc.call("eth_blockNumber"), 16)
        for _ in range(2000):
            if int(await rpc.call("eth_blockNumber"), 16) >= first + 3:
                return
    raise AssertionError


async def test_a_refused_call_names_its_method(tmp_path: Path, client: httpx.AsyncClient) -> None:
    async with open_chain(tmp_path, block_time=None) as chain:
        with pytest.raises(RpcRefused, match="eth_nothing"):
            await Rpc(chain.rpc_url, client).call("eth_nothing")


def test_an_account_is_the_same_in_every_world() -> None:
    assert account("payer 0") == account("payer 0")
    assert account("payer 0") != account("payer 1")
    assert account("payer 0").private_key not in repr(account("payer 0"))
