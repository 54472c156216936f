"""Bubblewrap on this machine, and whether the kernel lets an unprivileged user have namespaces: looked at, then tried.

Source: the kernel's Documentation/admin-guide/sysctl/user, bubblewrap's advisories (GHSA-pxhw-h44j-8pfx), Debian's
`unprivileged_userns_clone`, Ubuntu's `apparmor_restrict_unprivileged_userns`.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from gateway.sandbox.host_machine import Fact, Machine, Ran, Wanted, closes, fine, note

OLDEST = (0, 8)
"""The first with --disable-userns."""
MENDED = (0, 12)
NAMESPACES = ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup")
UNISOLATED = "a command cannot be isolated from the host"
SHOWN = 300
"""Characters of what bubblewrap said."""
PROFILES = "apparmor/profiles"


def bubblewrap(machine: Machine) -> list[Fact]:
    """Look at the program: where it is, whose it is, and its version."""
    name = "bubblewrap"
    where = machine.bubblewrap
    if where is None:
        return [
            closes(
                name,
                "sandbox.bwrap_missing",
                "bwrap is not on the PATH",
                UNISOLATED,
                "install the package bubblewrap (`apt install bubblewrap`, `dnf install bubblewrap`)",
            )
        ]
    return [*_privileges(Path(where)), _version(where, machine.run([where, "--version"], None))]


def _privileges(program: Path) -> Iterator[Fact]:
    try:
        seen = program.stat()
    except OSError as error:
        yield closes(
            "bubblewrap", "sandbox.bwrap_missing", f"{program}: {error.strerror}", UNISOLATED, "install bubblewrap anew"
        )
        return
    if seen.st_mode & (stat.S_ISUID | stat.S_ISGID):
        yield closes(
            "bubblewrap",
            "sandbox.bwrap_setuid",
            f"{program} has the set-user-id bit",
            "what bubblewrap does wrong it does as root (CVE-2026-41163 needs that bit)",
            f"`chmod ug-s {program}`; the kernel needs it no more where users may have namespaces",
        )
    if _has_capabilities(program):
        yield closes(
            "bubblewrap",
            "sandbox.bwrap_setuid",
            f"{program} has file capabilities",
            "what bubblewrap does wrong it does with them",
            f"`setcap -r {program}`",
        )
    if seen.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        yield closes(
            "bubblewrap",
            "sandbox.bwrap_writable",
            f"{program} can be written by others than its owner",
            "whoever does so decides what isolates the runs",
            f"`chmod go-w {program}`, after installing the package anew",
        )


def _has_capabilities(program: Path) -> bool:
    try:
        return bool(os.getxattr(program, "security.capability"))
    except OSError:
        return False


def _version(where: str, ran: Ran) -> Fact:
    name = "bubblewrap"
    told = re.search(r"bubblewrap (\d+)\.(\d+)(\.\d+)*", ran.said)
    if ran.code != 0 or told is None:
        return closes(
            name,
            "sandbox.bwrap_broken",
            f"`{where} --version` says {ran.said[:SHOWN]!a}",
            UNISOLATED,
            "install the package bubblewrap anew",
        )
    version, shown = (int(told[1]), int(told[2])), told[0].split()[1]
    if version < OLDEST:
        return closes(
            name,
            "sandbox.bwrap_too_old",
            f"{where} is {shown}",
            "it cannot keep a command from making user namespaces of its own (--disable-userns)",
            "install bubblewrap 0.8 or newer, better 0.12",
        )
    if version < MENDED:
        return note(
            name,
            "sandbox.bwrap_vulnerable",
            f"{where} is {shown}, and CVE-2026-87766 (GHSA-pxhw-h44j-8pfx) was mended in 0.12.0, unless the "
            "distribution did so itself",
            "a symbolic link in the tree that a sandbox begins with could make bubblewrap write outside it; whoever "
            "buys a run cannot place one, for that tree is the image, pinned and verified to the byte, and nothing of "
            "theirs is bound into it",
            "install bubblewrap 0.12.0 or newer all the same, or a package whose changelog names the CVE",
        )
    return fine(name, f"{where}, {shown}")


# -- namespaces --------------------------------------------------------------------------------------------------------


def namespaces(machine: Machine, wanted: Wanted) -> Fact:
    """Try what every run needs, as the user of the first slot; the kernel's settings say what stands in its way."""
    name = "user namespaces"
    suspects = list(_suspects(machine))
    if machine.bubblewrap is None or (machine.uid != 0 and wanted.launcher):
        return suspects[0] if suspects else fine(name, "nothing forbids them; not tried")
    uid = wanted.first_uid if machine.uid == 0 else None
    ran = machine.run(trial(machine.bubblewrap), uid)
    whom = "this user" if uid is None else f"uid {uid}"
    if ran.code == 0:
        return fine(name, f"{whom} may have them")
    if suspects:
        return suspects[0]
    if ran.code is None:
        return note(
            name,
            "sandbox.userns_untried",
            f"nothing can be started as {whom} from here ({ran.said})",
            "whether a sandbox can be made shows when the node starts",
            "examine it as root, or as the node's own user",
        )
    fact = f"a sandbox that {whom} tried to make failed: {' '.join(ran.said.split())[:SHOWN]!a}"
    if "proc" in ran.said.lower():
        return closes(
            name,
            "sandbox.proc_denied",
            fact,
            "a command would see the host's /proc",
            "let no part of /proc be covered: in a systemd unit, no ProtectKernelTunables=, ProtectKernelLogs=, "
            "ProtectProc= and ProcSubset=; in a container, `--security-opt systempaths=unconfined`",
        )
    return closes(
        name,
        "sandbox.userns_denied",
        fact,
        UNISOLATED,
        "in a systemd unit, no RestrictNamespaces=, and a SystemCallFilter= with @mount; in a container, a seccomp and "
        "an AppArmor profile that allow unshare, mount and pivot_root (`--security-opt seccomp=FILE --security-opt "
        "apparmor=unconfined`); else see the kernel's log",
    )


