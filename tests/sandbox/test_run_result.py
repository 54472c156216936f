from __future__ import annotations

import attrs
import orjson

from gateway.sandbox.artifacts import Artifact, Bounds, Listing, Skip, shown_name
from gateway.sandbox.limits import RANGES
from gateway.sandbox.outcome import Cleanup, Denials, Ending, Outcome, Usage
from gateway.sandbox.output_text import Text
from gateway.sandbox.request import RESULT_CAP
from gateway.sandbox.run_result import RunResult

RESULT = RunResult(
    ending=Ending(Outcome.EXITED, 3),
    stdout=Text(b"42\n", truncated=False),
    stderr=Text(b"\xff", truncated=True),
    artifacts=Listing((Artifact("a", 1, "5f"), Artifact("b", skipped=Skip.SYMLINK)), complete=False),
    usage=Usage(40, 1024, 9, 61, 4096, 4, 1),
    denials=Denials(2, 0),
    cleanup=Cleanup(0, 0, 0),
    setup_ms=12,
    laid_ahead=True,
)


def test_an_output_says_how_it_ended_what_was_written_and_what_was_left() -> None:
    output = RESULT.output()
    assert (output["outcome"], output["exitCode"], output["signal"]) == ("exited", 3, None)
    assert (output["stdout"]["data"], output["stderr"]["data"]) == ("42\n", "/w==")
    assert [each["name"] for each in output["artifacts"]] == ["a", "b"]
    assert set(output) == {"outcome", "exitCode", "signal", "stdout", "stderr", "artifacts"}


def test_what_was_measured_is_told_apart_from_it() -> None:
    measured = RESULT.measured()
    assert set(measured) == {"usage", "denials", "cleanup", "artifactsComplete", "setupMs", "laidAhead"}
    assert measured["usage"]["cpuMillis"] == 40
    assert measured["denials"] == {"processes": 2, "oomKills": 0}
    assert measured["cleanup"]["verified"] is True
    assert measured["artifactsComplete"] is False
    assert (measured["setupMs"], measured["laidAhead"]) == (12, True)
    assert set(measured) & set(RESULT.output()) == set()


def test_no_result_is_too_large_to_be_kept() -> None:
    bounds = Bounds(RANGES["artifactBytes"].most)
    longest = shown_name(b"/".join([b"\n" * 255] * (bounds.depth + 1)))
    kept = b"\x01" * RANGES["outputBytes"].most
    worst = attrs.evolve(
        RESULT,
        stdout=Text(kept, truncated=True),
        artifacts=Listing((Artifact(longest, 2**20, "f" * 64),) * bounds.listed, complete=False),
    )
    assert 8_000_000 < len(orjson.dumps(worst.output())) < RESULT_CAP - 2**16
