"""Logs on standard error, times in UTC: JSON lines, or text for a person on a terminal.

They never tell a key, a credential, a signature or a body.

Tracebacks are told by file, line and function only: the values in their frames are what must not be told.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from typing import Any, TextIO, cast

import orjson
import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

MAX_TEXT = 2_000
"""Characters of one text in a line; a longer one is cut."""

DECEIVING = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""Control characters and marks of direction that JSON leaves as they are: a terminal would obey them."""

CONTROLS = re.compile(f"[\x00-\x1f]|{DECEIVING.pattern}")

_TRACEBACKS = structlog.tracebacks.ExceptionDictTransformer(show_locals=False, max_frames=20)


class Unbreakable:
    """A text stream whose failures cost lines, never the work that they tell of: a full disk, a reader that has gone.

    How many lines are missing is told by the next one that can be written.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lost = 0

    def write(self, text: str) -> None:
        """Write a line, or count it as lost."""
        try:
            if self._lost:
                told = {"event": "log_lines_lost", "level": "warning", "lines": self._lost}
                self._stream.write(_line(told) + "\n")
                self._lost = 0
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):
            self._lost += 1

    def flush(self) -> None:
        """Nothing: every line is flushed as it is written."""


def log_lines(level: int = logging.INFO, file: TextIO | None = None) -> None:
    """Send structlog's events, and the warnings of everything else, to standard error (or `file`).

    They are text on a terminal, else JSON lines.
    """
    target = sys.stderr if file is None else file
    stream = Unbreakable(target)
    render: Processor = _text if target.isatty() else structlog.processors.JSONRenderer(serializer=_line)
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.ExceptionRenderer(_TRACEBACKS),
        _named_as_on_the_wire,
        _cut,
    ]
    structlog.configure(
        processors=[*shared, render],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(file=cast("TextIO", stream)),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                render,
            ],
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *shared],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(max(level, logging.WARNING))
    logging.captureWarnings(capture=True)


def _named_as_on_the_wire(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """Call an operation's id `operationId`, as answers and commands do, so that one search finds all lines of it."""
    if "operation_id" in event:
        event["operationId"] = event.pop("operation_id")
    return event


def _cut(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    for name, value in event.items():
        if isinstance(value, str) and len(value) > MAX_TEXT:
            event[name] = value[:MAX_TEXT] + "…"
    return event


def _text(_: WrappedLogger, __: str, event: EventDict) -> str:
    """Return an event as text: a line, and one more for each item of a list of what is open or closed."""
    time, level, name = (str(event.pop(each, "")) for each in ("timestamp", "level", "event"))
    blocks = {each: event.pop(each) for each in ("open", "closed") if isinstance(event.get(each), list)}
    members = " ".join(f"{each}={value}" for each, value in event.items() if value is not None)
    lines = [f"{time[11:19]} {level:<8} {name} {members}".rstrip()]
    for standing, items in blocks.items():
        lines += [f"  {standing:<7} {_item(each)}" for each in items]
    return "\n".join(_escaped(each) for each in lines)


def _item(item: Any) -> str:
    if not isinstance(item, dict):
        return str(item)
    return f"{item['what']}: {item['reason'].replace('_', ' ')}; to open it: {item['fix']}"


def _escaped(text: str) -> str:
    """Return a text without line ends and what a terminal would obey."""
    return CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _line(event: Any, **_: object) -> str:
    try:
        line = orjson.dumps(event, default=repr, option=orjson.OPT_NON_STR_KEYS).decode()
    except TypeError:  # a lone surrogate or an integer beyond 64 bits
        return json.dumps(event, default=repr, skipkeys=True)
    return line if line.isascii() else DECEIVING.sub(lambda found: f"\\u{ord(found[0]):04x}", line)
