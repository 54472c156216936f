"""A sandbox that cannot be proved is closed: it says why, asks nobody to pay, and the other families sell on."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio

from gateway.sandbox.image import load_lock, locate
from gateway.sandbox.image_building import remove_tree
from gateway.world.chain import Account
from gateway.world.world import World
from tests.world.scenarios.purchase import Purchase, Shop, carries_challenge, fresh_key
from tests.world.scenarios.sandbox_node import OPENS_S, RUN, SandboxNode, bought, images, program

pytestmark = pytest.mark.world

ANSWER = program("console.log(42)")
Maker = Callable[..., SandboxNode]


@pytest.fixture(scope="module")
def image() -> Iterator[Path]:
    """The pinned image itself, not to be changed."""
    with images() as place:
        yield locate(place, load_lock())


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory for images of its own, which the users of slots may enter."""
    made = Path(tempfile.mkdtemp(prefix="gateway-image-"))
    made.chmod(0o755)
    yield made
    for each in made.iterdir():
        remove_tree(each)
    made.rmdir()


@pytest.fixture
def seller(world: World, tmp_path: Path, image: Path) -> Iterator[Maker]:
    """Return a maker of one node, started, that ends with the test."""
    made: list[SandboxNode] = []

    def make(images: Path | None = None, environment: dict[str, str] | None = None, **sandbox: Any) -> SandboxNode:
        made.append(SandboxNode.of(world, tmp_path / "node", images or image.parent, **sandbox))
        made[-1].node.start(**(environment or {}))
        return made[-1]

    yield make
    for each in made:
        each.node.kill()


def copied(image: Path, place: Path) -> Path:
    """Copy the image as a whole: while it is made it stands under another name."""
    unfinished = place / "unfinished"
    shutil.copytree(image, unfinished, symlinks=True)
    return unfinished.rename(place / image.name)


def altered(image: Path) -> None:
    """Change one byte of one file of an image."""
    with (image / "usr/bin/node").open("r+b") as file:
        file.seek(100_000_000)
        (was,) = file.read(1)
        file.seek(100_000_000)
        file.write(bytes((was ^ 1,)))


async def closed_for(node: SandboxNode, shop: Shop, reason: str, *, passes: bool = False) -> dict[str, Any]:
    """Wait until the sandbox is closed for good, check that nobody is asked to pay, and return the operator's page.

    `passes` says that the node itself goes on trying to open it.
    """
    await node.until(shop.client, lambda told: told["reason"] not in {None, "starting"}, OPENS_S)
    told = await node.shown(shop.client)
    assert (told["open"], told["reason"]) == (False, reason), told
    for sent in (ANSWER, program("1", limits={"wallTimeMs": 60_000})):
        answer = await shop.post(sent, fresh_key(), path=RUN)
        assert (answer.status_code, answer.json()["code"]) == (503, "operation_unavailable"), answer.text
        assert answer.json()["reason"] == reason
        assert answer.json()["retryable"] is passes
        assert ("retry-after" in answer.headers) is passes
        assert ("x-should-retry" not in answer.headers) is passes
        assert not carries_challenge(answer)
        assert "quote" not in answer.json()
    return told


async def sells_on(shop: Shop, payer: Account) -> None:
    """Check that another family is sold by the same node."""
    await shop.until_served(await shop.order(payer))
    assert len(await shop.transfers(payer)) == 1


async def test_a_sandbox_that_is_switched_off_is_not_sold(
    world: World, customer: httpx.AsyncClient, payer: Account, seller: Maker
) -> None:
    node = await trio.to_thread.run_sync(lambda: seller(enabled=False))
    shop = node.shop(customer, world)
    await closed_for(node, shop, "switched_off")
    await sells_on(shop, payer)


async def test_a_request_that_is_wrong_is_told_so_where_the_sandbox_is_closed(
    world: World, customer: httpx.AsyncClient, seller: Maker
) -> None:
    node = await trio.to_thread.run_sync(lambda: seller(enabled=False))
    shop = node.shop(customer, world)
    for sent, code in ((ANSWER | {"extra": 1}, "invalid_request"), ({"command": ["sh"]}, "command_not_found")):
        answer = await shop.post(sent, fresh_key(), path=RUN)
        assert (answer.status_code, answer.json()["code"]) == (400, code)


