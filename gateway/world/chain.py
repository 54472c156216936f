"""The chain of the local world: anvil under Base's chain id, with our token where stock clients look for the dollar."""

from __future__ import annotations

import hashlib
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import httpx
import trio

from gateway.world import npm, token
from gateway.world.child import Child, open_child
from gateway.world.door import url_of

CHAIN_ID = 8453
NETWORK = f"eip155:{CHAIN_ID}"
PAYERS = 16
PAYER_FUNDS = 10_000 * 10**token.DECIMALS
ETHER = 10**18
START_S = 30.0
MINT = "40c10f19"
TRANSFER_TOPIC = "0xddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef"
LISTENING = re.compile(r"Listening on 127\.0\.0\.1:([0-9]+)")


class RpcRefused(Exception):
    """The endpoint answered a JSON-RPC call with an error, or with something else than JSON-RPC."""


@attrs.frozen
class Account:
    """A key of the world, worthless elsewhere."""

    address: str
    private_key: str = attrs.field(repr=False)


@attrs.frozen
class Transfer:
    """One transfer of the token, as its log tells it; `value` in atomic units."""

    sender: str
    recipient: str
    value: int
    transaction: str
    block: int


@attrs.frozen
class Chain:
    """A running chain; `rpc_url` and `ws_url` are its own address, without faults."""

    rpc_url: str
    ws_url: str
    payers: tuple[Account, ...]
    pay_to: Account
    facilitator: Account
    child: Child


class Rpc:
    """JSON-RPC over one HTTP endpoint; batches keep the order of their calls."""

    def __init__(self, url: str, client: httpx.AsyncClient) -> None:
        self._url = url
        self._client = client

    async def call(self, method: str, *parameters: Any) -> Any:
        """Return the result of one call; raises `RpcRefused`, or httpx's errors when nothing came back."""
        return (await self.batch([(method, parameters)]))[0]

    async def batch(self, calls: Sequence[tuple[str, Sequence[Any]]]) -> list[Any]:
        """Return the results of several calls made in one request."""
        body = [
            {"jsonrpc": "2.0", "id": index, "method": method, "params": list(parameters)}
            for index, (method, parameters) in enumerate(calls)
        ]
        answer = (await self._client.post(self._url, json=body)).raise_for_status().json()
        if not isinstance(answer, list) or len(answer) != len(calls):
            raise RpcRefused(f"{calls[0][0]}: {answer}")
        found = {each["id"]: each for each in answer}
        for index, (method, _) in enumerate(calls):
            if "error" in found[index]:
                raise RpcRefused(f"{method}: {found[index]['error']}")
        return [found[index]["result"] for index in range(len(calls))]

    async def transfers(self, recipient: str) -> list[Transfer]:
        """Return every transfer of the token to `recipient`, oldest first."""
        logs = await self.call(
            "eth_getLogs",
            {"address": token.ADDRESS, "topics": [TRANSFER_TOPIC, None, _word(recipient)], "fromBlock": "0x0"},
        )
        return [
            Transfer(
                sender="0x" + log["topics"][1][-40:],
                recipient="0x" + log["topics"][2][-40:],
                value=int(log["data"], 16),
                transaction=log["transactionHash"],
                block=int(log["blockNumber"], 16),
            )
            for log in logs
        ]


def account(name: str) -> Account:
    """Return the world's account of that name: the same in every world."""
    from eth_account import Account as EthAccount

    secret = hashlib.sha256(f"gateway local world: {name}".encode()).hexdigest()
    return Account(EthAccount.from_key(secret).address, f"0x{secret}")


@asynccontextmanager
async def open_chain(directory: Path, *, block_time: float | None = 1) -> AsyncIterator[Chain]:
    """Start a chain with the token placed and the payers funded; it ends with the block.

    A block comes every `block_time` seconds; with None each transaction is mined at once (time on such a chain runs
    ahead of the clock by a second a block).  Raises `ToolUnavailable` or `ChildFailed`.
    """
    binary = await trio.to_thread.run_sync(npm.anvil_binary)
    command = [str(binary), "--host", "127.0.0.1", "--port", "0", "--chain-id", str(CHAIN_ID)]
    command += ["--slots-in-an-epoch", "4", "--accounts", "1"]
    command += [] if block_time is None else ["--block-time", f"{block_time:g}"]
    async with (
        open_child("anvil", command, log=directory / "anvil.log", read=True) as child,
        trio.open_nursery() as nursery,
    ):
        port = await nursery.start(_follow, child)
        chain = Chain(
            rpc_url=url_of(port),
            ws_url=f"ws://127.0.0.1:{port}",
            payers=tuple(account(f"payer {index}") for index in range(PAYERS)),
            pay_to=account("payee"),
            facilitator=account("facilitator"),
            child=child,
        )
        async with httpx.AsyncClient(timeout=30) as client:
            await _furnish(chain, Rpc(chain.rpc_url, client), automine=block_time is None)
        yield chain
        nursery.cancel_scope.cancel()


async def _follow(child: Child, *, task_status: trio.TaskStatus[int]) -> None:
    """Tell the port once anvil has chosen it, then read on, so that it never waits for a reader."""
    started = False
    with trio.CancelScope(deadline=trio.current_time() + START_S) as scope:
        while (line := await child.line()) is not None:
            if not started and (match := LISTENING.search(line)):
                task_status.started(int(match[1]))
                started = True
                scope.deadline = float("inf")
    if not started:
        await child.end()
        raise await child.failure()


async def _furnish(chain: Chain, rpc: Rpc, *, automine: bool) -> None:
    """Place the token's code and owner, then mint as anyone would: by transactions that leave Transfer logs."""
    code = token.token_code()
    owner = account("mint").address
    funded = [(owner, 100 * ETHER), (chain.facilitator.address, 10_000 * ETHER)]
    steps: list[tuple[str, Sequence[Any]]] = [
        ("evm_setAutomine", [False]),
        ("anvil_setCode", [token.ADDRESS, code.runtime]),
        ("anvil_setStorageAt", [token.ADDRESS, f"0x{code.storage['owner']:064x}", _word(owner)]),
        ("anvil_impersonateAccount", [owner]),
    ]
    steps += [("anvil_setBalance", [address, hex(balance)]) for address, balance in funded]
    steps += [
        (
            "eth_sendTransaction",
            [
                {
                    "from": owner,
                    "to": token.ADDRESS,
                    "nonce": hex(nonce),
                    "gas": hex(200_000),
                    "data": f"0x{MINT}{_word(payer.address)[2:]}{PAYER_FUNDS:064x}",
                }
            ],
        )
        for nonce, payer in enumerate(chain.payers)
    ]
    steps += [("evm_mine", []), ("anvil_stopImpersonatingAccount", [owner])]
    if automine:
        steps.append(("evm_setAutomine", [True]))
    await rpc.batch(steps)
    held = await rpc.call(
        "eth_call", {"to": token.ADDRESS, "data": f"0x70a08231{_word(chain.payers[-1].address)[2:]}"}, "latest"
    )
    if int(held, 16) != PAYER_FUNDS:
        raise RpcRefused(f"the last payer holds {int(held, 16)} after minting, not {PAYER_FUNDS}")


def _word(address: str) -> str:
    return f"0x{address[2:].lower():0>64}"
