"""Facts about crowds: who has a place, who loses it, and that neither health nor small requests can be crowded out."""

from __future__ import annotations

import contextlib
import random
from math import inf
from typing import TYPE_CHECKING

import attrs
import pytest
import trio
from trio.testing import MockClock

from gateway.http.server.crowd import SPARE, Crowd, Place

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.http.server.conftest import Answer, Client, Node

    Start = Callable[..., Awaitable[Node]]

OTHER = "127.0.0.2"
SLOW_HEAD = b"POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: 900\r\n\r\n"
WAITING = b"POST /slow HTTP/1.1\r\nHost: t\r\nContent-Length: 2\r\n\r\n{}"


# -- the rules --------------------------------------------------------------------------------------------------------


@attrs.define(eq=False)
class Guest:
    network: str = "a"
    place: Place = Place.REGULAR
    idle: bool = False
    gives_way_from: float = inf
    held: int = 0
    evicted: bool = False

    def evict(self) -> None:
        self.evicted = True


def full(bound: int, *guests: Guest) -> Crowd[Guest]:
    """Return a crowd with these guests, and busy ones of many networks in its other places."""
    crowd: Crowd[Guest] = Crowd(bound)
    for guest in (*guests, *(Guest(f"other {number}") for number in range(bound - len(guests)))):
        crowd.add(guest)
    return crowd


async def test_places_are_given_up_to_the_bound(clock: MockClock) -> None:
    crowd: Crowd[Guest] = Crowd(3)
    for network in "abc":
        assert crowd.place_for(network) is Place.REGULAR
        crowd.add(Guest(network))
    assert crowd.place_for("d") is Place.SPARE


async def test_the_longest_idle_goes_first_then_the_longest_stalled_of_the_largest_network(clock: MockClock) -> None:
    await trio.sleep(100)
    idle, idler = Guest(idle=True, gives_way_from=9), Guest("b", idle=True, gives_way_from=8)
    slow, slower, lone = Guest(gives_way_from=7), Guest(gives_way_from=6), Guest("c", gives_way_from=1)
    crowd = full(9, slow, idle, lone, idler, slower, Guest(), Guest())
    order = (idler, idle, slower, slow, lone)
    for number in range(1, 6):
        assert crowd.place_for("new") is Place.REGULAR
        assert [guest.evicted for guest in order] == [True] * number + [False] * (5 - number)
        crowd.add(Guest("new"))
    assert crowd.place_for("new") is Place.SPARE


async def test_a_request_that_only_just_paused_keeps_its_place(clock: MockClock) -> None:
    await trio.sleep(100)
    paused = Guest(gives_way_from=100.5)
    crowd = full(3, paused)
    assert crowd.place_for("new") is Place.SPARE
    assert not paused.evicted


async def test_one_network_never_has_all_places(clock: MockClock) -> None:
    crowd: Crowd[Guest] = Crowd(16)
    for _ in range(14):
        assert crowd.place_for("a") is Place.REGULAR
        crowd.add(Guest("a"))
    assert crowd.place_for("a") is Place.SPARE
    assert crowd.place_for("b") is Place.REGULAR


async def test_a_network_over_its_share_makes_room_among_its_own(clock: MockClock) -> None:
    await trio.sleep(100)
    crowd: Crowd[Guest] = Crowd(16)
    own, foreign = Guest("a", idle=True, gives_way_from=9), Guest("b", idle=True, gives_way_from=1)
    for guest in (own, foreign, *(Guest("a") for _ in range(13))):
        crowd.add(guest)
    assert crowd.place_for("a") is Place.REGULAR
    assert (own.evicted, foreign.evicted) == (True, False)


async def test_the_connections_of_a_proxy_are_no_crowd(clock: MockClock) -> None:
    await trio.sleep(100)
    crowd: Crowd[Guest] = Crowd(8)
    proxied, direct = [Guest("", gives_way_from=1) for _ in range(6)], [Guest("a", gives_way_from=9) for _ in range(2)]
    for guest in proxied + direct:
        assert crowd.place_for(guest.network) is Place.REGULAR
        crowd.add(guest)
    assert crowd.place_for("") is Place.REGULAR
    assert [guest.evicted for guest in proxied + direct] == [False] * 6 + [True, False]


async def test_the_spare_places_are_taken_from_the_oldest_that_waits_for_its_client(clock: MockClock) -> None:
    crowd = full(2)
    spare = [Guest(place=Place.SPARE, gives_way_from=0 if number else inf) for number in range(SPARE)]
    for guest in spare:
        assert crowd.place_for("a") is Place.SPARE
        crowd.add(guest)
    assert crowd.place_for("a") is Place.SPARE
    assert [guest.evicted for guest in spare] == [False, True] + [False] * (SPARE - 2)
    for guest in spare:
        guest.gives_way_from = inf
    crowd.add(Guest(place=Place.SPARE))
    assert crowd.place_for("a") is None


