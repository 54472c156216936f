from __future__ import annotations

import pytest

from gateway.commands.progress import LINE_EVERY_S, Lines, Rate, progress


def test_lines_tell_each_work_when_it_is_done_and_now_and_then_before(capsys: pytest.CaptureFixture[str]) -> None:
    now = 100.0
    lines = Lines(lambda: now)
    for done in range(0, 4001, 1000):
        lines("copying a", done, 4000)
        now += LINE_EVERY_S / 3
    assert capsys.readouterr().err.splitlines() == [
        "copying a: 1,000 of 4,000 rows, 600 rows/s",
        "copying a: 4,000 of 4,000 rows, 600 rows/s",
    ]


def test_a_work_with_nothing_to_do_has_no_line(capsys: pytest.CaptureFixture[str]) -> None:
    lines = Lines(lambda: 1.0)
    lines("copying a", 0, 0)
    lines("copying a", 0, 0)
    assert capsys.readouterr().err == ""


def test_a_work_that_goes_on_is_timed_from_there(capsys: pytest.CaptureFixture[str]) -> None:
    now = 1.0
    lines = Lines(lambda: now)
    lines("copying a", 900, 1000)
    now = 2.0
    lines("copying a", 1000, 1000)
    assert capsys.readouterr().err.splitlines() == [
        "copying a: 900 of 1,000 rows",
        "copying a: 1,000 of 1,000 rows, 100 rows/s",
    ]


@pytest.mark.parametrize(("rows", "now", "told"), [(0, 2.0, ""), (5, 1.0, ""), (3000, 3.0, "1,500 rows/s")])
def test_a_rate_needs_rows_and_time(rows: int, now: float, told: str) -> None:
    assert Rate(0, 1.0).told(rows, now) == told


@pytest.mark.parametrize("terminal", [False, True])
def test_nothing_is_shown_on_standard_output(capsys: pytest.CaptureFixture[str], terminal: bool) -> None:
    with progress(terminal=terminal) as told:
        told("copying a", 0, 10)
        told("copying a", 10, 10)
        told("copying b", 0, 0)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "copying a" in shown.err
    assert "copying b" not in shown.err
