from __future__ import annotations

import json
import sys

import click
import pytest
from click.testing import CliRunner

from gateway.actors.store import StoreRefused
from gateway.commands.exits import Stop, exit_codes, leave
from gateway.commands.options import JSON
from gateway.config import ConfigurationError
from gateway.errors import InvalidRequest, StoreUnavailable, Violation
from gateway.keys import KeysRefused

WRONG = [Violation("/node/listen/0", "must be host:port"), Violation("", "is not TOML")]


@pytest.mark.parametrize(
    ("failure", "code", "line"),
    [
        (
            ConfigurationError("node.toml", WRONG),
            2,
            "node.toml /node/listen/0: must be host:port\nnode.toml: is not TOML\n",
        ),
        (StoreRefused("a.db", "it is damaged", "Restore it"), 3, "a.db: it is damaged. Restore it\n"),
        (KeysRefused("no pepper"), 3, "no pepper\n"),
        (StoreUnavailable("the disk is full"), 3, "store_unavailable: the disk is full\n"),
        (InvalidRequest("no query"), 1, "invalid_request: no query\n"),
        (PermissionError(13, "Permission denied", "a.db"), 3, "[Errno 13] Permission denied: 'a.db'\n"),
        (Stop(1, "it does not hold"), 1, "it does not hold\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
@pytest.mark.parametrize("grouped", [False, True])
def test_a_failure_that_a_person_can_mend_is_a_line_and_an_exit_code(
    failure: BaseException, code: int, line: str, grouped: bool
) -> None:
    @click.command()
    def command() -> None:
        with exit_codes():
            raise BaseExceptionGroup("", [BaseExceptionGroup("", [failure])]) if grouped else failure

    told = CliRunner().invoke(command)
    assert (told.exit_code, told.stderr, told.stdout) == (code, line, "")


def test_a_defect_keeps_its_traceback() -> None:
    with pytest.raises(ZeroDivisionError), exit_codes():
        raise ZeroDivisionError
    with pytest.raises(ExceptionGroup), exit_codes():
        raise ExceptionGroup("", [ZeroDivisionError(), ValueError()])


def test_leaving_is_no_failure() -> None:
    with pytest.raises(SystemExit) as ending, exit_codes():
        leave(1)
    assert ending.value.code == 1
    assert sys.exc_info() == (None, None, None)


@pytest.mark.parametrize(
    ("failure", "code", "told"),
    [
        (
            ConfigurationError("node.toml", WRONG[:1]),
            2,
            {
                "code": "configuration_invalid",
                "detail": "node.toml /node/listen/0: must be host:port",
                "errors": [{"pointer": "/node/listen/0", "detail": "must be host:port"}],
            },
        ),
        (
            StoreUnavailable("the disk is full", extra={"reason": "disk_full"}),
            3,
            {"code": "store_unavailable", "detail": "the disk is full", "status": 503, "reason": "disk_full"},
        ),
        (StoreRefused("a.db", "it is damaged", "Restore it"), 3, {"detail": "a.db: it is damaged. Restore it"}),
    ],
)
def test_with_json_a_failure_is_one_document_on_standard_output(
    failure: BaseException, code: int, told: dict[str, object]
) -> None:
    @click.command()
    @JSON
    def command(*, as_json: bool) -> None:
        with exit_codes():
            raise failure

    ended = CliRunner().invoke(command, ["--json"])
    assert (ended.exit_code, ended.stderr) == (code, "")
    document = json.loads(ended.stdout)
    assert document | told | {"exitCode": code} == document


def test_with_json_what_a_command_refuses_itself_is_a_document_too() -> None:
    @click.command()
    @JSON
    def command(*, as_json: bool) -> None:
        assert as_json
        raise Stop(1, "it does not hold")

    ended = CliRunner().invoke(command, ["--json"])
    assert (ended.exit_code, ended.stderr) == (1, "")
    assert json.loads(ended.stdout) == {"detail": "it does not hold", "exitCode": 1}
