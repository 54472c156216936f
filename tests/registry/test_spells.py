from __future__ import annotations

import random

import attrs
import pytest

from gateway.registry.spells import COARSE_MS, FINE_MS, Spell, thinned

HOUR = 400_000 * COARSE_MS


def spell(minute: float, minutes: float = 5, state: str = "available", **more: object) -> Spell:
    began_at, lasted = HOUR + round(minute * 60_000), round(minutes * 60_000)
    base = Spell("ai/a", "node-1", began_at, began_at + lasted, FINE_MS, lasted, state, None)
    return attrs.evolve(base, **more)  # type: ignore[arg-type]  # each by its own name


def test_an_hour_in_one_state_is_one_spell() -> None:
    (hour,) = thinned(spell(5 * n, probes=20, failed_probes=1, calls=3, failed_calls=2) for n in range(12))
    assert (hour.began_at, hour.ended_at, hour.lasted_ms, hour.width) == (HOUR, HOUR + COARSE_MS, COARSE_MS, COARSE_MS)
    assert (hour.probes, hour.failed_probes, hour.calls, hour.failed_calls) == (240, 12, 36, 24)


def test_spells_of_other_states_reasons_nodes_routes_and_hours_stay_apart() -> None:
    apart = [
        spell(0),
        spell(5, state="unavailable", reason="status_500"),
        spell(10, state="unavailable", reason="unreachable"),
        spell(15, node="node-2"),
        spell(20, route="ai/b"),
        spell(60),
    ]
    assert [(each.began_at, each.reason) for each in thinned(apart)] == [(each.began_at, each.reason) for each in apart]


def test_what_was_so_several_times_lasted_as_long_as_all_of_them() -> None:
    up, down = thinned([spell(0, 2), spell(2, 1, "unavailable"), spell(3, 2), spell(30, 1)])
    assert (up.lasted_ms, up.ended_at) == (5 * 60_000, HOUR + 31 * 60_000)
    assert down.lasted_ms == 60_000


def test_the_first_qualification_id_is_kept() -> None:
    (hour,) = thinned([spell(5, qualification_id="q_2"), spell(0), spell(10, qualification_id="q_3")])
    assert hour.qualification_id == "q_2"


@pytest.mark.parametrize(
    ("timed", "median"),
    [
        ([], None),
        ([(None, 9)], None),
        ([(100, 10), (900, 1)], 100),
        ([(100, 1), (900, 10)], 900),
        ([(300, 5), (100, 5), (200, 5)], 200),
        ([(70, 0)], 70),
    ],
)
def test_a_median_weighs_as_much_as_what_it_was_taken_of(timed: list[tuple[int | None, int]], median: int) -> None:
    spells = [spell(5 * n, p50_ms=ms, probes=count) for n, (ms, count) in enumerate(timed)]
    assert [each.p50_ms for each in thinned(spells)] == ([median] if timed else [])


def test_calls_outweigh_probes_where_there_were_calls() -> None:
    busy, idle = spell(0, p50_ms=900, probes=20, calls=5), spell(5, p50_ms=20, probes=4)
    (hour,) = thinned([busy, idle])
    assert hour.p50_ms == 900


def test_thinning_again_changes_nothing_and_late_comers_are_taken_in() -> None:
    rng = random.Random(9)
    spells = [spell(n, 1, rng.choice(["available", "unavailable"]), probes=rng.randrange(9)) for n in range(60)]
    whole = thinned(spells)
    assert thinned(whole) == whole
    late = thinned([*thinned(spells[:40]), *spells[40:]])
    assert late == whole
