"""One JSON-RPC end point of a chain, read with suspicion: what it says is checked for shape before it is reasoned on.

web3 speaks the protocol; it stands on the node's own bounded calls and is shown only the members that are needed, so
that an odd one among the others (upper-case hex, nulls, a chain's own additions) costs nothing.  Receipts and events
are read here: web3 hashes the address of each event for its checksum, which takes longer than all the rest of a look.
"""

from __future__ import annotations

import re
from binascii import a2b_hex
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from typing import Any

import attrs
import orjson
from web3 import AsyncWeb3
from web3.providers.async_base import AsyncBaseProvider
from web3.types import RPCEndpoint, RPCResponse

from gateway.registry.http_call import AnswerTooLarge, HttpAnswer, HttpCall, UpstreamFailed

MAX_ANSWER_BYTES = 4 * 2**20

_BLOCK = ("number", "hash", "timestamp")
_LOG = ("address", "topics", "data", "logIndex", "blockNumber", "transactionHash")
_RECEIPT = ("transactionHash", "blockHash", "blockNumber", "status")
_QUANTITY = re.compile(r"0[xX][0-9a-fA-F]{1,64}")
REFUSED_STATUSES = frozenset({400, 413, 414, 422})
"""With these an end point refuses this one question, as it does with a JSON-RPC error, and may answer another."""


class ChainUnavailable(Exception):
    """No end point gave a usable answer; the text is a machine reason."""


class Unusable(ChainUnavailable):
    """An answer came, and it is none: an error, garbage, too much.  Another question may fare better."""


@attrs.frozen
class Head:
    """The latest block of an end point; `timestamp` in seconds since 1970."""

    number: int
    block_hash: str
    timestamp: int


@attrs.frozen
class Log:
    """One event of a contract; `index` is its place in the block."""

    address: bytes
    topics: tuple[bytes, ...]
    data: bytes
    index: int
    block_number: int
    transaction: str


@attrs.frozen
class Receipt:
    """What came of a transaction that is in a block."""

    transaction: str
    block_hash: str
    block_number: int
    succeeded: bool
    logs: tuple[Log, ...]


class UpstreamProvider(AsyncBaseProvider):
    """A web3 provider over the node's own bounded calls: no retry, no cache, no batch."""

    def __init__(self, url: str, call: Callable[[HttpCall], Awaitable[HttpAnswer]], timeout_s: float) -> None:
        super().__init__()
        self._url, self._call, self._timeout_s = url, call, timeout_s
        self._ids = count(1)

    async def make_request(self, method: RPCEndpoint, params: Any) -> RPCResponse:
        """Send one JSON-RPC request; raises `ChainUnavailable` when what comes back is not its answer."""
        identity = next(self._ids)
        content = orjson.dumps({"jsonrpc": "2.0", "id": identity, "method": method, "params": params})
        headers = (("content-type", "application/json"), ("accept", "application/json"))
        try:
            answer = await self._call(
                HttpCall(
                    "POST",
                    self._url,
                    headers,
                    content,
                    timeout_s=self._timeout_s,
                    max_bytes=MAX_ANSWER_BYTES,
                    target="rpc",
                )
            )
        except AnswerTooLarge as failure:
            raise Unusable(f"rpc_{failure.reason}") from failure
        except UpstreamFailed as failure:
            raise ChainUnavailable(f"rpc_{failure.reason}") from failure
        if answer.status != 200:
            kind = Unusable if answer.status in REFUSED_STATUSES else ChainUnavailable
            raise kind(f"rpc_status_{answer.status}")
        return RPCResponse(jsonrpc="2.0", id=identity, result=_needed(method, _result(answer.content, identity)))


def _result(content: bytes, identity: int) -> Any:
    try:
        document = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise Unusable("rpc_garbage") from error
    if not isinstance(document, dict):
        raise Unusable("rpc_garbage")
    if document.get("error") is not None:
        raise Unusable("rpc_error")
    if document.get("id") != identity or "result" not in document:
        raise Unusable("rpc_garbage")
    return document["result"]


def _needed(method: str, result: Any) -> Any:
    """Return a result with the members that are read, and no others."""
    if method == "eth_getBlockByNumber" and isinstance(result, dict):
        return _members(result, _BLOCK)
    if method == "eth_getLogs" and isinstance(result, list):
        # A log that was reorganised away while the end point collected its answer is none.
        return [_members(log, _LOG) for log in result if log.get("removed") is not True]
    if method == "eth_getTransactionReceipt" and isinstance(result, dict):
        logs = [_members(log, _LOG) for log in result["logs"]]
        return _members(result, _RECEIPT) | {"logs": logs}
    return result


def _members(whole: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: whole[name] for name in names}


