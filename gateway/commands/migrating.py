"""`gateway migrate`: a store's schema brought up to this release, or a SQLite store moved to PostgreSQL."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gateway.commands import printing
from gateway.commands.exits import CHECK_FAILED, USAGE, Stop, exit_codes, leave
from gateway.commands.options import CONFIG, JSON

if TYPE_CHECKING:
    from gateway.actors.store.postgresql_settings import PostgresqlSettings
    from gateway.config import Configuration
    from gateway.migrating import Standing
    from gateway.moving import Moved

OPTIONS = {"/store/url": "--to", "/store/password_file": "--password-file"}


@click.command()
@CONFIG
@click.option("--check", is_flag=True, help="Only tell what is pending; exit 1 if something is.")
@click.option(
    "--despite-live-nodes",
    is_flag=True,
    help="Migrate although a node that runs now could not go on; stop it first if you can.",
)
@click.option("--to", "target", metavar="URL", help="Move the node's SQLite store to this PostgreSQL database.")
@click.option(
    "--password-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The file that holds the password of --to.",
)
@JSON
def migrate(
    config_path: Path | None,
    *,
    check: bool,
    despite_live_nodes: bool,
    target: str | None,
    password_file: Path | None,
    as_json: bool,
) -> None:
    """Apply the pending migrations to the configured store, or move a SQLite store to PostgreSQL.

    On PostgreSQL nodes may run meanwhile where their release allows it; a SQLite store's node must be stopped.  A move
    needs an empty database and may be interrupted: the same command goes on where it was.  Nothing is given up before
    both sides were found equal.
    """
    with exit_codes():
        from gateway.config import load

        if target is None and password_file is not None:
            raise Stop(USAGE, "--password-file belongs to --to")
        if target is not None and (check or despite_live_nodes):
            raise Stop(USAGE, "--to takes neither --check nor --despite-live-nodes")
        configuration = load(config_path)
        if target is not None:
            _move(configuration, target, password_file, as_json=as_json)
        else:
            _migrate(configuration, check=check, despite=despite_live_nodes, as_json=as_json)


# -- the schema --------------------------------------------------------------------------------------------------------


def _migrate(configuration: Configuration, *, check: bool, despite: bool, as_json: bool) -> None:
    from gateway.actors.store import schema
    from gateway.migrating import SchemaRefused, migrate_file, migrate_server, standing_of_file, standing_of_server
    from gateway.opening import settings_of

    shipped = schema.shipped()
    settings = settings_of(configuration) if configuration.shared_store else None
    try:
        standing = (
            standing_of_server(settings, shipped) if settings else standing_of_file(configuration.store_path, shipped)
        )
    except SchemaRefused as refused:
        raise Stop(CHECK_FAILED, str(refused)) from refused
    stranded = [each for each in standing.nodes if not each.served]
    refused_by = stranded if standing.pending and not (check or despite) else []
    done = not (check or refused_by or not standing.pending)
    if done and settings:
        migrate_server(settings, shipped)
    elif done:
        migrate_file(configuration.store_path, shipped)
    if as_json:
        printing.document(_told(configuration.shown_store, standing, migrated=done))
    else:
        _print(configuration.shown_store, standing, migrated=done)
    if refused_by:
        names = ", ".join(each.node for each in refused_by)
        raise Stop(
            CHECK_FAILED,
            f"nothing was migrated: {names} could not go on. Stop {'it' if len(refused_by) == 1 else 'them'} first "
            "and start this release instead; --despite-live-nodes migrates all the same",
        )
    if standing.pending and not done:
        leave(CHECK_FAILED)


def _told(where: str, standing: Standing, *, migrated: bool) -> dict[str, Any]:
    pending = [{"version": each.version, "name": each.name} for each in standing.pending]
    return {
        "store": where,
        "version": standing.applied + (len(pending) if migrated else 0),
        "applied": pending if migrated else [],
        "pending": [] if migrated else pending,
        "nodes": [{"node": each.node, "release": each.release, "served": each.served} for each in standing.nodes],
    }


def _print(where: str, standing: Standing, *, migrated: bool) -> None:
    version = standing.applied + (len(standing.pending) if migrated else 0)
    for each in standing.pending:
        click.echo(f"{'applied' if migrated else 'pending'}  {each.version:04d} {each.name}")
    for node in standing.nodes:
        goes_on = "goes on" if node.served or not standing.pending else "cannot live with the new schema"
        click.echo(f"node {node.node}, release {node.release}: {goes_on}")
    nothing_left = migrated or not standing.pending
    click.echo(f"{where}: schema {version}{', nothing is pending' if nothing_left else ''}")


# -- the move ----------------------------------------------------------------------------------------------------------


def _move(configuration: Configuration, url: str, password_file: Path | None, *, as_json: bool) -> None:
    from functools import partial

    from gateway.actors.store import schema
    from gateway.commands.progress import progress
    from gateway.migrating import migrate_server
    from gateway.moving import MoveRefused, Step, move

    if configuration.shared_store:
        raise Stop(USAGE, "[store] url is PostgreSQL already; name the configuration of the SQLite node with --config")
    settings = _settings(configuration, url, password_file)
    terminal = sys.stderr.isatty()
    if not as_json:
        click.echo(f"moving {configuration.store_path} to {settings.shown}", err=True)
    try:
        with progress(terminal=terminal) as told:

            def observe(step: Step) -> None:
                told(f"{step.work.value} {step.table}", step.rows, step.of)

            moved = move(
                configuration.store_path,
                settings,
                migrate=partial(migrate_server, settings, schema.shipped()),
                key_set=_key_set(configuration.keys_dir),
                observe=observe,
            )
    except MoveRefused as refused:
        raise Stop(CHECK_FAILED, str(refused)) from refused
    lines = _configuration_lines(configuration, settings, password_file)
    if as_json:
        printing.document(_told_of_move(moved) | {"configuration": "\n".join(lines) + "\n"})
    else:
        _print_move(moved, lines, configuration)


def _settings(configuration: Configuration, url: str, password_file: Path | None) -> PostgresqlSettings:
    """Return how the database is reached, by the rules that a configuration with these values is held to."""
    import attrs

    from gateway.config import ConfigurationError
    from gateway.config_rules import POSTGRESQL, broken_rules
    from gateway.opening import settings_of

    if not url.startswith(POSTGRESQL):
        raise Stop(USAGE, "--to must be postgresql://USER@HOST/DATABASE")
    file = str(password_file.absolute()) if password_file else ""
    store = attrs.evolve(configuration.store, url=url, password_file=file)
    there = attrs.evolve(configuration, store=store)
    try:
        for broken in broken_rules(there):
            raise Stop(USAGE, f"{OPTIONS.get(broken.pointer, broken.pointer)}: {broken.detail}")
        return settings_of(there)
    except ConfigurationError as refused:
        raise Stop(USAGE, f"--password-file: {refused.violations[0].detail}") from refused


def _key_set(directory: Path) -> dict[str, Any] | None:
    """Return the node's own key set; None where its keys are not here."""
    from gateway.keys import open_keys
    from gateway.registry.receipts import Signer

    return Signer.from_keys(open_keys(directory, create=False).receipts).key_set if directory.exists() else None


