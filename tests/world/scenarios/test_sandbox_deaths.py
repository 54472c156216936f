"""Deaths around a run: what never ran is sold still, what may have run is never run again and never charged.

A node, its launcher and bubblewrap are killed from outside, in each state that a run can be in.  What is left of runs
is looked for from outside too, by the users that they have on the host and by the names of their groups.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path

import attrs
import httpx
import pytest
import trio

from gateway.world.chain import Account
from gateway.world.world import World
from tests.reliability.forge import open_forge
from tests.world.scenarios.purchase import Protocol, Purchase, Shop, carries_challenge, fresh_key
from tests.world.scenarios.sandbox_node import RUN, SHORT, SLOTS, SandboxNode, images, program

# httpx leaves the body of a request that a dying node cut short to the garbage collector.
pytestmark = [
    pytest.mark.world,
    pytest.mark.filterwarnings("ignore:Exception ignored in. <async_generator object ByteStream"),
]

LEFT_S = 1.0
"""How long anything of a run may outlive whoever ran it."""
REOPENS_S = 20.0
TOLD_S = 5.0
"""How soon a caller is told of a death, whatever time limit the run has."""
QUICK, LONG = program("console.log(1)"), program("setTimeout(() => {}, 1500)")
NOT_THE_NODE_S = {"sandbox_closed", "sandbox_launcher_killed"}
"""What a node logs as an error where somebody killed its launcher: no defect of its own."""


@pytest.fixture(scope="module")
def mortal(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SandboxNode]:
    """Yield a node that the tests of this module start, kill and start again."""
    with images() as place, open_forge() as forge:
        made = SandboxNode.of(world, tmp_path_factory.mktemp("mortal"), place, launch=forge.launch)
        yield made
        made.node.kill()


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Stop a process for the length of a block; it may end in there."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


@attrs.frozen
class Scene:
    """The node, alive or not, and a customer who has bought nothing yet."""

    mortal: SandboxNode
    shop: Shop
    payer: Account

    async def up(self, armed: str | None = None) -> None:
        """Have the node run and sell, ready to die at a failpoint."""
        node = self.mortal.node
        if armed is not None or node.process is None:
            node.kill()
            environment = {"GATEWAY_FAILPOINT": armed} if armed else {}
            await trio.to_thread.run_sync(lambda: node.start(**environment))
        await self.mortal.until_open(self.shop.client)

    async def die(self) -> None:
        """Kill the node, and check that its runs die with it."""
        await trio.to_thread.run_sync(self.mortal.node.kill)
        await self.mortal.until_nothing_is_left(LEFT_S)

    async def order(self, sent: dict[str, object], protocol: Protocol = "x402") -> Purchase:
        return await self.shop.order(self.payer, protocol, sent=sent, path=RUN)

    @asynccontextmanager
    async def in_flight(self, *purchases: Purchase) -> AsyncIterator[list[httpx.Response]]:
        """Send them for the length of a block, which ends once each is answered or cut short; yields the answers."""
        answers: list[httpx.Response] = []

        async def send(purchase: Purchase) -> None:
            with suppress(httpx.TransportError):
                answers.append(await self.shop.send(purchase))

        async with trio.open_nursery() as nursery:
            for each in purchases:
                nursery.start_soon(send, each)
            yield answers

    async def launcher(self) -> int:
        """Return the launcher's process id."""
        pid: int = (await self.mortal.shown(self.shop.client))["launcher"]["pid"]
        return pid

    async def until_given_to_the_launcher(self) -> None:
        await self.mortal.until(self.shop.client, lambda told: told["running"] == 1, 10)

    async def runs(self) -> dict[str, int]:
        """Return how the runs ended that this process of the node has made."""
        return dict(await self.mortal.ended(self.shop.client))

    # -- what must hold ------------------------------------------------------------------------------------------------

    async def is_sold_once(self, purchase: Purchase) -> httpx.Response:
        """Check that the same request, sent again and again, is served in the end, and paid once."""
        served = await self.shop.until_served(purchase)
        (transfer,) = await self.shop.transfers(self.payer)
        assert transfer.value == SHORT
        assert transfer.transaction == served.json()["receipt"]["settlement"]["transaction"]
        await self.mortal.until_nothing_is_left(LEFT_S, but_laid=True)
        return served

    async def is_burned(self, purchase: Purchase) -> None:
        """Check that a key is refused for ever and without a charge, and that its payment buys the same elsewhere."""
        before = await self.runs()
        for _ in range(2):
            await self._refused_for_ever(purchase)
        assert await self.shop.transfers(self.payer) == []
        assert self.mortal.node.balances()["hold"] == 0
        assert await self.runs() == before
        elsewhere = attrs.evolve(purchase, key=fresh_key())
        served = await self.is_sold_once(elsewhere)
        assert (served.json()["replayed"], served.json()["output"]["outcome"]) == (False, "exited")
        await self._refused_for_ever(purchase)

    async def _refused_for_ever(self, purchase: Purchase) -> None:
        answer = await self.shop.send(purchase)
        told = answer.json()
        assert (answer.status_code, told["code"]) == (409, "execution_reconciliation"), answer.text
        assert told["retryable"] is False
        assert not carries_challenge(answer)
        shown = await self.shop.operation(told["operationId"])
        assert shown["state"] == "FAILED"