async def test_memory_is_taken_from_what_stalls_and_never_from_who_asks(clock: MockClock) -> None:
    await trio.sleep(100)
    asking, small, moving = (
        Guest(gives_way_from=1, held=9),
        Guest(gives_way_from=1),
        Guest(gives_way_from=100.1, held=9),
    )
    stalled, busy = Guest(gives_way_from=5, held=9), Guest(held=9)
    crowd = full(9, asking, small, moving, stalled, busy)
    assert crowd.free_memory(asking)
    assert stalled.evicted
    assert not crowd.free_memory(asking)
    assert not any(guest.evicted for guest in (asking, small, moving, busy))


@pytest.mark.parametrize("seed", range(5))
async def test_the_crowd_counts_right_whatever_happens(clock: MockClock, seed: int) -> None:
    chance = random.Random(seed)
    crowd: Crowd[Guest] = Crowd(20)
    everyone: list[Guest] = []
    for _ in range(2000):
        clock.jump(0.1)
        if chance.random() < 0.6:
            network = chance.choice(["", "a", "b", "c"])
            place = crowd.place_for(network)
            if place is not None:
                now = trio.current_time()
                idle = chance.random() < 0.2
                guest = Guest(network, place, idle=idle, gives_way_from=now if idle or chance.random() < 0.3 else inf)
                everyone.append(guest)
                crowd.add(guest)
        elif everyone:
            crowd.remove(chance.choice(everyone))
        there = list(crowd)
        placed = [guest for guest in there if guest.place is Place.REGULAR]
        assert not any(guest.evicted for guest in there)
        assert len(placed) <= crowd.bound
        assert len(there) - len(placed) <= SPARE
        for network in "abc":
            assert sum(guest.network == network for guest in placed) <= crowd.share


# -- the running server -----------------------------------------------------------------------------------------------


async def ask(node: Node, path: str, source: str = "", body: bytes | None = None) -> Answer:
    """Ask as a fresh client; fails if the answer takes seconds."""
    with trio.fail_after(5):
        client = await node.connect(source=source)
        answer = await (client.get(path) if body is None else client.post(path, body))
    client.hang_up()
    return answer


async def trickle(client: Client, stop: trio.Event) -> None:
    """Send a byte of a body now and then."""
    with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
        while not stop.is_set():
            await client.send(b"x")
            with trio.move_on_after(0.3):
                await stop.wait()


async def test_1060_slow_bodies_of_one_address_take_neither_health_nor_other_addresses(start: Start) -> None:
    node = await start(max_connections=1024)
    stop = trio.Event()
    async with trio.open_nursery() as nursery:
        for number in range(1060):
            slow = await node.connect()
            await slow.send(SLOW_HEAD)
            if number % 10 == 0:
                nursery.start_soon(trickle, slow, stop)
            if number % 100 == 0:
                assert (await ask(node, "/healthz")).status == 200
        for _ in range(10):
            assert (await ask(node, "/healthz")).status == 200
            assert (await ask(node, "/healthz", OTHER)).status == 200
            assert (await ask(node, "/echo", OTHER, b"{}")).json == {"bytes": 2}
        stop.set()
    assert node.log == []


async def test_slow_bodies_of_many_addresses_give_way_one_by_one(start: Start) -> None:
    node = await start(max_connections=24)
    slow = [await node.connect(source=f"127.0.1.{1 + number % 12}") for number in range(24)]
    for client in slow:
        await client.send(SLOW_HEAD + b"x")
    await trio.sleep(1.1)  # longer than the patience of the server
    for _ in range(5):
        with trio.fail_after(5):
            honest = await node.connect(source=OTHER)
            assert (await honest.post("/echo", b"{}")).status == 200
    assert (await slow[0].answer()).code == "capacity_exhausted"
    await slow[-1].send(b"x" * 899)
    assert (await slow[-1].answer()).json == {"bytes": 900}


async def test_health_is_answered_while_every_place_is_busy(start: Start) -> None:
    node = await start(max_connections=16)
    busy = [await node.connect(source=f"127.0.1.{1 + number}") for number in range(16)]
    for client in busy:
        await client.send(WAITING)
    await node.doings.until(lambda doings: doings.entered == 16)
    silent = [await node.connect() for _ in range(2 * SPARE)]
    for _ in range(3):
        answer = await ask(node, "/healthz")
        assert (answer.status, answer.headers["connection"]) == (200, "close")
        assert (await ask(node, "/hello", OTHER)).code == "capacity_exhausted"
        assert (await ask(node, "/healthz", OTHER, b"{}")).code == "capacity_exhausted"
    node.doings.gate.set()
    assert [(await client.answer()).status for client in busy] == [200] * 16
    assert (await ask(node, "/hello", OTHER)).status == 200
    assert len(silent) == 2 * SPARE
    assert node.doings.cancelled == 0


