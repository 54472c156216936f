"""What is right and wrong with this machine and a node's configuration: a fact, its consequence and the exact fix."""

from gateway.doctor._check import Check, Examination
from gateway.doctor._examine import examine, redacted

__all__ = ["Check", "Examination", "examine", "redacted"]