@attrs.define(eq=False)
class EndPoint:
    """One end point; `failed_at` is when it last failed, on trio's clock."""

    web3: AsyncWeb3[UpstreamProvider]
    failed_at: float = float("-inf")

    @classmethod
    def at(cls, url: str, call: Callable[[HttpCall], Awaitable[HttpAnswer]], timeout_s: float) -> EndPoint:
        """Return the end point at `url`; each of its requests may take `timeout_s`."""
        # web3's default middleware is for signers and browsers; some of it asks for the chain id before each call.
        return cls(AsyncWeb3(UpstreamProvider(url, call, timeout_s), middleware=[]))

    async def chain_id(self) -> int:
        """Return the id of the chain that it serves now."""
        with checked():
            return _integer(await self.web3.eth.chain_id)

    async def head(self) -> Head:
        """Return its latest block."""
        with checked():
            block: Any = await self.web3.eth.get_block("latest")
            return Head(_integer(block["number"]), _word(block["hash"]), _integer(block["timestamp"]))

    async def timestamp(self, number: int) -> int:
        """Return the time of a block, in seconds since 1970."""
        with checked():
            block: Any = await self.web3.eth.get_block(number)
            if _integer(block["number"]) != number:
                raise Unusable("rpc_garbage")
            return _integer(block["timestamp"])

    async def receipt(self, transaction: str) -> Receipt | None:
        """Return the receipt of a transaction, None while it has none or is in no block."""
        with checked():
            told = await self._ask("eth_getTransactionReceipt", transaction)
            if told is None or told["blockNumber"] is None or told["blockHash"] is None:
                return None
            receipt = Receipt(
                _word(_bytes(told["transactionHash"])),
                _word(_bytes(told["blockHash"])),
                _quantity(told["blockNumber"]),
                _quantity(told["status"]) == 1,
                tuple(sorted(map(_log, told["logs"]), key=lambda log: log.index)),
            )
            if receipt.transaction != transaction.lower():
                raise Unusable("rpc_garbage")
            return receipt

    async def word_at(self, contract: str, data: bytes, block_hash: str | None) -> int:
        """Return the one word that a contract answers to `data` in a block, which is named by hash (EIP-1898).

        None is its latest block, for what need not fit to anything else.

        Behind one address there may be machines that are not equally far: a number would be read by each in its own
        way, and one that is behind may silently answer for an earlier block.  A hash is known or refused.
        """
        with checked():
            answer = await self.web3.eth.call(
                {"to": AsyncWeb3.to_checksum_address(contract), "data": "0x" + data.hex()},  # type: ignore[typeddict-item]  # hex
                "latest" if block_hash is None else _pinned(block_hash),
                ccip_read_enabled=False,
            )
            if len(answer) != 32:
                raise Unusable("rpc_garbage")
            return int.from_bytes(answer, "big")

    async def code(self, address: str, block_hash: str) -> bytes:
        """Return the code of an account in a block, which is empty where only a key controls it."""
        with checked():
            return bytes(await self.web3.eth.get_code(AsyncWeb3.to_checksum_address(address), _pinned(block_hash)))

    async def reads_at(self, block_hash: str) -> None:
        """Find out whether it can read at a block named by hash; raises `ChainUnavailable` if it cannot."""
        try:
            with checked():
                await self.web3.eth.get_balance(AsyncWeb3.to_checksum_address("0x" + "00" * 20), _pinned(block_hash))
        except Unusable as error:
            raise ChainUnavailable("rpc_no_reads_by_block_hash") from error

    async def logs(self, contract: str, topics: list[Any], first: int, last: int) -> list[Log]:
        """Return a contract's events of the blocks from `first` to `last`, both included."""
        with checked():
            wanted = {"address": contract, "fromBlock": hex(first), "toBlock": hex(last), "topics": topics}
            told = await self._ask("eth_getLogs", wanted)
            if not isinstance(told, list):
                raise Unusable("rpc_garbage")
            return [_log(log) for log in told]

    async def _ask(self, method: str, *params: Any) -> Any:
        """Return what it answers, as it answers it."""
        answered: Any = await self.web3.provider.make_request(RPCEndpoint(method), params)
        return answered["result"]


@contextmanager
def checked() -> Iterator[None]:
    """Turn whatever a strange answer breaks, in web3 or here, into `Unusable`."""
    try:
        yield
    except ChainUnavailable:
        raise
    except Exception as error:
        raise Unusable("rpc_garbage") from error


def _pinned(block_hash: str) -> Any:
    return {"blockHash": block_hash, "requireCanonical": True}


def _integer(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise Unusable("rpc_garbage")
    return value


def _word(value: Any) -> str:
    if not isinstance(value, bytes) or len(value) != 32:
        raise Unusable("rpc_garbage")
    return "0x" + bytes(value).hex()


def _quantity(value: Any) -> int:
    if not isinstance(value, str) or _QUANTITY.fullmatch(value) is None:
        raise Unusable("rpc_garbage")
    return int(value, 16)


def _bytes(value: Any) -> bytes:
    if not isinstance(value, str) or value[:2] not in {"0x", "0X"}:
        raise Unusable("rpc_garbage")
    return a2b_hex(value[2:])


def _log(told: Mapping[str, Any]) -> Log:
    topics = tuple(map(_bytes, told["topics"]))
    if any(len(topic) != 32 for topic in topics):
        raise Unusable("rpc_garbage")
    return Log(
        address=_bytes(told["address"]),
        topics=topics,
        data=_bytes(told["data"]),
        index=_quantity(told["logIndex"]),
        block_number=_quantity(told["blockNumber"]),
        transaction=_word(_bytes(told["transactionHash"])),
    )
