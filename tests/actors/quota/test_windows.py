from __future__ import annotations

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.actors.quota import Allowance, GiveBack, Policy, windows
from gateway.actors.quota.counters import Taken
from gateway.actors.quota.windows import LOOK_AGAIN_S, Decided, Unspent, Windows

FREE = Policy("free", 5, window_s=60)
PAID = Policy("paid", 40, window_s=60)
POLICIES = {policy.name: policy for policy in (FREE, PAID)}
OPENED = 1_795_816_156_000


def taken(policy: Policy, calls: int, used: int, *, opened_ms: int = OPENED, into_s: float = 0) -> Taken:
    return Taken(policy.name, "a", opened_ms, used, calls, opened_ms + round(into_s * 1000))


def decided(known: Windows, policy: Policy, answer: Taken, waiting: int, *, now: float = 0) -> Decided:
    return known.decide(policy, answer, waiting, sent=now, now=now)


def told(allowances: list[Allowance]) -> list[tuple[bool, int]]:
    return [(each.granted, each.remaining) for each in allowances]


def test_what_is_not_known_is_asked_of_the_store() -> None:
    known = Windows(POLICIES)
    assert known.allow(FREE, "a", 0) is None
    assert known.allow(PAID, "a", 0) is None


@pytest.mark.parametrize(
    ("policy", "waiting", "wanted"),
    [(FREE, 3, 3), (FREE, 9, 5), (PAID, 1, 4), (PAID, 4, 4), (PAID, 5, 8), (PAID, 90, 40)],
)
def test_whole_shares_are_asked_for_and_never_more_than_the_limit(policy: Policy, waiting: int, wanted: int) -> None:
    assert Windows(POLICIES).wanted(policy, waiting) == wanted


def test_of_an_exact_policy_nothing_is_kept_but_that_a_window_is_full() -> None:
    known = Windows(POLICIES)
    assert told(decided(known, FREE, taken(FREE, 3, 3), 3).allowances) == [(True, 4), (True, 3), (True, 2)]
    assert len(known) == 0
    assert told(decided(known, FREE, taken(FREE, 2, 5), 3).allowances) == [(True, 1), (True, 0), (False, 0)]
    assert len(known) == 1


def test_a_full_window_is_refused_for_a_while_without_asking() -> None:
    known = Windows(POLICIES)
    decided(known, FREE, taken(FREE, 5, 5, into_s=10), 5)
    refused = known.allow(FREE, "a", LOOK_AGAIN_S / 2)
    assert refused == Allowance(FREE, granted=False, remaining=0, reset_s=50, opened_ms=OPENED)
    assert known.allow(FREE, "a", LOOK_AGAIN_S) is None


def test_a_full_window_is_not_refused_after_its_end() -> None:
    known = Windows(POLICIES)
    decided(known, FREE, taken(FREE, 5, 5, into_s=59.9), 5)
    assert known.allow(FREE, "a", 0.05) is not None
    assert known.allow(FREE, "a", 0.2) is None


def test_what_went_back_to_the_store_is_asked_for_at_once() -> None:
    known = Windows(POLICIES)
    decided(known, FREE, taken(FREE, 5, 5), 5)
    known.returned("free", "a")
    known.returned("free", "nobody")
    assert known.allow(FREE, "a", 0) is None


def test_a_share_is_spent_without_asking_and_counts_among_what_remains() -> None:
    known = Windows(POLICIES)
    decided(known, PAID, taken(PAID, 4, 14), 1)
    spent = [known.allow(PAID, "a", 20) for _ in range(4)]
    assert [each and (each.granted, each.remaining, each.reset_s) for each in spent] == [
        (True, 28, 40),
        (True, 27, 40),
        (True, 26, 40),
        None,
    ]


def test_a_share_ends_with_its_window_by_the_clock_of_the_store() -> None:
    known = Windows(POLICIES)
    known.decide(PAID, taken(PAID, 4, 4, into_s=50), 1, sent=100, now=105)
    assert known.allow(PAID, "a", 109.9) is not None
    assert known.allow(PAID, "a", 110) is None


def test_shares_of_one_window_are_joined_and_those_of_the_last_one_dropped() -> None:
    known = Windows(POLICIES)
    decided(known, PAID, taken(PAID, 4, 4), 2)
    decided(known, PAID, taken(PAID, 4, 8), 4)
    assert list(known.unspent(0)) == [Unspent("paid", "a", OPENED, 2)]
    decided(known, PAID, taken(PAID, 4, 4, opened_ms=OPENED + 60_000), 1, now=60)
    assert list(known.unspent(60)) == [Unspent("paid", "a", OPENED + 60_000, 3)]


