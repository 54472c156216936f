from __future__ import annotations

import errno
import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from gateway.logs import MAX_TEXT, log_json_lines


class Disk(io.StringIO):
    """A stream that can be full."""

    full = False

    def write(self, text: str) -> int:
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(text)

    def flush(self) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")

    @property
    def lines(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.getvalue().splitlines()]


@pytest.fixture
def disk() -> Iterator[Disk]:
    stream, root = Disk(), logging.getLogger()
    handlers, level = root.handlers[:], root.level
    log_json_lines(file=stream)
    yield stream
    structlog.reset_defaults()
    logging.captureWarnings(capture=False)
    root.handlers[:], root.level = handlers, level


def test_an_event_is_a_line_of_json_with_its_level_and_time(disk: Disk) -> None:
    structlog.get_logger("test").info("served", status=200)
    (line,) = disk.lines
    assert (line["event"], line["level"], line["status"]) == ("served", "info", 200)
    assert str(line["timestamp"]).endswith("Z")


def test_a_traceback_tells_no_value(disk: Disk) -> None:
    secret = "a-signature"
    try:
        raise ValueError(len(secret))
    except ValueError:
        structlog.get_logger("test").exception("failed")
    assert "a-signature" not in disk.getvalue()
    assert "ValueError" in disk.getvalue()


def test_a_long_text_is_cut(disk: Disk) -> None:
    structlog.get_logger("test").info("served", detail="x" * (MAX_TEXT + 1))
    assert disk.lines[0]["detail"] == "x" * MAX_TEXT + "…"


def test_what_other_libraries_warn_of_is_a_line_too(disk: Disk) -> None:
    logging.getLogger("other").warning("beware of %s", "this")
    assert (disk.lines[0]["event"], disk.lines[0]["logger"]) == ("beware of this", "other")


def test_a_value_that_is_no_json_is_told_all_the_same(disk: Disk) -> None:
    structlog.get_logger("test").info("odd", surrogate="\ud800", large=2**80, thing=object)
    assert disk.lines[0]["large"] == 2**80


def test_a_log_that_cannot_be_written_breaks_nothing_and_tells_afterwards_how_much_is_missing(disk: Disk) -> None:
    log = structlog.get_logger("test")
    disk.full = True
    for _ in range(3):
        log.info("lost")
    logging.getLogger("other").warning("lost too")
    disk.full = False
    log.info("kept")
    assert [(line["event"], line.get("lines")) for line in disk.lines] == [("log_lines_lost", 4), ("kept", None)]


def test_a_log_whose_reader_has_closed_it_breaks_nothing(disk: Disk) -> None:
    disk.close()
    structlog.get_logger("test").info("lost")
