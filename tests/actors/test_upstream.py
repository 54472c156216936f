from __future__ import annotations

import gzip
import random
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import attrs
import pytest
import trio

from gateway.actors.runtime import Ref, Runtime, open_runtime
from gateway.actors.upstream import Call, Caller, ClientPlace, exchange, open_client, upstream
from gateway.registry.http_call import (
    AnswerTooLarge,
    HttpCall,
    UpstreamBroken,
    UpstreamFailed,
    UpstreamTimeout,
    UpstreamUnreachable,
)
from tests.actors.back_ends import OK, Answer, Authority, Server, hang, sends, serving


@attrs.frozen
class Scene:
    caller: Caller
    ref: Ref[Call]
    runtime: Runtime
    place: ClientPlace


@asynccontextmanager
async def upstreaming(
    *, places: int = 8, grace: float = 5.0, direct: bool = True, **options: object
) -> AsyncIterator[Scene]:
    async with open_runtime(grace=grace) as runtime:
        place = ClientPlace()
        body = partial(upstream, place=place, places=places, **options)  # type: ignore[arg-type]
        ref = await runtime.start("upstream", body)
        yield Scene(Caller(ref, place if direct else None), ref, runtime, place)


# -- answers -----------------------------------------------------------------------------------------------------------


async def test_an_answer_comes_with_lower_case_names_and_its_body() -> None:
    said = b"HTTP/1.1 418 Teapot\r\nX-Two: a\r\nx-two: b\r\nContent-Length: 3\r\n\r\nabc"
    async with serving(sends(said)) as server, upstreaming() as scene:
        answer = await scene.caller(HttpCall("POST", server.url + "a?b=c", (("x-key", "k"),), b"body"))
    assert (answer.status, answer.content, answer.headers["x-two"]) == (418, b"abc", "a, b")
    assert answer.elapsed_ms >= 0
    head, _, body = server.heads[0].partition(b"\r\n\r\n")
    assert head.startswith(b"POST /a?b=c HTTP/1.1\r\n")
    assert body == b"body"
    assert {b"x-key: k", b"content-length: 4", b"accept-encoding: gzip"} <= set(head.lower().split(b"\r\n"))


async def test_a_get_sends_no_body_and_a_bare_post_an_empty_one() -> None:
    async with serving(sends(OK)) as server, upstreaming() as scene:
        await scene.caller(HttpCall("GET", server.url))
        await scene.caller(HttpCall("POST", server.url))
    assert b"content-length" not in server.heads[0].lower()
    assert b"content-length: 0" in server.heads[1].lower()


async def test_a_redirect_is_an_answer_and_not_followed() -> None:
    said = b"HTTP/1.1 307 Moved\r\nlocation: /elsewhere\r\ncontent-length: 0\r\n\r\n"
    async with serving(sends(said)) as server, upstreaming() as scene:
        answer = await scene.caller(HttpCall("POST", server.url, content=b"{}"))
        assert (answer.status, answer.headers["location"]) == (307, "/elsewhere")
        assert len(server.heads) == 1


async def test_a_compressed_body_is_unpacked() -> None:
    packed = gzip.compress(b"plain" * 100)
    said = b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(packed)
    async with serving(sends(said + packed)) as server, upstreaming() as scene:
        assert (await scene.caller(HttpCall("GET", server.url))).content == b"plain" * 100


@pytest.mark.parametrize("padding", [b"", bytes(512)])
async def test_a_compressed_body_may_have_several_members(padding: bytes) -> None:
    packed = gzip.compress(b"one ") + gzip.compress(b"") + gzip.compress(b"two") + padding
    said = b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(packed)
    parts = [packed[at : at + 7] for at in range(0, len(packed), 7)]
    async with serving(sends(said, *parts)) as server, upstreaming() as scene:
        assert (await scene.caller(HttpCall("GET", server.url))).content == b"one two"


@pytest.mark.parametrize("more", [b"garbage", gzip.compress(b"two")[:-4], gzip.compress(b"") * 2000])
async def test_what_follows_a_member_is_one_or_the_body_is_broken(more: bytes) -> None:
    packed = gzip.compress(b"one") + more
    said = b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(packed)
    assert type(await failure(sends(said, packed), timeout_s=5.0)) is UpstreamBroken


