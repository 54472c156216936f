"""Which member of Gemini's `generationConfig` a JSON Schema can go into so that all of it is enforced."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

Member = Literal["responseSchema", "responseJsonSchema"]

DEPTH = 32
NOTES = frozenset({"title", "description", "$schema", "$comment", "default", "examples"})
"""Keywords that ask nothing of the answer."""

OPENAPI = frozenset(
    {"type", "format", "title", "description", "nullable", "enum", "items", "maxItems", "minItems", "properties"}
    | {"required", "minProperties", "maxProperties", "minLength", "maxLength", "pattern", "example", "anyOf"}
    | {"propertyOrdering", "default", "minimum", "maximum"}
)
"""The subset of OpenAPI 3.0 that `responseSchema` knows (ai.google.dev/api/caching#Schema); others are refused."""

JSON_SCHEMA = NOTES | frozenset(
    {"$id", "$defs", "$ref", "$anchor", "type", "format", "enum", "items", "prefixItems", "minItems", "maxItems"}
    | {"minimum", "maximum", "anyOf", "oneOf", "properties", "additionalProperties", "required", "propertyOrdering"}
)
"""What `responseJsonSchema` enforces (ai.google.dev/api/generate-content#GenerationConfig); others it ignores."""


def schema_member(schema: Mapping[str, Any]) -> Member | None:
    """Return the member that enforces all of `schema`; None: neither does."""
    keywords = set(_keywords(schema, DEPTH))
    if keywords <= OPENAPI:
        return "responseSchema"
    return "responseJsonSchema" if keywords <= JSON_SCHEMA else None


def _keywords(schema: Any, depth: int) -> Iterator[str]:
    """Yield the keywords of a schema and all within it; one that no member knows where it goes too deep."""
    if not isinstance(schema, Mapping):
        return
    if depth == 0:
        yield "too deep"
        return
    yield from schema
    if isinstance(schema.get("type"), list):
        yield "prefixItems"  # several types at once are JSON Schema, not OpenAPI 3.0
    for name in ("properties", "$defs"):
        within = schema.get(name)
        for each in within.values() if isinstance(within, Mapping) else ():
            yield from _keywords(each, depth - 1)
    for name in ("items", "additionalProperties"):
        yield from _keywords(schema.get(name), depth - 1)
    for name in ("anyOf", "oneOf", "prefixItems"):
        within = schema.get(name)
        for each in within if isinstance(within, list) else ():
            yield from _keywords(each, depth - 1)
