"""Why a store was not moved."""

from __future__ import annotations


class MoveRefused(Exception):
    """What was checked does not allow the move; the message says what was found and what to do."""
