from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from gateway.actors.sandbox.settings import SandboxSettings
from gateway.errors import CapacityExhausted, CommandNotFound, InvalidRequest
from gateway.sandbox.canaries import BY_NAME, CANARIES
from gateway.sandbox.cgroup_files import NAME
from gateway.sandbox.host import Wanted, leftovers
from gateway.sandbox.limits import Limits
from gateway.sandbox.outcome import Ending, Outcome
from gateway.sandbox.request import SandboxRequest
from gateway.sandbox_once import SandboxClosed, apart, prove_once, run_once
from tests.sandbox.fake_host import a_machine
from tests.sandbox.launcher_driver import pinned_image, require_a_sandbox

PRINTS = ("node", "-e", "console.log(6 * 7)")


@pytest.fixture(scope="module")
def settings() -> Iterator[SandboxSettings]:
    require_a_sandbox()
    with pinned_image() as path:
        yield SandboxSettings(path.parent, "gateway-of-a-node-", first_uid=64_500)


async def test_a_run_of_the_operator_s_own_comes_to_the_same_as_a_sold_one(settings: SandboxSettings) -> None:
    executed = await run_once(settings, SandboxRequest(PRINTS))
    assert executed.result.ending == Ending(Outcome.EXITED, 0)
    assert executed.result.stdout.kept == b"42\n"
    assert executed.result.cleanup.verified
    assert executed.standing.image.path.parent == settings.images


async def test_every_canary_is_content_on_this_machine(settings: SandboxSettings) -> None:
    seen = await prove_once(settings)
    assert {name: each.fault for name, each in seen.items()} == dict.fromkeys(BY_NAME)


async def test_a_canary_that_is_not_content_is_told_beside_the_others(settings: SandboxSettings) -> None:
    wrong = attrs.evolve(CANARIES[0], name="wrong", judge=lambda result: f"it was {result.ending.outcome.value}")
    seen = await prove_once(settings, (wrong, CANARIES[1]))
    assert {name: each.fault for name, each in seen.items()} == {"wrong": "it was exited", "writes": None}


async def test_nothing_is_left_of_an_operator_s_run(settings: SandboxSettings) -> None:
    await run_once(settings, SandboxRequest(PRINTS))
    assert leftovers(Wanted(prefix=f"gateway-once-{os.getpid()}-")).fact == "nothing is left of earlier runs"


@pytest.mark.parametrize(
    ("request_", "refused"),
    [
        (SandboxRequest(("sh", "-c", "true")), CommandNotFound),
        (SandboxRequest(("node", "\0")), InvalidRequest),
        (SandboxRequest(PRINTS, limits=Limits(memory_bytes=2**29)), CapacityExhausted),
    ],
)
async def test_what_no_seller_would_run_is_refused_in_the_same_words(
    settings: SandboxSettings, request_: SandboxRequest, refused: type[Exception]
) -> None:
    with pytest.raises(refused):
        await run_once(attrs.evolve(settings, memory_bytes=2**29), request_)


async def test_without_an_image_nothing_is_run_or_proved_and_the_fix_is_told_once(tmp_path: Path) -> None:
    nowhere: Any = SandboxSettings(tmp_path / "none", "gateway-of-a-node-")
    for each in (run_once(nowhere, SandboxRequest(PRINTS)), prove_once(nowhere)):
        with pytest.raises(SandboxClosed) as closed:
            await each
        assert closed.value.why.reason.startswith("sandbox.")
        assert str(closed.value).count("Fix: ") == 1


def test_an_operator_s_run_has_no_group_and_no_user_of_the_node_s(tmp_path: Path) -> None:
    machine = a_machine(tmp_path, cores=4)
    of_the_node = SandboxSettings(tmp_path, "gateway-of-a-node-")
    own = apart(of_the_node, machine)
    assert NAME.fullmatch(own.prefix)
    assert not own.prefix.startswith(of_the_node.prefix)
    assert own.wanted.uids_on(machine) == range(64_404, 64_405)
    assert apart(of_the_node, machine).prefix != own.prefix
    assert own.memory_bytes == 2**33