@pytest.fixture
def scene(world: World, customer: httpx.AsyncClient, mortal: SandboxNode, payer: Account) -> Scene:
    return Scene(mortal, mortal.shop(customer, world), payer)


# -- of the node -------------------------------------------------------------------------------------------------------


async def killed_at(scene: Scene, label: str, protocol: Protocol) -> Purchase:
    """Buy a run of a node that kills itself on the way, and start the node again."""
    await scene.up(armed=label)
    purchase = await scene.order(QUICK, protocol)
    async with scene.in_flight(purchase) as answers:
        assert await trio.to_thread.run_sync(scene.mortal.node.wait, 30) == -signal.SIGKILL
        await scene.mortal.until_nothing_is_left(LEFT_S)
    assert answers == []
    await scene.up()
    return purchase


@pytest.mark.parametrize(("label", "protocol"), [("execute.before", "mpp"), ("release.before", "x402")])
async def test_a_run_that_its_node_died_before_letting_go_is_sold_as_if_nothing_had_been(
    scene: Scene, label: str, protocol: Protocol
) -> None:
    purchase = await killed_at(scene, label, protocol)
    await scene.is_sold_once(purchase)
    assert (await scene.runs())["exited"] == 1


@pytest.mark.parametrize(
    ("label", "protocol"), [("release.after", "x402"), ("release.after", "mpp"), ("execute.after", "x402")]
)
async def test_a_run_that_may_have_been_when_its_node_died_is_not_made_again_and_costs_nothing(
    scene: Scene, label: str, protocol: Protocol
) -> None:
    await scene.is_burned(await killed_at(scene, label, protocol))


@pytest.mark.parametrize("label", ["keep.after", pytest.param("settle.after", marks=pytest.mark.campaign)])
async def test_a_result_that_was_kept_when_its_node_died_is_sold_without_another_run(scene: Scene, label: str) -> None:
    purchase = await killed_at(scene, label, "x402")
    served = await scene.is_sold_once(purchase)
    assert served.json()["output"]["stdout"]["data"] == "1\n"
    assert await scene.runs() == {}


async def test_a_run_dies_with_its_node(scene: Scene) -> None:
    await scene.up()
    purchase = await scene.order(LONG)
    async with scene.in_flight(purchase) as answers:
        await scene.mortal.until_running()
        await scene.die()
    assert answers == []
    await scene.up()
    await scene.is_burned(purchase)


async def test_a_run_dies_with_its_node_and_launcher_at_once(scene: Scene) -> None:
    await scene.up()
    purchase = await scene.order(LONG)
    launcher = await scene.launcher()
    async with scene.in_flight(purchase):
        await scene.mortal.until_running()
        with stopped(scene.mortal.node.pid):
            os.kill(launcher, signal.SIGKILL)
            await scene.die()
    await scene.up()
    await scene.is_burned(purchase)


async def test_a_run_that_waits_for_a_slot_when_its_node_dies_is_sold_as_if_nothing_had_been(
    scene: Scene, payers: Iterator[Account]
) -> None:
    await scene.up()
    ahead = [await scene.shop.order(next(payers), sent=LONG, path=RUN) for _ in range(SLOTS)]
    purchase = await scene.order(QUICK)
    async with scene.in_flight(*ahead):
        await scene.mortal.until(scene.shop.client, lambda told: told["running"] == SLOTS, 10)
        async with scene.in_flight(purchase) as answers:
            await scene.mortal.until(scene.shop.client, lambda told: told["queued"] == 1, 10)
            await scene.die()
    assert answers == []
    await scene.up()
    await scene.is_sold_once(purchase)