async def test_a_user_name_in_the_address_becomes_authorization() -> None:
    async with serving(sends(OK)) as server, upstreaming() as scene:
        await scene.caller(HttpCall("GET", server.url.replace("//", "//us%40er:pass@")))
    assert b"authorization: Basic dXNAZXI6cGFzcw==" in server.heads[0]


async def test_a_connection_is_used_again() -> None:
    async with serving(sends(OK)) as server, upstreaming() as scene:
        for _ in range(5):
            await scene.caller(HttpCall("GET", server.url))
    assert server.connections == 1


async def test_a_connection_that_was_idle_for_long_is_not_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.actors.upstream.IDLE_S", 0.0)
    async with serving(sends(OK)) as server, upstreaming() as scene:
        for _ in range(3):
            await scene.caller(HttpCall("GET", server.url))
        with trio.fail_after(5):
            while server.open > 1:
                await trio.lowlevel.checkpoint()
    assert server.connections == 3


async def test_no_more_connections_are_kept_than_are_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.actors.upstream.IDLE_CONNECTIONS", 2)
    async with serving(sends(OK)) as server, upstreaming() as scene:
        async with trio.open_nursery() as nursery:
            for _ in range(8):
                nursery.start_soon(scene.caller, HttpCall("GET", server.url))
        with trio.fail_after(5):
            while server.open > 2:
                await trio.lowlevel.checkpoint()


async def test_an_answer_that_closes_is_followed_by_a_new_connection() -> None:
    said = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok"
    async with serving(sends(said, close=True)) as server, upstreaming() as scene:
        for _ in range(3):
            assert (await scene.caller(HttpCall("GET", server.url))).content == b"ok"
    assert server.connections == 3


async def test_more_calls_than_places_wait_their_turn() -> None:
    under_way = most = 0

    async def answer(stream: trio.SocketStream) -> None:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        for _ in range(5):
            await trio.lowlevel.checkpoint()
        under_way -= 1
        await stream.send_all(OK)

    answered = []

    async def ask(scene: Scene, url: str) -> None:
        answered.append(await scene.caller(HttpCall("GET", url)))

    async with serving(answer) as server, upstreaming(places=4) as scene, trio.open_nursery() as nursery:
        for _ in range(40):
            nursery.start_soon(ask, scene, server.url)
    assert [answer.status for answer in answered] == [200] * 40
    assert most <= 4


# -- bounds ------------------------------------------------------------------------------------------------------------


async def failure(answer: Answer, timeout_s: float = 0.3) -> UpstreamFailed:
    """Make one call to a server that answers so, and return how it failed."""
    async with serving(answer) as server, upstreaming() as scene:
        began = trio.current_time()
        with pytest.raises(UpstreamFailed) as caught:
            await scene.caller(HttpCall("POST", server.url, content=b"{}", timeout_s=timeout_s))
        assert trio.current_time() - began < timeout_s + 2
    return caught.value


async def drip(start: bytes, piece: bytes, stream: trio.SocketStream) -> None:
    await stream.send_all(start)
    while True:
        await stream.send_all(piece)
        with trio.move_on_after(0.02):
            await stream.receive_some(1)


