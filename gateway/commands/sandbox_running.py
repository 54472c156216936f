"""`gateway sandbox run` and `prove`: the operator's own runs, through the very path of sold ones."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gateway.commands import printing
from gateway.commands.exits import CHECK_FAILED, USAGE, Stop, exit_codes, leave
from gateway.commands.options import CONFIG, IMAGES, JSON

if TYPE_CHECKING:
    from typing import BinaryIO

    from gateway.actors.sandbox import SandboxSettings
    from gateway.actors.sandbox.supervisor import Executed
    from gateway.sandbox.limits import Limits
    from gateway.sandbox.output_text import Text


@click.command()
@click.argument("command", nargs=-1, required=True)
@CONFIG
@IMAGES
@click.option("--stdin", type=click.File("rb"), help="Standard input of the command (- is this one's).")
@click.option("--limit", "limits", multiple=True, metavar="NAME=NUMBER", help="A limit by its name, cpuMillis=500.")
@JSON
def run(
    command: tuple[str, ...],
    config_path: Path | None,
    images: Path | None,
    stdin: BinaryIO | None,
    limits: tuple[str, ...],
    *,
    as_json: bool,
) -> None:
    """Run COMMAND in a sandbox as a sold one is run, and show what came of it.

    Write `--` before it. Nobody pays, no node need run, and one that runs is not touched. Exit code 1 unless the
    command ended with 0.
    """
    with exit_codes(), _closings():
        import base64

        import trio

        from gateway.sandbox.outcome import Ending, Outcome
        from gateway.sandbox.request import SandboxRequest
        from gateway.sandbox_once import run_once

        given = None if stdin is None else base64.b64encode(stdin.read()).decode()
        request = SandboxRequest(command, given, _limits(limits))
        executed = trio.run(run_once, _settings(config_path, images), request)
        if as_json:
            printing.document({"output": executed.result.output(), "execution": _execution(executed, request.limits)})
        else:
            _show(executed)
        if executed.result.ending != Ending(Outcome.EXITED, 0):
            leave(CHECK_FAILED)


@click.command()
@CONFIG
@IMAGES
@JSON
def prove(config_path: Path | None, images: Path | None, *, as_json: bool) -> None:
    """Run the canaries, small runs that try what the sandbox has to refuse or to end, and show what each proved.

    The node makes them at its start and from time to time. Exit code 1 when one proves nothing.
    """
    with exit_codes(), _closings():
        import trio

        from gateway.sandbox.canaries import BY_NAME
        from gateway.sandbox_once import prove_once

        seen = trio.run(prove_once, _settings(config_path, images))
        if as_json:
            told = [
                {"name": name, "proves": BY_NAME[name].proves, "fault": s.fault, "ms": s.ms} for name, s in seen.items()
            ]
            printing.document({"ok": not any(each["fault"] for each in told), "canaries": told})
        else:
            rows = [
                (name, "proved" if s.fault is None else "FAILED", s.ms, s.fault or BY_NAME[name].proves)
                for name, s in seen.items()
            ]
            printing.table(("canary", "", "ms", "what"), rows)
        if any(each.fault is not None for each in seen.values()):
            leave(CHECK_FAILED)


def _settings(config_path: Path | None, images: Path | None) -> SandboxSettings:
    import attrs

    from gateway.config import load
    from gateway.logs import log_lines
    from gateway.sandbox_settings import settings_of

    settings = settings_of(load(config_path))
    log_lines(logging.CRITICAL)  # what went wrong is told by the command itself
    return attrs.evolve(settings, images=images.absolute()) if images else settings


def _limits(given: tuple[str, ...]) -> Limits:
    import attrs

    from gateway.sandbox.limits import Limits

    names = {each.metadata["json"]: each.name for each in attrs.fields(Limits)}
    try:
        pairs = [each.split("=") for each in given]
        return Limits(**{names[name]: int(number) for name, number in pairs})
    except KeyError as unknown:
        raise Stop(USAGE, f"no limit is named {unknown}; there are {', '.join(names)}") from None
    except ValueError as wrong:
        raise Stop(USAGE, f"--limit takes NAME=NUMBER: {wrong}") from None


def _execution(executed: Executed, limits: Limits) -> Mapping[str, Any]:
    standing = executed.standing
    return {
        "image": standing.image.digest,
        "filter": standing.filter_for(limits).digest,
        "bubblewrap": standing.bubblewrap,
        "cgroups": standing.cgroups,
        "limits": limits.as_json(),
        **executed.result.measured(),
    }


def _show(executed: Executed) -> None:
    result = executed.result
    ending = {name: value for name, value in result.ending.as_json().items() if value is not None}
    measured = {**result.usage.as_json(), "setupMs": result.setup_ms}
    clean = {"cleanup": "verified" if result.cleanup.verified else f"NOT CLEAN: {result.cleanup.as_json()}"}
    printing.members({**ending, **measured, **clean})
    for each in result.artifacts.artifacts:
        click.echo(f"artifact  {each.name}  " + (f"skipped: {each.skipped}" if each.skipped else f"{each.size} bytes"))
    for name, text in (("stdout", result.stdout), ("stderr", result.stderr)):
        if text.kept:
            click.echo(f"\n{name}{', cut' if text.truncated else ''}:\n{_shown(text).rstrip()}")


def _shown(text: Text) -> str:
    """Return what was written so that a terminal is not told anything by it."""
    decoded = text.kept.decode(errors="backslashreplace")
    return "".join(char if char.isprintable() or char in "\n\t" else ascii(char)[1:-1] for char in decoded)


@contextmanager
def _closings() -> Iterator[None]:
    """Turn a sandbox that is closed, and a run that could not be made, into exit code 1 with all that is known."""
    from gateway.errors import ExecutionFailed, ExecutionReconciliation
    from gateway.sandbox_once import SandboxClosed

    try:
        yield
    except SandboxClosed as closed:
        raise Stop(CHECK_FAILED, str(closed)) from None
    except (ExecutionFailed, ExecutionReconciliation) as failure:
        known = [str(failure.extra.get("reason", failure.code)), *getattr(failure, "__notes__", ())]
        raise Stop(CHECK_FAILED, f"{': '.join(known)}: {failure.detail}") from None
