from __future__ import annotations

import io
import json

import attrs
from rich.console import Console

from gateway.world.report import Report
from gateway.world.tally import Row, TakeOver, Tally

BOUGHT = Row("search", "search.paid", "x402", 200, 6000, "0x" + "ab" * 32, True, False, True, 12, "held", "", 6000)
AGAIN = attrs.evolve(BOUGHT, step="search over x402, again", replayed=True, ms=2)
LUNA = "openai/gpt-5.6-luna, simulated"
FAILED = Row("other", "search.paid", "mpp", None, 0, "", False, False, False, 2, "failed", "[red]no[/] luck")


def shown(found: Tally) -> str:
    outcome = io.StringIO()
    Report(outcome=Console(file=outcome, width=80)).table(found)
    return outcome.getvalue()


def test_amounts_are_exact_and_a_replay_costs_nothing_more() -> None:
    told = shown(Tally((BOUGHT, AGAIN), 1, ()))
    assert "0.006000  0.006000  0xabababab" in told
    assert "0xabababab" in told
    assert "0.006000  replayed  the same" in told
    assert "1 bought, 1 replayed for nothing, 1 transfer on the chain" in told
    assert "…" not in told


def test_with_several_nodes_each_step_tells_its_own() -> None:
    rows = attrs.evolve(BOUGHT, node="node-1"), attrs.evolve(AGAIN, node="node-2")
    told = shown(Tally(rows, 1, ()))
    assert [line.split("  ")[0] for line in told.splitlines() if "node-" in line] == [BOUGHT.step, AGAIN.step]
    assert "price" not in told
    assert "node" not in shown(Tally((BOUGHT, AGAIN), 1, ()))


def test_a_take_over_is_told_in_two_lines_with_its_seconds() -> None:
    told = shown(Tally((BOUGHT,), 1, (), TakeOver("node-1", "node-2", 1149, 2051)))
    assert told.splitlines()[-2:] == [
        "node-1 was killed while a payment settled; node-2 finished it and served the same request 1.1 s later",
        "node-1 was back 2.1 s after its start and replays the answer of node-2",
    ]


def test_who_answered_is_told_once_with_all_that_it_answered() -> None:
    chat, again = (attrs.evolve(each, by=LUNA) for each in (BOUGHT, AGAIN))
    other = attrs.evolve(BOUGHT, step="chat over MPP", by=LUNA)
    told = shown(Tally((attrs.evolve(BOUGHT, step="x", by="index"), chat, again, other, FAILED), 3, ()))
    assert [line for line in told.splitlines() if line.startswith("answered")] == [
        "answered by index: x",
        "answered by openai/gpt-5.6-luna, simulated: search, chat over MPP",
    ]


def test_what_failed_is_told_with_its_reason_word_for_word() -> None:
    told = shown(Tally((FAILED,), 0, ("1 purchases, 0 transfers on the chain",)))
    assert "failed: other: [red]no[/] luck" in told
    assert "failed: 1 purchases, 0 transfers on the chain" in told


def test_json_is_one_object_with_decimal_strings() -> None:
    outcome = io.StringIO()
    Report(outcome=Console(file=outcome)).json(Tally((BOUGHT,), 1, ()))
    told = json.loads(outcome.getvalue())
    assert (told["holds"], told["complete"], told["transfers"]) == (True, True, 1)
    assert (told["steps"][0]["charged"], told["steps"][0]["price"]) == ("6000", "6000")
    assert "takeOver" not in told


def test_json_tells_of_a_take_over_in_milliseconds() -> None:
    outcome = io.StringIO()
    Report(outcome=Console(file=outcome)).json(Tally((BOUGHT,), 1, (), TakeOver("node-1", "node-2", 1149, 2051)))
    assert json.loads(outcome.getvalue())["takeOver"] == {
        "killed": "node-1",
        "by": "node-2",
        "ms": 1149,
        "backMs": 2051,
    }


def test_progress_and_outcome_are_apart() -> None:
    progress, outcome = io.StringIO(), io.StringIO()
    report = Report(progress=Console(file=progress), outcome=Console(file=outcome))
    report.say("one [thing]")
    report.step(FAILED)
    report.step(attrs.evolve(BOUGHT, node="node-2", by=LUNA))
    assert progress.getvalue().splitlines() == [
        "one [thing]",
        "  other: [red]no[/] luck (2 ms)",
        "  search at node-2: ok, answered by openai/gpt-5.6-luna, simulated (12 ms)",
    ]
    assert outcome.getvalue() == ""
