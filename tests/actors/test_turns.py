from __future__ import annotations

import attrs
import pytest

from gateway.actors.turns import REMEMBERED, Turns


@attrs.frozen
class Waiting:
    caller: str
    number: int = 0


def line(callers: str) -> list[Waiting]:
    return [Waiting(each.strip("-"), number) for number, each in enumerate(callers)]


def order(turns: Turns, callers: str, slots: int = 1) -> str:
    """Return in which order these are served, one after the other."""
    waiting, told = line(callers), ""
    while (first := turns.next(waiting, slots)) is not None:
        waiting.remove(first)
        turns.begin(first.caller)
        turns.end(first.caller)
        told += first.caller or "-"
    return told


@pytest.mark.parametrize(
    ("arrived", "served"),
    [("", ""), ("aaa", "aaa"), ("aaab", "abaa"), ("aabbcc", "abcabc"), ("aaaabc", "abcaaa"), ("a-a", "a-a")],
)
def test_turns_go_round_by_caller(arrived: str, served: str) -> None:
    assert order(Turns(), arrived) == served


def test_the_caller_with_the_fewest_calls_under_way_is_next() -> None:
    turns = Turns()
    for caller in "ab":
        turns.begin(caller)
    turns.begin("a")
    assert turns.next(line("aabc"), 9) == Waiting("c", 3)
    assert turns.next(line("aab"), 9) == Waiting("b", 2)
    assert turns.goes_first("c", line("aab"), 9)
    assert not turns.goes_first("a", line("aab"), 9)


def test_one_caller_never_has_the_last_slot_where_one_is_kept_free() -> None:
    turns = Turns(keeps_one_free=True)
    turns.begin("a")
    assert turns.next(line("aa"), 2) is None
    assert turns.next(line("aab"), 2) == Waiting("b", 2)
    assert turns.next(line("aa"), 3) == Waiting("a", 0)
    assert turns.next([Waiting("")], 2) == Waiting("")


def test_the_only_slot_is_for_everybody() -> None:
    assert Turns(keeps_one_free=True).next(line("a"), 1) == Waiting("a")


@pytest.mark.parametrize(
    ("waiting", "caller", "leaves"),
    [
        ("aaaa", "b", 3),
        ("aaab", "b", 2),
        ("aabb", "b", None),
        ("aabb", "c", 1),
        ("abcd", "e", None),
        ("aaaa", "a", None),
        ("----", "a", None),
        ("aaa-", "", 2),
        ("abab", "c", 2),
    ],
)
def test_whoever_has_most_in_a_full_queue_gives_way(waiting: str, caller: str, leaves: int | None) -> None:
    found = Turns().gives_way(caller, line(waiting))
    assert (found.number if found else None) == leaves


def test_what_is_remembered_of_callers_is_bounded() -> None:
    turns = Turns()
    for number in range(REMEMBERED * 2):
        turns.begin(str(number))
        turns.end(str(number))
    assert len(turns._last) == REMEMBERED
    assert not turns._active
