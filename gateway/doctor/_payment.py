"""Whether the node can be paid: the payee, the facilitator, and each end point of the chain."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any
from urllib.parse import urlsplit

import attrs
import orjson

from gateway.actors.settlement import Facilitator
from gateway.composition import asset_of
from gateway.config import Configuration, PaymentSection
from gateway.doctor._check import Check, failed, fine, note
from gateway.doctor._transfer import transfer
from gateway.registry.http_call import HttpAnswer, HttpCall, UpstreamFailed
from gateway.registry.payment.asset import Asset, checksum

Call = Callable[[HttpCall], Awaitable[HttpAnswer]]

TIMEOUT_S = 5.0
OLDEST_HEAD_S = 120
NEWEST_HEAD_S = 15
ZERO = "0x" + "0" * 40
NAME, VERSION, DECIMALS, DOMAIN_SEPARATOR = "0x06fdde03", "0x54fd4d50", "0x313ce567", "0x3644e515"
"""Selectors of ERC-20 `name()`, `decimals()`, FiatToken `version()` and EIP-712 `DOMAIN_SEPARATOR()`."""

HASHES_ONLY = False
"""Of `eth_getBlockByNumber`: no whole transactions."""

CLOSED = "paid operations answer 503"
UNSETTLED = "payments cannot be looked up over it"


async def payment(configuration: Configuration, call: Call, now: float) -> list[Check]:
    """Check the whole way of a payment; `now` is in seconds since 1970."""
    section = configuration.payment
    if not section.configured:
        return [unconfigured()]
    checks = [payee(section), await facilitator(section, call)]
    for url in section.rpc_urls:
        checks += await end_point(url, asset_of(configuration), section.pay_to, call, now)
    return checks


def unconfigured() -> Check:
    """Say what it means that nobody can pay."""
    return note(
        "payment",
        "not configured",
        f"free operations are served, {CLOSED}",
        "set [payment] pay_to, facilitator_url and rpc_urls to sell",
    )


def payee(section: PaymentSection) -> Check:
    """Check the address that is paid."""
    address, right = section.pay_to, checksum(section.pay_to)
    if address.lower() in {ZERO, section.asset.lower()}:
        return failed("pay_to", f"{address} belongs to nobody", "every payment is lost", "set your own address")
    if address != right:
        return note("pay_to", f"{address} has no checksum", "a mistyped digit stays unseen", f"write it as {right}")
    return fine("pay_to", address)


async def facilitator(section: PaymentSection, call: Call) -> Check:
    """Check that the facilitator answers and settles on the network."""
    name = f"facilitator {host_of(section.facilitator_url)}"
    asked = Facilitator(section.facilitator_url, call, section.verify_timeout_s, section.settle_timeout_s)
    reason = await asked.supports(section.network)
    if reason == "facilitator_does_not_support_network":
        return failed(
            name,
            f"it does not settle `exact` payments of x402 v2 on {section.network}",
            CLOSED,
            "set [payment] facilitator_url to one that does, or another network",
        )
    if reason is not None:
        return failed(
            name,
            f"it gives no usable answer ({reason})",
            CLOSED,
            "see that it runs and that [payment] facilitator_url is right",
        )
    return fine(name, f"settles on {section.network}")


async def end_point(url: str, asset: Asset, pay_to: str, call: Call, now: float) -> list[Check]:
    """Check one JSON-RPC end point: its chain, the token on it, and this machine's clock against its head."""
    name = f"rpc {host_of(url)}"
    chain = _Rpc(url, call)
    try:
        chain_id = int(await chain.ask("eth_chainId"), 16)
        if chain_id != asset.chain_id:
            what = f"it serves chain {chain_id}, not {asset.chain_id}"
            return [failed(name, what, UNSETTLED, "set [payment] rpc_urls to end points of the configured network")]
        head = await chain.ask("eth_getBlockByNumber", "latest", HASHES_ONLY)
        number, timestamp = int(head["number"], 16), int(head["timestamp"], 16)
        found = [fine(name, f"block {number}"), await token(name, asset, chain)]
        if found[-1].standing != "failed":
            arrives = f"transfer by {name.removeprefix('rpc ')}"
            found.append(await transfer(arrives, asset, pay_to, chain.ask, RpcRefused))
        return [*found, clock(name, timestamp, now)]
    except (UpstreamFailed, RpcRefused, ValueError, KeyError, TypeError) as error:
        what = f"it gives no usable answer ({_why(error)})"
        return [failed(name, what, UNSETTLED, "see that it runs and that its address in [payment] rpc_urls is right")]


