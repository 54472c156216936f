"""Runs that are sold: one run and one transfer for one key, told in full, charged for whatever the command comes to."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any

import httpx
import pytest
import rfc8785
import trio

from gateway.registry.receipts import verify_receipt
from gateway.world.chain import Account, account
from gateway.world.world import World
from tests.world.scenarios.node_process import running
from tests.world.scenarios.purchase import Protocol, Purchase, Shop, carries_challenge, fresh_key, hang_up, together
from tests.world.scenarios.sandbox_node import RUN, SHORT, SLOTS, STANDARD, SandboxNode, bought, images, program

pytestmark = pytest.mark.world

QUEUE = 2
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
DEFAULTS = {
    "cpuMillis": 5_000,
    "memoryBytes": 268_435_456,
    "processes": 16,
    "diskBytes": 67_108_864,
    "outputBytes": 65_536,
    "artifactBytes": 1_048_576,
    "wallTimeMs": 10_000,
}
CLEAN = {"processes": 0, "mounts": 0, "cgroups": 0, "verified": True}
MEASURED = {
    "cpuMillis",
    "peakMemoryBytes",
    "processesPeak",
    "wallMs",
    "diskBytes",
    "outputBytes",
    "artifactBytes",
}


@pytest.fixture(scope="module")
def seller(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SandboxNode]:
    with images() as place:
        made = SandboxNode.of(world, tmp_path_factory.mktemp("seller"), place, queue=QUEUE)
        with running(made.node):
            yield made


@pytest.fixture
async def shop(world: World, customer: httpx.AsyncClient, seller: SandboxNode) -> AsyncIterator[Shop]:
    await seller.until_open(customer)
    opened = seller.shop(customer, world)
    yield opened
    await opened.heal()


def text(kept: bytes, *, truncated: bool = False) -> dict[str, Any]:
    """Return what an answer tells of a stream that is UTF-8."""
    return {
        "encoding": "utf-8",
        "data": kept.decode(),
        "bytes": len(kept),
        "truncated": truncated,
        "sha256": hashlib.sha256(kept).hexdigest(),
    }


def assert_whole(told: dict[str, Any], limits: dict[str, int]) -> None:
    """Check that an answer has every member that spec/outputs names, of its type, and that they agree."""
    output, execution = told["output"], told["execution"]
    assert set(output) - {"artifactsComplete"} == {
        "outcome",
        "exitCode",
        "signal",
        "stdout",
        "stderr",
        "artifacts",
        "route",
    }
    assert type(output["exitCode"]) in {int, type(None)}
    assert type(output["signal"]) in {str, type(None)}
    for stream in (output["stdout"], output["stderr"]):
        assert stream.keys() == {"encoding", "data", "bytes", "truncated", "sha256"}
        data = stream["data"]
        kept = data.encode() if stream["encoding"] == "utf-8" else base64.b64decode(data, validate=True)
        assert (stream["bytes"], stream["sha256"]) == (len(kept), hashlib.sha256(kept).hexdigest())
        assert type(stream["truncated"]) is bool
    for each in output["artifacts"]:
        assert each.keys() == {"name", "bytes", "sha256", "skipped"}
        assert (each["skipped"] is None) is (each["sha256"] is not None)
    route = output["route"]
    assert type(route["routeId"]) is str
    assert type(route["qualificationId"]) is str
    assert (route["degraded"], route["fallback"]) == (False, False)
    assert route["servingAdapters"]
    assert route["cost"]["amountAtomic"] == "0"
    assert DIGEST.fullmatch(execution["image"])
    assert DIGEST.fullmatch(execution["filter"])
    assert execution["limits"] == DEFAULTS | limits
    usage = execution["usage"]
    assert usage.keys() == MEASURED
    assert all(type(each) is int and each >= 0 for each in usage.values()), usage
    assert usage["outputBytes"] == output["stdout"]["bytes"] + output["stderr"]["bytes"]
    assert usage["artifactBytes"] == sum(each["bytes"] for each in output["artifacts"] if each["skipped"] is None)
    assert execution["denials"].keys() == {"processes", "oomKills"}
    assert all(type(each) is int and each >= 0 for each in execution["denials"].values())
    assert execution["cleanup"] == CLEAN
    assert told["receipt"]["resultHash"] == "sha256:" + hashlib.sha256(rfc8785.dumps(output)).hexdigest()


async def assert_paid_once(shop: Shop, payer: Account, answer: httpx.Response, price: int) -> None:
    """Check one transfer of the price, named by a receipt that proves itself without the node."""
    receipt = answer.json()["receipt"]
    (transfer,) = await shop.transfers(payer)
    assert (transfer.transaction, transfer.value) == (receipt["settlement"]["transaction"], price)
    assert receipt["charge"]["amountAtomic"] == str(price)
    keys = (await shop.client.get(f"{shop.url}/.well-known/jwks.json")).json()
    verify_receipt(receipt, keys)


async def sold(shop: Shop, payer: Account, sent: dict[str, Any], price: int = SHORT) -> dict[str, Any]:
    """Buy a run that is charged, and return its whole answer."""
    _, answer = await bought(shop, payer, sent)
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()
    assert_whole(told, sent.get("limits", {}))
    await assert_paid_once(shop, payer, answer, price)
    return told


# -- what is sold ------------------------------------------------------------------------------------------------------

BUSY = """
const fs = require("fs");
fs.writeFileSync("/scratch/kept", Buffer.alloc(300000));
fs.writeFileSync("/out/answer.txt", "42");
console.log(process.cwd(), process.env.HOME, process.env.TMPDIR);
console.error("two");
const until = process.cpuUsage().user + 100000;
while (process.cpuUsage().user < until);
process.exit(3);
"""


@pytest.mark.parametrize("protocol", ["x402", "mpp"])
async def test_a_run_is_told_in_full_charged_once_proved_and_replayed(
    shop: Shop, payer: Account, seller: SandboxNode, customer: httpx.AsyncClient, protocol: Protocol
) -> None:
    before = await seller.ended(customer)
    limits = {"cpuMillis": 4_000, "wallTimeMs": 8_000}
    purchase, answer = await bought(shop, payer, program(BUSY, limits=limits), protocol)
    assert answer.status_code == 200, answer.text
    told = answer.json()
    assert (told["state"], told["replayed"]) == ("RECEIPTED", False)
    assert_whole(told, limits)
    output, usage = told["output"], told["execution"]["usage"]
    assert (output["outcome"], output["exitCode"], output["signal"]) == ("exited", 3, None)
    assert output["stdout"] == text(b"/scratch /scratch /scratch\n")
    assert output["stderr"] == text(b"two\n")
    answered = hashlib.sha256(b"42").hexdigest()
    assert output["artifacts"] == [{"name": "answer.txt", "bytes": 2, "sha256": answered, "skipped": None}]
    assert 100 <= usage["cpuMillis"] <= 4_000
    assert 100 <= usage["wallMs"] <= 8_000
    assert 2**20 <= usage["peakMemoryBytes"] <= 2**28
    assert 2 <= usage["processesPeak"] <= 258
    assert 300_000 <= usage["diskBytes"] <= 2**20
    assert told["execution"]["denials"] == {"processes": 0, "oomKills": 0}
    await assert_paid_once(shop, payer, answer, SHORT)

    again = await shop.send(purchase)
    assert (again.status_code, again.headers["idempotency-replayed"]) == (200, "true")
    unpaid = await shop.post(purchase.body, purchase.key, path=RUN)
    assert again.json() == unpaid.json() == told | {"replayed": True}
    assert (await seller.ended(customer)) - before == {"exited": 1}
    assert len(await shop.transfers(payer)) == 1


async def test_a_key_that_has_bought_a_run_buys_no_other(
    shop: Shop, payer: Account, seller: SandboxNode, customer: httpx.AsyncClient
) -> None:
    purchase, answer = await bought(shop, payer, program("1"))
    assert answer.status_code == 200, answer.text
    before = await seller.ended(customer)
    other = await shop.post(program("2"), purchase.key, purchase.credential, path=RUN)
    assert (other.status_code, other.json()["code"]) == (409, "idempotency_key_reused")
    elsewhere = await shop.post(purchase.body, fresh_key(), purchase.credential, path=RUN)
    assert (elsewhere.status_code, elsewhere.json()["code"]) == (409, "payment_already_bound")
    assert not any(carries_challenge(each) for each in (other, elsewhere))
    assert await seller.ended(customer) == before
    assert len(await shop.transfers(payer)) == 1


@pytest.mark.parametrize("protocol", ["x402", "mpp"])
async def test_32_identical_runs_at_once_are_one_run_and_one_transfer(
    shop: Shop, payer: Account, seller: SandboxNode, customer: httpx.AsyncClient, protocol: Protocol
) -> None:
    purchase = await shop.order(payer, protocol, sent=program("console.log(Math.random())"), path=RUN)
    before = await seller.ended(customer)
    answers = await together([partial(shop.send, purchase)] * 32)
    assert Counter(each.status_code for each in answers) == {200: 32}
    assert sum(not each.json()["replayed"] for each in answers) == 1
    assert len({json.dumps(each.json() | {"replayed": True}, sort_keys=True) for each in answers}) == 1
    assert (await seller.ended(customer)) - before == {"exited": 1}
    assert len(await shop.transfers(payer)) == 1


@pytest.mark.parametrize("protocol", ["x402", "mpp"])
async def test_the_price_of_a_short_run_buys_no_longer_one(
    shop: Shop, payer: Account, seller: SandboxNode, customer: httpx.AsyncClient, protocol: Protocol
) -> None:
    cheap = await shop.order(payer, protocol, sent=program("1"), path=RUN)
    before = await seller.ended(customer)
    dear = await shop.post(program("1", limits={"wallTimeMs": 60_000}), cheap.key, cheap.credential, path=RUN)
    assert (dear.status_code, dear.json()["code"]) == (409, "quote_conflict"), dear.text
    assert await seller.ended(customer) == before
    assert await shop.transfers(payer) == []
    assert (await shop.send(cheap)).status_code == 200


async def test_nothing_is_run_for_a_payer_without_funds(
    shop: Shop, seller: SandboxNode, customer: httpx.AsyncClient
) -> None:
    before = await seller.ended(customer)
    _, answer = await bought(shop, account("has nothing for a run"), program("1"))
    assert (answer.status_code, answer.json()["code"]) == (402, "insufficient_funds"), answer.text
    assert await seller.ended(customer) == before


@pytest.mark.parametrize("mode", ["settle_500_before", "settle_500_after"])
async def test_a_run_whose_settlement_fails_at_first_is_settled_later_and_not_made_again(
    shop: Shop, payer: Account, seller: SandboxNode, customer: httpx.AsyncClient, mode: str
) -> None:
    purchase, before = await shop.order(payer, sent=program("console.log(1)"), path=RUN), await seller.ended(customer)
    await shop.fault("facilitator", mode)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(shop.send, purchase)
        for _ in range(200):
            if (await seller.ended(customer)) != before:
                break
            await trio.sleep(0.05)
        await shop.heal()
    served = await shop.until_served(purchase)
    assert served.json()["output"]["stdout"] == text(b"1\n")
    assert (await seller.ended(customer)) - before == {"exited": 1}
    assert len(await shop.transfers(payer)) == 1


# -- how runs end ------------------------------------------------------------------------------------------------------

FILL = 'const fs = require("fs"); const to = process.argv[1]; const f = fs.openSync(to, "w"); let n = 0; '
FILL += "try { for (;;) n += fs.writeSync(f, Buffer.alloc(65536)); } catch (e) { console.log(e.code, n); }"


@pytest.mark.parametrize(
    ("code", "limits", "ending"),
    [
        ("process.exit(3)", {}, ("exited", 3, None)),
        ("process.exit(137)", {}, ("exited", 137, None)),
        ("throw 1", {}, ("exited", 1, None)),
        ("process.abort()", {}, ("signaled", None, "SIGABRT")),
        ('process.kill(process.pid, "SIGKILL")', {}, ("signaled", None, "SIGKILL")),
        ("for (;;);", {"cpuMillis": 200}, ("cpu_limit", None, None)),
        (
            "const a = []; for (;;) a.push(Buffer.alloc(2 ** 20, 1))",
            {"memoryBytes": 2**25},
            ("memory_limit", None, None),
        ),
        ("setInterval(() => {}, 1000)", {"wallTimeMs": 400}, ("wall_limit", None, None)),
        ('for (;;) require("fs").writeSync(1, "x".repeat(10))', {"outputBytes": 25}, ("output_limit", None, None)),
    ],
)
async def test_whatever_a_command_that_was_started_comes_to_is_charged(
    shop: Shop,
    payer: Account,
    code: str,
    limits: dict[str, int],
    ending: tuple[str, int | None, str | None],
) -> None:
    told = await sold(shop, payer, program(code, limits=limits))
    output, usage = told["output"], told["execution"]["usage"]
    assert (output["outcome"], output["exitCode"], output["signal"]) == ending
    match ending[0]:
        case "cpu_limit":
            assert 200 <= usage["cpuMillis"] < 400
        case "memory_limit":
            assert usage["peakMemoryBytes"] >= 2**24
        case "wall_limit":
            assert 400 <= usage["wallMs"] < 1_000
        case "output_limit":
            assert output["stdout"] == text(b"x" * 25, truncated=True)


async def test_both_streams_share_the_limit_of_output_to_the_byte(shop: Shop, payer: Account) -> None:
    code = 'const {writeSync} = require("fs"); writeSync(1, "a".repeat(40)); writeSync(2, "b".repeat(40)); for (;;);'
    output = (await sold(shop, payer, program(code, limits={"outputBytes": 64})))["output"]
    assert output["outcome"] == "output_limit"
    assert output["stdout"]["bytes"] + output["stderr"]["bytes"] == 64
    assert output["stdout"]["truncated"] or output["stderr"]["truncated"]


async def test_output_of_exactly_the_limit_is_no_limit(shop: Shop, payer: Account) -> None:
    code = 'require("fs").writeSync(1, "a".repeat(64))'
    output = (await sold(shop, payer, program(code, limits={"outputBytes": 64})))["output"]
    assert (output["outcome"], output["stdout"]) == ("exited", text(b"a" * 64))


@pytest.mark.parametrize(
    ("where", "name", "least"), [("/scratch/fill", "diskBytes", 2**20), ("/out/fill", "artifactBytes", 2**17)]
)
async def test_a_full_disk_is_what_the_command_makes_of_it(
    shop: Shop, payer: Account, where: str, name: str, least: int
) -> None:
    told = await sold(shop, payer, {"command": ["node", "-e", FILL, where], "limits": {name: least}})
    assert told["output"]["stdout"] == text(f"ENOSPC {least}\n".encode())
    assert told["execution"]["usage"][name] == least


async def test_one_process_is_exactly_one_and_a_denial_is_counted_or_told_to_the_command(
    shop: Shop, payer: Account
) -> None:
    code = 'const r = require("child_process").spawnSync("/usr/bin/node", ["-e", "1"]); console.log(r.error.code)'
    told = await sold(shop, payer, program(code, limits={"processes": 1}))
    assert told["output"]["stdout"] == text(b"EAGAIN\n")
    code = code.replace("r.error.code", "r.status")
    # The payer has paid before: what is new is told by the answer alone.
    _, answer = await bought(shop, payer, program(code, limits={"processes": 2}))
    assert answer.json()["output"]["stdout"] == text(b"0\n")


async def test_a_limit_may_be_written_as_a_number_that_is_whole(shop: Shop, payer: Account) -> None:
    told = await sold(shop, payer, program("console.log(1)", limits={"wallTimeMs": 5_000.0}))
    assert type(told["execution"]["limits"]["wallTimeMs"]) is int


# -- what goes in and out ----------------------------------------------------------------------------------------------


async def test_output_that_is_no_text_comes_back_to_the_byte(shop: Shop, payer: Account) -> None:
    every = bytes(range(256))
    code = (
        'const fs = require("fs"); fs.writeSync(1, Buffer.from([...Array(256).keys()])); fs.writeSync(2, "gr\\u00fcn")'
    )
    output = (await sold(shop, payer, program(code)))["output"]
    assert output["stdout"]["encoding"] == "base64"
    assert base64.b64decode(output["stdout"]["data"]) == every
    assert output["stdout"]["sha256"] == hashlib.sha256(every).hexdigest()
    assert output["stderr"] == text("grün".encode())


async def test_output_that_is_six_times_as_long_in_json_is_sold_like_any_other(shop: Shop, payer: Account) -> None:
    code = "process.stdout.write(Buffer.alloc(2 ** 20, 1))"
    told = await sold(shop, payer, program(code, limits={"outputBytes": 2**20}), STANDARD)
    assert told["output"]["stdout"] == text(b"\x01" * 2**20)


async def test_standard_input_of_1_mib_comes_back_whole_for_the_standard_price(shop: Shop, payer: Account) -> None:
    given = bytes(range(256)) * 4096
    sent = program("process.stdin.pipe(process.stdout)", stdinBase64=base64.b64encode(given).decode())
    told = await sold(shop, payer, sent | {"limits": {"outputBytes": 2**20}}, STANDARD)
    assert told["output"]["outcome"] == "exited"
    assert base64.b64decode(told["output"]["stdout"]["data"]) == given


async def test_standard_input_that_nobody_reads_and_none_at_all_are_no_trouble(shop: Shop, payer: Account) -> None:
    given = base64.b64encode(bytes(2**20)).decode()
    told = await sold(shop, payer, program("process.exit(4)", stdinBase64=given))
    assert told["output"]["exitCode"] == 4
    _, answer = await bought(shop, payer, program('console.log(require("fs").readFileSync(0).length)'))
    assert answer.json()["output"]["stdout"] == text(b"0\n")


async def test_32_arguments_of_4096_characters_arrive_as_they_are(shop: Shop, payer: Account) -> None:
    long = "\N{GRINNING FACE}" * 4096
    code = (
        "const a = process.argv; console.log(a.length, new Set(a.slice(1)).size, [...a[1]].length, a[1].charCodeAt(0))"
    )
    sent = {"command": ["node", "-e", code, *[long] * 29]}
    assert (await sold(shop, payer, sent))["output"]["stdout"] == text(b"30 1 4096 55357\n")


async def test_artifacts_are_listed_whatever_they_are_called_and_links_are_not_followed(
    shop: Shop, payer: Account
) -> None:
    code = r"""
    const fs = require("fs");
    fs.mkdirSync("/out/deep");
    fs.writeFileSync("/out/deep/file", "deep");
    fs.writeFileSync("/out/new\nline", "one");
    fs.writeFileSync("/out/\u202egpj.exe", "two");
    fs.writeFileSync(Buffer.from([0x2f, 0x6f, 0x75, 0x74, 0x2f, 0xff]), "three");
    fs.symlinkSync("/etc/passwd", "/out/link");
    """
    listed = (await sold(shop, payer, program(code)))["output"]["artifacts"]
    found = {each["name"]: (each["bytes"], each["sha256"], each["skipped"]) for each in listed}
    assert found == {
        name: (len(content), hashlib.sha256(content).hexdigest(), None)
        for name, content in {
            "deep/file": b"deep",
            "new%0Aline": b"one",
            "%E2%80%AEgpj.exe": b"two",
            "%FF": b"three",
        }.items()
    } | {"link": (None, None, "symlink")}


async def test_neither_the_log_nor_the_store_shows_what_was_run_or_what_came_of_it(
    shop: Shop, payer: Account, seller: SandboxNode
) -> None:
    given, kept = "7c5a1f09e2d34b86", "c0ffee5e77e4d00d"
    code = f'const secret = "{given}"; console.log("{kept[::-1]}".split("").reverse().join(""))'
    code += ';process.stdin.on("data", d => require("fs").writeFileSync("/out/" + String(d), ""))'
    sent = program(code, stdinBase64=base64.b64encode(given.encode()).decode())
    output = (await sold(shop, payer, sent))["output"]
    assert (output["stdout"]["data"], output["artifacts"][0]["name"]) == (f"{kept}\n", given)
    for marker in (given, kept, sent["stdinBase64"]):
        assert marker not in seller.node.log
        assert marker.encode() not in seller.node.at_rest()


async def test_two_runs_share_nothing(shop: Shop, payers: Iterator[Account]) -> None:
    code = 'const fs = require("fs"); const was = fs.readdirSync("/scratch").length + fs.readdirSync("/out").length;'
    code += 'fs.writeFileSync("/scratch/mine", "1"); fs.writeFileSync("/out/mine", "1"); console.log(was);'
    for _ in range(SLOTS + 1):
        assert (await sold(shop, next(payers), program(code)))["output"]["stdout"] == text(b"0\n")


async def test_a_run_of_12_seconds_is_served_whole(shop: Shop, payer: Account) -> None:
    sent = program("setTimeout(() => console.log(1), 12000)", limits={"wallTimeMs": 20_000})
    told = await sold(shop, payer, sent, STANDARD)
    assert (told["output"]["outcome"], told["output"]["stdout"]) == ("exited", text(b"1\n"))
    assert told["execution"]["usage"]["wallMs"] >= 12_000


# -- room --------------------------------------------------------------------------------------------------------------


async def test_where_all_slots_and_the_queue_are_full_nobody_is_asked_to_pay(
    shop: Shop, payers: Iterator[Account], seller: SandboxNode, customer: httpx.AsyncClient
) -> None:
    slow = program("setTimeout(() => {}, 2500)")
    orders = [await shop.order(next(payers), sent=slow | {"stdinBase64": "YWE="}, path=RUN) for _ in range(SLOTS)]
    orders += [await shop.order(next(payers), sent=slow, path=RUN) for _ in range(QUEUE)]
    late = await shop.order(next(payers), sent=program("1"), path=RUN)
    served: list[httpx.Response] = []

    async def send(order: Purchase) -> None:
        served.append(await shop.send(order))

    async with trio.open_nursery() as nursery:
        for order in orders[:SLOTS]:
            nursery.start_soon(send, order)
        await seller.until(customer, lambda told: told["running"] == SLOTS, 10)
        for order in orders[SLOTS:]:
            nursery.start_soon(send, order)
        await seller.until(customer, lambda told: told["queued"] == QUEUE, 2)
        refusals = [await shop.post(slow, fresh_key(), path=RUN), await shop.send(late)]
        assert (await seller.shown(customer))["queued"] == QUEUE
    for answer in refusals:
        assert (answer.status_code, answer.json()["code"]) == (503, "capacity_exhausted"), answer.text
        assert answer.json()["retryable"] is True
        assert int(answer.headers["retry-after"]) >= 1
        assert not carries_challenge(answer)
    assert Counter(each.status_code for each in served) == {200: SLOTS + QUEUE}
    assert late.payer is not None
    assert await shop.transfers(late.payer) == []
    assert (await shop.send(late)).status_code == 200
    assert len(await shop.transfers(late.payer)) == 1


async def test_a_run_whose_caller_leaves_is_completed_and_replayed(
    shop: Shop, payer: Account, seller: SandboxNode, customer: httpx.AsyncClient
) -> None:
    purchase = await shop.order(payer, sent=program("setTimeout(() => console.log(1), 700)"), path=RUN)
    before = await seller.ended(customer)
    await hang_up(shop, purchase, after="verify")
    for _ in range(200):
        if await shop.transfers(payer):
            break
        await trio.sleep(0.05)
    served = await shop.until_served(purchase)
    assert served.json()["replayed"] is True
    assert served.json()["output"]["stdout"] == text(b"1\n")
    assert (await seller.ended(customer)) - before == {"exited": 1}
    assert len(await shop.transfers(payer)) == 1


async def test_nothing_is_left_of_any_run_and_the_books_are_even(
    shop: Shop, seller: SandboxNode, customer: httpx.AsyncClient
) -> None:
    await seller.until_nothing_is_left(1, but_laid=True)
    assert seller.node.defects() == []
    ended = await seller.ended(customer)
    ((settled,),) = seller.node.select("SELECT COUNT(*) FROM operations WHERE settlement = 'settled'")
    assert settled == ended.total() > 0
    balances = seller.node.balances()
    assert (balances["hold"], -balances["payers"]) == (0, balances["revenue"])
    shown = await seller.shown(customer)
    assert (shown["slots"], shown["quarantined"], shown["launcher"]["starts"]) == (SLOTS, [], 1)
