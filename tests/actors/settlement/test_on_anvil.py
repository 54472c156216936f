"""Chain truth on a real chain: real signatures, a real token, reorganisations, and the world's faulty end point."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import attrs
import httpx
import pytest
from eth_abi.abi import encode
from eth_account import Account as EthAccount
from eth_utils.crypto import keccak

from gateway.actors.settlement import Chain, ChainUnavailable, Search, Sighting, Standing
from gateway.actors.settlement._chain import EXPIRY_MARGIN_S
from gateway.actors.upstream import open_client
from gateway.world import token
from gateway.world.chain import CHAIN_ID, NETWORK, Account, Rpc, open_chain
from gateway.world.chain import Chain as Anvil
from gateway.world.faults import RPC_MODES
from gateway.world.upstreams import open_upstreams

pytestmark = pytest.mark.world

PRICE = 6000
STRANGER = "0x00000000000000000000000000000000DeaDBeef"
TRANSFER_BY_AUTHORIZATION = keccak(
    text="transferWithAuthorization(address,address,uint256,uint256,uint256,bytes32,uint8,bytes32,bytes32)"
)[:4]
CANCEL_AUTHORIZATION = keccak(text="cancelAuthorization(address,bytes32,uint8,bytes32,bytes32)")[:4]
DOMAIN = {
    "name": token.NAME,
    "version": token.VERSION,
    "chainId": CHAIN_ID,
    "verifyingContract": token.ADDRESS,
}
TRANSFER_TYPE = {
    "TransferWithAuthorization": [
        {"name": "from", "type": "address"},
        {"name": "to", "type": "address"},
        {"name": "value", "type": "uint256"},
        {"name": "validAfter", "type": "uint256"},
        {"name": "validBefore", "type": "uint256"},
        {"name": "nonce", "type": "bytes32"},
    ]
}
CANCEL_TYPE = {"CancelAuthorization": [{"name": "authorizer", "type": "address"}, {"name": "nonce", "type": "bytes32"}]}


@attrs.frozen
class Scene:
    anvil: Anvil
    rpc: Rpc
    sender: str
    chain: Chain
    faults: str
    client: httpx.AsyncClient

    async def fault(self, mode: str) -> None:
        answer = await self.client.put(f"{self.faults}/rpc/{NETWORK}", json={"mode": mode})
        answer.raise_for_status()

    async def now(self) -> int:
        return int((await self.rpc.call("eth_getBlockByNumber", "latest", False))["timestamp"], 16)

    async def head(self) -> int:
        return int(await self.rpc.call("eth_blockNumber"), 16)

    async def search(self, *, payer: int = 0, pay_to: str = "", nonce: bytes = b"") -> Search:
        return Search(
            token.ADDRESS,
            self.anvil.payers[payer].address,
            pay_to or self.anvil.pay_to.address,
            PRICE,
            nonce or secrets.token_bytes(32),
            await self.now() + 600,
        )

    def account(self, search: Search) -> Account:
        return next(each for each in self.anvil.payers if each.address == search.authorizer)

    def transfer_call(self, search: Search) -> bytes:
        message = {
            "from": search.authorizer,
            "to": search.pay_to,
            "value": search.value,
            "validAfter": 0,
            "validBefore": search.valid_before,
            "nonce": search.nonce,
        }
        signed = EthAccount.from_key(self.account(search).private_key).sign_typed_data(DOMAIN, TRANSFER_TYPE, message)
        kinds = ["address", "address", "uint256", "uint256", "uint256", "bytes32", "uint8", "bytes32", "bytes32"]
        return TRANSFER_BY_AUTHORIZATION + encode(kinds, [*message.values(), *signature(signed)])

    def cancel_call(self, search: Search) -> bytes:
        message = {"authorizer": search.authorizer, "nonce": search.nonce}
        signed = EthAccount.from_key(self.account(search).private_key).sign_typed_data(DOMAIN, CANCEL_TYPE, message)
        kinds = ["address", "bytes32", "uint8", "bytes32", "bytes32"]
        return CANCEL_AUTHORIZATION + encode(kinds, [*message.values(), *signature(signed)])

    async def send(self, data: bytes, to: str = token.ADDRESS) -> str:
        """Send a transaction, whatever becomes of it, and return its hash once it is in a block."""
        call = {"from": self.sender, "to": to, "data": f"0x{data.hex()}", "gas": hex(1_000_000)}
        name: str = await self.rpc.call("eth_sendTransaction", call)
        for _ in range(1000):
            if await self.rpc.call("eth_getTransactionReceipt", name) is not None:
                return name
        raise AssertionError(name)

    async def batch(self, *calls: bytes) -> str:
        """Make several calls of the token in one transaction, as a contract wallet does."""
        wallet = "0x" + secrets.token_hex(20)
        await self.rpc.call("anvil_setCode", wallet, f"0x{wallet_code(calls).hex()}")
        return await self.send(b"", wallet)

    async def look(self, search: Search, *hints: str, from_block: int | None = None) -> Sighting:
        return await self.chain.look(search, from_block=from_block, hints=hints)


def signature(signed: Any) -> tuple[int, bytes, bytes]:
    return signed.v, signed.r.to_bytes(32, "big"), signed.s.to_bytes(32, "big")


def wallet_code(calls: tuple[bytes, ...]) -> bytes:
    """Return a contract that makes these calls of the token, an event of its own before each.

    For each: LOG0, then CODECOPY of the call's data to memory, CALL, POP; the data stand after the code.
    """
    size = 49
    start = len(calls) * size + 1
    code, data = b"", b""
    for call in calls:
        length, offset = len(call).to_bytes(2, "big"), (start + len(data)).to_bytes(2, "big")
        code += bytes.fromhex("60006000a0")
        code += b"\x61" + length + b"\x61" + offset + bytes.fromhex("600039")
        code += bytes.fromhex("60006000") + b"\x61" + length + bytes.fromhex("60006000")
        code += b"\x73" + bytes.fromhex(token.ADDRESS[2:]) + bytes.fromhex("5af150")
        data += call
    assert len(code) == len(calls) * size
    return code + b"\x00" + data


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    async with (
        open_chain(tmp_path, block_time=None) as anvil,
        open_upstreams(
            network=NETWORK, rpc_url=anvil.rpc_url, facilitator_url="http://127.0.0.1:9", ai_key="key"
        ) as doors,
        open_client() as node,
        httpx.AsyncClient(timeout=30) as client,
    ):
        rpc = Rpc(anvil.rpc_url, client)
        (sender, *_) = await rpc.call("eth_accounts")
        chain = Chain(CHAIN_ID, [doors.rpc_url], node.exchange, timeout_s=1)
        await rpc.call("anvil_mine", hex(20))
        yield Scene(anvil, rpc, sender, chain, doors.faults_url, client)


async def test_a_payment_is_seen_by_hint_and_by_search(scene: Scene) -> None:
    search = await scene.search()
    assert (await scene.look(search)).standing is Standing.UNUSED
    claimed = await scene.head()
    name = await scene.send(scene.transfer_call(search))
    by_hint = await scene.look(search, name)
    by_search = await scene.look(search, from_block=claimed)
    assert by_hint == by_search
    assert (by_hint.standing, by_hint.transaction) == (Standing.PAID, name)
    block = await scene.rpc.call("eth_getBlockByNumber", "latest", False)
    assert (by_hint.block_hash, by_hint.block_number) == (block["hash"], int(block["number"], 16))
    assert await scene.chain.still_stands(name, block["hash"])


async def test_a_second_use_is_reverted_and_hides_nothing(scene: Scene) -> None:
    search = await scene.search()
    first = await scene.send(scene.transfer_call(search))
    second = await scene.send(scene.transfer_call(search))
    assert (await scene.look(search, second)).transaction == first


async def test_a_cancelled_authorization_has_not_paid(scene: Scene) -> None:
    search = await scene.search()
    name = await scene.send(scene.cancel_call(search))
    refused = await scene.send(scene.transfer_call(search))
    assert (await scene.look(search, name, refused)).standing is Standing.CANCELLED


async def test_an_authorization_spent_on_another_payee_is_neither_paid_nor_cancelled(scene: Scene) -> None:
    search = await scene.search()
    await scene.send(scene.transfer_call(attrs.evolve(search, pay_to=STRANGER)))
    assert (await scene.look(search)).standing is Standing.DIVERTED


async def test_each_authorization_of_a_batch_has_its_own_transfer(scene: Scene) -> None:
    first, second, third, fourth = [await scene.search() for _ in range(4)]
    other = await scene.search(payer=1)
    diverted = attrs.evolve(second, pay_to=STRANGER)
    calls = [scene.transfer_call(each) for each in (first, diverted, other, third, third)]
    name = await scene.batch(*calls, scene.cancel_call(fourth))
    for search, standing in (
        (first, Standing.PAID),
        (second, Standing.DIVERTED),
        (third, Standing.PAID),
        (other, Standing.PAID),
        (fourth, Standing.CANCELLED),
        (await scene.search(), Standing.UNUSED),
    ):
        assert (await scene.look(search, name)).standing is standing
        assert (await scene.look(search)).standing is standing


async def test_a_reorganisation_takes_a_payment_back_and_it_can_be_made_again(scene: Scene) -> None:
    search = await scene.search()
    name = await scene.send(scene.transfer_call(search))
    seen = await scene.look(search, name)
    filler = {"from": scene.sender, "to": STRANGER, "value": "0x1"}
    await scene.rpc.call("anvil_reorg", 1, [[filler, 0]])
    assert not await scene.chain.still_stands(name, str(seen.block_hash))
    assert (await scene.look(search, name)).standing is Standing.UNUSED
    again = await scene.send(scene.transfer_call(search))
    assert (await scene.look(search, name)).transaction == again


async def test_an_authorization_expires_when_the_chain_is_past_it(scene: Scene) -> None:
    search = await scene.search()
    await scene.rpc.call("evm_setNextBlockTimestamp", hex(search.valid_before))
    refused = await scene.send(scene.transfer_call(search))  # a block of this time takes it no more
    with pytest.raises(ChainUnavailable, match="authorization_expiring"):
        await scene.look(search, refused)
    await scene.rpc.call("evm_increaseTime", hex(EXPIRY_MARGIN_S))
    await scene.rpc.call("evm_mine")
    assert (await scene.look(search, refused)).standing is Standing.EXPIRED


async def test_the_last_second_of_an_authorization_still_pays(scene: Scene) -> None:
    search = await scene.search()
    await scene.rpc.call("evm_setNextBlockTimestamp", hex(search.valid_before - 1))
    name = await scene.send(scene.transfer_call(search))
    await scene.rpc.call("evm_increaseTime", hex(3600))
    await scene.rpc.call("evm_mine")
    assert (await scene.look(search)).transaction == name


async def test_a_payment_before_hundreds_of_blocks_is_found(scene: Scene) -> None:
    search = await scene.search()
    claimed = await scene.head()
    name = await scene.send(scene.transfer_call(search))
    await scene.rpc.call("anvil_mine", hex(300), hex(2))
    await scene.fault("range_limit")
    assert (await scene.look(search, from_block=claimed)).transaction == name
    assert (await scene.look(search)).transaction == name


@pytest.mark.parametrize("mode", [mode for mode in RPC_MODES if mode != "ok"])
async def test_no_fault_of_the_end_point_makes_a_payment_look_unmade(scene: Scene, mode: str) -> None:
    search = await scene.search()
    claimed = await scene.head()
    await scene.chain.usable()
    name = await scene.send(scene.transfer_call(search))
    head = (await scene.look(search, name)).head
    await scene.rpc.call("evm_increaseTime", hex(3600))
    await scene.rpc.call("anvil_mine", hex(5))
    assert await scene.head() > head
    await scene.fault(mode)
    said: set[Standing | str] = set()
    for hints in ((), (name,)):
        try:
            said.add((await scene.look(search, *hints, from_block=claimed)).standing)
        except ChainUnavailable as reason:
            said.add(str(reason))
    told: dict[str, set[Standing | str]] = {
        "lag": {"rpc_behind"},
        "wrong_chain": {"rpc_wrong_chain"},
        "null_block": {"rpc_garbage"},
        "http_429": {"rpc_status_429"},
        "html": {"rpc_garbage"},
        "hang": {"rpc_timeout"},
        "range_limit": {Standing.PAID},
        "drop_logs": {Standing.UNTRACED, Standing.PAID},
    }
    assert said == told[mode]
    if mode not in {"range_limit", "drop_logs"}:
        with pytest.raises(ChainUnavailable):
            await scene.chain.still_stands(name, "0x" + "00" * 32)
    await scene.fault("ok")
    assert (await scene.look(search, from_block=claimed)).transaction == name
