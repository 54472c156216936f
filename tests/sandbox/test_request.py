"""The `sandbox.execute` request: what its schema says, and what it cannot."""

from __future__ import annotations

import base64
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import CommandNotFound, ExecutionFailed, GatewayError, InvalidRequest
from gateway.http.validation import BodyValidator
from gateway.registry.operation import Operation
from gateway.sandbox.limits import DEFAULTS, Limits
from gateway.sandbox.request import (
    BODY_CAP,
    EXAMPLE,
    MOST_STDIN,
    OPERATION,
    SCHEMA,
    SandboxRequest,
    check,
    price,
    refine,
    strict_base64,
)

MIB = 2**20
VALIDATOR = BodyValidator.of(
    Operation(
        id=OPERATION,
        path="/v1/sandbox/execute",
        title="",
        summary="",
        schema=SCHEMA,
        example=EXAMPLE,
        request=SandboxRequest,
        paid=True,
        price=price,
        key_required=True,
        body_cap=BODY_CAP,
        deadline_s=75,
        quota="paid",
        family="sandbox",
        failure=ExecutionFailed,
        refine=refine,
    )
)
VALID: dict[str, Any] = {"command": ["node", "-e", "0"]}


def is_node(name: str) -> bool:
    return name == "node"


def request(**members: Any) -> SandboxRequest:
    made: SandboxRequest = VALIDATOR.validate(VALID | members).request
    return made


def checked(*command: str, stdin: str | None = None) -> GatewayError | None:
    return check(SandboxRequest(command, stdin), resolves=is_node)


def refused(body: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        VALIDATOR.validate(body)
    return caught.value


def encoded(count: int) -> str:
    return base64.b64encode(bytes(count)).decode()


# -- the schema --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        VALID,
        EXAMPLE,
        {"command": ["node"]},
        {"command": ["node"] * 32},
        {"command": ["node", *["x" * 4096] * 31]},
        {"command": ["node", "\U0001f600" * 4096]},
        {"command": ["node", "line\none\r\n\u202e\x1b[31m"]},
        {"command": ["--version"]},
        VALID | {"stdinBase64": ""},
        VALID | {"stdinBase64": "AA=="},
        VALID | {"stdinBase64": encoded(MIB)},
        VALID | {"limits": {}},
        VALID | {"limits": {"processes": 1}},
        VALID | {"limits": {"cpuMillis": 30000.0}},
    ],
    ids=lambda body: repr(body)[:40],
)
def test_the_schema_accepts(body: dict[str, Any]) -> None:
    assert VALIDATOR.violations(body) == []


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ([], ""),
        ({}, "/command"),
        ({"command": []}, "/command"),
        ({"command": "node -e 0"}, "/command"),
        ({"command": None}, "/command"),
        ({"command": ["node"] * 33}, "/command"),
        ({"command": [""]}, "/command/0"),
        ({"command": ["node", 1]}, "/command/1"),
        ({"command": ["node", None]}, "/command/1"),
        ({"command": ["node", ["-e"]]}, "/command/1"),
        ({"command": ["node", "x" * 4097]}, "/command/1"),
        ({"command": ["node", "\U0001f600" * 4097]}, "/command/1"),
        ({"command": ["node", "a\0b"]}, "/command/1"),
        ({"command": ["node\0"]}, "/command/0"),
        (VALID | {"stdinBase64": None}, "/stdinBase64"),
        (VALID | {"stdinBase64": "A"}, "/stdinBase64"),
        (VALID | {"stdinBase64": "AA"}, "/stdinBase64"),
        (VALID | {"stdinBase64": "-_8="}, "/stdinBase64"),
        (VALID | {"stdinBase64": "QUJD\n"}, "/stdinBase64"),
        (VALID | {"stdinBase64": encoded(MIB + 3)}, "/stdinBase64"),
        (VALID | {"limits": None}, "/limits"),
        (VALID | {"limits": {"processes": 0}}, "/limits/processes"),
        (VALID | {"limits": {"processes": "1"}}, "/limits/processes"),
        (VALID | {"limits": {"network": True}}, "/limits/network"),
        (VALID | {"env": {}}, "/env"),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_the_schema_refuses_and_says_where(body: Any, pointer: str) -> None:
    assert [each.pointer for each in refused(body).errors] == [pointer]