async def test_the_limit_of_time_holds_while_the_node_stands_still(scene: Scene) -> None:
    await scene.up()
    purchase = await scene.order(program("setInterval(() => {}, 1000)", limits={"wallTimeMs": 600}))
    async with scene.in_flight(purchase) as answers:
        await scene.mortal.until_running()
        with stopped(scene.mortal.node.pid):
            await trio.sleep(1.5)
            assert scene.mortal.of_runs() == {}
    (answer,) = answers
    assert answer.json()["output"]["outcome"] == "wall_limit"
    assert 600 <= answer.json()["execution"]["usage"]["wallMs"] < 1_200


async def test_a_node_that_is_asked_to_end_ends_after_the_runs_that_were_sold(
    scene: Scene, payers: Iterator[Account]
) -> None:
    await scene.up()
    purchases = [await scene.shop.order(next(payers), sent=LONG, path=RUN) for _ in range(SLOTS + 1)]
    async with scene.in_flight(*purchases) as answers:
        await scene.mortal.until_running()
        await scene.mortal.until(scene.shop.client, lambda told: told["queued"] == 1, 10)
        scene.mortal.node.terminate()
    assert [each.status_code for each in answers] == [200] * (SLOTS + 1)
    assert await trio.to_thread.run_sync(scene.mortal.node.wait) == 0
    await scene.mortal.until_nothing_is_left(LEFT_S)
    for each in purchases:
        assert each.payer is not None
        assert len(await scene.shop.transfers(each.payer)) == 1


# -- of the launcher ---------------------------------------------------------------------------------------------------


def never_ran(answer: httpx.Response) -> None:
    """Check what is told of a run that was not let go: nothing happened, and it may be sent again."""
    assert (answer.status_code, answer.json()["code"]) == (503, "execution_failed"), answer.text
    assert answer.json()["retryable"] is True
    assert not carries_challenge(answer)


async def test_a_run_that_its_launcher_died_before_letting_go_is_sold_by_the_next_launcher(scene: Scene) -> None:
    await scene.up()
    purchase, launcher = await scene.order(QUICK), await scene.launcher()
    before = await scene.runs()
    with stopped(launcher):
        async with scene.in_flight(purchase) as answers:
            await scene.until_given_to_the_launcher()
            os.kill(launcher, signal.SIGKILL)
        (answer,) = answers
    never_ran(answer)
    await scene.mortal.until_open(scene.shop.client, REOPENS_S)
    await scene.is_sold_once(purchase)
    assert await scene.launcher() != launcher
    assert (await scene.runs())["exited"] == before.get("exited", 0) + 1


async def test_a_run_dies_with_its_launcher_and_the_sandbox_opens_again_by_itself(scene: Scene) -> None:
    await scene.up()
    purchase, launcher = await scene.order(LONG), await scene.launcher()
    async with scene.in_flight(purchase) as answers:
        await scene.mortal.until_running()
        os.kill(launcher, signal.SIGKILL)
        await scene.mortal.until_nothing_is_left(LEFT_S)
        refused = await scene.shop.post(QUICK, fresh_key(), path=RUN)
    assert (refused.status_code, refused.json()["code"]) == (503, "operation_unavailable")
    assert not carries_challenge(refused)
    (answer,) = answers
    assert (answer.status_code, answer.json()["code"]) == (409, "execution_reconciliation")
    await scene.mortal.until_open(scene.shop.client, REOPENS_S)
    await scene.is_burned(purchase)


@pytest.mark.campaign
async def test_a_launcher_that_hangs_is_replaced_and_what_it_was_given_is_sold(scene: Scene) -> None:
    await scene.up()
    purchase, launcher = await scene.order(QUICK), await scene.launcher()
    with stopped(launcher):
        async with scene.in_flight(purchase) as answers:
            await scene.until_given_to_the_launcher()
        (answer,) = answers
        never_ran(answer)
        await scene.mortal.until_open(scene.shop.client, REOPENS_S)
    await scene.is_sold_once(purchase)


# -- of bubblewrap -----------------------------------------------------------------------------------------------------


async def test_a_run_whose_bubblewrap_died_before_it_was_let_go_is_sold(scene: Scene) -> None:
    await scene.up()
    purchase, launcher = await scene.order(QUICK), await scene.launcher()
    async with scene.in_flight(purchase) as answers:
        with ExitStack() as while_the_node_stands_still:
            with stopped(launcher):
                await scene.until_given_to_the_launcher()
                while_the_node_stands_still.enter_context(stopped(scene.mortal.node.pid))
            await until_held(scene)
            scene.mortal.kill_bubblewrap()
            await scene.mortal.until_nothing_is_left(LEFT_S, but_laid=True)
            went_on = trio.current_time()
    assert trio.current_time() - went_on < TOLD_S
    (answer,) = answers
    never_ran(answer)
    served = await scene.is_sold_once(purchase)
    assert served.json()["replayed"] is False
    assert await scene.launcher() == launcher
    assert (await scene.mortal.shown(scene.shop.client))["quarantined"] == []


