from __future__ import annotations

import io
import json
import re

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


OPERATION = "op_01M8JCJQGH0XXGAMTTH12X78DS"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def printed_on_a_terminal(monkeypatch: pytest.MonkeyPatch, columns: int, *, wide: bool = False) -> list[str]:
    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    monkeypatch.setenv("COLUMNS", str(columns))
    rows = [[OPERATION, "search.paid", "RECEIPTED", "0.006000 USDC", "0x" + "ab" * 32]]
    printing.table(("operation", "of", "state", "amount", "transaction"), rows, wide=wide)
    return [re.sub(r"\x1b\[[0-9;]*m", "", line).rstrip() for line in terminal.getvalue().splitlines()]


def test_a_narrow_terminal_shows_short_ids_and_never_folds(monkeypatch: pytest.MonkeyPatch) -> None:
    _, row = printed_on_a_terminal(monkeypatch, 80)
    assert row.split() == ["op_01M8JC…X78DS", "search.paid", "RECEIPTED", "0.006000", "USDC", "0xabababa…babab"]


def test_a_narrow_terminal_leaves_out_the_least_columns_and_names_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    monkeypatch.setenv("COLUMNS", "40")
    headings = ("operation", "claimed", "amount", "why")
    rows = [[OPERATION, "2026-11-28T00:47:38.000Z", "0.006000 USDC", None]]
    printing.table(headings, rows, least=("claimed", "amount"))
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line).rstrip() for line in terminal.getvalue().splitlines()]
    assert [line.split() for line in lines[:2]] == [
        ["operation", "amount", "why"],
        ["op_01M8JC…X78DS", "0.006000", "USDC", "-"],
    ]
    assert lines[2:] == ["no room for: claimed; --json has everything"]


@pytest.mark.parametrize(("columns", "wide"), [(200, False), (80, True)])
def test_a_wide_table_has_whole_ids(monkeypatch: pytest.MonkeyPatch, columns: int, wide: bool) -> None:
    _, row = printed_on_a_terminal(monkeypatch, columns, wide=wide)
    assert row.split()[0] == OPERATION
    assert row.split()[-1] == "0x" + "ab" * 32


@pytest.mark.parametrize(
    "cell", ["search.paid", "huggingfacetb/smollm2-135m-instruct", "2026-11-28T00:47:38.000Z", "-"]
)
def test_what_is_no_id_is_not_shortened(cell: str) -> None:
    assert printing.shortened(cell) == cell
