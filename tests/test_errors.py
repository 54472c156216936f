from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from gateway import errors
from gateway.errors import PROBLEMS, GatewayError, PaymentRefused, PaymentRequired, Violation

PACKAGE = Path(errors.__file__).parent
KINDS = pytest.mark.parametrize("kind", PROBLEMS.values(), ids=list(PROBLEMS))


@KINDS
def test_a_kind_says_all_that_a_client_needs(kind: type[GatewayError]) -> None:
    assert re.fullmatch(r"[a-z][a-z0-9_]{2,63}", kind.code)
    assert 400 <= kind.status <= 599
    assert kind.title
    assert kind.next
    assert kind.__doc__


@KINDS
def test_a_kind_is_an_attribute_of_the_module_by_its_code(kind: type[GatewayError]) -> None:
    assert PROBLEMS[kind.code] is kind
    assert getattr(errors, kind.__name__) is kind


def test_every_kind_of_refused_payment_is_a_402_that_asks_for_a_fresh_challenge() -> None:
    refused = [kind for kind in PROBLEMS.values() if issubclass(kind, PaymentRefused)]
    assert len(refused) >= 20
    assert {kind.status for kind in refused} == {402}
    assert {kind for kind in PROBLEMS.values() if kind.status == 402} == {PaymentRequired, *refused}


SIGNED_ANEW = {
    "payment_required",
    "quote_invalid",
    "quote_expired",
    "challenge_invalid",
    "amount_mismatch",
    "recipient_mismatch",
    "asset_mismatch",
    "network_mismatch",
    "terms_mismatch",
    "authorization_expires_too_soon",
    "authorization_expires_too_late",
    "authorization_not_yet_valid",
    "authorization_used",
    "settlement_failed",
}
"""Refused payments that the same client and account can make good by signing the fresh challenge; no other is."""


def test_who_cannot_pay_by_signing_again_is_not_told_to() -> None:
    kinds = [kind for kind in PROBLEMS.values() if kind.status == 402]
    assert {kind.code for kind in kinds if kind.retryable} == SIGNED_ANEW
    for kind in kinds:
        if not kind.retryable:
            assert "Sign the fresh challenge" not in (kind.next or "")
            assert "Nothing was charged." in (kind.next or "")


@pytest.mark.parametrize(
    "code", ["payer_has_code", "permit2_unsupported", "erc1271_unsupported", "erc6492_unsupported"]
)
def test_who_has_code_is_told_to_pay_from_another_account(code: str) -> None:
    assert "Pay from an account without code" in (PROBLEMS[code].next or "")


@KINDS
def test_nothing_that_may_have_been_charged_asks_for_another_payment(kind: type[GatewayError]) -> None:
    if kind.status >= 500 or kind.status == 409:
        assert "Sign one" not in (kind.next or "")


def test_a_code_is_defined_once() -> None:
    with pytest.raises(TypeError, match="not_found is defined twice"):
        type("Other", (GatewayError,), {"code": "not_found"})


def test_a_failure_without_detail_says_its_title() -> None:
    failure = errors.NotFound()
    assert (failure.detail, str(failure)) == ("Not found", "Not found")


def test_a_failure_keeps_copies_of_what_it_is_given() -> None:
    violations, extra, headers = [Violation("/a", "b")], {"a": 1}, {"A": "b"}
    failure = errors.InvalidRequest("x", errors=violations, extra=extra, headers=headers)
    violations.clear()
    extra.clear()
    headers.clear()
    assert (failure.errors, failure.extra, failure.headers) == ((Violation("/a", "b"),), {"a": 1}, {"A": "b"})


def test_every_failure_that_the_code_names_exists() -> None:
    """`errors.Name` anywhere in the package is a class of the tree."""
    missing = []
    for path in PACKAGE.rglob("*.py"):
        tree = ast.parse(path.read_text())
        imported = any(
            isinstance(node, ast.ImportFrom)
            and node.module == "gateway"
            and any(alias.name == "errors" for alias in node.names)
            for node in ast.walk(tree)
        )
        for node in ast.walk(tree) if imported else ():
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "errors":
                missing += [f"{path.name}: {node.attr}"] if not hasattr(errors, node.attr) else []
    assert missing == []