@pytest.mark.parametrize(
    ("start", "piece"),
    [
        (b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n", b"x"),
        (b"HTTP/1.1 200 OK\r\nx-slow: ", b"x"),
        (b"", b"HTTP/1.1 103 Early Hints\r\n\r\n"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
    ],
)
async def test_a_slow_drip_does_not_outlive_the_deadline(start: bytes, piece: bytes) -> None:
    failed = await failure(partial(drip, start, piece))
    assert (type(failed), failed.sent) == (UpstreamTimeout, True)


async def test_silence_ends_at_the_deadline() -> None:
    failed = await failure(hang)
    assert (type(failed), failed.sent) == (UpstreamTimeout, True)


async def test_a_request_that_nobody_reads_ends_at_the_deadline() -> None:
    async def ignore(stream: trio.SocketStream) -> None:
        del stream
        await trio.sleep_forever()

    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    url = f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}/"
    async with trio.open_nursery() as nursery, upstreaming() as scene:
        nursery.start_soon(trio.serve_listeners, ignore, listeners)
        with pytest.raises(UpstreamTimeout):
            await scene.caller(HttpCall("POST", url, content=bytes(2**24), timeout_s=0.3))
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("coding", ["chunked", "length", "gzip"])
async def test_a_body_over_its_cap_is_cut_and_the_next_call_is_well(coding: str, whole: bool) -> None:
    size = 5000 if whole else 2**22
    body = gzip.compress(bytes(size)) if coding == "gzip" else b"x" * size
    said = b"HTTP/1.1 200 OK\r\n" + (b"content-encoding: gzip\r\n" if coding == "gzip" else b"")
    if coding == "chunked":
        said += b"transfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (size, body)
    else:
        said += b"content-length: %d\r\n\r\n%b" % (len(body), body)
    answers = iter([said, OK, OK])

    async def answer(stream: trio.SocketStream) -> None:
        await stream.send_all(next(answers))

    async with serving(answer) as server, upstreaming(places=1) as scene:
        with pytest.raises(AnswerTooLarge):
            await scene.caller(HttpCall("GET", server.url, max_bytes=4096))
        for _ in range(2):
            assert (await scene.caller(HttpCall("GET", server.url))).content == b"ok"


async def test_a_body_of_exactly_the_cap_is_kept() -> None:
    said = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
    async with serving(sends(said)) as server, upstreaming() as scene:
        assert (await scene.caller(HttpCall("GET", server.url, max_bytes=2))).content == b"ok"


async def test_a_bomb_is_not_unpacked() -> None:
    bomb = gzip.compress(bytes(2**26))
    said = b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(bomb)
    failed = await failure(sends(said, bomb), timeout_s=5.0)
    assert type(failed) is AnswerTooLarge


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * 200_000,
        b"HTTP/1.1 200 OK\r\ncontent-encoding: br\r\ncontent-length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\n\r\n" + gzip.compress(b"x" * 1000)[:-12],
    ],
)
async def test_what_is_not_a_whole_answer_is_a_broken_call(said: bytes) -> None:
    failed = await failure(sends(said, close=True), timeout_s=2.0)
    assert (type(failed), failed.sent) == (UpstreamBroken, True)


async def test_a_reset_is_a_broken_call_that_may_have_arrived() -> None:
    async def reset(stream: trio.SocketStream) -> None:
        stream.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        await stream.aclose()

    failed = await failure(reset)
    assert (type(failed), failed.sent) == (UpstreamBroken, True)


async def test_a_kept_connection_that_dies_under_a_call_is_not_tried_again() -> None:
    asked = 0

    async def answer(stream: trio.SocketStream) -> None:
        nonlocal asked
        asked += 1
        if asked == 1:
            await stream.send_all(OK)
        else:
            await stream.aclose()

    async with serving(answer) as server, upstreaming() as scene:
        await scene.caller(HttpCall("POST", server.url, content=b"1"))
        with pytest.raises(UpstreamBroken) as caught:
            await scene.caller(HttpCall("POST", server.url, content=b"2"))
    assert caught.value.sent
    assert len(server.heads) == 2


# -- what never left ---------------------------------------------------------------------------------------------------


async def closed_port() -> int:
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port: int = listener.socket.getsockname()[1]
    await listener.aclose()
    return port


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:{closed}/",
        "http://127.0.0.1:99999/",
        "http://ä.example/",
        "http://" + "x" * 300 + ".invalid/",
        "http://host.invalid/",
        "http:///nowhere",
        "http://[::1/",
        "ftp://127.0.0.1/",
        "nowhere",
        "",
    ],
)
async def test_an_address_that_cannot_be_reached_was_sent_nothing(url: str) -> None:
    async with upstreaming() as scene:
        with pytest.raises(UpstreamUnreachable) as caught:
            await scene.caller(HttpCall("GET", url.format(closed=await closed_port())))
    assert not caught.value.sent


@pytest.mark.parametrize("header", [("x", "a\r\nb: c"), ("x y", "a"), ("x", "ä"), ("content-length", "1")])
async def test_a_header_that_is_none_is_not_sent(header: tuple[str, str]) -> None:
    async with serving(sends(OK)) as server, upstreaming() as scene:
        with pytest.raises(UpstreamUnreachable):
            await scene.caller(HttpCall("GET", server.url, (header,)))
        assert server.heads == []
        assert (await scene.caller(HttpCall("GET", server.url))).status == 200