def _configuration_lines(
    configuration: Configuration, settings: PostgresqlSettings, password_file: Path | None
) -> list[str]:
    lines = ["[store]", f"url = {json.dumps(settings.shown)}"]
    if password_file is not None:
        lines.append(f"password_file = {json.dumps(str(password_file.absolute()))}")
    elif settings.shown != settings.url:
        lines.append('# password_file = "..."  names a file (mode 0600) with the password that --to had')
    return [
        *lines,
        "",
        "[node]",
        f"name = {json.dumps(configuration.node.name)}  # another one on every node",
        f"keys_dir = {json.dumps(str(configuration.keys_dir))}",
    ]


def _told_of_move(moved: Moved) -> dict[str, Any]:
    ledger = moved.ledger
    return {
        "from": str(moved.source),
        "to": moved.url,
        "at": moved.at,
        "alreadyMoved": moved.before,
        "rowsCopied": moved.copied,
        "seconds": round(moved.seconds, 3),
        "tables": [{"table": each.table, "rows": each.rows[0], "sha256": each.hashes[0]} for each in moved.tables],
        "ledger": ledger
        and {
            "entries": ledger.entries,
            "blocks": ledger.blocks,
            "head": ledger.head,
            "signaturesChecked": ledger.signatures,
        },
    }


def _print_move(moved: Moved, lines: list[str], configuration: Configuration) -> None:
    if moved.before:
        click.echo(f"{moved.source} was moved to {moved.url} already, at {moved.at}; there was nothing to do")
    else:
        rows = sum(each.rows[0] for each in moved.tables)
        rate = f", {moved.copied / moved.seconds:,.0f} rows/s" if moved.copied and moved.seconds else ""
        click.echo(f"copied {moved.copied:,} rows in {moved.seconds:,.1f} s{rate}")
        click.echo(f"compared {rows:,} rows in {len(moved.tables)} tables: both sides hold the same")
        if moved.ledger:
            unchecked = "" if moved.ledger.signatures else "; signatures were not checked, the node's keys are not here"
            head = moved.ledger.head or "none, nothing is sealed"
            click.echo(f"the ledger stands: {moved.ledger.entries:,} entries, head {head} on both sides{unchecked}")
    click.echo("\nPut this into the configuration of every node:\n")
    for line in lines:
        click.echo(f"    {line}".rstrip())
    click.echo(
        f"\nThe key files in {configuration.keys_dir} go along to every node: copy them as they are, mode 0600.\n"
        f"No node starts on {moved.source} again; keep it as a backup."
    )
