from __future__ import annotations

from pathlib import Path

from gateway.sandbox.image_refusal import ImageMismatch, ImageMissing, ImageRefused, PinGone


def test_every_kind_has_a_machine_reason_of_its_own() -> None:
    reasons = [kind.reason for kind in ImageRefused.__subclasses__()]
    assert len(set(reasons)) == len(reasons) >= 8
    assert all(reason.startswith("sandbox.image_") for reason in reasons)


def test_a_message_says_what_where_and_the_command_that_mends_it() -> None:
    refused = ImageMismatch(Path("/images of a/sha256-1"), ["/usr/bin/node: other content"])
    assert str(refused) == (
        "the image /images of a/sha256-1 is not what its digest says: /usr/bin/node: other content. "
        "Fix: `gateway sandbox build --images '/images of a'`, then start the node anew"
    )
    assert str(ImageMissing(Path("/images"))).endswith("Fix: `gateway sandbox build --images /images`")


def test_a_message_names_the_first_findings_and_the_exception_holds_all() -> None:
    refused = ImageMismatch(Path("/images/sha256-1"), [f"/{number}: extra" for number in range(9)])
    assert "/4: extra and 4 more. Fix" in str(refused)
    assert len(refused.where) == 9


def test_a_pin_that_has_gone_names_the_package_and_what_its_registry_said() -> None:
    refused = PinGone("libc6=1", "E: Version '1' for 'libc6' was not found", "do this")
    assert str(refused) == "libc6=1 cannot be downloaded: E: Version '1' for 'libc6' was not found. Fix: do this"