async def test_a_defect_ends_only_its_call() -> None:
    def no_trust() -> ssl.SSLContext:
        raise ZeroDivisionError

    async with serving(sends(OK)) as server, upstreaming(trust=no_trust) as scene:
        with pytest.raises(UpstreamBroken):
            await scene.caller(HttpCall("GET", server.url.replace("http:", "https:")))
        assert (await scene.caller(HttpCall("GET", server.url))).status == 200
        assert scene.ref.health().crashes == 0


async def test_a_handshake_that_fails_was_sent_nothing() -> None:
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    url = f"https://127.0.0.1:{listeners[0].socket.getsockname()[1]}/"
    async with trio.open_nursery() as nursery, upstreaming() as scene:
        nursery.start_soon(trio.serve_listeners, sends(b"not tls", close=True), listeners)
        with pytest.raises(UpstreamUnreachable):
            await scene.caller(HttpCall("GET", url))
        nursery.cancel_scope.cancel()


async def test_a_handshake_that_hangs_was_sent_nothing() -> None:
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")  # accepted by the kernel, answered by nobody
    url = f"https://127.0.0.1:{listeners[0].socket.getsockname()[1]}/"
    async with upstreaming() as scene:
        with pytest.raises(UpstreamUnreachable):
            await scene.caller(HttpCall("GET", url, timeout_s=0.3))
    await listeners[0].aclose()


async def test_a_back_end_whose_places_are_taken_says_so_and_starves_no_other() -> None:
    async with (
        serving(hang) as busy,
        serving(sends(OK)) as free,
        upstreaming(places=2, grace=0.1) as scene,
        trio.open_nursery() as nursery,
    ):

        async def occupy() -> None:
            with pytest.raises(UpstreamFailed):
                await scene.caller(HttpCall("GET", busy.url, timeout_s=30))

        for _ in range(2):
            nursery.start_soon(occupy)
        while len(busy.heads) < 2:
            await trio.lowlevel.checkpoint()
        assert (await scene.caller(HttpCall("GET", free.url))).status == 200
        with pytest.raises(UpstreamUnreachable, match="under way"):
            await scene.caller(HttpCall("GET", busy.url, timeout_s=0.2))
        nursery.cancel_scope.cancel()


async def test_a_command_calls_without_an_actor() -> None:
    async with serving(sends(OK)) as server, open_client() as client:
        assert (await exchange(client, HttpCall("GET", server.url))).content == b"ok"
        with pytest.raises(UpstreamUnreachable):
            await exchange(client, HttpCall("GET", "nowhere"))


# -- cancellation, wedges, drain ---------------------------------------------------------------------------------------


@asynccontextmanager
async def hanging() -> AsyncIterator[tuple[Server, trio.Event]]:
    """Serve nothing, and tell when a caller has hung up."""
    hung_up = trio.Event()

    async def answer(stream: trio.SocketStream) -> None:
        if not await stream.receive_some(1):
            hung_up.set()

    async with serving(answer) as server:
        yield server, hung_up


async def leave(scene: Scene, server: Server, *, stops: bool) -> None:
    """Make a call and leave it as soon as the server has read it."""
    asked = len(server.heads)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(scene.caller, HttpCall("POST", server.url, content=b"{}"), stops=stops))
        while len(server.heads) == asked:
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("direct", [True, False])
async def test_a_stopped_call_hangs_up_within_a_second(direct: bool) -> None:
    async with hanging() as (server, hung_up), upstreaming(direct=direct) as scene:
        await leave(scene, server, stops=True)
        with trio.fail_after(1):
            await hung_up.wait()
        assert scene.ref.health().held == 0


async def test_a_call_that_was_not_to_be_stopped_outlives_its_asker() -> None:
    answered = trio.Event()

    async def answer(stream: trio.SocketStream) -> None:
        with trio.move_on_after(0.05) as silence:
            await stream.receive_some(1)
        if silence.cancelled_caught:
            await stream.send_all(OK)
            answered.set()

    async with serving(answer) as server, upstreaming() as scene:
        await leave(scene, server, stops=False)
        with trio.fail_after(5):
            await answered.wait()
            while scene.ref.health().held:
                await trio.lowlevel.checkpoint()


