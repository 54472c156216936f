"""What runs are made of before there is a launcher: a host that has all it takes, the filters and the image, proved.

Blocking: the image is hashed, and read once more so that no run is charged for having it read.
"""

from __future__ import annotations

import attrs

from gateway.actors.sandbox.closed import Closed
from gateway.actors.sandbox.settings import SandboxSettings
from gateway.sandbox import starter
from gateway.sandbox.host import Machine, examine
from gateway.sandbox.image import Image, closed_to_others, locate, unchanged, verify, warm
from gateway.sandbox.image_refusal import ImageRefused
from gateway.sandbox.seccomp import Filter, FilterUnavailable, load_filter

IMAGE_CLOSED = "sandbox.image_closed"


@attrs.frozen
class Ground:
    """The verified image, the filter of most runs, that of those with one process, and the digest of the starter."""

    image: Image
    filter: Filter
    single: Filter
    starter: str


def find_ground(
    settings: SandboxSettings, before: Image | None = None, machine: Machine | None = None
) -> Ground | Closed:
    """Return what runs are to be made of, or why none can be made; `before` is the image that was verified last."""
    machine = machine or Machine()
    closing = examine(settings.wanted, machine).closing
    if closing:
        first = closing[0]
        return Closed(first.reason or first.name, first.fact, first.fix)
    try:
        many, one = (load_filter(machine.arch, single=single) for single in (False, True))
        begins = starter.verified(machine.arch)
        image = _image(settings, machine, before)
    except (FilterUnavailable, starter.StarterUnavailable) as missing:
        return Closed(missing.reason, str(missing))
    except ImageRefused as refused:
        return Closed(refused.reason, str(refused), refused.fix)
    closed = closed_to_others(image.path) if settings.wanted.privileged(machine) else None
    if closed is not None:
        return Closed(IMAGE_CLOSED, f"the users that runs have may not enter {closed}", f"`chmod o+x {closed}`")
    return Ground(image, many, one, begins)


def _image(settings: SandboxSettings, machine: Machine, before: Image | None) -> Image:
    lock = machine.lock()
    path = locate(settings.images, lock)
    if before is not None and before.path == path:
        try:
            unchanged(before)
        except ImageRefused:
            pass
        else:
            return before
    image = verify(path, lock)
    warm(image)
    return image
