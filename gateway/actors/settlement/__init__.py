"""Settlement: the facilitator is asked, the chain decides."""

from gateway.actors.settlement._actor import (
    Look,
    SettlementPath,
    Settle,
    Verify,
    settlement,
)
from gateway.actors.settlement._chain import Chain, ChainUnavailable, Sighting, Standing
from gateway.actors.settlement._facilitator import Facilitator, Submission, Verdict

__all__ = [
    "Chain",
    "ChainUnavailable",
    "Facilitator",
    "Look",
    "Settle",
    "SettlementPath",
    "Sighting",
    "Standing",
    "Submission",
    "Verdict",
    "Verify",
    "settlement",
]
