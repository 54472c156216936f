"""Commands that are not what they seem: missing, option-like, huge, empty; and how a command can end."""

from __future__ import annotations

import signal

import pytest

from gateway.errors import CommandNotFound, InvalidRequest
from gateway.sandbox.image import Image
from gateway.sandbox.outcome import Ending, Outcome
from gateway.sandbox.request import LONGEST_ARGUMENT, MOST_ARGUMENTS, SandboxRequest, check
from tests.sandbox.battery.case import NOT_STARTED, Case, dies_of, exits, hostile, limits, node, table
from tests.sandbox.battery.real_path import Sandbox

LENGTHS = "console.log(process.argv.length, new Set(process.argv.slice(1).map(a => a.length)).size, process.argv[1][0])"
ADDING = "0061736d0100000001070160027f7f017f030201000707010361646400000a09010700200020016a0b"
REFUSED = (
    *(("npx", "cowsay"), ("npm", "install"), ("yarn",), ("sh", "-c", "id"), ("/bin/sh",), ("bash",), ("env",)),
    *(("python3", "-c", "1"), ("--version",), ("--ro-bind", "/", "/mnt"), ("-",), (".",), ("..",), ("/",), ("NODE",)),
    *(("node ",), ("node\n",), ("node -e 1",), ("./node",), ("../usr/bin/node",), ("/usr/bin",), ("/usr/bin/node/",)),
    *(("/usr/lib/ld-linux-x86-64.so.2", "/usr/bin/node"), ("/lib64/ld-linux-x86-64.so.2",), ("/etc/passwd",)),
    *(("/proc/self/exe",), ("/usr/bin/../../usr/bin/npx",), ("n\u043ede",), ("\u202enode",)),
)
NEVER_STARTED = (
    ("npx", "cowsay"),
    ("python3", "-c", "1"),
    ("--version",),
    ("--ro-bind", "/", "/mnt"),
    ("/etc/passwd",),
    ("",),
    (".",),
    ("/usr/bin",),
    ("/scratch",),
    ("x" * LONGEST_ARGUMENT,),
    ("node\n",),
    ("/proc/self/fd/6",),
    ("/proc/self/fd/7",),
)


@pytest.mark.parametrize("command", REFUSED, ids=lambda command: repr(command[0]))
def test_what_the_image_does_not_have_is_refused_before_any_quote(image: Image, command: tuple[str, ...]) -> None:
    assert isinstance(check(SandboxRequest(command), resolves=image.resolves), CommandNotFound)


@pytest.mark.parametrize("name", ["node", "/usr/bin/node", "/usr/bin/../bin/./node", "//usr//bin/node"])
def test_what_the_image_has_may_be_called_by_any_path(image: Image, name: str) -> None:
    assert check(SandboxRequest((name,)), resolves=image.resolves) is None


@pytest.mark.parametrize("argument", ["a\0b", "\0", "\ud800", "a\udfffb"])
def test_what_no_argument_can_hold_is_refused_before_any_quote(image: Image, argument: str) -> None:
    found = check(SandboxRequest(("node", argument)), resolves=image.resolves)
    assert isinstance(found, InvalidRequest)


@pytest.mark.parametrize("command", NEVER_STARTED, ids=lambda command: repr(command[0][:40]))
async def test_what_is_let_through_all_the_same_never_started(sandbox: Sandbox, command: tuple[str, ...]) -> None:
    case = Case("", command, NOT_STARTED, complains=None)
    case.judge(await sandbox.run(case))


@table(
    Case("no room to say that there is none", ("nothing",), NOT_STARTED, complains="n", limits=limits(output_bytes=1)),
    Case("a path with detours", ("/usr/bin/../bin/./node", "-p", "1"), says="1\n"),
    Case(
        "all arguments of the longest, two bytes a character",
        node(LENGTHS, *["é" * LONGEST_ARGUMENT] * (MOST_ARGUMENTS - 3)),
        says="30 1 é\n",
    ),
    Case(
        "all arguments of the longest, four bytes a character",
        node(
            LENGTHS.replace("[1][0]", "[1].codePointAt(0)"), *["\U0001f600" * LONGEST_ARGUMENT] * (MOST_ARGUMENTS - 3)
        ),
        says="30 1 128512\n",
    ),
    Case(
        "arguments that look like options of the sandbox",
        node("console.log(process.argv.slice(1).join())", "--", "--args", "9", "--bind", "/", "/", "--unshare-none"),
        says="--args,9,--bind,/,/,--unshare-none\n",
    ),
    Case(
        "arguments that a shell would take apart",
        node(
            "console.log(process.argv.slice(1).join('|'))", "$(id)", "`id`", "a b", "*", "~", "\n", ";", "'", '"', "\\"
        ),
        says="$(id)|`id`|a b|*|~|\n|;|'|\"|\\\n",
    ),
    Case("a script of the longest", node("//" + "x" * (LONGEST_ARGUMENT - 2))),
    Case(
        "WebAssembly",
        node(
            f"WebAssembly.instantiate(Buffer.from('{ADDING}', 'hex'))"
            ".then(({instance}) => console.log(instance.exports.add(2, 3)))"
        ),
        says="5\n",
    ),
    Case(
        "a clock that steps",
        node("const a = process.hrtime.bigint(); console.log(process.hrtime.bigint() >= a)"),
        says="true\n",
    ),
    Case("a package manager is not there", node("require('npm')"), exits(1), complains=None),
)
async def test_commands(sandbox: Sandbox, case: Case) -> None:
    case.judge(await sandbox.run(case))


@table(
    *(
        Case(f"exit code {code}", node(f"process.exit({code})"), exits(code))
        for code in (1, 42, 127, 128, 137, 139, 255)
    ),
    Case("exit code 300 is 44", node("process.exit(300)"), exits(44)),
    *(
        Case(f"signal {number}", hostile("raise", str(number)), dies_of(number))
        for number in (signal.SIGHUP, signal.SIGKILL, signal.SIGTERM, signal.SIGPIPE, signal.SIGXFSZ, 40, 64)
    ),
    Case(
        "its end is known where only root may look at it",
        hostile("undumpable"),
        dies_of(signal.SIGKILL),
        says="PR_SET_DUMPABLE off: ok\n",
    ),
    Case("an abort", node("process.abort()"), dies_of(signal.SIGABRT), complains=None),
    Case(
        "the end of a child by a signal is not its own",
        node("console.log(require('child_process').spawnSync('hostile', ['crash']).signal)"),
        says="SIGSEGV\n",
    ),
    Case(
        "an error that nobody catches", node("throw new Error('so it is')"), Ending(Outcome.EXITED, 1), complains=None
    ),
)
async def test_endings(sandbox: Sandbox, case: Case) -> None:
    case.judge(await sandbox.run(case))
