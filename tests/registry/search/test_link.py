from __future__ import annotations

from typing import Any

import pytest

from gateway.registry.search.link import hostname, is_public, page_of, web_url


@pytest.mark.parametrize(
    "url",
    [
        "https://example.org/",
        "http://example.org",
        "https://example.org:8443/a?b=c#d",
        "HTTPS://EXAMPLE.org/",
        "https://münchen.example/ü",
        " https://example.org/ \n",
        "https://example.org/?ref=main",
        "https://8.8.8.8/",
        "https://[2606:4700::1111]/",
        "https://example.org/?a=1&a=2&b",
    ],
)
def test_a_link_of_the_web_is_kept(url: str) -> None:
    assert web_url(url) == url.strip()


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("https://example.org/a?utm_source=x&utm_medium=y", "https://example.org/a"),
        ("https://example.org/a?q=1&gclid=2#part", "https://example.org/a?q=1#part"),
        ("https://example.org/?fbclid=2&q=a%20b", "https://example.org/?q=a%20b"),
        ("https://example.org/?UTM_Campaign=2", "https://example.org/"),
    ],
)
def test_trackers_are_taken_off(url: str, told: str) -> None:
    assert web_url(url) == told


@pytest.mark.parametrize(
    "url",
    [
        "javascript:alert(1)",
        "data:text/html,x",
        "file:///etc/passwd",
        "ftp://example.org/",
        "//example.org/",
        "example.org",
        "https://",
        "https:///path",
        "https://user:pw@example.org/",
        "https://example.org@evil.example/",
        "https://example.org\\@evil.example/",
        "https://exa mple.org/",
        "https://example.org/\nx",
        "https://example.org/\u202egnp",
        "https://example.org:99999/",
        "https://example.org:port/",
        "https://[::1/",
        "https://example.org/" + "x" * 2048,
        "",
        None,
        5,
        {"url": "https://example.org"},
    ],
)
def test_anything_else_is_no_link(url: Any) -> None:
    assert web_url(url) is None


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LOCALHOST.",
        "a.localhost",
        "printer.local",
        "vault.internal",
        "router",
        "127.0.0.1",
        "127.1",
        "0x7f000001",
        "2130706433",
        "017700000001",
        "0.0.0.0",
        "10.1.2.3",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "224.0.0.1",
        "::1",
        "::",
        "fe80::1",
        "fe80::1%25eth0",
        "fd00::1",
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
    ],
)
def test_what_is_not_of_the_public_internet_is_dropped(host: str) -> None:
    assert not is_public(host)
    assert web_url(f"http://{f'[{host}]' if ':' in host else host}/") is None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("https://Example.org", "https://example.org/"),
        ("https://example.org:443/a", "https://example.org/a#part"),
        ("HTTP://example.org:80/?q=1", "https://example.org/?q=1"),
        ("https://www.example.org/a/", "http://example.org/a"),
        ("https://example.org/a?ref=x&utm_source=y", "https://example.org/a"),
    ],
)
def test_links_to_one_page_are_known(one: str, other: str) -> None:
    assert page_of(one) == page_of(other)


def test_links_that_differ_in_path_or_query_are_different() -> None:
    assert len({page_of(f"https://example.org/{end}") for end in ("a", "A", "a?b", "a?q=1", "a?q=2", "a/b")}) == 6
    assert page_of("https://example.org:8443/a") != page_of("https://example.org/a")
    assert hostname("https://Example.org:8443/a") == "example.org"
