"""JSON of strangers: what many of them send that is not quite JSON, read without a loss to anybody.

A byte order mark before it is left out, and an escaped half of a surrogate pair, which no text can hold, is the
replacement character U+FFFD.  Everything else that is not JSON is refused.
"""

from __future__ import annotations

import re
from typing import Any

import orjson

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_ESCAPES = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"  # a pair
    rb"|(\\u[dD][89a-fA-F][0-9a-fA-F]{2})"  # half of one
    rb"|\\."
)


def read_json(content: bytes) -> Any:
    """Return the value; raises `ValueError` on what is not JSON."""
    plain = content.removeprefix(BYTE_ORDER_MARK)
    try:
        return orjson.loads(plain)
    except orjson.JSONDecodeError:
        mended = _ESCAPES.sub(lambda found: rb"\ufffd" if found[1] else found[0], plain)
        if mended == plain:
            raise
        return orjson.loads(mended)
