"""The seven limits: ranges, defaults, and what they come to for the host."""

from __future__ import annotations

from typing import Any

import attrs
import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.registry.canonical import with_defaults
from gateway.sandbox.limits import DEFAULTS, RANGES, SCHEMA, Limits, fits, reserved_bytes

ACCEPTS = jsonschema_rs.Draft202012Validator(dict(SCHEMA)).is_valid
FIELDS = {each.metadata["json"]: each.name for each in attrs.fields(Limits)}

PUBLISHED = {
    "cpuMillis": (1, 30_000, 5_000),
    "memoryBytes": (16_777_216, 536_870_912, 268_435_456),
    "processes": (1, 64, 16),
    "diskBytes": (1_048_576, 1_073_741_824, 67_108_864),
    "outputBytes": (1, 1_048_576, 65_536),
    "artifactBytes": (1, 10_485_760, 1_048_576),
    "wallTimeMs": (100, 60_000, 10_000),
}

some_limits = st.builds(
    Limits, **{FIELDS[name]: st.integers(least, most) for name, (least, most, _) in PUBLISHED.items()}
)


def limits(**named: Any) -> Limits:
    return Limits(**{FIELDS[name]: value for name, value in named.items()})


def test_the_ranges_and_defaults_are_the_published_ones() -> None:
    assert {name: (each.least, each.most, each.default) for name, each in RANGES.items()} == PUBLISHED
    assert Limits().as_json() == DEFAULTS == {name: default for name, (_, _, default) in PUBLISHED.items()}


@pytest.mark.parametrize("name", PUBLISHED)
def test_both_ends_of_a_range_are_within_and_one_beyond_is_not(name: str) -> None:
    least, most, _ = PUBLISHED[name]
    for value in (least, most):
        assert ACCEPTS({name: value})
        assert limits(**{name: value}).as_json()[name] == value
    for value in (least - 1, most + 1):
        assert not ACCEPTS({name: value})
        with pytest.raises(ValueError, match=f"{name} is between {least} and {most}"):
            limits(**{name: value})


@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.parametrize("value", [True, 100.5, "100", None, [100]])
def test_a_limit_is_an_integer(name: str, value: Any) -> None:
    assert not ACCEPTS({name: value})
    with pytest.raises(TypeError, match=f"{name} is an integer"):
        limits(**{name: value})


def test_there_is_no_other_limit() -> None:
    assert not ACCEPTS({"cpuSeconds": 1})


def test_limits_cannot_be_changed() -> None:
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        Limits().processes = 64  # type: ignore[misc]  # the fact


@pytest.mark.parametrize("name", PUBLISHED)
def test_limits_given_in_part_are_merged_with_the_defaults_field_by_field(name: str) -> None:
    least = PUBLISHED[name][0]
    assert with_defaults(SCHEMA, {name: least}) == {**DEFAULTS, name: least}


@pytest.mark.parametrize(("processes", "tasks"), [(1, 18), (2, 34), (16, 258), (64, 1026)])
def test_tasks_are_sixteen_a_process_and_two_for_the_sandbox(processes: int, tasks: int) -> None:
    assert Limits(processes=processes).tasks == tasks


def test_only_one_process_is_for_the_filter_to_keep() -> None:
    assert [count for count in range(1, 65) if Limits(processes=count).single] == [1]


def test_disk_and_artifacts_are_memory_of_the_host_too() -> None:
    assert Limits().host_bytes == 268_435_456 + 67_108_864 + 1_048_576
    greatest = limits(**{name: most for name, (_, most, _) in PUBLISHED.items()})
    assert greatest.host_bytes == 536_870_912 + 1_073_741_824 + 10_485_760


def test_the_deadline_is_the_wall_limit_and_fifteen_seconds() -> None:
    assert Limits(wall_time_ms=100).deadline_s == 15.1
    assert Limits(wall_time_ms=60_000).deadline_s == 75


@given(some_limits, st.lists(some_limits, max_size=4))
def test_a_run_is_admitted_up_to_the_last_byte_of_what_all_may_take(asked: Limits, running: list[Limits]) -> None:
    needed = sum(each.host_bytes for each in running) + asked.host_bytes
    assert fits(asked, running, needed)
    assert not fits(asked, running, needed - 1)


def test_nothing_is_reserved_for_no_runs() -> None:
    assert reserved_bytes([]) == 0
