"""The JSON Schema that an answer has to keep: compiled, and refused where it cannot be checked.

Nothing is fetched for it, and its patterns are matched in linear time, whoever wrote them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jsonschema_rs


def validator_of(schema: Mapping[str, Any]) -> jsonschema_rs.Draft202012Validator | None:
    """Return what checks an answer against a schema, None where the schema cannot be checked."""
    try:
        return jsonschema_rs.Draft202012Validator(
            dict(schema), offline=True, pattern_options=jsonschema_rs.RegexOptions()
        )
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError):
        return None
