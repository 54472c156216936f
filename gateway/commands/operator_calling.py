"""Speaking to a running node over its operator's listener."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gateway.commands.exits import CHECK_FAILED, UNREACHABLE, USAGE, Stop

if TYPE_CHECKING:
    from gateway.config import Configuration


def ask_operator(
    configuration: Configuration, method: str, path: str, body: Mapping[str, Any] | None = None, *, why: str
) -> dict[str, Any]:
    """Return what the running node's operator listener answers; `why` says why it must run, where none ever did.

    Raises `Stop`: 3 where the node cannot be reached or cannot answer now, 2 where it does not take the token, 1 where
    it refuses.
    """
    from gateway.addresses import operator_url
    from gateway.commands.calling import ask, problem_of
    from gateway.operator_token import open_token, token_path

    if not configuration.node.operator_token_file and not token_path(configuration).exists():
        reason = f"no node has run in {configuration.data_dir}; {why}. Name its configuration with --config"
        raise Stop(UNREACHABLE, reason)
    headers = {"Authorization": f"Bearer {open_token(configuration, create=False)}"}
    url, json = f"{operator_url(configuration)}{path}", None if body is None else dict(body)
    answer = ask(method, url, headers=headers, json=json)
    if answer.status_code == 200:
        told: dict[str, Any] = answer.json()
        return told
    if answer.status_code == 401:
        raise Stop(
            USAGE, f"the node does not take the token of {token_path(configuration)}; restart it or name its own"
        )
    raise Stop(UNREACHABLE if answer.status_code == 503 else CHECK_FAILED, problem_of(answer))
