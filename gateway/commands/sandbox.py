"""`gateway sandbox`: the runtime image that sold commands run in, built and verified; the host, looked at and tried."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gateway.commands import printing
from gateway.commands.exits import CHECK_FAILED, Stop, exit_codes, leave
from gateway.commands.options import CONFIG, IMAGES, JSON
from gateway.commands.sandbox_running import prove, run

if TYPE_CHECKING:
    from gateway.sandbox.image import Image

GRADES = {"fine": "ok", "note": "note", "closes": "CLOSED"}


@click.group()
def sandbox() -> None:
    """Build and verify the pinned image that the sandbox runs commands in; check, prove and try the sandbox."""


sandbox.add_command(prove)
sandbox.add_command(run)


@sandbox.command()
@CONFIG
@IMAGES
@click.option("--host-libraries", is_flag=True, help="Take this machine's libraries: another image, another digest.")
@click.option(
    "--downloads",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where downloads are looked for and kept; without it they are removed.",
)
@JSON
def build(
    config_path: Path | None, images: Path | None, downloads: Path | None, *, host_libraries: bool, as_json: bool
) -> None:
    """Build the image of this version's lock from registry packages, unless it stands there whole.

    Exit code 1 when it cannot be built, with the reason and the fix.
    """
    with exit_codes(), _refusals(as_json=as_json):
        from gateway.sandbox.image import load_lock
        from gateway.sandbox.image_building import build as build_image

        built = build_image(
            _directory(config_path, images),
            load_lock(),
            host_libraries=host_libraries,
            downloads=downloads,
            told=lambda step: click.echo(step, err=True),
        )
        _tell(built.image, {"made": built.made}, as_json=as_json)


@sandbox.command()
@CONFIG
@IMAGES
@JSON
def verify(config_path: Path | None, images: Path | None, *, as_json: bool) -> None:
    """Hash the whole image and compare it with its digest and with this version's lock.

    Exit code 1 when there is none or it differs, with where and the fix.
    """
    with exit_codes(), _refusals(as_json=as_json):
        from gateway.sandbox.image import load_lock, locate
        from gateway.sandbox.image import verify as verify_image

        lock = load_lock()
        image = verify_image(locate(_directory(config_path, images), lock), lock)
        _tell(image, {}, as_json=as_json)


@sandbox.command()
@CONFIG
@IMAGES
@JSON
def check(config_path: Path | None, images: Path | None, *, as_json: bool) -> None:
    """Look at all that a run needs of this machine: what was found, what follows and the exact fix.

    Nothing is changed. Exit code 1 when something closes the sandbox.
    """
    with exit_codes():
        import attrs

        from gateway.config import load
        from gateway.sandbox.host import examine
        from gateway.sandbox_settings import wanted_of

        wanted = wanted_of(load(config_path))
        host = examine(attrs.evolve(wanted, images=images.absolute()) if images else wanted)
        if as_json:
            printing.document({"ok": not host.closing, "facts": [each.as_json() for each in host.facts]})
        else:
            printing.table(
                ("", "of", "found", "reason"),
                [(GRADES[each.grade], each.name, each.fact, each.reason) for each in host.facts],
            )
            for each in host.facts:
                if each.consequence:
                    click.echo(f"\n{each.name}: {each.consequence}. Fix: {each.fix}")
        if host.closing:
            leave(CHECK_FAILED)


def _directory(config_path: Path | None, images: Path | None) -> Path:
    from gateway.config import load
    from gateway.sandbox_settings import settings_of

    return images.absolute() if images else settings_of(load(config_path)).images


def _tell(image: Image, more: dict[str, object], *, as_json: bool) -> None:
    from gateway.sandbox.image import closed_to_others

    told = {
        "digest": image.digest,
        "kind": image.kind,
        "path": str(image.path),
        "executables": sorted(image.executables),
        "entries": len(image.members),
        "bytes": sum(entry.size for entry in image.members.values()),
        **more,
    }
    closed = closed_to_others(image.path)
    if as_json:
        printing.document({"ok": True, **told, "closedToOtherUsers": str(closed) if closed else None})
        return
    printing.members({**told, "executables": " ".join(sorted(image.executables)), **_words(more)})
    if closed:
        click.echo(
            f"note: other users may not enter {closed}, so a node that is root, whose sandboxes run as other users, "
            f"cannot use this image. Fix: `chmod o+x {closed}`, or --images elsewhere",
            err=True,
        )


def _words(values: dict[str, object]) -> dict[str, object]:
    return {name: {True: "yes", False: "no, it stood there whole"}[bool(value)] for name, value in values.items()}


@contextmanager
def _refusals(*, as_json: bool) -> Iterator[None]:
    """Turn a refusal of the image into exit code 1, with its machine reason, what was found and the fix."""
    from gateway.sandbox.image import ImageRefused

    try:
        yield
    except ImageRefused as refused:
        if not as_json:
            raise Stop(CHECK_FAILED, f"{refused.reason}: {refused}") from None
        printing.document(
            {
                "ok": False,
                "reason": refused.reason,
                "what": refused.what,
                "where": refused.where,
                "fix": refused.fix,
            }
        )
        leave(CHECK_FAILED)
