"""A chain of a few facts, and end points that tell of it truly or otherwise; they stand in for `call`."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import orjson

from gateway.actors.settlement import Chain, Search
from gateway.actors.settlement._proof import (
    AUTHORIZATION_CANCELED,
    AUTHORIZATION_STATE,
    AUTHORIZATION_USED,
    BALANCE_OF,
    TRANSFER,
    word_of,
)
from gateway.registry.http_call import HttpAnswer, HttpCall

ASSET = "0x833589fCD6eDb6E08f4c7C32D4f71b54bdA02913"
PAYER = "0x70997970C51812dc3A010C7d01b50e0d17dc79C8"
PAYEE = "0x90F79bf6EB2c4f870365E785982E1f101E93b906"
STRANGER = "0x00000000000000000000000000000000DeaDBeef"
CHAIN_ID = 8453
BLOCK_S = 2
GENESIS = 1_700_000_000
PRICE = 6000
START = 1_000
"""Height at which a toy chain begins."""

Event = Mapping[str, Any]


def event(address: str, *topics: bytes, data: bytes = b"") -> Event:
    return {"address": address.lower(), "topics": ["0x" + topic.hex() for topic in topics], "data": "0x" + data.hex()}


def used(nonce: bytes, authorizer: str = PAYER) -> Event:
    return event(ASSET, AUTHORIZATION_USED, word_of(authorizer), nonce)


def canceled(nonce: bytes, authorizer: str = PAYER) -> Event:
    return event(ASSET, AUTHORIZATION_CANCELED, word_of(authorizer), nonce)


def transfer(sender: str = PAYER, to: str = PAYEE, value: int = PRICE, token: str = ASSET) -> Event:
    return event(token, TRANSFER, word_of(sender), word_of(to), data=value.to_bytes(32, "big"))


def nonce_of(number: int) -> bytes:
    return hashlib.sha256(f"nonce {number}".encode()).digest()


@attrs.define
class Transaction:
    hash: str
    block: int
    events: tuple[Event, ...]
    succeeded: bool
    first_index: int

    def logs(self, block_hash: str) -> list[dict[str, Any]]:
        return [
            dict(each)
            | {
                "logIndex": hex(self.first_index + place),
                "blockNumber": hex(self.block),
                "blockHash": block_hash,
                "transactionHash": self.hash,
                "transactionIndex": "0x0",
                "removed": False,
            }
            for place, each in enumerate(self.events if self.succeeded else ())
        ]


@attrs.define
class ToyChain:
    """Blocks come every two seconds and are empty unless told otherwise."""

    head: int = START
    fork: int = 0
    forked_at: int = 0
    transactions: dict[str, Transaction] = attrs.field(factory=dict)
    made: int = 0
    minted: dict[str, int] = attrs.field(factory=dict)

    def include(self, *events: Event, succeeded: bool = True, first_index: int = 7) -> str:
        """Mine a block with one transaction of these events and return the transaction's hash."""
        self.head += 1
        self.made += 1
        name = "0x" + hashlib.sha256(f"transaction {self.made}".encode()).hexdigest()
        self.transactions[name] = Transaction(name, self.head, events, succeeded, first_index)
        return name

    def mine(self, blocks: int = 1) -> None:
        self.head += blocks

    def mine_until(self, moment: int) -> None:
        """Mine until the latest block's time is `moment` or just past it."""
        while self.time() < moment:
            self.head += max(1, (moment - self.time()) // BLOCK_S)

    def reorganise(self, depth: int) -> None:
        """Replace the last blocks by empty ones."""
        self.fork += 1
        self.forked_at = self.head - depth + 1
        self.transactions = {name: each for name, each in self.transactions.items() if each.block < self.forked_at}

    def time(self, number: int | None = None) -> int:
        return GENESIS + BLOCK_S * (self.head if number is None else number)

    def hash(self, number: int) -> str:
        fork = self.fork if number >= self.forked_at else 0
        return "0x" + hashlib.sha256(f"block {fork} {number}".encode()).hexdigest()

    def number(self, block_hash: str) -> int | None:
        return next((n for n in range(self.head, max(-1, self.head - 256), -1) if self.hash(n) == block_hash), None)

    def balance(self, owner: bytes, number: int) -> int:
        """Return what an account has at a block: what was minted to it, less what it has transferred."""
        sent = [
            int(log["data"], 16)
            for log in self.logs(0, number)
            if log["topics"][:2] == ["0x" + TRANSFER.hex(), "0x" + (bytes(12) + owner).hex()]
        ]
        return self.minted.get("0x" + owner.hex(), 0) - sum(sent)

    def logs(self, first: int, last: int) -> list[dict[str, Any]]:
        chosen = [each for each in self.transactions.values() if first <= each.block <= last]
        return [log for each in chosen for log in each.logs(self.hash(each.block))]


class Refusal(Exception):
    """A JSON-RPC error; `args` are its code and message."""


Twist = Callable[[Any, Any], Any]


def later(seconds: int) -> Twist:
    """Return what makes blocks say that they were made so much later."""
    return lambda _, block: block | {"timestamp": hex(int(block["timestamp"], 16) + seconds)}


@attrs.define(eq=False)
class ToyEndPoint:
    """One end point; `behind` blocks are hidden from it, `twists` turn true results into others, by method."""

    chain: ToyChain
    behind: int = 0
    chain_id: int = CHAIN_ID
    range_limit: int = 10_000
    twists: dict[str, Twist] = attrs.field(factory=dict)
    http: Callable[[HttpCall, dict[str, Any]], HttpAnswer] | None = None
    asked: list[tuple[str, Any]] = attrs.field(factory=list)
    codes: dict[str, str] = attrs.field(factory=dict)

    @property
    def head(self) -> int:
        return self.chain.head - self.behind

    @property
    def counts(self) -> Counter[str]:
        return Counter(method for method, _ in self.asked)

    async def __call__(self, call: HttpCall) -> HttpAnswer:
        question = orjson.loads(call.content)
        method, params = question["method"], question["params"]
        self.asked.append((method, params))
        if self.http is not None:
            return self.http(call, question)
        try:
            result = getattr(self, method)(*params)
            if method in self.twists:
                result = self.twists[method](params, result)
        except Refusal as refusal:
            code, message = refusal.args
            return answered(question, {"error": {"code": code, "message": message}})
        return answered(question, {"result": result})

    def eth_chainId(self) -> str:  # noqa: N802 - the method's name
        return hex(self.chain_id)

    def eth_getBlockByNumber(self, name: str, _full: bool) -> Any:  # noqa: N802
        number = self.head if name == "latest" else int(name, 16)
        if number > self.head:
            return None
        return {
            "number": hex(number),
            "hash": self.chain.hash(number),
            "timestamp": hex(self.chain.time(number)),
            "transactions": ["0x" + "44" * 32] * 3,
        }

    def eth_getBalance(self, _address: str, block: Any) -> str:  # noqa: N802
        self._at(block)
        return "0x0"

    def eth_getCode(self, address: str, block: Any) -> str:  # noqa: N802
        self._at(block)
        return self.codes.get(address.lower(), "0x")

    def eth_call(self, call: Any, block: Any) -> str:
        number = self._at(block)
        data = bytes.fromhex(call["data"][2:])
        if call["to"].lower() == ASSET.lower() and data[:4] == BALANCE_OF:
            return f"0x{self.chain.balance(data[16:36], number):064x}"
        if call["to"].lower() != ASSET.lower() or data[:4] != AUTHORIZATION_STATE:
            return "0x"
        topics = ["0x" + data[4:36].hex(), "0x" + data[36:].hex()]
        kinds = ("0x" + AUTHORIZATION_USED.hex(), "0x" + AUTHORIZATION_CANCELED.hex())
        logs = self.chain.logs(0, number)
        spent = any(log["topics"][0] in kinds and log["topics"][1:] == topics for log in logs)
        return f"0x{int(spent):064x}"

    def _at(self, block: Any) -> int:
        if block == "latest":
            return self.head
        number = self.chain.number(block["blockHash"]) if isinstance(block, dict) else int(block, 16)
        if number is None or number > self.head:
            raise Refusal(-32001, "unknown block")
        return number

    def eth_getLogs(self, query: Any) -> Any:  # noqa: N802
        first, last = int(query["fromBlock"], 16), int(query["toBlock"], 16)
        if last - first + 1 > self.range_limit:
            raise Refusal(-32614, "range too long")
        kinds, *topics = query["topics"]
        return [
            log
            for log in self.chain.logs(first, min(last, self.head))
            if log["topics"][0] in kinds
            and len(log["topics"]) == 1 + len(topics)
            and all(asked in {None, topic} for asked, topic in zip(topics, log["topics"][1:], strict=True))
            and log["address"] == ASSET.lower()
        ]

    def eth_getTransactionReceipt(self, name: str) -> Any:  # noqa: N802
        found = self.chain.transactions.get(name)
        if found is None or found.block > self.head:
            return None
        block_hash = self.chain.hash(found.block)
        return {
            "transactionHash": found.hash,
            "transactionIndex": "0x0",
            "blockHash": block_hash,
            "blockNumber": hex(found.block),
            "status": hex(found.succeeded),
            "logs": found.logs(block_hash),
            "logsBloom": "0x" + "00" * 256,
            "type": "0x2",
        }


def answered(question: Mapping[str, Any], members: Mapping[str, Any]) -> HttpAnswer:
    return HttpAnswer(200, {}, orjson.dumps({"jsonrpc": "2.0", "id": question["id"], **members}), 1)


def said(status: int = 200, content: bytes = b"") -> Callable[[HttpCall, dict[str, Any]], HttpAnswer]:
    return lambda _call, _question: HttpAnswer(status, {}, content, 1)


def fails(failure: Exception) -> Callable[[HttpCall, dict[str, Any]], HttpAnswer]:
    def http(_call: HttpCall, _question: dict[str, Any]) -> HttpAnswer:
        raise failure

    return http


def through(*end_points: ToyEndPoint, confirmations: int = 1, late_s: float = 0) -> Chain:
    """Return what the node makes of these end points; its clock is `late_s` after the latest block of the first."""

    async def call(wanted: HttpCall) -> HttpAnswer:
        return await end_points[int(wanted.url.rpartition("/")[2])](wanted)

    urls: Sequence[str] = [f"http://rpc.example/{index}" for index in range(len(end_points))]
    chain = end_points[0].chain if end_points else ToyChain()
    return Chain(CHAIN_ID, urls, call, confirmations, utc_s=lambda: chain.time() + late_s)


def search_for(chain: ToyChain, number: int = 1, *, valid_for_s: int = 600, value: int = PRICE) -> Search:
    """Return the search for an authorization that is valid for so long from now on."""
    return Search(ASSET, PAYER, PAYEE, value, nonce_of(number), chain.time() + valid_for_s)