def test_every_fault_of_a_body_is_told() -> None:
    problem = refused({"command": ["node", "\0"], "stdinBase64": "!", "limits": {"cpuMillis": 0}, "more": 1})
    assert [each.pointer for each in problem.errors] == ["/command/1", "/limits/cpuMillis", "/more", "/stdinBase64"]


def test_a_line_for_a_shell_is_told_to_be_a_list() -> None:
    problem = refused({"command": "node -e 0"})
    assert "list of arguments" in problem.detail
    assert refine(VALID) is None


def test_a_script_that_is_too_long_is_told_to_come_as_standard_input() -> None:
    problem = refused({"command": ["node", "-e", "x" * 4097]})
    assert '["node", "-"]' in problem.detail
    assert "stdinBase64" in problem.detail
    assert [each.pointer for each in problem.errors] == ["/command/2"]


@pytest.mark.parametrize("text", ["!", "AA", "AB==", "-_8=", "QUJD\n"])
def test_what_is_not_base64_is_told_so(text: str) -> None:
    problem = refused(VALID | {"stdinBase64": text})
    assert problem.detail.startswith("`stdinBase64` is not base64")
    assert [each.pointer for each in problem.errors] == ["/stdinBase64"]
    assert refine({}) is None


# -- the request -------------------------------------------------------------------------------------------------------


def test_a_body_becomes_the_request() -> None:
    made = request(stdinBase64="aGk=", limits={"wallTimeMs": 100, "memoryBytes": 16777216})
    assert made.command == ("node", "-e", "0")
    assert made.stdin == b"hi"
    assert made.limits == Limits(wall_time_ms=100, memory_bytes=16777216)


def test_without_standard_input_it_is_empty() -> None:
    assert request().stdin == request(stdinBase64="").stdin == b""


def test_arguments_are_handed_over_in_utf_8() -> None:
    assert request(command=["node", "é\n"]).arguments == (b"node", b"\xc3\xa9\n")


def test_a_request_cannot_be_changed_and_its_text_is_not_shown() -> None:
    made = request(command=["node", "secret"], stdinBase64="c2VjcmV0")
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        made.command = ()  # type: ignore[misc]  # the fact
    assert "secret" not in repr(made)
    assert "c2VjcmV0" not in repr(made)


def test_limits_left_out_given_in_part_and_given_in_full_are_one_request() -> None:
    bodies = [VALID, VALID | {"limits": {}}, VALID | {"limits": {"processes": 16}}, VALID | {"limits": dict(DEFAULTS)}]
    assert len({VALIDATOR.validate(body).request_hash for body in bodies}) == 1
    assert {VALIDATOR.validate(body).request for body in bodies} == {SandboxRequest(("node", "-e", "0"))}


def test_the_example_runs_for_the_least_price() -> None:
    example = VALIDATOR.validate(dict(EXAMPLE)).request
    assert check(example, resolves=is_node) is None
    assert price(example) == 10_000


def test_a_larger_limit_is_of_the_standard_class() -> None:
    assert price(request()) == 10_000
    assert price(request(limits={"wallTimeMs": 10_001})) == 60_000


def test_the_largest_request_of_ascii_fits_into_the_body_cap() -> None:
    argument = 4096 * len("\\u0001")  # a control character as JSON writes it
    assert 32 * argument + (MIB + 2) // 3 * 4 < BODY_CAP


# -- what the schema cannot say ----------------------------------------------------------------------------------------


def test_a_command_of_the_image_is_fine() -> None:
    assert checked("node", "-e", "0", stdin=encoded(MIB)) is None


