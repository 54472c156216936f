"""What a command wrote: exactly N bytes of both streams, in a form that gives them back."""

from __future__ import annotations

import base64
import hashlib
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.sandbox.output_text import CHUNK, Capture, Stream, Text, whole_characters

streams = st.sampled_from(["stdout", "stderr"])
fed = st.lists(st.tuples(streams, st.binary(max_size=12)), max_size=12)


def given_back(told: dict[str, Any]) -> bytes:
    data: str = told["data"]
    return data.encode() if told["encoding"] == "utf-8" else base64.b64decode(data, validate=True)


def after(capture: Capture, *chunks: tuple[Stream, bytes]) -> list[bool]:
    return [capture.feed(stream, chunk) for stream, chunk in chunks]


# -- counting ----------------------------------------------------------------------------------------------------------


def test_exactly_as_much_as_may_be_is_not_too_much() -> None:
    capture = Capture(5)
    assert after(capture, ("stdout", b"abc"), ("stderr", b"de"), ("stdout", b"")) == [False, False, False]
    assert (capture.text("stdout"), capture.text("stderr")) == (Text(b"abc", False), Text(b"de", False))


def test_one_byte_more_of_either_stream_is_too_much() -> None:
    either: tuple[Stream, ...] = ("stdout", "stderr")
    for stream in either:
        capture = Capture(5)
        assert after(capture, ("stdout", b"abc"), ("stderr", b"de"), (stream, b"f")) == [False, False, True]
        assert capture.kept_bytes == 5


def test_only_the_stream_that_lost_something_is_truncated() -> None:
    capture = Capture(4)
    assert after(capture, ("stderr", b"e"), ("stdout", b"abcdef")) == [False, True]
    assert capture.text("stdout") == Text(b"abc", truncated=True)
    assert capture.text("stderr") == Text(b"e", truncated=False)


def test_what_comes_after_the_limit_is_passed_is_not_kept() -> None:
    capture = Capture(1)
    assert after(capture, ("stdout", b"ab"), ("stderr", b"c"), ("stderr", b"")) == [True, True, True]
    assert (capture.text("stdout").kept, capture.text("stderr").kept) == (b"a", b"")
    assert capture.text("stderr").truncated


def test_what_was_asked_for_before_more_came_is_not_told_again() -> None:
    capture = Capture(4)
    after(capture, ("stdout", b"ab"))
    assert capture.text("stdout") is capture.text("stdout")
    after(capture, ("stdout", b"cde"))
    assert capture.text("stdout") == Text(b"abcd", truncated=True)


def test_a_silent_command_wrote_nothing() -> None:
    capture = Capture(1)
    assert not capture.passed
    assert capture.text("stdout") == Text(b"", truncated=False)


@given(fed, st.integers(1, 100))
def test_the_first_bytes_of_both_together_are_kept_in_the_order_they_came(
    chunks: list[tuple[Stream, bytes]], most: int
) -> None:
    capture = Capture(most)
    answers = after(capture, *chunks)
    flat = [(stream, byte) for stream, chunk in chunks for byte in chunk]
    for stream in ("stdout", "stderr"):
        mine = bytes(byte for name, byte in flat[:most] if name == stream)
        cut = capture.text(stream).truncated
        assert capture.text(stream).kept == (whole_characters(mine) if cut else mine)
        assert capture.text(stream).truncated is any(name == stream for name, _ in flat[most:])
    assert capture.kept_bytes == min(most, len(flat))
    assert capture.passed is (len(flat) > most)
    assert answers == sorted(answers)


@given(fed, st.integers(1, 100))
def test_a_reader_that_asks_for_the_next_read_takes_one_byte_too_many_at_most(
    chunks: list[tuple[Stream, bytes]], most: int
) -> None:
    capture, taken = Capture(most), 0
    for stream, chunk in chunks:
        rest = chunk
        while rest and not capture.passed:
            assert 1 <= capture.next_read <= CHUNK
            read, rest = rest[: capture.next_read], rest[capture.next_read :]
            taken += len(read)
            capture.feed(stream, read)
    assert taken == min(sum(len(chunk) for _, chunk in chunks), most + 1)


def test_a_read_is_no_larger_than_a_pipe() -> None:
    assert Capture(2**20).next_read == CHUNK == 65_536


# -- the form ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kept", "encoding"),
    [
        (b"", "utf-8"),
        (b"ok\n", "utf-8"),
        ("é€😀\u202e\u2028\ufeff".encode(), "utf-8"),
        (b"\xef\xbb\xbfa\r\n", "utf-8"),  # a byte order mark and the line ends stay
        (b"\x1b[31mred\x1b[0m\a\b\x7f", "utf-8"),  # C0 controls
        (b"\xc2\x9b", "utf-8"),  # a C1 control in UTF-8
        (b"\x9b", "base64"),  # the same as a lone byte
        (b"a\0b", "base64"),
        (b"\0", "base64"),
        (b"\xff", "base64"),
        (b"\xc0\x80", "base64"),  # an overlong NUL
        (b"\xed\xa0\x80", "base64"),  # half of a surrogate pair
        (b"\xf4\x90\x80\x80", "base64"),  # beyond Unicode
        ("é".encode()[:1], "base64"),  # cut in the middle
    ],
)
def test_text_is_utf_8_without_nul_and_all_else_base64(kept: bytes, encoding: str) -> None:
    told = Text(kept, truncated=False).as_json()
    assert told["encoding"] == encoding
    assert given_back(told) == kept


@given(st.binary(max_size=200) | st.text(max_size=100).map(str.encode), st.booleans())
def test_the_bytes_come_back_through_json(kept: bytes, truncated: bool) -> None:
    told = orjson.loads(orjson.dumps(Text(kept, truncated).as_json()))
    assert given_back(told) == kept
    assert told["bytes"] == len(kept)
    assert told["sha256"] == hashlib.sha256(kept).hexdigest()
    assert told["truncated"] is truncated
    assert list(told) == ["encoding", "data", "bytes", "truncated", "sha256"]


def test_output_is_not_shown_by_accident() -> None:
    capture = Capture(10)
    capture.feed("stdout", b"secret")
    assert "secret" not in repr(capture)
    assert "secret" not in repr(capture.text("stdout"))


def test_a_cut_inside_a_character_is_moved_before_it() -> None:
    capture = Capture(4)
    capture.feed("stdout", "abcé".encode() + b"x")
    told = capture.text("stdout").as_json()
    assert (told["encoding"], told["data"], told["bytes"], told["truncated"]) == ("utf-8", "abc", 3, True)
    assert capture.kept_bytes == 4


@pytest.mark.parametrize("kept", [b"\xff\xfe\xfd", b"ab\xc3(", b"\x80", b"a\0\xc3"])
def test_what_is_no_text_is_cut_exactly(kept: bytes) -> None:
    capture = Capture(len(kept))
    capture.feed("stdout", kept + b"x")
    assert capture.text("stdout").encoding == "base64"
