"""`[sandbox]` of a configuration, as the sandbox is run and its host examined."""

from __future__ import annotations

import hashlib
from pathlib import Path

import attrs

from gateway.actors.sandbox.settings import SandboxSettings
from gateway.config import Configuration
from gateway.sandbox.host import Machine, Wanted
from gateway.sandbox.image import directory_of_images

MIB = 2**20


def settings_of(configuration: Configuration) -> SandboxSettings:
    """Return how the sandbox of a node is run."""
    section = configuration.sandbox
    settings = SandboxSettings(
        images=Path(section.image) if section.image else directory_of_images(configuration.data_dir),
        prefix=prefix_of(configuration),
        slots=section.slots,
        memory_bytes=section.memory_mib * MIB,
        queue=section.queue,
        first_uid=section.first_uid,
        canary_interval_s=section.canary_interval_s,
        launcher=section.launcher,
        ahead=section.lay_ahead,
    )
    found = Machine().bubblewrap
    return settings if found is None else attrs.evolve(settings, bubblewrap=found)


def wanted_of(configuration: Configuration) -> Wanted:
    """Return what is looked for on the host of a node, its image included."""
    settings = settings_of(configuration)
    return attrs.evolve(settings.wanted, images=settings.images)


def prefix_of(configuration: Configuration) -> str:
    """Return what begins the names of a node's groups: the same at each of its starts, and no other node's."""
    told = f"{configuration.data_dir.absolute()}\0{configuration.node.name}"
    return f"gateway-{hashlib.sha256(told.encode()).hexdigest()[:12]}-"
