"""Speaking to a running node over HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gateway.commands.exits import UNREACHABLE, Stop

if TYPE_CHECKING:
    import httpx

TIMEOUT_S = 90.0


def ask(method: str, url: str, *, headers: dict[str, str], json: Any = None) -> httpx.Response:
    """Return a node's answer; raises `Stop` where none comes."""
    import httpx

    try:
        with httpx.Client(trust_env=False, timeout=httpx.Timeout(TIMEOUT_S, connect=5)) as client:
            return client.request(method, url, headers=headers, json=json)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise Stop(
            UNREACHABLE, f"no node answers at {url} ({type(error).__name__}); start it with: gateway serve"
        ) from error


def problem_of(answer: httpx.Response) -> str:
    """Return the lines of a problem document: its code and detail, then each violation."""
    try:
        document = answer.json()
    except ValueError:
        document = None
    if not isinstance(document, dict) or "code" not in document:
        return f"the answer was {answer.status_code} and no problem document; is that a node?"
    lines = [f"{answer.status_code} {document['code']}: {document.get('detail', '')}"]
    lines += [f"  {each.get('pointer')}: {each.get('detail')}" for each in document.get("errors", [])]
    return "\n".join(lines)