async def test_clients_that_do_not_read_their_answers_give_way(start: Start) -> None:
    node = await start(max_connections=4, write_timeout_s=60)
    readers = [await node.connect(receive_buffer=65536) for _ in range(4)]
    for client in readers:
        await client.send(b"GET /large HTTP/1.1\r\nHost: t\r\n\r\n")
        await client.stream.receive_some(1)
    await trio.sleep(1.1)  # longer than the patience of the server
    assert (await ask(node, "/hello")).status == 200
    with pytest.raises(trio.BrokenResourceError):
        await readers[0].rest()
    assert node.log == []


async def test_a_proxy_may_have_every_place(start: Start) -> None:
    node = await start(max_connections=16, proxies=("127.0.0.1",))
    busy = [await node.connect() for _ in range(16)]
    for client in busy:
        await client.send(WAITING)
    await node.doings.until(lambda doings: doings.entered == 16)
    node.doings.gate.set()


# -- bodies -----------------------------------------------------------------------------------------------------------


async def test_sixteen_stalled_uploads_stop_neither_small_nor_large_posts(start: Start) -> None:
    node = await start(body_memory_bytes=2**20 * 15, body_pace_s=60)
    stalled = [await node.connect() for _ in range(16)]
    for client in stalled:
        await client.send(
            b"POST /upload HTTP/1.1\r\nHost: t\r\nContent-Length: %d\r\n\r\n" % 2**20 + b"x" * (2**20 - 1)
        )
    await trio.testing.wait_all_tasks_blocked(0.05)
    for source in ("", OTHER):
        assert (await ask(node, "/upload", source, b"x" * 65536)).json == {"bytes": 65536}
    await trio.sleep(1.1)  # longer than the patience of the server
    for source in ("", OTHER):
        assert (await ask(node, "/upload", source, b"x" * 2**20)).json == {"bytes": 2**20}
    assert (await stalled[0].answer()).code == "capacity_exhausted"


async def test_a_body_that_stalls_is_given_up_long_before_its_whole_time(start: Start, clock: MockClock) -> None:
    node = await start(body_pace_s=5, body_timeout_s=300)
    client = await node.connect()
    began = trio.current_time()
    await client.send(b"POST /big HTTP/1.1\r\nHost: t\r\nContent-Length: 16000000\r\n\r\n" + b"x" * 15_000_000)
    assert (await client.answer()).code == "request_timeout"
    assert trio.current_time() - began == pytest.approx(5, abs=0.5)


async def test_a_body_that_trickles_is_given_up(start: Start, clock: MockClock) -> None:
    node = await start(body_pace_s=5, body_timeout_s=300)
    client = await node.connect()
    began = trio.current_time()
    await client.send(b"POST /big HTTP/1.1\r\nHost: t\r\nContent-Length: 16000000\r\n\r\n")
    for _ in range(10):
        await client.send(b"x" * 500)
        await trio.sleep(0.49)
    assert (await client.answer()).code == "request_timeout"
    assert trio.current_time() - began == pytest.approx(5, abs=0.5)


async def test_16_mib_over_a_mobile_line_arrive(start: Start, clock: MockClock) -> None:
    node = await start()
    client = await node.connect()
    await client.send(b"POST /big HTTP/1.1\r\nHost: t\r\nContent-Length: %d\r\n\r\n" % 2**24)
    for number in range(128):
        await client.send(b"x" * 2**17)
        await trio.sleep(8 if number == 64 else 1)  # a megabit a second, and a tunnel
    assert (await client.answer()).json == {"bytes": 2**24}


async def test_newcomers_that_say_nothing_do_not_push_out_one_that_asks(start: Start) -> None:
    node = await start(max_connections=16)
    busy = [await node.connect() for _ in range(14)]
    for client in busy:
        await client.send(WAITING)
    await node.doings.until(lambda doings: doings.entered == 14)
    stop = trio.Event()

    async def come_and_say_nothing() -> None:
        while not stop.is_set():
            client = await node.connect()
            await trio.testing.wait_all_tasks_blocked()
            client.hang_up()

    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(come_and_say_nothing)
        for _ in range(30):
            assert (await ask(node, "/healthz")).status == 200
        stop.set()
    node.doings.gate.set()
