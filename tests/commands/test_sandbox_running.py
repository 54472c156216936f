from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
from click.testing import CliRunner, Result
from structlog.testing import capture_logs

from gateway.actors.sandbox.run import never_ran
from gateway.cli import main
from gateway.sandbox.canaries import BY_NAME
from gateway.sandbox.output_text import Text
from gateway.sandbox.request import SandboxRequest
from tests.sandbox.launcher_driver import pinned_image, require_a_sandbox


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Leave the logs of this process as they are, and out of what a command prints."""
    monkeypatch.setattr("gateway.logs.log_lines", lambda level: None)
    with capture_logs():
        yield


@pytest.fixture(scope="module")
def images() -> Iterator[Path]:
    require_a_sandbox()
    with pinned_image() as path:
        yield path.parent


def gateway(*words: str | Path, stdin: bytes = b"") -> Result:
    return CliRunner().invoke(main, ["sandbox", *map(str, words)], input=stdin)


def test_a_run_is_shown_with_its_ending_its_figures_and_what_it_wrote(images: Path) -> None:
    script = "console.log('\\x1b[2Jone'); console.error('two'); require('fs').writeFileSync('/out/a', '123')"
    told = gateway("run", "--images", images, "--", "node", "-e", script)
    assert told.exit_code == 0, told.output
    lines = dict(line.split(maxsplit=1) for line in told.stdout.splitlines() if len(line.split()) == 2)
    assert (lines["outcome"], lines["exitCode"], lines["cleanup"], lines["artifactBytes"]) == (
        "exited",
        "0",
        "verified",
        "3",
    )
    assert told.stdout.endswith("artifact  a  3 bytes\n\nstdout:\n\\x1b[2Jone\n\nstderr:\ntwo\n")


def test_a_run_as_json_is_the_output_and_the_execution_of_a_sold_one(images: Path) -> None:
    told = gateway(
        *("run", "--images", images, "--json", "--stdin", "-", "--limit", "wallTimeMs=4000", "--limit", "processes=1"),
        *("--", "node", "-e", "process.stdin.pipe(process.stdout)"),
        stdin=b"\xff\x00",
    )
    document = json.loads(told.stdout)
    assert (told.exit_code, document["output"]["stdout"]["data"]) == (0, "/wA=")
    execution = document["execution"]
    assert (execution["limits"]["wallTimeMs"], execution["limits"]["processes"]) == (4000, 1)
    assert execution["cleanup"]["verified"] is True
    assert execution["image"].startswith("sha256:")
    assert execution["filter"].startswith("sha256:")


@pytest.mark.parametrize(
    ("script", "shown"), [("process.exit(3)", "exitCode         3"), ("for (;;);", "outcome          cpu_limit")]
)
def test_a_run_that_does_not_end_with_0_ends_the_command_with_1(images: Path, script: str, shown: str) -> None:
    told = gateway("run", "--images", images, "--limit", "cpuMillis=100", "--", "node", "-e", script)
    assert (told.exit_code, shown in told.stdout) == (1, True)


def test_a_command_that_the_image_lacks_ends_with_1(images: Path) -> None:
    told = gateway("run", "--images", images, "--", "sh", "-c", "true")
    assert (told.exit_code, told.stderr) == (1, "command_not_found: 'sh' is no executable of the image\n")


@pytest.mark.parametrize(
    ("limit", "what"),
    [
        ("cpu=1", "no limit is named 'cpu'; there are cpuMillis, "),
        ("cpuMillis", "--limit takes NAME=NUMBER"),
        ("cpuMillis=some", "--limit takes NAME=NUMBER"),
        ("cpuMillis=0", "cpuMillis is between 1 and 30000"),
    ],
)
def test_a_limit_that_is_none_ends_with_2(tmp_path: Path, limit: str, what: str) -> None:
    told = gateway("run", "--images", tmp_path, "--limit", limit, "--", "node")
    assert (told.exit_code, what in told.stderr) == (2, True)


@pytest.mark.parametrize("words", [["prove"], ["run", "--", "node"]])
def test_a_closed_sandbox_ends_with_1_and_the_reason(tmp_path: Path, words: list[str]) -> None:
    told = gateway(words[0], "--images", tmp_path / "none", *words[1:])
    assert told.exit_code == 1
    assert told.stderr.startswith("sandbox.")
    assert told.stderr.count("Fix: ") == 1


def test_a_run_that_could_not_be_made_tells_all_that_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def failing(settings: Any, request: SandboxRequest) -> None:
        raise never_ran("sandbox.userns_denied", "setting up uid map: Permission denied")

    monkeypatch.setattr("gateway.sandbox_once.run_once", failing)
    told = gateway("run", "--images", tmp_path, "--", "node")
    assert told.exit_code == 1
    assert told.stderr.startswith("sandbox.userns_denied: setting up uid map: Permission denied: ")


def test_the_canaries_are_a_table_of_what_each_proved(images: Path) -> None:
    told = gateway("prove", "--images", images)
    assert told.exit_code == 0, told.output
    rows = [line.split() for line in told.stdout.splitlines()[1:]]
    assert [row[:2] for row in rows] == [[name, "proved"] for name in BY_NAME]
    assert all(row[2].isdecimal() for row in rows)


def test_a_canary_that_proves_nothing_ends_with_1_and_says_what_was_seen(
    images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = attrs.evolve(BY_NAME["network"], judge=lambda result: 'tcp4 is "connected"')
    monkeypatch.setattr("gateway.sandbox_once.prove_once.__defaults__", ((wrong,),))
    told = gateway("prove", "--images", images, "--json")
    document = json.loads(told.stdout)
    assert (told.exit_code, document["ok"]) == (1, False)
    assert document["canaries"][0]["fault"] == 'tcp4 is "connected"'
    assert "FAILED" in gateway("prove", "--images", images).stdout


def test_what_a_terminal_could_take_for_a_command_is_shown_as_an_escape() -> None:
    from gateway.commands.sandbox_running import _shown

    assert _shown(Text("é\t\n\x1b]0;\x07\u202e".encode() + b"\xff", truncated=False)) == (
        "é\t\n\\x1b]0;\\x07\\u202e\\xff"
    )
