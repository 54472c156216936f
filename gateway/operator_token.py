"""The bearer token of the operator's listener: where it lies, and how a node makes its own."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from gateway.config import Configuration, ConfigurationError
from gateway.errors import Violation

NAME = "operator.token"
SHORTEST = 16
POINTER = "/node/operator_token_file"


def token_path(configuration: Configuration) -> Path:
    """Return the configured file, or the one that a node makes in its data directory."""
    configured = configuration.node.operator_token_file
    return Path(configured).expanduser() if configured else configuration.data_dir / NAME


def open_token(configuration: Configuration, *, create: bool) -> str:
    """Read the token; with `create`, a file that is not configured and not there is made first, mode 0600.

    Raises `ConfigurationError`.
    """
    path = token_path(configuration)
    try:
        if create and not configuration.node.operator_token_file and not path.exists():
            _write(path)
        mode, token = path.stat().st_mode, path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise _refused(
            configuration, f"{path} cannot be read: {getattr(error, 'strerror', 'it is not ASCII')}"
        ) from error
    if mode & 0o077:
        raise _refused(configuration, f"others can read {path}; run chmod 600 {path}")
    if len(token) < SHORTEST or not token.isprintable() or " " in token:
        raise _refused(configuration, f"{path} must hold one word of at least {SHORTEST} characters")
    return token


def _refused(configuration: Configuration, detail: str) -> ConfigurationError:
    return ConfigurationError(configuration.source, [Violation(POINTER, detail)])


def _write(path: Path) -> None:
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w") as file:
        file.write(secrets.token_urlsafe(32) + "\n")
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
