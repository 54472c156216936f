"""The members of a request's body, read strictly: what is not known, or not as it should be, is refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson

from gateway.world.ai_formats.format import Refused, Served
from gateway.world.ai_text import LEAST_REASONING_TOKENS
from gateway.world.door import Call


def body(call: Call, allowed: Sequence[str]) -> dict[str, Any]:
    """Return the body of a call, an object of no members but these."""
    try:
        members = orjson.loads(call.body)
    except orjson.JSONDecodeError as error:
        raise Refused(f"the body is not JSON: {error}") from error
    if not isinstance(members, dict):
        raise Refused("the body is no object")
    known(members, allowed)
    return members


def known(members: Mapping[str, Any], allowed: Sequence[str], at: str = "") -> None:
    """Refuse members that are not allowed; `at` is where they stand."""
    for name in members:
        if name not in allowed:
            raise Refused(f"Unknown parameter: '{at}{name}'.", f"{at}{name}")


def served(models: Sequence[Served], name: str) -> Served:
    """Return the model of a name; there may be none: 404."""
    for each in models:
        if each.name == name:
            return each
    raise Refused(f"The model '{name}' does not exist or you do not have access to it.", "model", status=404)


def text(members: Mapping[str, Any], name: str, at: str = "") -> str:
    """Return a member that must be a string."""
    if not isinstance(value := members.get(name), str):
        raise Refused(f"Invalid type for '{at}{name}': expected a string.", f"{at}{name}")
    return value


def texts(members: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """Return a member that may be missing, a string, or a list of strings."""
    value = members.get(name) or []
    listed = [value] if isinstance(value, str) else value
    if not isinstance(listed, list) or not all(isinstance(each, str) and each for each in listed):
        raise Refused(f"Invalid type for '{name}': expected strings.", name)
    return tuple(listed)


def joined(value: Any, at: str) -> str:
    """Return the text of a content: a string, or a list of text blocks."""
    if isinstance(value, str):
        return value
    found = []
    for block_at, block in items({at: value}, at):
        known(block, ("type", "text"), f"{block_at}.")
        one_of(block, "type", ("text",), f"{block_at}.")
        found.append(text(block, "text", f"{block_at}."))
    return "".join(found)


def items(members: Mapping[str, Any], name: str, at: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Iterate over the objects of a list that must not be empty, each with its place."""
    listed = members.get(name)
    if not isinstance(listed, list) or not listed:
        raise Refused(f"Invalid type for '{at}{name}': expected a list of objects.", f"{at}{name}")
    for index, each in enumerate(listed):
        if not isinstance(each, dict):
            raise Refused(f"Invalid type for '{at}{name}[{index}]': expected an object.", f"{at}{name}[{index}]")
        yield f"{at}{name}[{index}]", each


def member(members: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a member that may be missing, else is an object."""
    value = members.get(name, {})
    if not isinstance(value, dict):
        raise Refused(f"Invalid type for '{name}': expected an object.", name)
    return value


def one_of(members: Any, name: str, allowed: Sequence[str], at: str = "") -> str:
    """Return a member that must be one of these."""
    value = members.get(name) if isinstance(members, dict) else None
    if value not in allowed:
        raise Refused(f"Invalid value for '{at}{name}': expected one of {', '.join(allowed)}.", f"{at}{name}")
    return str(value)


def constant(members: Mapping[str, Any], name: str, expected: int) -> None:
    """Refuse a member that is anything but what is always the case."""
    if members.get(name, expected) != expected:
        raise Refused(f"Invalid value for '{name}': only {orjson.dumps(expected).decode()} is served.", name)


def limit(members: Mapping[str, Any], name: str, model: Served) -> int:
    """Return the most tokens that may be answered; a model that reasons refuses too few for it."""
    least = LEAST_REASONING_TOKENS if model.reasons else 1
    value = members.get(name, 4096)
    if not isinstance(value, int) or isinstance(value, bool):
        raise Refused(f"Invalid type for '{name}': expected an integer.", name)
    if value < least:
        raise Refused(
            f"Invalid '{name}': integer below minimum value. Expected a value >= {least}, but got {value} instead.",
            name,
        )
    return value
