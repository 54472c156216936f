from __future__ import annotations

from collections.abc import Mapping

import pytest

from gateway.actors.store.releases import LiveNode, judge, known_by, least_known, named
from gateway.actors.store.schema import Migration


def migration(version: int, serves: int | None = None) -> Migration:
    return Migration(version, "later", "", "", version if serves is None else serves)


@pytest.mark.parametrize("version", ["0.1.0", "0.1.0+g12", "1.0rc1"])
def test_a_release_says_how_many_migrations_it_knows(version: str) -> None:
    assert known_by(named(version, 12)) == 12


@pytest.mark.parametrize("release", ["", "0.1.0", "0.1.0+schema.", "schema.3 and more", "0.1.0+schema.-1"])
def test_a_release_that_does_not_say_it_is_not_guessed(release: str) -> None:
    assert known_by(release) is None


@pytest.mark.parametrize(
    ("applied", "serves", "least"),
    [
        (0, {}, 0),
        (3, {}, 3),
        (3, {3: 2}, 2),
        (3, {3: 1, 2: 1}, 1),
        (3, {3: 1}, 2),
        (4, {4: 2, 3: 2}, 2),
        (2, {2: 0, 1: 0}, 0),
    ],
)
def test_the_least_that_a_node_knows_is_what_every_applied_migration_lets_live(
    applied: int, serves: Mapping[int, int], least: int
) -> None:
    assert least_known(applied, serves) == least


@pytest.mark.parametrize(
    ("release", "pending", "served"),
    [
        ("1.0+schema.2", [migration(3)], False),
        ("1.0+schema.2", [migration(3, 2)], True),
        ("1.0+schema.1", [migration(3, 2)], False),
        ("1.0+schema.2", [migration(3, 2), migration(4, 2)], True),
        ("1.0+schema.2", [migration(3, 2), migration(4, 3)], False),
        ("1.0", [migration(3, 2)], False),  # the store's second migration serves 1: the node may know one alone
        ("1.0", [migration(3, 1)], True),
        ("1.0+schema.3", [migration(3)], True),
        ("1.0", [], True),
    ],
)
def test_a_node_is_served_by_what_it_knows_or_by_what_it_must_know_to_run(
    release: str, pending: list[Migration], served: bool
) -> None:
    assert judge([("a", release)], 2, {2: 1}, pending) == [LiveNode("a", release, served)]
