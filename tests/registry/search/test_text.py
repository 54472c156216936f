from __future__ import annotations

import time
from typing import Any

import pytest

from gateway.registry.search.text import one_line, visible

CODE = [
    "List<String>",
    "#include <stdio.h>",
    "a<b && c>d",
    "1 < 2 and 3 > 2",
    "x <- y",
    "vector<vector<int>>",
    "<T extends U>",
    "if (a <b) {}",
]


@pytest.mark.parametrize("text", [*CODE, "Tom &amp; Jerry", "<b>bold</b>", "5 &lt; 6", "</div>"])
def test_plain_text_is_left_alone(text: str) -> None:
    assert one_line(text, 100, "plain") == text


@pytest.mark.parametrize(
    ("raw", "clean"),
    [
        ("plain", "plain"),
        ("a <b>bold</b> word", "a bold word"),
        ("one<br>two<p>three</p>four", "one two three four"),
        ("<script>alert(1)</script>after", "after"),
        ("before<script>alert(1)", "before"),
        ("<style>b{}</style>x<!-- hidden -->y", "xy"),
        ("1 < 2 and 3 > 2", "1 < 2 and 3 > 2"),
        ("Tom &amp; Jerry &#x27;s", "Tom & Jerry 's"),
        ("<b>end</b>.", "end."),
        ("List&lt;String&gt; and List<String>", "List<String> and List<String>"),
        ("#include <stdio.h>", "#include <stdio.h>"),
        ("<T>(x: <strong>T</strong>)", "<T>(x: T)"),
        ("x<br/>y<img src=a>z", "x y z"),
    ],
)
def test_of_html_the_text_is_told(raw: str, clean: str) -> None:
    assert one_line(raw, 100, "html") == clean


@pytest.mark.parametrize("kind", ["plain", "html"])
@pytest.mark.parametrize(
    ("raw", "clean"),
    [
        ("  many\n\t spaces ", "many spaces"),
        ("safe\u202egnp.exe\u202c", "safegnp.exe"),
        ("zero\u200bwidth\ufeff", "zerowidth"),
        ("tag\U000e0041\U000e0042", "tag"),
        ("null\x00bell\x07", "nullbell"),
        ("\ud800lone", "lone"),
        ("नी\u200dक \u200c", "नी\u200dक \u200c"),
        (None, ""),
        (7, ""),
        (["x"], ""),
    ],
)
def test_text_is_visible_and_on_one_line(raw: Any, clean: str, kind: Any) -> None:
    assert one_line(raw, 100, kind) == clean


def test_long_text_is_cut_and_says_so() -> None:
    assert one_line("x" * 5000, 10, "plain") == "x" * 9 + "…"


@pytest.mark.parametrize("piece", ["<script", "<a ", "<!--", "<!", "</", "&", "<a b='", "&#"])
def test_a_megabyte_of_open_markup_is_read_in_no_time(piece: str) -> None:
    began = time.process_time()
    one_line(piece * 200_000, 100, "html")
    assert time.process_time() - began < 5


def test_visible_text_encodes() -> None:
    assert visible("".join(map(chr, range(0x3000)))).encode()