def test_the_image_may_answer_with_the_path_that_it_would_run_or_with_none() -> None:
    paths = {"node": "/usr/bin/node"}
    assert check(request(), resolves=paths.get) is None
    assert isinstance(check(request(command=["sh"]), resolves=paths.get), CommandNotFound)


@pytest.mark.parametrize("name", ["sh", "npx", "/bin/sh", "./node", "--ro-bind", "--version", "node ", "NODE"])
def test_a_command_that_the_image_has_not_is_not_found(name: str) -> None:
    problem = checked(name, "-c", "1")
    assert isinstance(problem, CommandNotFound)
    assert (problem.status, problem.code) == (400, "command_not_found")
    assert [each.pointer for each in problem.errors] == ["/command/0"]


def test_the_name_of_a_missing_command_is_told_cut_and_on_one_line() -> None:
    problem = checked("a\n\u202e\x1b[2J" + "b" * 4000)
    assert problem is not None
    assert problem.detail.isprintable()
    assert len(problem.detail) < 200


@pytest.mark.parametrize(
    ("command", "at"),
    [
        (["node\0"], 0),
        (["node", "a\0"], 1),
        (["node", "\ud800"], 1),
        (["\udfff", "a"], 0),
        (["node", "\ude00\ud83d"], 1),
    ],
)
def test_an_argument_that_the_kernel_cannot_take_is_refused(command: list[str], at: int) -> None:
    problem = checked(*command)
    assert isinstance(problem, InvalidRequest)
    assert [each.pointer for each in problem.errors] == [f"/command/{at}"]


def test_the_image_is_not_asked_for_a_name_that_is_no_argument() -> None:
    asked: list[str] = []

    def resolves(name: str) -> bool:
        asked.append(name)
        return True

    assert isinstance(check(SandboxRequest(("\ud800",)), resolves=resolves), InvalidRequest)
    assert asked == []


def test_every_fault_of_a_request_is_told() -> None:
    problem = checked("node", "\0", "a", "\ud800", stdin="!")
    assert problem is not None
    assert [each.pointer for each in problem.errors] == ["/command/1", "/command/3", "/stdinBase64"]


def test_standard_input_may_be_1_mib_and_no_byte_more() -> None:
    assert MOST_STDIN == MIB
    assert check(request(stdinBase64=encoded(MIB)), resolves=is_node) is None
    for over in (1, 2):
        problem = check(request(stdinBase64=encoded(MIB + over)), resolves=is_node)
        assert isinstance(problem, InvalidRequest)
        assert [each.pointer for each in problem.errors] == ["/stdinBase64"]
        assert str(MIB + over) in problem.errors[0].detail


# -- base64 ------------------------------------------------------------------------------------------------------------


@given(st.binary(max_size=100))
def test_what_is_encoded_is_decoded(data: bytes) -> None:
    text = base64.b64encode(data).decode()
    assert strict_base64(text) == data
    assert VALIDATOR.violations(VALID | {"stdinBase64": text}) == []


@pytest.mark.parametrize(
    "text",
    [
        *("A", "AA", "AAA", "AA=", "A===", "=", "====", "AA==AA==", "AAA=A", "AAAA=", "AAAA===="),
        *(" AAAA", "AAAA\n", "AA AA", "AA\nAA", "AAAA\r\n", "\tAAAA"),
        *("-_-_", "AA-_", "AAAé", "AAA\0", "!AAA", "\uff21\uff21\uff21\uff21"),
        *("AB==", "AAB=", "//==", "///="),
    ],
)
def test_no_other_text_is_taken_for_base64_by_the_schema_or_by_the_check(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        strict_base64(text)
    assert isinstance(checked("node", stdin=text), InvalidRequest)
    assert VALIDATOR.violations(VALID | {"stdinBase64": text}) != []


@given(st.text("ABQ+/=-_ \n", max_size=9))
def test_the_schema_and_the_check_agree_on_what_base64_is(text: str) -> None:
    try:
        strict_base64(text)
    except ValueError:
        strict = False
    else:
        strict = True
    assert (VALIDATOR.violations(VALID | {"stdinBase64": text}) == []) is strict
