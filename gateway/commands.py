"""What the commands share: exit codes, and how a command reads a node's store while the node may be running."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click

FINE, CHECK_FAILED, USAGE, UNREACHABLE = 0, 1, 2, 3


@contextmanager
def exit_codes() -> Iterator[None]:
    """Turn the failures of a command into one clear line and the documented exit code."""
    try:
        yield
    except BaseExceptionGroup as group:
        _exit(_only(group))
        raise
    except Exception as error:
        _exit(error)
        raise


def _only(group: BaseExceptionGroup[BaseException]) -> BaseException:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def _exit(error: BaseException) -> None:
    """Exit if the failure is one that a person can mend; return if it is a defect."""
    from gateway.actors.store import StoreRefused
    from gateway.config import ConfigurationError
    from gateway.errors import GatewayError
    from gateway.keys import KeysRefused

    if isinstance(error, ConfigurationError):
        for each in error.violations:
            click.echo(f"{error.source}{' ' + each.pointer if each.pointer else ''}: {each.detail}", err=True)
        sys.exit(USAGE)
    if isinstance(error, StoreRefused | KeysRefused):
        click.echo(str(error), err=True)
        sys.exit(UNREACHABLE)
    if isinstance(error, GatewayError):
        click.echo(f"{error.code}: {error.detail}", err=True)
        sys.exit(UNREACHABLE if error.status == 503 else CHECK_FAILED)
    if isinstance(error, OSError):
        click.echo(str(error), err=True)
        sys.exit(UNREACHABLE)
    if isinstance(error, KeyboardInterrupt):
        sys.exit(130)
