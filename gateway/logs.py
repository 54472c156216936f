"""Logs: JSON lines on standard error, times in UTC; never a key, a credential, a signature or a body.

Tracebacks are told by file, line and function only: the values in their frames are what must not be told.
"""

from __future__ import annotations

import json
import logging
import sys
from typing import Any, TextIO

import orjson
import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

MAX_TEXT = 2_000
"""Characters of one text in a line; a longer one is cut."""

_TRACEBACKS = structlog.tracebacks.ExceptionDictTransformer(show_locals=False, max_frames=20)


def log_json_lines(level: int = logging.INFO, file: TextIO | None = None) -> None:
    """Send structlog's events, and the warnings of everything else, to standard error (or `file`) as JSON lines."""
    stream = sys.stderr if file is None else file
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.ExceptionRenderer(_TRACEBACKS),
        _cut,
    ]
    structlog.configure(
        processors=[*shared, structlog.processors.JSONRenderer(serializer=_line)],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(file=stream),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.JSONRenderer(serializer=_line),
            ],
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *shared],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(max(level, logging.WARNING))
    logging.captureWarnings(capture=True)


def _cut(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    for name, value in event.items():
        if isinstance(value, str) and len(value) > MAX_TEXT:
            event[name] = value[:MAX_TEXT] + "…"
    return event


def _line(event: Any, **_: object) -> str:
    try:
        return orjson.dumps(event, default=repr, option=orjson.OPT_NON_STR_KEYS).decode()
    except TypeError:  # a lone surrogate or an integer beyond 64 bits
        return json.dumps(event, default=repr, skipkeys=True)
