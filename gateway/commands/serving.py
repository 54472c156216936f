"""`gateway serve` and `gateway demo`."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import click

from gateway.commands.exits import FINE, exit_codes, leave
from gateway.commands.options import CONFIG, JSON

MOST_NODES = 8


@click.command()
@CONFIG
@click.option("--json", "as_json", is_flag=True, help="A failure to start is a JSON document, too.")
def serve(config_path: Path | None, *, as_json: bool) -> None:
    """Run the node until SIGTERM or SIGINT, then drain and exit 0.

    It logs to standard error: JSON lines, or text on a terminal.
    """
    del as_json  # `Stop` reads it from the context
    # Until the node listens for it itself; an exception could be swallowed by whatever is being imported.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(FINE))
    with exit_codes():
        from gateway.config import load

        configuration = load(config_path)

        import trio

        from gateway.logs import log_lines
        from gateway.node import run_node

        log_lines()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        trio.run(run_node, configuration)


@click.command()
@click.option("--strict", is_flag=True, help="A family that is closed on this host is a failure.")
@click.option("--stay", is_flag=True, help="Keep the world up after the round, until Ctrl-C.")
@click.option("--no-agent", is_flag=True, help="Start the world and the node only.")
@click.option("--ready", type=click.Path(path_type=Path, dir_okay=False), help="Write this file when all is ready.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port of the first node; 0 for any.")
@click.option("--nodes", type=click.IntRange(1, MOST_NODES), default=1, help="How many; several need --store.")
@click.option("--store", metavar="URL|postgresql", default="", help="Use this empty database, or a server of its own.")
@JSON
def demo(
    *, strict: bool, stay: bool, no_agent: bool, ready: Path | None, port: int, nodes: int, store: str, as_json: bool
) -> None:
    """Watch an agent buy on a local world: a real chain, a real facilitator, nothing leaves this machine."""
    with exit_codes():
        try:
            from gateway.world.demo import DemoOptions
            from gateway.world.demo import demo as run
        except ModuleNotFoundError as missing:
            raise click.UsageError(
                f"the local world is not installed ({missing.name}): pip install 'gateway[world]'"
            ) from missing

        import trio

        options = DemoOptions(
            strict=strict,
            stay=stay,
            agent=not no_agent,
            ready=ready,
            port=port,
            json=as_json,
            nodes=nodes,
            store=store,
        )
        leave(trio.run(run, options))
