from __future__ import annotations

from typing import Any

import cattrs
import jsonschema_rs
import pytest

from gateway.errors import SynthesisUnavailable
from gateway.registry.canonical import with_defaults
from gateway.registry.search.request import EXAMPLE, SCHEMA, SearchRequest, refine

VALID = {"query": "a", "synthesize": False}
ACCEPTS = jsonschema_rs.Draft202012Validator(dict(SCHEMA)).is_valid


@pytest.mark.parametrize(
    "body",
    [
        VALID,
        EXAMPLE,
        VALID | {"query": "x" * 2000},
        VALID | {"query": "\U0001f600" * 2000},
        VALID | {"maxResults": 1},
        VALID | {"maxResults": 10},
        VALID | {"maxResults": 3.0},
        VALID | {"language": "deu"},
        VALID | {"language": "zh-Hant-TW"},
        VALID | {"region": "DE"},
    ],
)
def test_the_schema_accepts(body: dict[str, Any]) -> None:
    assert ACCEPTS(body)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"query": "a"},
        {"synthesize": False},
        VALID | {"query": ""},
        VALID | {"query": "x" * 2001},
        VALID | {"query": 1},
        VALID | {"query": None},
        VALID | {"synthesize": True},
        VALID | {"synthesize": 0},
        VALID | {"synthesize": "false"},
        VALID | {"maxResults": 0},
        VALID | {"maxResults": 11},
        VALID | {"maxResults": 2.5},
        VALID | {"maxResults": True},
        VALID | {"language": "EN"},
        VALID | {"language": "e"},
        VALID | {"language": "en\n"},
        VALID | {"language": "x\nen"},
        VALID | {"language": "en-"},
        VALID | {"language": "en_US"},
        VALID | {"region": "us"},
        VALID | {"region": "USA"},
        VALID | {"region": "US\n"},
        VALID | {"max_results": 3},
        VALID | {"more": 1},
        [],
    ],
)
def test_the_schema_refuses(body: Any) -> None:
    assert not ACCEPTS(body)


def test_a_body_with_its_defaults_becomes_the_request() -> None:
    body = with_defaults(SCHEMA, VALID)
    converter = cattrs.Converter(forbid_extra_keys=True)
    assert converter.structure(body, SearchRequest) == SearchRequest("a", False, 3, "en", "US")
    assert converter.structure(body | {"maxResults": 9}, SearchRequest).max_results == 9


def test_asking_for_synthesis_has_a_problem_of_its_own() -> None:
    assert isinstance(refine(VALID | {"synthesize": True}), SynthesisUnavailable)


@pytest.mark.parametrize("value", [1, "true", None, False])
def test_any_other_bad_synthesize_is_an_ordinary_violation(value: Any) -> None:
    assert refine(VALID | {"synthesize": value}) is None
