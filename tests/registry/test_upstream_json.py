"""What is read of strangers that is not quite JSON, and what is not."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.registry.upstream_json import read_json


@pytest.mark.parametrize(
    ("content", "value"),
    [
        (b'\xef\xbb\xbf{"a": 1}', {"a": 1}),
        (rb'"\ud83d"', "\ufffd"),
        (rb'"a \uD83D b \uDE00 c"', "a \ufffd b \ufffd c"),
        (rb'"\ud83d\ude00"', "\U0001f600"),
        (rb'"\ud83d \ud83d\ude00"', "\ufffd \U0001f600"),
        (rb'"\ud83d\ud83d\ude00"', "\ufffd\U0001f600"),
        (rb'"\\ud83d \ud83d"', "\\ud83d \ufffd"),
        (rb'{"\ude00": ["\udbff\u0041"]}', {"\ufffd": ["\ufffdA"]}),
    ],
)
def test_a_mark_before_it_and_half_a_character_are_read(content: bytes, value: Any) -> None:
    assert read_json(content) == value


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xef\xbb\xbf",
        b"NaN",
        b'{"a": Infinity}',
        b"\xff",
        b'"\xed\xa0\xbd"',
        b'"a',
        b"{'a': 1}",
        rb'"\ud83d" x',
        rb'"\ud8"',
    ],
)
def test_everything_else_stays_refused(content: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  # orjson's own
        read_json(content)


@given(
    st.recursive(
        st.none() | st.booleans() | st.text(st.characters()),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_whatever_python_writes_is_read_with_at_most_its_halves_replaced(value: Any) -> None:
    def mended(each: Any) -> Any:
        return json.loads(
            json.dumps(each, ensure_ascii=False).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        )

    assert read_json(json.dumps(value).encode()) == mended(value)
