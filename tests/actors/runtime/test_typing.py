"""Mistakes in messages and replies that type checkers must find."""

from __future__ import annotations

import re
from pathlib import Path

import mypy.api
import pytest

ROOT = Path(__file__).parents[3]

PROGRAM = """
from __future__ import annotations

from collections.abc import Awaitable, Callable

import attrs

from gateway.actors.runtime import Ask, Health, Inbox, Ref, Runtime


@attrs.frozen
class Spend(Ask[int]):
    amount: int


@attrs.frozen
class Name(Ask[str]):
    pass


@attrs.frozen
class Note:
    text: str


@attrs.frozen
class Foreign(Ask[int]):
    pass


async def ledger(inbox: Inbox[Spend | Name | Note]) -> None:
    inbox.ready()
    async for letter in inbox:
        match letter.message:
            case Spend() as spend:
                letter.answer(spend, 1)
                letter.answer(spend, "x")  # wrong
            case Name() as name:
                letter.answer(name, "x")
                letter.answer(name, 1)  # wrong
            case note:
                letter.answer(note, None)  # wrong
        letter.message.balance  # wrong
    async for letters in inbox.batches(8):
        letters[0].message.text  # wrong


async def right(runtime: Runtime) -> Health:
    ref = await runtime.start("ledger", ledger)
    number: int = await ref.ask(Spend(1), within=0.5)
    text: str = await ref.ask(Name())
    ref.tell(Note("hello"))
    ref.tell(Name())
    narrower: Ref[Spend] = ref
    number = await narrower.ask(Spend(number))
    asking: Callable[[Spend], Awaitable[int]] = narrower.ask
    await asking(Spend(len(text)))
    return ref.health()


async def mistaken(ref: Ref[Spend | Name | Note], spender: Ref[Spend]) -> None:
    text: str = await ref.ask(Spend(1))  # wrong
    number: int = await ref.ask(Name())  # wrong
    await ref.ask(Foreign())  # wrong
    await spender.ask(Name())  # wrong
    await ref.ask(Note("hello"))  # wrong
    await ref.ask("hello")  # wrong
    ref.tell(Foreign())  # wrong
    wider: Ref[Spend | Foreign] = spender  # wrong
"""


def test_mistakes_are_found_and_nothing_else_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pytestconfig: pytest.Config
) -> None:
    monkeypatch.setenv("MYPYPATH", str(ROOT))
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    cache = pytestconfig.cache.mkdir("mypy")
    found, complaint, _ = mypy.api.run(
        ["--config-file=", "--strict", "--no-error-summary", "--no-pretty", f"--cache-dir={cache}", str(program)]
    )
    assert complaint == ""
    errors = {int(line) for line in re.findall(r"program\.py:(\d+): error:", found)}
    wrong = {number for number, line in enumerate(PROGRAM.splitlines(), 1) if line.endswith("# wrong")}
    assert len(wrong) == 13
    assert errors == wrong, found