@pytest.mark.parametrize("direct", [True, False])
async def test_the_connection_of_a_stopped_call_is_not_used_again(direct: bool) -> None:
    asked = 0

    async def answer(stream: trio.SocketStream) -> None:
        nonlocal asked
        asked += 1
        if asked == 2:
            await stream.receive_some(1)
        await stream.send_all(OK)

    async with serving(answer) as server, upstreaming(places=1, direct=direct) as scene:
        await scene.caller(HttpCall("GET", server.url), stops=True)
        await leave(scene, server, stops=True)
        assert (await scene.caller(HttpCall("GET", server.url), stops=True)).content == b"ok"
    assert server.connections == 2


async def test_an_answered_call_is_not_stopped_by_what_follows() -> None:
    async with serving(sends(OK)) as server, upstreaming() as scene:
        for _ in range(5):
            assert (await scene.caller(HttpCall("GET", server.url), stops=True)).content == b"ok"
    assert server.connections == 1


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("waits_for", ["handshake", "place"])
async def test_a_call_is_stopped_before_its_connection_stands(waits_for: str, direct: bool) -> None:
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")  # accepted by the kernel, answered by nobody
    url = f"https://127.0.0.1:{listeners[0].socket.getsockname()[1]}/"
    async with upstreaming(places=1, grace=0.1, direct=direct) as scene, trio.open_nursery() as nursery:

        async def occupy() -> None:
            with pytest.raises(UpstreamFailed):
                await scene.caller(HttpCall("GET", url))

        if waits_for == "place":
            nursery.start_soon(occupy)
        others = 1 if waits_for == "place" else 0
        for _ in range(3):
            with trio.move_on_after(0.02):
                await scene.caller(HttpCall("GET", url), stops=True)
        began = trio.current_time()
        while scene.ref.health().held > others:
            await trio.lowlevel.checkpoint()
        assert trio.current_time() - began < 1
    await listeners[0].aclose()


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("tls", [False, True])
async def test_hundreds_of_calls_stopped_at_any_moment_leave_nothing_behind(tls: bool, direct: bool) -> None:
    rng = random.Random(4)
    authority = Authority()
    done = 0

    async def answer(stream: trio.SocketStream) -> None:
        for part in (OK[:9], OK[9:-1], OK[-1:]):
            with trio.move_on_after(rng.random() * 0.004):
                await trio.sleep_forever()
            await stream.send_all(part)

    async def ask(scene: Scene, url: str) -> None:
        nonlocal done
        stops = rng.random() < 0.9
        with trio.move_on_after(rng.random() * 0.03):
            assert (await scene.caller(HttpCall("GET", url, timeout_s=5), stops=stops)).content == b"ok"
            done += 1

    async def wait(scene: Scene, url: str) -> None:
        nonlocal done
        assert (await scene.caller(HttpCall("GET", url, timeout_s=30), stops=True)).content == b"ok"
        done += 1

    async with (
        serving(answer, authority if tls else None) as server,
        upstreaming(places=4, trust=authority.trust, direct=direct) as scene,
    ):
        for _ in range(20):
            async with trio.open_nursery() as nursery:
                for _ in range(20):
                    nursery.start_soon(ask, scene, server.url)
                for _ in range(2):
                    nursery.start_soon(wait, scene, server.url)
        with trio.fail_after(5):
            while scene.ref.health().held or server.open > 4:  # calls that were left and not stopped come to their end
                await trio.lowlevel.checkpoint()
        assert scene.ref.health().crashes == 0
    assert 40 <= done < 400


async def test_a_call_that_its_asker_makes_itself_is_no_letter() -> None:
    async with serving(sends(OK)) as server, upstreaming() as scene:
        for _ in range(3):
            await scene.caller(HttpCall("POST", server.url, content=b"{}"), stops=True)
        assert scene.ref.health().handled == 0
        await scene.caller(HttpCall("POST", server.url, content=b"{}"))
        assert scene.ref.health().handled == 1
    assert server.connections == 1


async def test_a_defect_in_a_call_that_its_asker_makes_is_a_broken_call() -> None:
    def no_trust() -> ssl.SSLContext:
        raise ZeroDivisionError

    async with serving(sends(OK)) as server, upstreaming(trust=no_trust) as scene:
        with pytest.raises(UpstreamBroken):
            await scene.caller(HttpCall("GET", server.url.replace("http:", "https:")), stops=True)


