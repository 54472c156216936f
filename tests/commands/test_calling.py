from __future__ import annotations

import httpx
import pytest

from gateway.commands.calling import ask, problem_of
from gateway.commands.exits import Stop


def test_an_address_where_nobody_listens_ends_the_command_with_3() -> None:
    for url in ("http://127.0.0.1:1/x", "http://[", "ftp://127.0.0.1/"):
        with pytest.raises(Stop, match="no node answers at") as ending:
            ask("GET", url, headers={})
        assert ending.value.exit_code == 3


def test_a_problem_is_told_with_every_violation() -> None:
    document = {
        "code": "invalid_request",
        "detail": "/query: is required",
        "errors": [{"pointer": "/query", "detail": "is required"}],
    }
    told = problem_of(httpx.Response(400, json=document))
    assert told == "400 invalid_request: /query: is required\n  /query: is required"


@pytest.mark.parametrize("answer", [httpx.Response(502, text="<html>"), httpx.Response(500, json=[1])])
def test_what_is_no_problem_document_is_said_to_be_none(answer: httpx.Response) -> None:
    assert "is that a node?" in problem_of(answer)
