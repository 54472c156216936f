"""The chain as the node meets it: JSON-RPC through an endpoint that may lag, lie, lose logs or not answer."""

from __future__ import annotations

from typing import Any

import httpx
import orjson

from gateway.world.door import Call, Reply, Silence
from gateway.world.faults import OK, Faults

LAG_BLOCKS = 12
RANGE_LIMIT = 10
OTHER_CHAIN = 5
BLOCK_TAGS = ("latest", "pending", "safe", "finalized")
# Where a method takes the block it reads at: the index of the parameter.
BLOCK_PARAMETER = {
    "eth_getBlockByNumber": 0,
    "eth_getBlockReceipts": 0,
    "eth_getBlockTransactionCountByNumber": 0,
    "eth_getBalance": 1,
    "eth_getCode": 1,
    "eth_getTransactionCount": 1,
    "eth_call": 1,
    "eth_estimateGas": 1,
    "eth_getStorageAt": 2,
    "eth_getProof": 2,
}
MINED = ("eth_getTransactionReceipt", "eth_getTransactionByHash", "eth_getBlockByHash")


class ChainDoor:
    """Answers JSON-RPC for one chain, single calls and batches, in the mode in force."""

    def __init__(self, state: Faults, target: str, client: httpx.AsyncClient, upstream: str) -> None:
        self._faults = state
        self._target = target
        self._client = client
        self._upstream = upstream

    async def answer(self, call: Call) -> Reply | Silence:
        """Answer one request; each call of a batch counts."""
        try:
            asked = orjson.loads(call.body)
            calls: list[dict[str, Any]] = asked if isinstance(asked, list) else [asked]
            methods = [str(each["method"]) for each in calls]
        except (ValueError, KeyError, TypeError):
            return Reply.json(_refusal(None, -32700, "not a JSON-RPC call"))
        for method in methods:
            self._faults.count(self._target, method)
        mode = self._faults.mode(self._target)
        return AT_ONCE[mode] if mode in AT_ONCE else await self._told(asked, calls, mode)

    async def _told(self, asked: Any, calls: list[dict[str, Any]], mode: str) -> Reply:
        try:
            if mode == OK:
                return Reply.json(await self._forward(asked))
            told = [await self._one(each, mode) for each in calls]
        except httpx.HTTPError as error:
            return Reply.json({"error": f"the chain behind the door is gone: {error}"}, 502)
        except (ValueError, KeyError, TypeError) as error:
            return Reply.json(_refusal(None, -32602, f"invalid params: {error}"))
        return Reply.json(told if isinstance(asked, list) else told[0])

    async def _one(self, call: dict[str, Any], mode: str) -> Any:
        method, identity = call["method"], call.get("id")
        if mode == "wrong_chain" and method in ("eth_chainId", "net_version"):
            return _result(identity, hex(OTHER_CHAIN) if method == "eth_chainId" else str(OTHER_CHAIN))
        if mode == "null_block" and method.startswith("eth_getBlockBy"):
            return _result(identity, None)
        if mode == "range_limit" and method == "eth_getLogs" and await self._range(call) > RANGE_LIMIT:
            return _refusal(identity, -32614, f"eth_getLogs is limited to a {RANGE_LIMIT} range")
        if mode == "lag":
            return await self._lagging(call)
        told = await self._forward(call)
        if mode == "drop_logs" and method == "eth_getLogs" and isinstance(told.get("result"), list):
            # Every second log is lost, the first included, so that a search for one event finds nothing.
            told["result"] = told["result"][1::2]
        return told

    async def _lagging(self, call: dict[str, Any]) -> Any:
        """Answer as an endpoint does whose head is `LAG_BLOCKS` behind: silently, without an error."""
        method, identity = call["method"], call.get("id")
        head = max(0, await self._head() - LAG_BLOCKS)
        if method == "eth_blockNumber":
            return _result(identity, hex(head))
        if method == "eth_getLogs":
            return await self._lagging_logs(call, head)
        if method in BLOCK_PARAMETER:
            parameters = list(call.get("params") or [])
            place = BLOCK_PARAMETER[method]
            if len(parameters) <= place:
                return await self._forward(call)
            at = parameters[place]
            if at in BLOCK_TAGS:
                parameters[place] = hex(head)
            elif isinstance(at, str) and at.startswith("0x") and int(at, 16) > head:
                return _result(identity, None)
            return await self._forward(call | {"params": parameters})
        told = await self._forward(call)
        result = told.get("result")
        if method in MINED and isinstance(result, dict):
            number = result.get("blockNumber", result.get("number"))
            if number is not None and int(number, 16) > head:
                told["result"] = None
        return told

    async def _lagging_logs(self, call: dict[str, Any], head: int) -> Any:
        (query,) = call["params"]
        if "blockHash" in query:
            return await self._forward(call)
        first, last = _block(query.get("fromBlock", "latest"), head), _block(query.get("toBlock", "latest"), head)
        if first > head:
            return _result(call.get("id"), [])
        clamped = dict(query) | {"fromBlock": hex(first), "toBlock": hex(min(last, head))}
        return await self._forward(call | {"params": [clamped]})

    async def _range(self, call: dict[str, Any]) -> int:
        (query,) = call["params"]
        if "blockHash" in query:
            return 1
        head = await self._head()
        return _block(query.get("toBlock", "latest"), head) - _block(query.get("fromBlock", "latest"), head) + 1

    async def _head(self) -> int:
        told = await self._forward({"jsonrpc": "2.0", "id": 0, "method": "eth_blockNumber", "params": []})
        return int(told["result"], 16)

    async def _forward(self, call: Any) -> Any:
        answer = await self._client.post(
            self._upstream, content=orjson.dumps(call), headers={"content-type": "application/json"}
        )
        return orjson.loads(answer.content)


def _block(name: str, head: int) -> int:
    if name == "earliest":
        return 0
    return head if name in BLOCK_TAGS else int(name, 16)


def _result(identity: Any, result: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": identity, "result": result}


def _refusal(identity: Any, code: int, message: str) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": identity, "error": {"code": code, "message": message}}


AT_ONCE: dict[str, Reply | Silence] = {
    "hang": Silence(),
    "html": Reply(200, b"<!doctype html><title>Just a moment...</title><p>Checking your browser", "text/html"),
    "http_429": Reply.json(_refusal(None, -32005, "rate limit exceeded"), 429, (("retry-after", "1"),)),
}
