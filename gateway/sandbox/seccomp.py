"""The system-call filter of a run: bytes that ship with the node, each bound to its digest.

A filter is a classic BPF program for seccomp(2) that refuses what its policy does not name; bubblewrap takes the bytes
from a file descriptor (`--seccomp FD`).  `filters/policy.toml` is the policy, `tools/make_seccomp_filters.py` assembles
it; nothing of either is needed at run time.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import attrs

FILTERS = Path(__file__).with_name("filters")
ACTIONS_AVAILABLE = Path("/proc/sys/kernel/seccomp/actions_avail")
ACTIONS_NEEDED = frozenset({"kill_process", "errno", "allow"})
"""What the filters answer with, in the words of seccomp(2)."""


class FilterUnavailable(Exception):
    """No filter can be had that is known to be right: the sandbox must stay closed.

    Attributes:
        reason: a machine reason, `sandbox.seccomp_unsupported` or `sandbox.filter_digest_mismatch`.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


@attrs.frozen
class Filter:
    """A filter: its `program` as `struct sock_filter` in sequence, `sha256:` digest of it, and the architecture."""

    program: bytes = attrs.field(repr=False)
    digest: str
    arch: str


def load_filter(machine: str, *, single: bool, filters: Path = FILTERS) -> Filter:
    """Return the filter for a machine as `uname -m` names it.

    `single` is the variant for `processes: 1`, under which threads start and children do not (EAGAIN).  Raises
    `FilterUnavailable` for an architecture without a filter and for bytes that differ from their digest.
    """
    name = f"{machine}.single.bpf" if single else f"{machine}.bpf"
    try:
        digests: dict[str, str] = json.loads((filters / "digests.json").read_bytes())
    except (OSError, ValueError) as error:
        raise FilterUnavailable("sandbox.filter_digest_mismatch", f"no digests in {filters}: {error}") from error
    if name not in digests:
        raise FilterUnavailable("sandbox.seccomp_unsupported", f"there is no system-call filter for {machine}")
    try:
        program = (filters / name).read_bytes()
    except FileNotFoundError as error:
        raise FilterUnavailable("sandbox.filter_digest_mismatch", f"{filters / name} is missing") from error
    digest = "sha256:" + hashlib.sha256(program).hexdigest()
    if digest != digests[name]:
        raise FilterUnavailable(
            "sandbox.filter_digest_mismatch", f"{filters / name} is {digest} and should be {digests[name]}"
        )
    return Filter(program, digest, machine)


def require_kernel_support(actions: Path = ACTIONS_AVAILABLE) -> None:
    """Raise `FilterUnavailable` on a kernel that lacks a filter's answers (seccomp(2), `actions_avail`)."""
    try:
        available = frozenset(actions.read_text().split())
    except OSError as error:
        raise FilterUnavailable("sandbox.seccomp_unsupported", f"{actions} cannot be read: {error.strerror}") from error
    missing = ACTIONS_NEEDED - available
    if missing:
        raise FilterUnavailable("sandbox.seccomp_unsupported", f"seccomp lacks {', '.join(sorted(missing))}")
