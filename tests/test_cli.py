from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from gateway import __version__
from gateway.cli import main

SLOW = ("web3", "eth_account", "quart", "trio", "httpx", "rich", "cattrs", "structlog", "sqlite3", "orjson")


def leaves(command: click.Command, name: str) -> Iterator[tuple[str, click.Command]]:
    if isinstance(command, click.Group):
        for each in command.commands.values():
            yield from leaves(each, f"{name} {each.name}".strip())
    else:
        yield name, command


COMMANDS = dict(leaves(main, ""))


def test_the_commands_are_those_of_the_contract() -> None:
    assert set(COMMANDS) == {
        "serve",
        "demo",
        "doctor",
        "registry list",
        "registry probe",
        "models",
        "quote",
        "operations list",
        "operations show",
        "operations resolve",
        "ledger verify",
        "migrate",
        "receipts verify",
        "keys new",
        "keys rotate",
        "sandbox build",
        "sandbox check",
        "sandbox prove",
        "sandbox run",
        "sandbox verify",
    }


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_and_json(name: str) -> None:
    told = CliRunner().invoke(main, [*name.split(), "--help"])
    assert told.exit_code == 0
    assert "--json" in told.output
    assert COMMANDS[name].help


def test_help_imports_nothing_slow() -> None:
    told = subprocess.run(
        [sys.executable, "-c", f"import gateway.cli, sys; print([m for m in {SLOW!r} if m in sys.modules])"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout == "[]\n"


def test_help_takes_less_than_half_a_second() -> None:
    spent = []
    for _ in range(5):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-m", "gateway", "--help"], capture_output=True, check=True)
        spent.append(time.perf_counter() - began)
    assert min(spent) < 0.5


def test_the_module_is_the_command() -> None:
    told = subprocess.run([sys.executable, "-m", "gateway", "--version"], capture_output=True, text=True, check=True)
    assert told.stdout == f"gateway, version {__version__}\n"


def test_an_unknown_command_is_wrong_usage() -> None:
    assert CliRunner().invoke(main, ["sell"]).exit_code == 2
