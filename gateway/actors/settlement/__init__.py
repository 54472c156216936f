"""Settlement: the facilitator is asked, the chain decides."""

from gateway.actors.settlement._actor import (
    BlockTime,
    HasCode,
    Look,
    Message,
    ReadBalance,
    ReadFunds,
    Settle,
    SettlementPath,
    StillStands,
    Verify,
    Wanted,
    settlement,
)
from gateway.actors.settlement._chain import Chain, Expiring, Funds, Sighting, Standing
from gateway.actors.settlement._facilitator import Facilitator, Submission, Verdict, Verification
from gateway.actors.settlement._proof import Search
from gateway.actors.settlement._rpc import ChainUnavailable

__all__ = [
    "BlockTime",
    "Chain",
    "ChainUnavailable",
    "Expiring",
    "Facilitator",
    "Funds",
    "HasCode",
    "Look",
    "Message",
    "ReadBalance",
    "ReadFunds",
    "Search",
    "Settle",
    "SettlementPath",
    "Sighting",
    "Standing",
    "StillStands",
    "Submission",
    "Verdict",
    "Verification",
    "Verify",
    "Wanted",
    "settlement",
]
