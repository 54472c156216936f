"""Logs: JSON lines on standard error, times in UTC; never a key, a credential, a signature or a body."""

from __future__ import annotations

import logging
import sys

import orjson
import structlog


def log_json_lines(level: int = logging.INFO) -> None:
    """Send structlog's events to standard error as JSON lines."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.dict_tracebacks,
            structlog.processors.JSONRenderer(serializer=_line),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )


def _line(event: object, **_: object) -> str:
    return orjson.dumps(event, default=repr).decode()
