"""The whole examination, in the order in which things are needed."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import attrs

from gateway.actors.runtime import open_runtime
from gateway.actors.upstream import Caller, upstream
from gateway.config import Configuration, ConfigurationError, load
from gateway.doctor._check import Check, Examination, failed, fine, note
from gateway.doctor._disk import disk
from gateway.doctor._listeners import listeners
from gateway.doctor._machine import machine
from gateway.doctor._models import models
from gateway.doctor._payment import payment
from gateway.doctor._sandbox import sandbox
from gateway.doctor._search import search


async def examine(config_path: Path | None) -> Examination:
    """Look at everything once, without changing anything."""
    try:
        configuration = load(config_path)
    except ConfigurationError as error:
        return Examination([_unusable(error.source, each.pointer, each.detail) for each in error.violations], None)
    checks = [_usable(configuration), *machine(configuration), *disk(configuration)]
    alive: frozenset[str] = frozenset()
    if configuration.shared_store:
        from gateway.doctor._server import server

        examined = server(configuration)
        checks += examined.checks
        alive = examined.alive
    checks += listeners(configuration, alive)
    checks += sandbox(configuration, alive)
    async with open_runtime() as runtime:
        call = Caller(await runtime.start("upstream", upstream))
        checks += await payment(configuration, call, time.time())
        checks += await search(configuration, call)
        checks += await models(configuration, call)
    return Examination(checks, redacted(configuration))


def _usable(configuration: Configuration) -> Check:
    if configuration.source == "defaults":
        return note("configuration", "no file is named", "defaults and GATEWAY_SECTION__KEY are in force")
    return fine("configuration", configuration.source)


def _unusable(source: str, pointer: str, detail: str) -> Check:
    where = f"{source} {pointer}" if pointer else source
    return failed("configuration", f"{where}: {detail}", "the node does not start", "mend it; no other check was made")


def redacted(configuration: Configuration) -> dict[str, Any]:
    """Return the configuration in force; of URLs no password, and of those but the store's only host and port."""
    tree = attrs.asdict(configuration)
    del tree["source"]
    tree["node"] |= {
        "data_dir": str(configuration.data_dir),
        "keys_dir": str(configuration.keys_dir),
        "base_url": configuration.base_url,
    }
    tree["store"]["url"] = configuration.shown_store
    tree["payment"]["rpc_urls"] = [_bare(url) for url in tree["payment"]["rpc_urls"]]
    tree["payment"]["facilitator_url"] = _bare(tree["payment"]["facilitator_url"])
    for back_end in (*tree["search"]["adapter"], *tree["ai"]["route"]):
        back_end["base_url"] = _bare(back_end["base_url"])
    return tree


def _bare(url: str) -> str:
    parts = urlsplit(url)
    more = parts.path.strip("/") or parts.query or parts.fragment
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], "/..." if more else "", "", ""))
