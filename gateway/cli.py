"""The command line.

Exit codes: 0 fine, 1 a check failed, 2 usage or configuration, 3 cannot reach the node or store.
"""

from __future__ import annotations

from pathlib import Path

import click

from gateway import __version__
from gateway.commands import exit_codes

CONFIG = click.option(
    "--config", "config_path", type=click.Path(path_type=Path, dir_okay=False), help="TOML file of the node."
)
JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="gateway")
def main() -> None:
    """Sell bounded, pay-per-call operations to software agents over HTTP."""


@main.command()
@CONFIG
def serve(config_path: Path | None) -> None:
    """Run the node until SIGTERM or SIGINT; logs are JSON lines on standard error."""
    with exit_codes():
        import trio

        from gateway.config import load
        from gateway.logs import log_json_lines
        from gateway.node import run_node

        configuration = load(config_path)
        log_json_lines()
        trio.run(run_node, configuration)


@main.command()
@click.option("--strict", is_flag=True, help="A family that is closed on this host is a failure.")
@click.option("--stay", is_flag=True, help="Keep the world up after the round, until Ctrl-C.")
@click.option("--no-agent", is_flag=True, help="Start the world and the node only.")
@click.option("--ready", type=click.Path(path_type=Path, dir_okay=False), help="Write this file when all is ready.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port of the node; 0 for any.")
@JSON
def demo(*, strict: bool, stay: bool, no_agent: bool, ready: Path | None, port: int, as_json: bool) -> None:
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

        options = DemoOptions(strict=strict, stay=stay, agent=not no_agent, ready=ready, port=port, json=as_json)
        raise SystemExit(trio.run(run, options))
