from __future__ import annotations

import pytest

from gateway.registry.search.adapters import AdapterSettings, AdapterSettingsError, build

BASE = "http://127.0.0.1:8402"
SEARXNG = AdapterSettings("searxng", base_url="http://127.0.0.1:8888")


def test_every_kind_is_built_in_the_operators_order() -> None:
    kinds = [
        AdapterSettings("tavily", key="k"),
        SEARXNG,
        AdapterSettings("exa", key="k"),
        AdapterSettings("ddgs"),
        AdapterSettings("brave", key="k"),
    ]
    adapters = build(kinds, base_url=BASE)
    assert [adapter.name for adapter in adapters] == ["tavily", "searxng", "exa", "ddgs", "brave"]
    assert {adapter.coverage for adapter in adapters} == {"web"}


def test_the_index_has_its_own_name_and_coverage() -> None:
    (adapter,) = build([AdapterSettings("index")], base_url=BASE)
    assert (adapter.name, adapter.coverage) == ("embedded-index", "local")


def test_two_instances_of_a_kind_need_two_names() -> None:
    first, second = build([SEARXNG, AdapterSettings("searxng", "second", "http://127.0.0.1:1")], base_url=BASE)
    assert (first.name, second.name) == ("searxng", "second")
    with pytest.raises(AdapterSettingsError, match="two search adapters"):
        build([SEARXNG, SEARXNG], base_url=BASE)


def test_web_and_local_do_not_mix() -> None:
    with pytest.raises(AdapterSettingsError, match="embedded index"):
        build([SEARXNG, AdapterSettings("index")], base_url=BASE)


@pytest.mark.parametrize(
    "settings",
    [
        [],
        [AdapterSettings("searxng")],
        [AdapterSettings("altavista")],
        [AdapterSettings("brave")],
        [AdapterSettings("exa")],
    ],
)
def test_settings_that_cannot_work_are_refused(settings: list[AdapterSettings]) -> None:
    with pytest.raises(AdapterSettingsError):
        build(settings, base_url=BASE)


def test_costs_say_what_they_rest_on() -> None:
    adapters = build(
        [
            SEARXNG,
            AdapterSettings("brave", key="k", cost_atomic=5000),
            AdapterSettings("exa", key="k"),
            AdapterSettings("ddgs"),
        ],
        base_url=BASE,
    )
    assert [(adapter.cost.atomic, adapter.cost.basis) for adapter in adapters] == [
        (0, "self_hosted_no_charge_per_call"),
        (5000, "configured_per_call"),
        (None, "billed_per_call_rate_not_configured"),
        (0, "no_charge_per_call"),
    ]


def test_a_stand_in_says_that_it_is_one() -> None:
    (adapter,) = build([AdapterSettings("searxng", base_url="http://127.0.0.1:1", simulated=True)], base_url=BASE)
    assert adapter.simulated


def test_a_key_is_not_in_the_settings_text() -> None:
    assert "hush" not in repr(AdapterSettings("brave", key="hush"))
