"""Runs asked for and not paid: the exact price of what would be run, and every refusal before there is one."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from gateway.world.world import World
from tests.world.scenarios.node_process import running
from tests.world.scenarios.purchase import Challenge, Shop, carries_challenge, decoded, fresh_key
from tests.world.scenarios.sandbox_node import RUN, SHORT, STANDARD, SandboxNode, images, program

pytestmark = pytest.mark.world

RANGES = {
    "cpuMillis": (1, 30_000, 5_000),
    "memoryBytes": (16_777_216, 536_870_912, 268_435_456),
    "processes": (1, 64, 16),
    "diskBytes": (1_048_576, 1_073_741_824, 67_108_864),
    "outputBytes": (1, 1_048_576, 65_536),
    "artifactBytes": (1, 10_485_760, 1_048_576),
    "wallTimeMs": (100, 60_000, 10_000),
}
"""Of interface.md 4.6: least, most, default."""
DEFAULTS = {name: default for name, (_, _, default) in RANGES.items()}
NODE = ["node", "-e", "1"]


@pytest.fixture(scope="module")
def seller(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SandboxNode]:
    with images() as place:
        made = SandboxNode.of(world, tmp_path_factory.mktemp("seller"), place)
        with running(made.node):
            yield made


@pytest.fixture
async def shop(world: World, customer: httpx.AsyncClient, seller: SandboxNode) -> Shop:
    await seller.until_open(customer)
    return seller.shop(customer, world)


async def refused(
    shop: Shop, content: bytes, status: int, code: str, pointers: list[str] | None = None
) -> httpx.Response:
    """Check that a body is refused before any quote, for what is wrong in these places."""
    headers = {"Content-Type": "application/json", "Idempotency-Key": fresh_key()}
    answer = await shop.client.post(shop.url + RUN, content=content, headers=headers)
    told = answer.json()
    assert (answer.status_code, told["code"], told["status"]) == (status, code, status), answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert not carries_challenge(answer)
    assert "quote" not in told
    if pointers is not None:
        assert [each["pointer"] for each in told["errors"]] == pointers
    return answer


def sent(**members: Any) -> bytes:
    return json.dumps({"command": NODE, **members}).encode()


# -- what it costs -----------------------------------------------------------------------------------------------------


async def asked(shop: Shop, limits: dict[str, int] | None) -> tuple[Challenge, dict[str, Any]]:
    body = {"command": NODE} | ({} if limits is None else {"limits": limits})
    answer = await shop.post(body, fresh_key(), path=RUN)
    return Challenge.of(answer), answer.json()


@pytest.mark.parametrize(
    ("limits", "price"),
    [
        (None, SHORT),
        ({}, SHORT),
        (DEFAULTS, SHORT),
        ({name: least for name, (least, _, _) in RANGES.items()}, SHORT),
        ({name: most for name, (_, most, _) in RANGES.items()}, STANDARD),
        *(({name: default + 1}, STANDARD) for name, default in DEFAULTS.items()),
        *(({name: most}, STANDARD) for name, (_, most, _) in RANGES.items()),
        *(({name: least}, SHORT) for name, (least, _, _) in RANGES.items()),
    ],
)
async def test_an_unpaid_run_is_quoted_its_exact_price_over_both_protocols(
    shop: Shop, limits: dict[str, int] | None, price: int
) -> None:
    challenge, told = await asked(shop, limits)
    assert told["code"] == "payment_required"
    assert challenge.terms["amount"] == str(price)
    assert challenge.terms["payTo"] == shop.world.pay_to
    assert told["price"]["amountAtomic"] == str(price)
    assert told["price"]["usd"] == f"{price / 1_000_000:.6f}"
    assert (challenge.payment["method"], challenge.payment["intent"]) == ("evm", "charge")
    assert decoded(challenge.payment["request"])["amount"] == str(price)


@pytest.mark.parametrize("limits", [{}, DEFAULTS, {"cpuMillis": 5_000}, {"processes": 16, "wallTimeMs": 10_000}])
async def test_limits_that_are_left_out_are_their_defaults_each_for_itself(shop: Shop, limits: dict[str, int]) -> None:
    _, bare = await asked(shop, None)
    _, told = await asked(shop, limits)
    assert told["quote"]["requestHash"] == bare["quote"]["requestHash"]


async def test_another_limit_is_another_request(shop: Shop) -> None:
    _, bare = await asked(shop, None)
    _, told = await asked(shop, {"cpuMillis": 4_999})
    assert told["quote"]["requestHash"] != bare["quote"]["requestHash"]


@pytest.mark.parametrize(
    "members",
    [
        {"command": ["node"]},
        {"command": ["/usr/bin/node", "--version"]},
        {"command": ["node", *["x" * 4096] * 31]},
        {"stdinBase64": ""},
        {"stdinBase64": base64.b64encode(bytes(2**20)).decode()},
    ],
)
async def test_what_is_at_its_bound_is_quoted(shop: Shop, members: dict[str, Any]) -> None:
    assert (await shop.post({"command": NODE, **members}, fresh_key(), path=RUN)).status_code == 402


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RANGES)
async def test_a_limit_out_of_its_range_is_refused_where_it_stands(shop: Shop, name: str) -> None:
    least, most, _ = RANGES[name]
    for value in (least - 1, most + 1, -1, 2**53 - 1, str(least), least + 0.5, True, None):
        await refused(shop, sent(limits={name: value}), 400, "invalid_request", [f"/limits/{name}"])


async def test_every_limit_out_of_its_range_is_told_at_once(shop: Shop) -> None:
    answer = await refused(shop, sent(limits=dict.fromkeys(RANGES, 0)), 400, "invalid_request")
    assert {each["pointer"] for each in answer.json()["errors"]} == {f"/limits/{name}" for name in RANGES}


@pytest.mark.parametrize(
    ("content", "pointers"),
    [
        (b"{}", ["/command"]),
        (sent(extra=1), ["/extra"]),
        (sent(limits={"memory": 1}), ["/limits/memory"]),
        (sent(limits=None), ["/limits"]),
        (sent(limits=[]), ["/limits"]),
        (sent(command="node -e 1"), ["/command"]),
        (sent(command=[]), ["/command"]),
        (sent(command=["node"] * 33), ["/command"]),
        (sent(command=["node", "x" * 4097]), ["/command/1"]),
        (sent(command=["node", ""]), ["/command/1"]),
        (sent(command=[""]), ["/command/0"]),
        (sent(command=["node", 1]), ["/command/1"]),
        (sent(command=["node", None]), ["/command/1"]),
        (sent(command=["node", "a\0b"]), ["/command/1"]),
        (sent(command=["\0"]), ["/command/0"]),
        (sent(stdinBase64=None), ["/stdinBase64"]),
        (sent(stdinBase64="!!!!"), ["/stdinBase64"]),
        (sent(stdinBase64="YQ"), ["/stdinBase64"]),
        (sent(stdinBase64="YR=="), ["/stdinBase64"]),
        (sent(stdinBase64="YQ==\n"), ["/stdinBase64"]),
        (sent(stdinBase64="-_-_"), ["/stdinBase64"]),
        (sent(stdinBase64=base64.b64encode(bytes(2**20 + 1)).decode()), ["/stdinBase64"]),
        (sent(stdinBase64=base64.b64encode(bytes(2**21)).decode()), ["/stdinBase64"]),
    ],
)
async def test_a_body_that_breaks_the_schema_is_refused_where_it_is_wrong(
    shop: Shop, content: bytes, pointers: list[str]
) -> None:
    await refused(shop, content, 400, "invalid_request", pointers)


@pytest.mark.parametrize(
    "name", ["npx", "npm", "sh", "bash", "--version", "-e", "NODE", "/usr/bin", "/bin/sh", "./node"]
)
async def test_a_command_that_the_image_has_not_is_refused_by_its_name(shop: Shop, name: str) -> None:
    await refused(shop, sent(command=[name, "-c", "true"]), 400, "command_not_found", ["/command/0"])


@pytest.mark.parametrize("half", ["\\ud800", "\\udc00", "\\ud800\\ud800"])
async def test_half_of_a_surrogate_pair_is_no_text(shop: Shop, half: str) -> None:
    answer = await refused(shop, b'{"command":["node","%s"]}' % half.encode(), 400, "invalid_json")
    assert answer.json()["retryable"] is False


async def test_a_body_over_4_mib_is_too_large_and_one_of_4_mib_is_not(shop: Shop) -> None:
    most = sent().ljust(4 * 2**20)
    await refused(shop, most + b" ", 413, "content_too_large")
    headers = {"Content-Type": "application/json", "Idempotency-Key": fresh_key()}
    assert (await shop.client.post(shop.url + RUN, content=most, headers=headers)).status_code == 402


@pytest.mark.parametrize(
    ("key", "code"),
    [(None, "idempotency_key_missing"), ("short", "idempotency_key_invalid"), ("x" * 129, "idempotency_key_invalid")],
)
async def test_a_key_is_wanted_before_there_is_a_price(shop: Shop, key: str | None, code: str) -> None:
    answer = await shop.post(program("1"), key, path=RUN)
    assert (answer.status_code, answer.json()["code"]) == (400, code)
    assert not carries_challenge(answer)


async def test_what_is_not_paid_for_is_neither_kept_nor_run(
    shop: Shop, seller: SandboxNode, customer: httpx.AsyncClient
) -> None:
    await asked(shop, None)
    assert seller.node.rows()["operations"] == 0
    assert await seller.ended(customer) == {}
    assert seller.node.defects() == []