async def until_held(scene: Scene) -> None:
    """Wait until a sandbox is set up and waits to be let go: for a while, none of its processes works or is new."""
    seen, quiet = "", 0
    for _ in range(500):
        now = work_of(scene.mortal.processes())
        seen, quiet = now, quiet + 1 if now and now == seen else 0
        if quiet == 15:
            return
        await trio.sleep(0.01)
    raise AssertionError(f"no sandbox is held: {seen}")


def work_of(processes: Iterable[int]) -> str:
    """Return what tells whether any of these processes has worked since."""
    told = ""
    for pid in sorted(processes):
        with suppress(FileNotFoundError, ProcessLookupError):
            told += f"{pid}: {Path(f'/proc/{pid}/schedstat').read_text()}"
    return told


@pytest.mark.parametrize("which", ["monitor", "init"])
async def test_a_run_whose_bubblewrap_is_killed_may_have_been_and_the_sandbox_stays_open(
    scene: Scene, which: str
) -> None:
    await scene.up()
    purchase, launcher = await scene.order(LONG), await scene.launcher()
    async with scene.in_flight(purchase) as answers:
        await scene.mortal.until_running()
        monitor, init = sorted(pid for pid, name in scene.mortal.of_runs().items() if name == "bwrap")
        os.kill(monitor if which == "monitor" else init, signal.SIGKILL)
        await scene.mortal.until_nothing_is_left(LEFT_S, but_laid=True)
    (answer,) = answers
    assert (answer.status_code, answer.json()["code"]) == (409, "execution_reconciliation"), answer.text
    await scene.is_burned(purchase)
    shown = await scene.mortal.shown(scene.shop.client)
    assert (shown["launcher"]["pid"], shown["slots"], shown["quarantined"]) == (launcher, SLOTS, [])


# -- of any of them, at any moment -------------------------------------------------------------------------------------


async def die_at_any_moment(scene: Scene, chance: random.Random) -> None:
    """Kill one of them, or two, a moment after a run was bought; then it is sold once, or burned and free of charge."""
    await scene.up()
    purchase, launcher = await scene.order(program("setTimeout(() => {}, 100)")), await scene.launcher()
    victims = chance.choice(["node", "launcher", "bubblewrap", "node and launcher"])
    async with scene.in_flight(purchase):
        await trio.sleep(chance.uniform(0.0, 0.4))
        if victims == "bubblewrap":
            with suppress(AssertionError):  # there is none, before and after the run
                scene.mortal.kill_bubblewrap()
        if "launcher" in victims:
            os.kill(launcher, signal.SIGKILL)
        if "node" in victims:
            await scene.die()
    await scene.up()
    if await is_served_in_the_end(scene, purchase):
        await scene.is_sold_once(purchase)
    else:
        await scene.is_burned(purchase)


async def is_served_in_the_end(scene: Scene, purchase: Purchase) -> bool:
    """Send the same until it is served, or refused for ever."""
    for _ in range(200):
        answer = await scene.shop.send(purchase)
        if answer.status_code == 200 or not answer.json()["retryable"]:
            return answer.status_code == 200
        await trio.sleep(0.1)
    raise AssertionError("neither served nor refused")


@pytest.mark.parametrize("seed", range(2))
async def test_whoever_dies_at_any_moment_a_run_is_sold_once_or_burned_for_nothing(scene: Scene, seed: int) -> None:
    await die_at_any_moment(scene, random.Random(seed))


@pytest.mark.campaign
@pytest.mark.parametrize("seed", range(2, 82))
async def test_whoever_dies_and_whenever_a_run_is_sold_once_or_burned_for_nothing(scene: Scene, seed: int) -> None:
    await die_at_any_moment(scene, random.Random(seed))


async def test_after_all_deaths_the_books_are_even_and_no_defect_was_logged(scene: Scene) -> None:
    await scene.up()
    balances = scene.mortal.node.balances()
    assert (balances["hold"], -balances["payers"]) == (0, balances["revenue"])
    odd = [line for line in scene.mortal.node.defects() if not any(f'"{each}"' in line for each in NOT_THE_NODE_S)]
    assert odd == []
