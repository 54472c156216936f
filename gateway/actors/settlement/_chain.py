"""Chain truth: has this authorization paid?

`authorizationState(authorizer, nonce)` alone proves nothing, because a cancellation sets it too.  Paid means: in one
successful transaction the token emitted `AuthorizationUsed(authorizer, nonce)` and, as its next event,
`Transfer(authorizer, payTo, value)`, `confirmations` deep (EIP-3009; FiatToken emits the two in this order).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from enum import Enum
from itertools import count, pairwise
from typing import Any, TypeVar

import attrs
import orjson
from eth_utils.crypto import keccak
from web3 import AsyncWeb3
from web3.exceptions import TransactionNotFound
from web3.providers.async_base import AsyncBaseProvider
from web3.types import BlockData, LogReceipt, RPCEndpoint, RPCResponse, TxReceipt

from gateway.registry.http_call import HttpAnswer, HttpCall, UpstreamFailed

AUTHORIZATION_STATE = keccak(text="authorizationState(address,bytes32)")[:4]
AUTHORIZATION_USED = keccak(text="AuthorizationUsed(address,bytes32)")
AUTHORIZATION_CANCELED = keccak(text="AuthorizationCanceled(address,bytes32)")
TRANSFER = keccak(text="Transfer(address,address,uint256)")

T = TypeVar("T")

LOOK_BACK_BLOCKS = 2_000
LOG_RANGE_BLOCKS = 2_000
SMALLEST_LOG_RANGE = 5
MAX_LOG_CALLS = 200


class ChainUnavailable(Exception):
    """No end point gave a usable answer; the text is a machine reason."""


class Standing(Enum):
    """What the chain says of an authorization."""

    PAID = "paid"
    SHALLOW = "paid, not yet deep enough"
    UNUSED = "unused and still valid"
    EXPIRED = "unused and no longer valid"
    CANCELLED = "cancelled, or spent without the transfer"
    UNTRACED = "spent, and its transaction cannot be found"


@attrs.frozen
class Sighting:
    """One look: where the authorization stands, seen at block `head`; the transaction where it is known."""

    standing: Standing
    head: int
    transaction: str | None = None
    block_number: int | None = None
    block_hash: str | None = None


@attrs.frozen
class Search:
    """The authorization looked for, as the token knows it.  `valid_before` in seconds, `value` in atomic units."""

    asset: str
    authorizer: str
    pay_to: str
    value: int
    nonce: bytes
    valid_before: int


class UpstreamProvider(AsyncBaseProvider):
    """A web3 provider over the node's own bounded calls: no retry, no cache, no batch."""

    def __init__(self, url: str, call: Callable[[HttpCall], Awaitable[HttpAnswer]], timeout_s: float) -> None:
        super().__init__()
        self._url, self._call, self._timeout_s = url, call, timeout_s
        self._ids = count(1)

    async def make_request(self, method: RPCEndpoint, params: Any) -> RPCResponse:
        """Send one JSON-RPC request; raises `ChainUnavailable` when what comes back is not its answer."""
        request = {"jsonrpc": "2.0", "id": next(self._ids), "method": method, "params": params}
        headers = (("content-type", "application/json"),)
        content = orjson.dumps(request)
        try:
            answer = await self._call(
                HttpCall("POST", self._url, headers, content, timeout_s=self._timeout_s, max_bytes=2**22, target="rpc")
            )
        except UpstreamFailed as failure:
            raise ChainUnavailable(f"rpc_{type(failure).__name__.removeprefix('Upstream').lower()}") from failure
        if answer.status != 200:
            raise ChainUnavailable(f"rpc_status_{answer.status}")
        try:
            document = orjson.loads(answer.content)
        except orjson.JSONDecodeError as error:
            raise ChainUnavailable("rpc_garbage") from error
        if not isinstance(document, dict) or document.get("id") != request["id"]:
            raise ChainUnavailable("rpc_garbage")
        if "error" in document:
            raise ChainUnavailable("rpc_error")
        if "result" not in document:
            raise ChainUnavailable("rpc_garbage")
        return RPCResponse(jsonrpc="2.0", id=request["id"], result=document["result"])


