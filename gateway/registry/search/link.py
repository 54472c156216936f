"""Links of results: which may be passed on, what they are without their trackers, and which are one page."""

from __future__ import annotations

import ipaddress
import re
import socket
from urllib.parse import SplitResult, unquote_plus, urlsplit, urlunsplit

from gateway.registry.search.text import visible

URL_CHARS = 2048
PORTS = {"http": 80, "https": 443}
LOCAL_NAMES = ("localhost", "local", "internal", "lan", "home.arpa")
TRACKERS = re.compile(
    r"utm_\w+|gclid|gbraid|wbraid|dclid|fbclid|msclkid|yclid|igshid|mc_[ce]id|_hsenc|_hsmi", re.IGNORECASE
)
"""Parameters that no page needs to be found by."""
SAME_PAGE = re.compile(rf"{TRACKERS.pattern}|ref|ref_src|source", re.IGNORECASE)
"""Parameters that rarely tell pages apart: links that differ by these alone are one page, and keep them."""


def web_url(value: object) -> str | None:
    """Return `value` without its trackers if it is an http(s) URL of a host on the public internet, else None.

    Credentials and hidden characters are not passed on; nor are private, loopback and link-local addresses, in whatever
    form a browser reads them, and names that resolve on local networks only.
    """
    if not isinstance(value, str):
        return None
    url = value.strip()
    if not url or len(url) > URL_CHARS or "\\" in url or any(part.isspace() for part in url) or visible(url) != url:
        return None
    parts = _split(url)
    if parts is None or parts.scheme not in PORTS or not parts.hostname or "@" in parts.netloc:
        return None
    if not is_public(parts.hostname):
        return None
    query = _without(parts.query, TRACKERS)
    return url if query == parts.query else urlunsplit(parts._replace(query=query))


def is_public(host: str) -> bool:
    """Return False for an address that is not of the public internet, and for a name of a local network."""
    name = host.rstrip(".").lower()
    if name in LOCAL_NAMES or name.endswith(tuple(f".{each}" for each in LOCAL_NAMES)):
        return False
    address = _address(name)
    if address is None:
        return "." in name
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_global and not (mapped or address).is_multicast


def page_of(url: str) -> str:
    """Return what all links to a page have in common.

    That is neither the scheme, `www.`, a default port, a tracker, a last slash nor the fragment.
    """
    parts = urlsplit(url)
    host = (parts.hostname or "").removeprefix("www.")
    port = "" if parts.port in {None, *PORTS.values()} else f":{parts.port}"
    query = _without(parts.query, SAME_PAGE)
    return f"{host}{port}{parts.path.rstrip('/')}{f'?{query}' if query else ''}"


def hostname(url: str) -> str:
    """Return the host of a link that `web_url` accepted."""
    return urlsplit(url).hostname or ""


def _without(query: str, names: re.Pattern[str]) -> str:
    kept = [each for each in query.split("&") if not names.fullmatch(unquote_plus(each.partition("=")[0]))]
    return "&".join(kept)


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        pass
    try:
        return ipaddress.IPv4Address(socket.inet_aton(name))  # 127.1, 0x7f000001, 2130706433
    except (OSError, ValueError):
        return None


def _split(url: str) -> SplitResult | None:
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises for a port that is no number
    except ValueError:
        return None
    return parts
