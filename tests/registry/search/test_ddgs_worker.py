from __future__ import annotations

import importlib
import json
import subprocess
import sys
from typing import Any

import pytest

from gateway.registry.search import ddgs_worker

TASK = {"query": "trio", "region": "us-en", "max_results": 2}
LIBRARY = pytest.importorskip("ddgs.ddgs", reason="the optional extra `ddgs` is not installed")


def library(monkeypatch: pytest.MonkeyPatch, outcome: Any) -> dict[str, Any]:
    seen: dict[str, Any] = {}

    def text(self: Any, query: str, **options: Any) -> Any:
        seen.update(options, query=query)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    monkeypatch.setattr(LIBRARY.DDGS, "text", text)
    return seen


def test_results_are_handed_on_as_text(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = library(monkeypatch, [{"title": "T", "href": "https://e.example/", "body": "x" * 10_000}])
    answer = ddgs_worker.search(TASK)
    assert answer["results"][0]["href"] == "https://e.example/"
    assert len(answer["results"][0]["body"]) == ddgs_worker.FIELD_CHARS
    assert (seen["query"], seen["region"], seen["max_results"]) == ("trio", "us-en", 2)


@pytest.mark.parametrize(
    ("kind", "text", "error"),
    [
        ("RatelimitException", "202", "rate_limited"),
        ("TimeoutException", "timed out", "timed_out"),
        ("DDGSException", "No results found.", "no_results"),
        ("DDGSException", "connection refused", "failed"),
    ],
)
def test_each_way_to_fail_has_its_word(monkeypatch: pytest.MonkeyPatch, kind: str, text: str, error: str) -> None:
    exceptions = importlib.import_module("ddgs.exceptions")
    library(monkeypatch, getattr(exceptions, kind)(text))
    assert ddgs_worker.search(TASK) == {"error": error}


def test_a_worker_that_is_given_nonsense_ends_with_an_error_and_says_nothing() -> None:
    argv = (sys.executable, "-I", "-m", "gateway.registry.search.ddgs_worker")
    done = subprocess.run(argv, input=b"nonsense", capture_output=True, timeout=30, check=False)
    assert done.returncode != 0
    assert done.stdout == b""


def test_a_worker_answers_one_json_object_on_its_output() -> None:
    argv = (sys.executable, "-I", "-c", f"{STAND_IN}from gateway.registry.search.ddgs_worker import main\nmain()")
    done = subprocess.run(argv, input=json.dumps(TASK).encode(), capture_output=True, timeout=30, check=True)
    assert json.loads(done.stdout) == {"results": [{"title": "trio", "href": "https://e.example/", "body": "us-en"}]}


STAND_IN = """
import ddgs.ddgs
def text(self, query, *, region, max_results, backend):
    print("chatter of a library")
    return [{"title": query, "href": "https://e.example/", "body": region}]
ddgs.ddgs.DDGS.text = text
"""