def trial(program: str) -> list[str]:
    """Return the command that makes a sandbox of the host's own tree, and in it only asks for a version."""
    return [
        program,
        *(f"--unshare-{each}" for each in NAMESPACES if each != "mnt"),
        *("--uid", "65534", "--gid", "65534", "--disable-userns"),
        *("--die-with-parent", "--new-session", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev"),
        *("--tmpfs", "/tmp", "--", program, "--version"),  # noqa: S108 - inside
    ]


def _suspects(machine: Machine) -> Iterator[Fact]:
    for each in NAMESPACES:
        if (machine.proc / "self/ns").is_dir() and not os.path.lexists(machine.proc / f"self/ns/{each}"):
            yield _denied(
                f"this kernel has no {each} namespaces",
                f"use a kernel that is built with CONFIG_{_OPTIONS.get(each, each.upper())}_NS",
            )
        most = machine.number(f"sys/user/max_{each}_namespaces")
        if most is not None and most < 2:
            yield _denied(
                f"user.max_{each}_namespaces is {most}",
                f"`sysctl -w user.max_{each}_namespaces=15000`, and the same line in /etc/sysctl.d/90-gateway.conf",
            )
    if machine.number("sys/kernel/unprivileged_userns_clone") == 0:
        yield _denied(
            "kernel.unprivileged_userns_clone is 0",
            "`sysctl -w kernel.unprivileged_userns_clone=1`, and the same line in /etc/sysctl.d/90-gateway.conf",
        )
    if machine.number("sys/kernel/apparmor_restrict_unprivileged_userns") == 1 and not _profiled(machine):
        yield _denied(
            "kernel.apparmor_restrict_unprivileged_userns is 1, and no AppArmor profile lets bwrap have them",
            "`apt install apparmor-profiles && ln -s /usr/share/apparmor/extra-profiles/bwrap-userns-restrict "
            "/etc/apparmor.d/ && apparmor_parser -r /etc/apparmor.d/bwrap-userns-restrict`",
        )


_OPTIONS = {"mnt": "MOUNT"}


def _denied(fact: str, fix: str) -> Fact:
    return closes("user namespaces", "sandbox.userns_denied", fact, UNISOLATED, fix)


def _profiled(machine: Machine) -> bool:
    try:
        loaded = (machine.security / PROFILES).read_text()
    except OSError:
        return False
    return any(
        line.partition(" ")[0].startswith(("bwrap", "bubblewrap", "/usr/bin/bwrap")) for line in loaded.splitlines()
    )
