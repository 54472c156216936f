from __future__ import annotations

import re

import pytest

from gateway.errors import PROBLEMS
from gateway.registry.search.corpus import Page, pages
from gateway.registry.search.request import SCHEMA

PAGES = pages()


def test_the_node_ships_its_documentation() -> None:
    assert {"getting-started", "search", "payments-x402", "payments-mpp", "receipts", "errors"} <= {
        page.name for page in PAGES
    }
    assert "README" not in {page.name for page in PAGES}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_has_a_title_a_path_safe_name_and_a_readable_length(page: Page) -> None:
    lines = page.text.splitlines()
    assert lines[0] == f"# {page.title}"
    assert re.fullmatch(r"[a-z0-9-]+", page.name)
    assert 20 <= len(lines) <= 60


def test_every_field_of_the_request_is_documented() -> None:
    text = next(page.text for page in PAGES if page.name == "search")
    assert all(f"| {field} |" in text for field in SCHEMA["properties"])


def test_every_problem_code_that_is_documented_exists() -> None:
    text = next(page.text for page in PAGES if page.name == "errors")
    row = re.compile(r"^\| \d{3} \| ([a-z0-9_, ]+) \|", re.MULTILINE)
    codes = [code for codes in row.findall(text) for code in codes.split(", ")]
    assert len(codes) > 15
    assert set(codes) <= set(PROBLEMS)
