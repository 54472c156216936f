from __future__ import annotations

import io
import json

from rich.console import Console

from gateway.world.report import Report
from gateway.world.tally import Row, Tally

BOUGHT = Row("search", "search.paid", "x402", 200, 6000, "0x" + "ab" * 32, True, False, True, 12, "held", "")
AGAIN = Row(
    "search over x402, again", "search.paid", "x402", 200, 6000, "0x" + "ab" * 32, True, True, True, 2, "held", ""
)
FAILED = Row("other", "search.paid", "mpp", None, 0, "", False, False, False, 2, "failed", "[red]no[/] luck")


def shown(found: Tally) -> str:
    outcome = io.StringIO()
    Report(outcome=Console(file=outcome, width=80)).table(found)
    return outcome.getvalue()


def test_amounts_are_exact_and_a_replay_costs_nothing_more() -> None:
    told = shown(Tally((BOUGHT, AGAIN), 1, ()))
    assert "0.006000" in told
    assert "0xabababab" in told
    assert "replayed  the same" in told
    assert "1 bought, 1 replayed for nothing, 1 transfer on the chain" in told
    assert "…" not in told


def test_what_failed_is_told_with_its_reason_word_for_word() -> None:
    told = shown(Tally((FAILED,), 0, ("1 purchases, 0 transfers on the chain",)))
    assert "failed: other: [red]no[/] luck" in told
    assert "failed: 1 purchases, 0 transfers on the chain" in told


def test_json_is_one_object_with_decimal_strings() -> None:
    outcome = io.StringIO()
    Report(outcome=Console(file=outcome)).json(Tally((BOUGHT,), 1, ()))
    told = json.loads(outcome.getvalue())
    assert (told["holds"], told["complete"], told["transfers"]) == (True, True, 1)
    assert told["steps"][0]["charged"] == "6000"


def test_progress_and_outcome_are_apart() -> None:
    progress, outcome = io.StringIO(), io.StringIO()
    report = Report(progress=Console(file=progress), outcome=Console(file=outcome))
    report.say("one [thing]")
    report.step(FAILED)
    assert progress.getvalue() == "one [thing]\n  other: [red]no[/] luck (2 ms)\n"
    assert outcome.getvalue() == ""