@attrs.frozen
class Chain:
    """One chain through one or more end points, asked in order until one answers."""

    chain_id: int
    urls: Sequence[str]
    call: Callable[[HttpCall], Awaitable[HttpAnswer]]
    confirmations: int = 1
    timeout_s: float = 5.0

    async def usable(self) -> str | None:
        """Return None if some end point serves this chain now, else the machine reason."""
        try:
            await self._first(self._head)
        except ChainUnavailable as reason:
            return str(reason)
        return None

    async def head(self) -> int:
        """Return the number of the latest block; raises `ChainUnavailable`."""
        number, _ = await self._first(self._head)
        return number

    async def look(self, search: Search, *, from_block: int | None, hints: Sequence[str]) -> Sighting:
        """Say where an authorization stands.

        `hints` are transactions to look into first; raises `ChainUnavailable`.
        """

        async def one(web3: AsyncWeb3[UpstreamProvider]) -> Sighting:
            return await self._look(web3, search, from_block, hints)

        return await self._first(one)

    async def still_stands(self, transaction: str, block_hash: str) -> bool:
        """Return False if a reorganisation took the transaction's block away; raises `ChainUnavailable`."""

        async def one(web3: AsyncWeb3[UpstreamProvider]) -> bool:
            await self._head(web3)
            receipt = await _receipt(web3, transaction)
            return receipt is not None and "0x" + bytes(receipt["blockHash"]).hex() == block_hash

        return await self._first(one)

    async def _first(self, ask: Callable[[AsyncWeb3[UpstreamProvider]], Awaitable[T]]) -> T:
        reasons = []
        for url in self.urls:
            web3 = AsyncWeb3(UpstreamProvider(url, self.call, self.timeout_s))
            try:
                return await ask(web3)
            except ChainUnavailable as reason:
                reasons.append(str(reason))
            except Exception as error:  # noqa: BLE001 - a strange answer is no answer, whatever web3 made of it
                reasons.append(f"rpc_garbage ({type(error).__name__})")
        raise ChainUnavailable(reasons[-1] if reasons else "rpc_not_configured")

    async def _head(self, web3: AsyncWeb3[UpstreamProvider]) -> tuple[int, int]:
        if await web3.eth.chain_id != self.chain_id:
            raise ChainUnavailable("rpc_wrong_chain")
        block: BlockData = await web3.eth.get_block("latest")
        return int(block["number"]), int(block["timestamp"])

    async def _look(
        self, web3: AsyncWeb3[UpstreamProvider], search: Search, from_block: int | None, hints: Sequence[str]
    ) -> Sighting:
        head, timestamp = await self._head(web3)
        for hint in hints:
            receipt = await _receipt(web3, hint)
            if receipt is not None and _pays(receipt, search):
                return self._paid(receipt, head)
        if not await _spent(web3, search, head):
            return Sighting(Standing.EXPIRED if timestamp >= search.valid_before else Standing.UNUSED, head)
        start = max(0, (head if from_block is None else min(from_block, head)) - LOOK_BACK_BLOCKS)
        log = await _find(web3, search, start, head)
        if log is None:
            return Sighting(Standing.UNTRACED, head)
        if bytes(log["topics"][0]) == AUTHORIZATION_CANCELED:
            return Sighting(Standing.CANCELLED, head)
        receipt = await _receipt(web3, "0x" + bytes(log["transactionHash"]).hex())
        if receipt is None:
            raise ChainUnavailable("rpc_receipt_missing")
        return self._paid(receipt, head) if _pays(receipt, search) else Sighting(Standing.CANCELLED, head)

    def _paid(self, receipt: TxReceipt, head: int) -> Sighting:
        number = int(receipt["blockNumber"])
        deep = head - number + 1 >= self.confirmations
        return Sighting(
            Standing.PAID if deep else Standing.SHALLOW,
            head,
            "0x" + bytes(receipt["transactionHash"]).hex(),
            number,
            "0x" + bytes(receipt["blockHash"]).hex(),
        )


async def _receipt(web3: AsyncWeb3[UpstreamProvider], transaction: str) -> TxReceipt | None:
    try:
        return await web3.eth.get_transaction_receipt(transaction)  # type: ignore[arg-type]  # a checked 0x string
    except TransactionNotFound:
        return None


async def _spent(web3: AsyncWeb3[UpstreamProvider], search: Search, block: int) -> bool:
    data = AUTHORIZATION_STATE + bytes(12) + bytes.fromhex(search.authorizer[2:]) + search.nonce
    answer = await web3.eth.call({"to": AsyncWeb3.to_checksum_address(search.asset), "data": "0x" + data.hex()}, block)  # type: ignore[typeddict-item]  # hex data
    if len(answer) != 32:
        raise ChainUnavailable("rpc_garbage")
    return int.from_bytes(answer, "big") != 0


async def _find(web3: AsyncWeb3[UpstreamProvider], search: Search, start: int, head: int) -> LogReceipt | None:
    """Return the log that spent the authorization, the ranges halved when an end point finds them too long."""
    topics: list[Any] = [
        ["0x" + AUTHORIZATION_USED.hex(), "0x" + AUTHORIZATION_CANCELED.hex()],
        "0x" + _word(search.authorizer).hex(),
        "0x" + search.nonce.hex(),
    ]
    size, last, calls = LOG_RANGE_BLOCKS, head, 0
    while last >= start and calls < MAX_LOG_CALLS:
        first = max(start, last - size + 1)
        calls += 1
        try:
            logs = await web3.eth.get_logs(
                {
                    "address": AsyncWeb3.to_checksum_address(search.asset),
                    "fromBlock": first,
                    "toBlock": last,
                    "topics": topics,
                }
            )
        except ChainUnavailable:
            if size <= SMALLEST_LOG_RANGE:
                raise
            size = max(SMALLEST_LOG_RANGE, size // 4)
            continue
        for log in logs:
            if bytes(log["topics"][2]) == search.nonce and bytes(log["topics"][1]) == _word(search.authorizer):
                return log
        last = first - 1
    return None


def _pays(receipt: TxReceipt, search: Search) -> bool:
    """Return True if the receipt holds AuthorizationUsed and, as the token's next event, the matching Transfer."""
    if int(receipt["status"]) != 1:
        return False
    asset = bytes.fromhex(search.asset[2:])
    logs = sorted(
        (log for log in receipt["logs"] if bytes.fromhex(log["address"][2:]) == asset), key=lambda log: log["logIndex"]
    )
    for used, moved in pairwise(logs):
        if [bytes(topic) for topic in used["topics"]] != [AUTHORIZATION_USED, _word(search.authorizer), search.nonce]:
            continue
        if [bytes(topic) for topic in moved["topics"]] == [TRANSFER, _word(search.authorizer), _word(search.pay_to)]:
            return int.from_bytes(bytes(moved["data"]), "big") == search.value
    return False


def _word(address: str) -> bytes:
    return bytes(12) + bytes.fromhex(address[2:])