async def token(end_point_name: str, asset: Asset, chain: _Rpc) -> Check:
    """Compare the configured token with the contract: it must be what payers sign for."""
    name = f"asset by {end_point_name.removeprefix('rpc ')}"
    if await chain.ask("eth_getCode", asset.address, "latest") in {"0x", ""}:
        return failed(name, f"{asset.address} has no code", "no payment can settle", "set [payment] asset or network")
    decimals = int(await chain.call(asset.address, DECIMALS), 16)
    if decimals != asset.decimals:
        what = f"the token has {decimals} decimals, not {asset.decimals}"
        return failed(name, what, "every price is wrong", f"set [payment] decimals = {decimals}")
    separator = await chain.maybe(asset.address, DOMAIN_SEPARATOR)
    if separator is None:
        return note(name, "the token shows no DOMAIN_SEPARATOR()", "asset_name and asset_version cannot be compared")
    if separator != "0x" + asset.domain_separator.hex():
        own_name, own_version = await chain.text(asset.address, NAME), await chain.text(asset.address, VERSION)
        return failed(
            name,
            f"its EIP-712 domain is not that of asset_name {asset.name!r} and asset_version {asset.version!r}",
            "every signature is refused",
            f"set [payment] asset_name = {own_name!r} and asset_version = {own_version!r}",
        )
    return fine(name, f"{asset.name} {asset.version}, {decimals} decimals, EIP-712 domain as configured")


def clock(end_point_name: str, head: int, now: float) -> Check:
    """Check this machine's clock against the time of the latest block, both in seconds since 1970."""
    name = f"clock by {end_point_name.removeprefix('rpc ')}"
    skew = round(now - head)
    if skew < -NEWEST_HEAD_S:
        return failed(
            name, f"{-skew} s behind the latest block", "payments are judged by a wrong time", "set the clock (NTP)"
        )
    if skew > OLDEST_HEAD_S:
        return failed(
            name,
            f"the latest block is {skew} s old",
            "settlements are seen late, or payments are judged by a wrong time",
            "use an end point that follows the chain, or set the clock (NTP)",
        )
    return fine(name, f"{skew} s after the latest block")


def host_of(url: str) -> str:
    """Return the host and port of a URL: the rest may be a secret."""
    parts = urlsplit(url)
    return parts.netloc.rpartition("@")[2]


def _why(error: Exception) -> str:
    return str(error) if isinstance(error, UpstreamFailed | RpcRefused) else type(error).__name__


class RpcRefused(Exception):
    """The end point answered, but not with a result."""


@attrs.define
class _Rpc:
    """A JSON-RPC end point."""

    url: str
    make: Call
    ids: Any = attrs.field(factory=lambda: count(1))

    async def ask(self, method: str, *params: Any) -> Any:
        """Return a result; raises `UpstreamFailed` or `RpcRefused`."""
        request = {"jsonrpc": "2.0", "id": next(self.ids), "method": method, "params": params}
        headers = (("content-type", "application/json"),)
        answer = await self.make(
            HttpCall("POST", self.url, headers, orjson.dumps(request), timeout_s=TIMEOUT_S, target="rpc")
        )
        if answer.status != 200:
            raise RpcRefused(f"status {answer.status}")
        document = orjson.loads(answer.content)
        if not isinstance(document, dict) or "result" not in document:
            raise RpcRefused("an error" if isinstance(document, dict) and "error" in document else "no JSON-RPC answer")
        return document["result"]

    async def call(self, to: str, selector: str) -> str:
        """Return what a view without arguments returns, as hex."""
        return str(await self.ask("eth_call", {"to": to, "data": selector}, "latest"))

    async def maybe(self, to: str, selector: str) -> str | None:
        """Return what a view returns, or None where the contract has no such view."""
        try:
            found = await self.call(to, selector)
        except RpcRefused:
            return None
        return None if found in {"0x", ""} else found

    async def text(self, to: str, selector: str) -> str | None:
        """Return what a view of type string returns."""
        from eth_abi.abi import decode
        from eth_abi.exceptions import DecodingError

        found = await self.maybe(to, selector)
        try:
            return None if found is None else str(decode(["string"], bytes.fromhex(found[2:]))[0])
        except (DecodingError, ValueError, OverflowError):
            return None
