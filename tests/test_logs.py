from __future__ import annotations

import errno
import io
import json
import logging
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from gateway.logs import MAX_TEXT, log_lines


class Disk(io.StringIO):
    """A stream that can be full."""

    full = False

    def write(self, text: str) -> int:
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(text)


@pytest.fixture
def stream() -> Iterator[Disk]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    structlog.reset_defaults()
    text = Disk()
    log_lines(logging.INFO, text)
    yield text
    structlog.reset_defaults()
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(capture=False)


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def crash(secret: str) -> None:
    held = {"key": secret}
    raise RuntimeError(f"{len(held)} broken")


def test_an_event_is_one_line_of_json_in_utc(stream: io.StringIO) -> None:
    structlog.get_logger("a").info("served", status=200, note="two\nlines")
    (line,) = lines(stream)
    assert (line["event"], line["level"], line["status"], line["note"]) == ("served", "info", 200, "two\nlines")
    assert line["timestamp"].endswith("Z")


def test_what_is_below_the_level_is_not_logged(stream: io.StringIO) -> None:
    structlog.get_logger("a").debug("noise")
    logging.getLogger("httpx").info("HTTP Request: GET http://rpc.example/v3/key")
    assert lines(stream) == []


@pytest.mark.parametrize("by", ["structlog", "logging"])
def test_a_traceback_tells_where_and_no_values(stream: io.StringIO, by: str) -> None:
    log: Any = structlog.get_logger("a") if by == "structlog" else logging.getLogger("a")
    try:
        crash("kanarienvogel")
    except RuntimeError:
        log.exception("crashed")
    (line,) = lines(stream)
    (told,) = line["exception"]
    assert (told["exc_type"], told["exc_value"]) == ("RuntimeError", "1 broken")
    assert [frame["name"] for frame in told["frames"]][-1] == "crash"
    assert "kanarienvogel" not in stream.getvalue()


def test_groups_and_causes_tell_no_values_either(stream: io.StringIO) -> None:
    try:
        try:
            crash("kanarienvogel")
        except RuntimeError as error:
            raise ExceptionGroup("several", [error, ValueError("x")]) from error
    except ExceptionGroup:
        structlog.get_logger("a").exception("crashed")
    assert "RuntimeError" in stream.getvalue()
    assert "kanarienvogel" not in stream.getvalue()


def test_what_other_libraries_warn_of_is_json_too(stream: io.StringIO) -> None:
    logging.getLogger("hypercorn.error").warning("client %s left", "early")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("old", DeprecationWarning, stacklevel=1)
    told, warned = lines(stream)
    assert (told["event"], told["logger"], told["level"]) == ("client early left", "hypercorn.error", "warning")
    assert (warned["logger"], "DeprecationWarning: old" in warned["event"]) == ("py.warnings", True)


@pytest.mark.parametrize("value", ["\ud800", 2**70, {1: "a"}, {("a",): 1}, object(), b"bytes", float("nan"), {1, 2}])
def test_whatever_is_logged_makes_one_line(stream: io.StringIO, value: Any) -> None:
    structlog.get_logger("a").info("odd", value=value)
    assert [line["event"] for line in lines(stream)] == ["odd"]


def test_a_long_text_is_cut(stream: io.StringIO) -> None:
    structlog.get_logger("a").info("long", text="x" * 100_000)
    assert len(lines(stream)[0]["text"]) == MAX_TEXT + 1


def test_lines_go_to_standard_error_by_themselves(capsys: pytest.CaptureFixture[str], stream: io.StringIO) -> None:
    structlog.reset_defaults()
    log_lines()
    structlog.get_logger("a").info("served")
    shown = capsys.readouterr()
    assert (shown.out, json.loads(shown.err)["event"]) == ("", "served")
    assert sys.stderr is not stream


def test_a_log_that_cannot_be_written_breaks_nothing_and_tells_afterwards_how_much_is_missing(stream: Disk) -> None:
    log = structlog.get_logger("a")
    stream.full = True
    for _ in range(3):
        log.info("lost")
    logging.getLogger("other").warning("lost too")
    stream.full = False
    log.info("kept")
    assert [(line["event"], line.get("lines")) for line in lines(stream)] == [("log_lines_lost", 4), ("kept", None)]


def test_a_log_whose_reader_has_closed_it_breaks_nothing(stream: Disk) -> None:
    stream.close()
    structlog.get_logger("a").info("lost")


@pytest.mark.parametrize(
    "character", ["\x7f", "\x85", "\x9b", "\u061c", "\u200f", "\u2028", "\u202e", "\u2066", "\x1b"]
)
def test_what_a_terminal_would_obey_is_escaped(stream: io.StringIO, character: str) -> None:
    structlog.get_logger().info("said", text=f"ü{character}abc")
    assert character not in stream.getvalue()
    assert lines(stream)[0]["text"] == f"ü{character}abc"


def test_an_operation_is_named_in_one_way(stream: io.StringIO) -> None:
    structlog.get_logger().info("settle_answered", operation_id="op_1")
    structlog.get_logger().info("request", operationId="op_2")
    assert [each["operationId"] for each in lines(stream)] == ["op_1", "op_2"]
    assert "operation_id" not in stream.getvalue()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_on_a_terminal_a_person_reads_text_and_nothing_moves_the_cursor(stream: io.StringIO) -> None:
    terminal = Terminal()
    log_lines(file=terminal)
    closed = [{"what": "ai/m", "reason": "key_missing", "fix": "correct its key_file"}]
    structlog.get_logger().info("selling", open=["payments"], closed=closed, node="a\x1b[2J\nb")
    first, *more = terminal.getvalue().splitlines()
    assert first.split()[1:] == ["info", "selling", "node=a\\u001b[2J\\u000ab"]
    assert [" ".join(each.split()) for each in more] == [
        "open payments",
        "closed ai/m: key missing; to open it: correct its key_file",
    ]
    assert "\x1b" not in terminal.getvalue()
