"""Whether anything of a mount namespace is left, told with the kernel's help and without it."""

from __future__ import annotations

import os

import pytest

from gateway.sandbox import mount_namespace
from gateway.sandbox.mount_namespace import MountNamespace
from tests.sandbox.in_groups import unavailable
from tests.sandbox.in_namespaces import sleeping


@pytest.fixture(params=["told", "not told"], autouse=True)
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() != 0:
        unavailable("only root may look into another mount namespace")
    if request.param == "not told":
        monkeypatch.setattr(mount_namespace, "mount_namespace_id", lambda _: None)


def test_something_is_left_while_a_process_is_in_there_and_nothing_after() -> None:
    with sleeping("-m") as pid:
        namespace = MountNamespace(pid, None)
        assert namespace.left() > 0
    assert namespace.left() == 0


def test_a_process_of_another_user_with_that_number_is_not_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mount_namespace, "mount_namespace_id", lambda _: None)
    with sleeping("-m") as pid:
        assert MountNamespace(pid, 64400).left() == 0


def test_a_kernel_that_tells_of_none_while_it_stands_is_not_believed_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mount_namespace, "mounts_in", lambda _: 0)
    with sleeping("-m") as pid:
        namespace = MountNamespace(pid, None)
        assert namespace.left() == 1
    assert namespace.left() == 0


def test_a_process_that_is_gone_has_none() -> None:
    with sleeping("-m") as pid:
        pass
    with pytest.raises(OSError, match="No such"):
        MountNamespace(pid, None)
