"""Why a runtime image cannot be used or built: one tree of exceptions, each with a machine reason and the exact fix."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar

BUILD = "gateway sandbox build"
BUILD_FROM_HOST = "gateway sandbox build --host-libraries"
SHOWN = 5
"""How many findings a message names; the exception holds all."""


def build_command(images: Path, *, host_libraries: bool = False) -> str:
    """Return the command that builds the image that belongs among `images`, for a shell."""
    return f"`{BUILD_FROM_HOST if host_libraries else BUILD} --images {shlex.quote(str(images))}`"


class ImageRefused(Exception):
    """Base of all; nothing may run in the image, and no run of it may be quoted.

    Attributes:
        reason: the machine reason, as health, doctor and the operation's availability show it.
        what: what was found, in one line.
        fix: what mends it, a command or a sentence.
        where: every single finding, as `path: what is wrong`.
    """

    reason: ClassVar[str]

    def __init__(self, what: str, fix: str, where: Iterable[str] = ()) -> None:
        self.what = what
        self.fix = fix
        self.where = tuple(where)
        super().__init__(f"{what}{self._findings()}. Fix: {fix}")

    def _findings(self) -> str:
        if not self.where:
            return ""
        more = len(self.where) - SHOWN
        return f": {'; '.join(self.where[:SHOWN])}{f' and {more} more' if more > 0 else ''}"


class ImageMissing(ImageRefused):
    """No image stands in the directory of images."""

    reason = "sandbox.image_missing"

    def __init__(self, place: Path) -> None:
        super().__init__(f"no image of the sandbox in {place}", build_command(place))


class ImageMismatch(ImageRefused):
    """What stands there is not what its digest or the lock says; `where` says in which files."""

    reason = "sandbox.image_digest_mismatch"

    def __init__(self, path: Path, where: Iterable[str], fix: str = "") -> None:
        otherwise = f"{build_command(path.parent)}, then start the node anew"
        super().__init__(f"the image {path} is not what its digest says", fix or otherwise, where)


class ImageUnsafe(ImageRefused):
    """The image holds what no image may hold: a set-user-id bit, a link that leads out, a device, another's file."""

    reason = "sandbox.image_unsafe"

    def __init__(self, path: Path, where: Iterable[str]) -> None:
        fix = f"find out who changed it, remove it, then {build_command(path.parent)} as the node's user"
        super().__init__(f"the image {path} is not safe", fix, where)


class ArchitectureUnsupported(ImageRefused):
    """The lock pins no image for this machine."""

    reason = "sandbox.image_architecture_unsupported"

    def __init__(self, machine: str, pinned: Iterable[str]) -> None:
        super().__init__(f"no image is pinned for {machine}", f"run the node on {' or '.join(pinned)}")


class PinGone(ImageRefused):
    """A pinned package cannot be downloaded: its registry has dropped it, cannot be reached, or was never asked."""

    reason = "sandbox.image_pin_gone"

    def __init__(self, package: str, told: str, fix: str) -> None:
        super().__init__(f"{package} cannot be downloaded: {told}", fix)


class SourceMismatch(ImageRefused):
    """What was downloaded or found is not what the lock pins."""

    reason = "sandbox.image_source_mismatch"

    def __init__(self, what: str, where: Iterable[str] = ()) -> None:
        super().__init__(f"{what} is not what the lock pins", "find out who changed it; nothing was built", where)


class ToolMissing(ImageRefused):
    """A program that the build needs is not here."""

    reason = "sandbox.image_tool_missing"

    def __init__(self, tool: str, fix: str) -> None:
        super().__init__(f"{tool} is needed to build the image and is not here", fix)


class BuildFailed(ImageRefused):
    """A program that the build runs has failed."""

    reason = "sandbox.image_build_failed"
