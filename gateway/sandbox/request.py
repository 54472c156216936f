"""The request of `sandbox.execute` (interface.md 4.6): schema, example, frozen class, what the schema cannot say."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import attrs

from gateway.errors import CommandNotFound, GatewayError, InvalidRequest, Violation
from gateway.sandbox import limits as limits_of_a_run
from gateway.sandbox.limits import Limits
from gateway.sandbox.pricing import price_class

OPERATION = "sandbox.execute"
BODY_CAP = 4 * 2**20
MOST_ARGUMENTS = 32
LONGEST_ARGUMENT = 4096
"""Characters: up to 16 KiB in UTF-8, an eighth of what Linux takes as one argument."""
MOST_STDIN = 2**20
"""Bytes, decoded."""
NOT_BASE64 = "is not base64 (RFC 4648 section 4: standard alphabet, padded, without line breaks)"
RESULT_CAP = 9 * 2**20
"""Bytes of JSON that no result passes, since who makes it cannot be paid for one that is too large to be kept.

One byte of output may take six (`\\u0001`), one of the name of an artifact three (`%0A`).
"""

SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["command"],
    "properties": {
        "command": {
            "type": "array",
            "minItems": 1,
            "maxItems": MOST_ARGUMENTS,
            "description": "The command and its arguments, handed over as they are: there is no shell. The first "
            "names an executable of the image; `node` is always there.",
            "items": {
                "type": "string",
                "minLength": 1,
                "maxLength": LONGEST_ARGUMENT,
                "pattern": "^[^\\u0000]*$",
            },
        },
        "stdinBase64": {
            "type": "string",
            "contentEncoding": "base64",
            "maxLength": (MOST_STDIN + 2) // 3 * 4,
            "pattern": "^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/][AQgw]==|[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=)?$",
            "description": f"Standard input in base64 (RFC 4648 section 4, padded), at most {MOST_STDIN} bytes when "
            "decoded. Without it standard input is empty.",
        },
        "limits": limits_of_a_run.SCHEMA,
    },
}

EXAMPLE: Mapping[str, Any] = {
    "command": ["node", "-e", "console.log(6 * 7)"],
    "limits": {"cpuMillis": 2000, "wallTimeMs": 5000},
}


@attrs.frozen
class SandboxRequest:
    """A run that is asked for; `check` tells whether it can be one."""

    command: tuple[str, ...] = attrs.field(repr=False)
    stdin_base64: str | None = attrs.field(default=None, repr=False)
    limits: Limits = attrs.field(factory=Limits)

    @property
    def arguments(self) -> tuple[bytes, ...]:
        """The command as the kernel takes it, in UTF-8."""
        return tuple(each.encode() for each in self.command)

    @property
    def stdin(self) -> bytes:
        """What the command reads from its standard input.  Raises `ValueError` on what is not strict base64."""
        return b"" if self.stdin_base64 is None else strict_base64(self.stdin_base64)


def deadline_s(request: SandboxRequest) -> float:
    """Return how long the execution of a request may take as a whole, in seconds."""
    return request.limits.deadline_s


def price(request: SandboxRequest) -> int:
    """Return the price in millionths of a USD."""
    return price_class(request.limits).price


def strict_base64(text: str) -> bytes:
    """Return the bytes that `text` is the one base64 form of: standard alphabet, padded, no other bit set, no blanks.

    Raises `ValueError` on every other text, so that no two texts are the same input.
    """
    decoded = base64.b64decode(text, validate=True)
    if base64.b64encode(decoded).decode() != text:
        raise ValueError("not the one form that these bytes have in base64")
    return decoded


def refine(body: Mapping[str, Any]) -> GatewayError | None:
    """Return the particular problem of a body that the schema refuses, where a sentence tells what to send instead."""
    command, stdin = body.get("command"), body.get("stdinBase64")
    if isinstance(command, str):
        return InvalidRequest(
            "`command` is a list of arguments, not a line: there is no shell, so send "
            '["node", "-e", "..."] instead of "node -e ...".'
        )
    if isinstance(command, list) and any(isinstance(each, str) and len(each) > LONGEST_ARGUMENT for each in command):
        return InvalidRequest(
            f"An item of `command` has at most {LONGEST_ARGUMENT} characters. Send a longer script as standard input: "
            '`"command": ["node", "-"]` with the script in `stdinBase64`.'
        )
    if isinstance(stdin, str) and not _is_base64(stdin):
        return InvalidRequest(f"`stdinBase64` {NOT_BASE64}.")
    return None


def _is_base64(text: str) -> bool:
    try:
        strict_base64(text)
    except ValueError:
        return False
    return True


def check(request: SandboxRequest, *, resolves: Callable[[str], object]) -> GatewayError | None:
    """Return what is wrong with a request that the schema accepts.

    `resolves` is asked for the command's first item and returns what the image would run, or something false.
    """
    faults = list(_faults(request))
    if faults:
        return InvalidRequest(f"`{faults[0].pointer}` {faults[0].detail}.", errors=faults)
    name = request.command[0]
    if not resolves(name):
        told = f"{name[:128]!r} is no executable of the image"
        return CommandNotFound(told, errors=[Violation("/command/0", "is no executable of the image")])
    return None


def _faults(request: SandboxRequest) -> Iterator[Violation]:
    for index, argument in enumerate(request.command):
        if "\0" in argument:
            yield Violation(f"/command/{index}", "holds a NUL character, which no argument can")
        if not _is_encodable(argument):
            yield Violation(f"/command/{index}", "holds half of a surrogate pair, which has no UTF-8 form")
    try:
        stdin = request.stdin
    except ValueError:
        yield Violation("/stdinBase64", NOT_BASE64)
    else:
        if len(stdin) > MOST_STDIN:
            yield Violation("/stdinBase64", f"is {len(stdin)} bytes when decoded, and {MOST_STDIN} is the most")


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
