"""The sandbox: sold commands are run by a launcher under a supervisor, and nothing is sold that is not proved."""

from gateway.actors.sandbox.closed import Closed
from gateway.actors.sandbox.family import ROUTE_ID, SandboxFamily, sandbox_routes
from gateway.actors.sandbox.place import SandboxPlace, Standing
from gateway.actors.sandbox.settings import SandboxSettings
from gateway.actors.sandbox.supervisor import Message, sandbox

__all__ = [
    "ROUTE_ID",
    "Closed",
    "Message",
    "SandboxFamily",
    "SandboxPlace",
    "SandboxSettings",
    "Standing",
    "sandbox",
    "sandbox_routes",
]
