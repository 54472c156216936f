"""How a command ends: 0 fine, 1 a check failed, 2 usage or configuration, 3 cannot reach the node or store.

A failure that a person can mend is one clear line on standard error; anything else is a defect and keeps its traceback.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import click

FINE, CHECK_FAILED, USAGE, UNREACHABLE = 0, 1, 2, 3
INTERRUPTED = 130


class Stop(click.ClickException):
    """Ends the command with a line on standard error and an exit code.

    With `--json` it is a JSON document on standard output: `members` of the problem, `detail` and `exitCode`.
    """

    def __init__(self, exit_code: int, message: str, members: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.exit_code = exit_code  # type: ignore[misc]  # click reads it from the instance
        self._members = dict(members or {})
        context = click.get_current_context(silent=True)
        self._as_json = context is not None and bool(context.params.get("as_json"))

    def show(self, file: object = None) -> None:
        """Print it."""
        del file
        if self._as_json:
            from gateway.commands.printing import document

            document({"detail": self.message, **self._members, "exitCode": self.exit_code})
        else:
            click.echo(self.format_message(), err=True)


@contextmanager
def exit_codes() -> Iterator[None]:
    """Turn the failures of a command into a line and the documented exit code."""
    try:
        yield
    except BaseExceptionGroup as group:
        raise _ending(_only(group)) from None
    except (Exception, KeyboardInterrupt) as error:
        ending = _ending(error)
        if ending is error:
            raise
        raise ending from None


def _only(group: BaseExceptionGroup[BaseException]) -> BaseException:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def _ending(error: BaseException) -> BaseException:
    """Return what ends the command if a person can mend the failure; the failure itself if it is a defect."""
    from gateway.actors.store.errors import StoreRefused
    from gateway.config import ConfigurationError
    from gateway.errors import GatewayError
    from gateway.keys import KeysRefused

    match error:
        case ConfigurationError():
            places = [f"{error.source}{' ' + each.pointer if each.pointer else ''}" for each in error.violations]
            lines = [f"{place}: {each.detail}" for place, each in zip(places, error.violations, strict=True)]
            faults = [{"pointer": each.pointer, "detail": each.detail} for each in error.violations]
            return Stop(USAGE, "\n".join(lines), {"code": "configuration_invalid", "errors": faults})
        case StoreRefused() | KeysRefused():
            return Stop(UNREACHABLE, str(error))
        case GatewayError():
            members = {"code": error.code, "title": error.title, "status": error.status, "detail": error.detail}
            members |= {
                name: value for name, value in (("next", error.next), *error.extra.items()) if value is not None
            }
            code = UNREACHABLE if error.status == 503 else CHECK_FAILED
            return Stop(code, f"{error.code}: {error.detail}", members)
        case KeyboardInterrupt():
            return SystemExit(INTERRUPTED)
        case OSError():
            return Stop(UNREACHABLE, str(error))
        case _:
            return error


def leave(exit_code: int) -> None:
    """End the command with an exit code and nothing more to say."""
    sys.exit(exit_code)
