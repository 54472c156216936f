"""Moving a node's store from its SQLite file to PostgreSQL: `gateway migrate --to`.

The move copies every row, may be killed anywhere and goes on where it was, and ends only when both sides were found
equal.  Until then the new store, and from then on the old one, is refused by every node.
"""

from gateway.moving.moving import Moved, Observe, Step, Work, move
from gateway.moving.refusal import MoveRefused

__all__ = ["MoveRefused", "Moved", "Observe", "Step", "Work", "move"]
