"""The battery itself: what it would say of a sandbox that does not hold."""

from __future__ import annotations

import struct

import pytest

from tests.sandbox.battery.case import Case, all_say, hostile, node
from tests.sandbox.battery.real_path import Sandbox
from tests.sandbox.battery.sleepers import running

ALLOWS_ALL = struct.pack("<HBBI", 0x06, 0, 0, 0x7FFF0000)  # BPF_RET | BPF_K, SECCOMP_RET_ALLOW


async def test_a_filter_that_lets_all_through_is_found_out(sandbox: Sandbox) -> None:
    case = Case("", hostile("keys"), says=all_say("EPERM", "keyctl", "add_key", "request_key"))
    result = await sandbox.begin(case, program=ALLOWS_ALL).live()
    with pytest.raises(AssertionError, match="says"):
        case.judge(result)


async def test_another_ending_is_found_out(sandbox: Sandbox) -> None:
    case = Case("", node("process.exit(3)"))
    with pytest.raises(AssertionError, match="ending"):
        case.judge(await sandbox.run(case))


async def test_what_runs_is_seen_from_outside(sandbox: Sandbox) -> None:
    async with running(sandbox, slot=0):
        seen = sandbox.look()
    assert sorted(name for _, name in seen.processes) == ["bwrap", "bwrap", "hostile"]
    assert len(seen.mounts) == 2  # of the namespace of the sandbox: its init and the command
    assert seen.groups
    assert seen.launcher > sandbox.at_first.launcher
    assert not seen.is_nothing
    await sandbox.prove_nothing_left()
