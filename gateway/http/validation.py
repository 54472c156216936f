"""From the bytes of a body to a frozen request: the schema judges, cattrs structures, every violation is told.

The schema object is the published one (JSON Schema 2020-12, validated by jsonschema-rs); its patterns and lengths
count Unicode characters.  Values are never coerced, but `3.0` is the integer 3.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs
import cattrs
import jsonschema_rs
from cattrs.gen import make_dict_structure_fn, override

from gateway.errors import GatewayError, InvalidRequest, Violation
from gateway.registry.canonical import request_hash, with_defaults
from gateway.registry.operation import Operation

LISTED = 100
"""Violations that a problem lists at most."""
LONGEST_TOKEN = 128


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(word.title() for word in rest)


def _strict(kind: type) -> Any:
    def structure(value: Any, _: Any) -> Any:
        if type(value) is not kind:
            raise TypeError(f"expected {kind.__name__}")
        return value

    return structure


def converter() -> cattrs.Converter:
    """Return a converter of JSON objects into attrs classes: camelCase names, no extra members, no coercion."""
    made = cattrs.Converter(forbid_extra_keys=True)
    for kind in (str, int, bool, float):
        made.register_structure_hook(kind, _strict(kind))

    def structure(cls: type) -> Any:
        names = {
            field.name: override(rename=field.metadata.get("json") or _camel(field.name)) for field in attrs.fields(cls)
        }
        return make_dict_structure_fn(cls, made, _cattrs_forbid_extra_keys=True, **names)  # type: ignore[arg-type]  # overrides by name

    made.register_structure_hook_factory(attrs.has, structure)
    return made


_CONVERTER = converter()


def structure(operation: Operation, body: Mapping[str, Any]) -> Any:
    """Return a valid body as the operation's own frozen class."""
    return _CONVERTER.structure(dict(body), operation.request)


@attrs.frozen
class Valid:
    """A body that the schema accepts: defaults filled in, hashed and structured."""

    body: Mapping[str, Any] = attrs.field(repr=False)
    request: Any = attrs.field(repr=False)
    request_hash: str


@attrs.frozen(eq=False)
class BodyValidator:
    """Validates the bodies of one operation."""

    operation: Operation
    _schema: jsonschema_rs.Draft202012Validator

    @classmethod
    def of(cls, operation: Operation) -> BodyValidator:
        """Compile the schema of an operation; what it says of a value never repeats the value."""
        return cls(operation, jsonschema_rs.Draft202012Validator(dict(operation.schema), mask="the value"))

    def validate(self, body: Any) -> Valid:
        """Return the valid request; raises what `refusal` returns."""
        violations = self.violations(body)
        if violations:
            raise self.refusal(body, violations)
        return self.valid(body)

    def violations(self, body: Any) -> list[Violation]:
        """Return everything that the schema finds wrong, in the order of the pointers."""
        if self._schema.is_valid(body):
            return []
        return sorted(set(self._violations(body)), key=lambda each: (each.pointer, each.detail))

    def valid(self, body: Any) -> Valid:
        """Return a body without violations as the valid request that it is."""
        filled = with_defaults(self.operation.schema, body)
        return Valid(filled, structure(self.operation, filled), request_hash(self.operation.id, filled))

    def refusal(self, body: Any, violations: Sequence[Violation]) -> GatewayError:
        """Return the problem of a request with these violations: the particular one that the operation names, if any.

        It lists no more than `LISTED` of them and says how many there are.
        """
        named = self.operation.refine(body) if isinstance(body, dict) else None
        problem = named or InvalidRequest(_summary(len(violations)))
        problem.errors = tuple(violations[:LISTED])
        if len(violations) > LISTED:
            problem.extra["errorsOmitted"] = len(violations) - LISTED
        return problem

    def _violations(self, body: Any) -> Iterator[Violation]:
        for error in self._schema.iter_errors(body):
            at = pointer(error.instance_path)
            kind: Any = error.kind
            match kind.name:
                case "required":
                    yield Violation(f"{at}/{_token(kind.property)}", "is required")
                case "additionalProperties" | "unevaluatedProperties":
                    for name in kind.unexpected:
                        yield Violation(f"{at}/{_token(name)}", "is not a member of this request")
                case "propertyNames":
                    yield Violation(at, "has a member whose name is not allowed")
                case _:
                    yield Violation(at, error.message)


def pointer(path: Any) -> str:
    """Return the RFC 6901 pointer of a path of names and indexes."""
    return "".join(f"/{_token(step)}" for step in path)


def _token(step: object) -> str:
    """Return a step as an RFC 6901 token, cut where a caller's name is overly long."""
    name = str(step)
    token = name[:LONGEST_TOKEN].replace("~", "~0").replace("/", "~1")
    return token if len(name) <= LONGEST_TOKEN else f"{token}…"


def _summary(count: int) -> str:
    return (
        "The request has one fault, told in `errors`."
        if count == 1
        else f"The request has {count} faults, told in `errors`."
    )
