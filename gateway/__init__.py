"""A self-hosted node that sells bounded, pay-per-call operations to software agents over HTTP."""

__version__ = "0.1.0"