async def test_without_an_image_it_is_closed_and_it_opens_by_itself_once_there_is_one(
    world: World, customer: httpx.AsyncClient, payer: Account, seller: Maker, place: Path, image: Path
) -> None:
    node = await trio.to_thread.run_sync(lambda: seller(place))
    shop = node.shop(customer, world)
    told = await closed_for(node, shop, "sandbox.image_missing")
    assert "gateway sandbox build" in told["fix"]
    await sells_on(shop, payer)
    await trio.to_thread.run_sync(copied, image, place)
    await node.until_open(customer)


async def test_an_image_with_one_byte_altered_is_not_run(
    world: World, customer: httpx.AsyncClient, payer: Account, seller: Maker, place: Path, image: Path
) -> None:
    await trio.to_thread.run_sync(lambda: altered(copied(image, place)))
    node = await trio.to_thread.run_sync(lambda: seller(place))
    shop = node.shop(customer, world)
    told = await closed_for(node, shop, "sandbox.image_digest_mismatch")
    assert "gateway sandbox build" in told["fix"]
    await sells_on(shop, payer)


async def test_an_image_that_is_altered_under_a_node_that_sells_runs_nothing_more_and_costs_nothing(
    world: World, customer: httpx.AsyncClient, payers: Iterator[Account], seller: Maker, place: Path, image: Path
) -> None:
    own = await trio.to_thread.run_sync(copied, image, place)
    node = await trio.to_thread.run_sync(lambda: seller(place))
    shop, payer = node.shop(customer, world), next(payers)
    await node.until_open(customer)
    _, answer = await bought(shop, next(payers), ANSWER)
    assert answer.status_code == 200, answer.text
    purchase: Purchase = await shop.order(payer, sent=ANSWER, path=RUN)
    altered(own)
    refused = await shop.send(purchase)
    assert refused.status_code == 503, refused.text
    assert refused.json()["retryable"] is False
    assert not carries_challenge(refused)
    await closed_for(node, shop, "sandbox.image_digest_mismatch")
    assert await shop.transfers(payer) == []
    assert node.node.balances()["hold"] == 0
    await sells_on(shop, payer)


async def test_without_bubblewrap_it_is_closed(
    world: World, customer: httpx.AsyncClient, payer: Account, seller: Maker, tmp_path: Path
) -> None:
    node = await trio.to_thread.run_sync(lambda: seller(environment={"PATH": str(tmp_path)}))
    shop = node.shop(customer, world)
    told = await closed_for(node, shop, "sandbox.bwrap_missing")
    assert "bubblewrap" in told["fix"]
    await sells_on(shop, payer)


@pytest.mark.parametrize(
    ("launcher", "reason"),
    [(["/bin/false"], "sandbox.launcher_died"), (["/nowhere/sudo", "-n"], "sandbox.launcher_missing")],
)
async def test_where_the_launcher_s_words_lead_nowhere_it_is_closed(
    world: World, customer: httpx.AsyncClient, payer: Account, seller: Maker, launcher: list[str], reason: str
) -> None:
    node = await trio.to_thread.run_sync(lambda: seller(launcher=launcher))
    shop = node.shop(customer, world)
    told = await closed_for(node, shop, reason, passes=reason == "sandbox.launcher_died")
    assert told["detail"]
    assert told["fix"]
    await sells_on(shop, payer)


async def test_a_run_that_takes_more_memory_than_the_node_has_for_runs_is_never_quoted(
    world: World, customer: httpx.AsyncClient, payer: Account, seller: Maker
) -> None:
    node = await trio.to_thread.run_sync(lambda: seller(memory_mib=512))
    shop = node.shop(customer, world)
    await node.until_open(customer)
    greedy = program("1", limits={"memoryBytes": 2**28, "diskBytes": 2**28})
    answer = await shop.post(greedy, fresh_key(), path=RUN)
    assert (answer.status_code, answer.json()["code"], answer.json()["reason"]) == (503, "capacity_exhausted", "memory")
    assert answer.json()["retryable"] is False
    assert not carries_challenge(answer)
    _, served = await bought(shop, payer, ANSWER)
    assert served.status_code == 200, served.text