@pytest.mark.parametrize(("policy", "kept"), [(FREE, 0), (PAID, 4)])
def test_what_nobody_needs_beyond_a_share_is_returned(policy: Policy, kept: int) -> None:
    known = Windows(POLICIES)
    assert decided(known, policy, taken(policy, 5, 5), 0).spare == 5 - kept
    assert sum(each.calls for each in known.unspent(0)) == kept


def test_a_call_that_is_given_back_stays_in_the_share_it_came_from() -> None:
    known = Windows(POLICIES)
    decided(known, PAID, taken(PAID, 4, 40), 4)
    refused = known.allow(PAID, "a", 0)
    assert refused is not None
    assert not refused.granted
    assert known.keep_back(GiveBack("paid", "a", OPENED), 0)
    granted = known.allow(PAID, "a", 0)
    assert granted is not None
    assert granted.granted


def test_a_share_keeps_no_more_than_was_taken() -> None:
    known = Windows(POLICIES)
    decided(known, PAID, taken(PAID, 2, 40), 1)
    assert [known.keep_back(GiveBack("paid", "a"), 0) for _ in range(3)] == [True, False, False]


@pytest.mark.parametrize(
    ("call", "now"),
    [
        (GiveBack("free", "a"), 0),
        (GiveBack("paid", "b"), 0),
        (GiveBack("paid", "a", OPENED - 1), 0),
        (GiveBack("paid", "a"), 60),
    ],
)
def test_what_is_of_no_share_here_goes_to_the_store(call: GiveBack, now: float) -> None:
    known = Windows(POLICIES)
    decided(known, PAID, taken(PAID, 4, 4), 4)
    decided(known, FREE, taken(FREE, 5, 5), 5)
    assert not known.keep_back(call, now)


def test_windows_that_ended_are_forgotten() -> None:
    known = Windows(POLICIES)
    decided(known, PAID, taken(PAID, 4, 4), 1)
    decided(known, FREE, taken(FREE, 5, 5, into_s=30), 5)
    known.sweep(30)
    assert [len(known), *known.unspent(30)] == [1, Unspent("paid", "a", OPENED, 3)]
    assert list(known.unspent(60)) == []
    known.sweep(60)
    assert len(known) == 0


def test_no_more_than_so_many_windows_are_remembered_and_the_oldest_goes_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(windows, "MAX_WINDOWS", 10)
    known = Windows(POLICIES)
    for number in range(100):
        known.decide(PAID, attrs.evolve(taken(PAID, 4, 4), caller=str(number)), 1, sent=0, now=0)
    assert [each.caller for each in known.unspent(0)] == [str(number) for number in range(90, 100)]


@attrs.define(eq=False)
class Model:
    """One caller's window of 40 calls in a store, and what two nodes know of it."""

    nodes: list[Windows] = attrs.field(factory=lambda: [Windows(POLICIES), Windows(POLICIES)])
    now: float = 0
    opened: float = -1_000
    used: int = 0
    granted: int = 0

    def ask(self, node: Windows, waiting: int, seen: float, late: float) -> list[Allowance]:
        """Ask the store: it looks at its clock `seen` seconds later, and its answer takes `late` seconds more."""
        sent = self.now
        self.now += seen
        if self.now >= self.opened + PAID.window_s:
            self.opened, self.used, self.granted = self.now, 0, 0
        calls = min(node.wanted(PAID, waiting), PAID.limit - self.used)
        self.used += calls
        answer = Taken(
            "paid", "a", OPENED + round(self.opened * 1000), self.used, calls, OPENED + round(self.now * 1000)
        )
        self.now += late
        found = node.decide(PAID, answer, waiting, sent=sent, now=self.now)
        self.used -= found.spare
        return found.allowances


STEPS = st.lists(
    st.tuples(st.integers(0, 1), st.integers(1, 12), st.integers(0, 40_000), st.integers(0, 300), st.integers(0, 300)),
    max_size=60,
)


@settings(max_examples=300, derandomize=True, deadline=None)
@given(steps=STEPS)
def test_two_nodes_never_spend_more_of_a_window_than_it_holds(steps: list[tuple[int, int, int, int, int]]) -> None:
    model = Model()
    for which, calls, wait_ms, seen_ms, late_ms in steps:
        node = model.nodes[which]
        for _ in range(calls):
            allowance = node.allow(PAID, "a", model.now)
            if allowance is None:
                (allowance,) = model.ask(node, 1, seen_ms / 1000, late_ms / 1000)
            if allowance.granted:
                assert allowance.opened_ms == OPENED + round(model.opened * 1000)
                model.granted += 1
            assert model.granted <= model.used <= PAID.limit
            assert 0 <= allowance.remaining <= PAID.limit
        held = sum(each.calls for node in model.nodes for each in node.unspent(model.now))
        assert held <= 2 * PAID.share
        model.now += wait_ms / 1000
