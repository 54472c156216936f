"""The options that commands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

CONFIG: Decorator = click.option(
    "--config",
    "config_path",
    type=click.Path(path_type=Path, dir_okay=False),
    help="TOML file of the node; without it, defaults and GATEWAY_SECTION__KEY.",
)
JSON: Decorator = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
WIDE: Decorator = click.option("--wide", is_flag=True, help="Print ids and hashes whole, however wide the terminal is.")
IMAGES: Decorator = click.option(
    "--images",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where images of the sandbox stand; without it [sandbox] image, or /var/lib/gateway-sandbox as root, else "
    "sandbox-images in the data directory.",
)
