"""The command line: `gateway`, also `python -m gateway`.

Exit codes: 0 fine, 1 a check failed, 2 usage or configuration, 3 cannot reach the node or store.
"""

from __future__ import annotations

import click

from gateway import __version__
from gateway.commands.doctoring import doctor
from gateway.commands.keys import keys
from gateway.commands.ledger import ledger
from gateway.commands.migrating import migrate
from gateway.commands.models import models
from gateway.commands.operations import operations
from gateway.commands.quoting import quote
from gateway.commands.receipts import receipts
from gateway.commands.registry import registry
from gateway.commands.sandbox import sandbox
from gateway.commands.serving import demo, serve


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="gateway")
def main() -> None:
    """Sell bounded, pay-per-call operations to software agents over HTTP.

    Exit codes: 0 fine, 1 a check failed, 2 usage or configuration, 3 cannot reach the node or store.
    """


for command in (serve, demo, doctor, registry, models, quote, operations, ledger, receipts, keys, migrate, sandbox):
    main.add_command(command)
