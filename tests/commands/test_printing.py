from __future__ import annotations

import json

import pytest

from gateway.commands import printing


def test_a_document_is_one_json_value(capsys: pytest.CaptureFixture[str]) -> None:
    printing.document({"a": ["ü", None]})
    assert json.loads(capsys.readouterr().out) == {"a": ["ü", None]}


def test_a_table_keeps_long_values_whole_and_shows_markup_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    transaction = "0x" + "1" * 64
    printing.table(("name", "transaction"), [["[red]x[/red]", transaction], ["y", None]])
    out = capsys.readouterr().out
    assert transaction in out
    assert "[red]x[/red]" in out
    assert out.splitlines()[-1].split() == ["y", "-"]


def test_members_are_aligned(capsys: pytest.CaptureFixture[str]) -> None:
    printing.members({"a": 1, "longer": None})
    assert capsys.readouterr().out == "a       1\nlonger  -\n"
    printing.members({})
    assert capsys.readouterr().out == ""