async def test_an_asker_that_has_left_already_sends_nothing() -> None:
    async with serving(sends(OK)) as server, upstreaming() as scene:
        await scene.caller(HttpCall("GET", server.url), stops=True)
        with trio.CancelScope() as left:
            left.cancel()
            await scene.caller(HttpCall("GET", server.url), stops=True)
        await scene.caller(HttpCall("GET", server.url), stops=True)
        assert len(server.heads) == 2
    assert server.connections == 1


async def test_calls_that_differ_only_in_their_bodies_have_their_own_lengths() -> None:
    async with serving(sends(OK)) as server, upstreaming() as scene:
        for content in (b"1", b"22", b"1", b""):
            await scene.caller(HttpCall("POST", server.url, content=content), stops=True)
    told = [head.partition(b"\r\n\r\n") for head in server.heads]
    assert [(b"content-length: %d" % len(body)) in head.lower() for head, _, body in told] == [True] * 4
    assert [body for _, _, body in told] == [b"1", b"22", b"1", b""]


async def test_askers_that_leave_wedge_nothing() -> None:
    rng = random.Random(7)
    async with serving(sends(OK)) as server, upstreaming(places=4) as scene:

        async def leave_early() -> None:
            with trio.move_on_after(rng.random() * 0.01):
                await scene.caller(HttpCall("GET", server.url, timeout_s=2))

        async with trio.open_nursery() as nursery:
            for _ in range(100):
                nursery.start_soon(leave_early)
        assert (await scene.caller(HttpCall("GET", server.url, timeout_s=2))).status == 200
        assert scene.ref.health().crashes == 0


@pytest.mark.parametrize("stops", [True, False])
async def test_a_call_in_flight_at_shutdown_is_finished(stops: bool) -> None:
    release = trio.Event()

    async def answer(stream: trio.SocketStream) -> None:
        await release.wait()
        await stream.send_all(OK)

    answers = []
    async with serving(answer) as server, upstreaming() as scene, trio.open_nursery() as nursery:

        async def ask() -> None:
            answers.append(await scene.caller(HttpCall("GET", server.url), stops=stops))

        nursery.start_soon(ask)
        while not server.heads:
            await trio.lowlevel.checkpoint()
        nursery.start_soon(scene.runtime.stop, 5.0)
        for _ in range(10):
            await trio.lowlevel.checkpoint()
        assert answers == []
        assert scene.place.client is None
        with pytest.raises(UpstreamUnreachable, match="ActorDown"):
            await scene.caller(HttpCall("GET", server.url), stops=stops)
        release.set()
    assert [answer.content for answer in answers] == [b"ok"]


@pytest.mark.parametrize("stops", [True, False])
async def test_a_call_that_outlasts_the_grace_may_have_arrived(stops: bool) -> None:
    async with serving(hang) as server, upstreaming() as scene:
        async with trio.open_nursery() as nursery:

            async def ask() -> None:
                with pytest.raises(UpstreamFailed) as caught:
                    await scene.caller(HttpCall("GET", server.url), stops=stops)
                assert caught.value.sent

            nursery.start_soon(ask)
            while not server.heads:
                await trio.lowlevel.checkpoint()
            await scene.runtime.stop(0.05)
        with pytest.raises(UpstreamUnreachable):
            await scene.caller(HttpCall("GET", server.url), stops=stops)


async def test_a_call_that_waits_when_the_grace_is_over_was_sent_nothing() -> None:
    async with serving(hang) as server, upstreaming(places=1) as scene:
        told = []

        async def ask() -> None:
            with pytest.raises(UpstreamFailed) as caught:
                await scene.caller(HttpCall("GET", server.url), stops=True)
            told.append(caught.value.sent)

        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(ask)
            while not server.heads:
                await trio.lowlevel.checkpoint()
            await scene.runtime.stop(0.05)
        assert sorted(told) == [False, True]
        assert len(server.heads) == 1


async def test_a_call_that_is_never_taken_was_sent_nothing() -> None:
    async with open_runtime(grace=0.05) as runtime:

        async def deaf(inbox: object) -> None:
            inbox.ready()  # type: ignore[attr-defined]
            await trio.sleep_forever()

        ref: Ref[Call] = await runtime.start("upstream", deaf)
        with pytest.raises(UpstreamUnreachable):
            await Caller(ref)(HttpCall("GET", "http://127.0.0.1/", timeout_s=-2.9))
