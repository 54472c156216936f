"""The request of `search.free` and `search.paid` (interface.md 4.2): schema, example and frozen class."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import attrs
from cattrs import override

from gateway.errors import GatewayError, SynthesisUnavailable

SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["query", "synthesize"],
    "properties": {
        "query": {"type": "string", "minLength": 1, "maxLength": 2000, "description": "What to search for."},
        "maxResults": {
            "type": "integer",
            "minimum": 1,
            "maximum": 10,
            "default": 3,
            "description": "The most results to return.",
        },
        "synthesize": {
            "type": "boolean",
            "const": False,
            "default": False,
            "description": "Synthesized answers are unavailable.",
        },
        "language": {
            "type": "string",
            "pattern": "^[a-z]{2,3}(?:-[A-Za-z0-9]{2,8})*$",
            "default": "en",
            "description": "BCP 47 language of the results.",
        },
        "region": {
            "type": "string",
            "pattern": "^[A-Z]{2}$",
            "default": "US",
            "description": "ISO 3166-1 region to search from.",
        },
    },
}

EXAMPLE: Mapping[str, Any] = {"query": "how to verify a payment receipt", "maxResults": 3, "synthesize": False}


@attrs.frozen
class SearchRequest:
    """A valid search request, defaults filled in."""

    query: str
    synthesize: bool = False
    max_results: Annotated[int, override(rename="maxResults")] = 3
    language: str = "en"
    region: str = "US"


def refine(body: Mapping[str, Any]) -> GatewayError | None:
    """Return the particular problem of a body that the schema refuses, where it asks for a synthesized answer."""
    if body.get("synthesize") is True:
        return SynthesisUnavailable()
    return None
