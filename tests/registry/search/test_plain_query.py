from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.registry.search.plain_query import BANGS, SEARXNG, plain_query


@pytest.mark.parametrize(
    ("query", "asked"),
    [
        ("!!gh x", "gh x"),
        ("x !!gh", "x gh"),
        ("x\t!!gh\u3000:fr", "x\tgh\u3000fr"),
        ("!images !!g :de_AT <3 ?wp tide", "images g de_AT 3 wp tide"),
        (":!<!!gh x", "gh x"),
        ("!! x", "x"),
        ("what is a tide?", "what is a tide?"),
        ('site:example.org "!important" a<b c:d', 'site:example.org "!important" a<b c:d'),
        ('css "must be !important"', 'css "must be important"'),
        ("!! :", '"!!:"'),
        (" !!\n!! ", '"!!!!"'),
    ],
)
def test_no_part_of_a_query_is_a_command_to_searxng(query: str, asked: str) -> None:
    assert plain_query(query, SEARXNG) == asked


@pytest.mark.parametrize(
    ("query", "asked"),
    [
        ("!g tide", "g tide"),
        ("tide !g", "tide g"),
        ("tide g!", "tide g"),
        ("\\tide", "tide"),
        ("!\\!tide", "tide"),
        ("a!b c\\d :fr", "a!b c\\d :fr"),
        ("!", '"!"'),
    ],
)
def test_no_word_of_a_query_is_a_bang(query: str, asked: str) -> None:
    assert plain_query(query, BANGS) == asked


MARKS = st.text(st.sampled_from('!:<?\\ag3" \t\u3000'), min_size=1).filter(lambda text: bool(text.strip()))


@given(MARKS)
def test_nothing_that_searxng_splits_off_begins_with_a_command(query: str) -> None:
    parts = [part for part in re.split(r"(\s+)", plain_query(query, SEARXNG)) if part.strip()]
    assert parts
    assert not any(part[0] in "!:<?" for part in parts)


@given(MARKS)
def test_nothing_begins_or_ends_with_a_bang(query: str) -> None:
    words = plain_query(query, BANGS).split()
    assert words
    assert not any(word[0] in "!\\" or word[-1] == "!" for word in words)
