from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.registry.sealing import (
    WEAK_KEY_LENGTH,
    KeyMissing,
    KeyName,
    Naming,
    NodeSeal,
    SealBroken,
    caller_network,
    new_data_key,
    seal,
    unseal,
)

DATA_KEY = b"d" * 32
OLD, NEW = b"1" * 32, b"2" * 32
STRONG, WEAK = "k" * WEAK_KEY_LENGTH, "k" * (WEAK_KEY_LENGTH - 1)


@settings(derandomize=True, deadline=None)
@given(plain=st.binary(max_size=2000), part=st.sampled_from(["request", "output", "node", "key"]))
def test_what_is_sealed_is_opened_again(plain: bytes, part: str) -> None:
    assert unseal(DATA_KEY, "op_1", part, seal(DATA_KEY, "op_1", part, plain)) == plain


@pytest.mark.parametrize(
    ("key", "operation_id", "part"),
    [(b"e" * 32, "op_1", "output"), (DATA_KEY, "op_2", "output"), (DATA_KEY, "op_1", "request")],
)
def test_another_key_operation_or_part_does_not_open_it(key: bytes, operation_id: str, part: str) -> None:
    sealed = seal(DATA_KEY, "op_1", "output", b"plain")
    with pytest.raises(SealBroken):
        unseal(key, operation_id, part, sealed)


@settings(derandomize=True, deadline=None)
@given(at=st.integers(0, 32), bit=st.integers(0, 7))
def test_one_altered_bit_breaks_the_seal(at: int, bit: int) -> None:
    sealed = bytearray(seal(DATA_KEY, "op_1", "output", b"plain"))
    sealed[at] ^= 1 << bit
    with pytest.raises(SealBroken):
        unseal(DATA_KEY, "op_1", "output", bytes(sealed))


@pytest.mark.parametrize("sealed", [b"", b"x", b"x" * 11, b"x" * 12, b"x" * 27])
def test_what_is_too_short_to_be_sealed_is_broken(sealed: bytes) -> None:
    with pytest.raises(SealBroken):
        unseal(DATA_KEY, "op_1", "output", sealed)


def test_equal_values_are_never_sealed_equal_and_data_keys_are_fresh() -> None:
    assert seal(DATA_KEY, "op_1", "output", b"plain") != seal(DATA_KEY, "op_1", "output", b"plain")
    assert new_data_key() != new_data_key()
    assert len(new_data_key()) == 32


def test_the_node_opens_what_an_older_key_of_its_own_wrapped() -> None:
    wrapped = NodeSeal({1: OLD}).wrap("op_1", DATA_KEY)
    assert NodeSeal({1: OLD, 2: NEW}).unwrap("op_1", wrapped) == DATA_KEY
    with pytest.raises(SealBroken):
        NodeSeal({1: OLD}).unwrap("op_2", wrapped)


def test_a_key_that_only_another_node_has_yet_is_told_from_a_seal_that_nobody_opens() -> None:
    newer = NodeSeal({1: OLD, 2: NEW}).wrap("op_1", DATA_KEY)
    with pytest.raises(KeyMissing, match="node key 2"):
        NodeSeal({1: OLD}).unwrap("op_1", newer)
    altered = newer[:-1] + bytes([newer[-1] ^ 1])
    for broken in (b"", bytes(60), b"\xff" * 60, altered):
        with pytest.raises(SealBroken) as caught:
            NodeSeal({1: OLD, 2: NEW}).unwrap("op_1", broken)
        assert not isinstance(caught.value, KeyMissing)


def test_only_the_holder_of_the_key_unwraps() -> None:
    naming = Naming({1: OLD})
    (name,) = naming.names(STRONG, "192.0.2.1")
    wrapped = name.wrap("op_1", DATA_KEY)
    assert naming.names(STRONG, "198.51.100.7")[0].unwrap("op_1", wrapped) == DATA_KEY
    for other in (naming.names(STRONG + "x", "192.0.2.1")[0], Naming({1: NEW}).names(STRONG, "192.0.2.1")[0]):
        with pytest.raises(SealBroken):
            other.unwrap("op_1", wrapped)
    with pytest.raises(SealBroken):
        name.unwrap("op_2", wrapped)


def test_a_weak_key_is_another_one_in_another_network() -> None:
    naming = Naming({1: OLD})
    assert naming.names(WEAK, "192.0.2.1") == naming.names(WEAK, "192.0.2.1")
    assert naming.names(WEAK, "192.0.2.1")[0].hmac != naming.names(WEAK, "192.0.2.2")[0].hmac
    assert naming.names(STRONG, "192.0.2.1")[0].hmac == naming.names(STRONG, "192.0.2.2")[0].hmac


def test_a_key_has_a_name_under_every_pepper_the_newest_first() -> None:
    names = Naming({1: OLD, 3: b"3" * 32, 2: NEW}).names(STRONG, "192.0.2.1")
    assert [name.pepper for name in names] == [3, 2, 1]
    assert names[2].hmac == Naming({1: OLD}).names(STRONG, "192.0.2.1")[0].hmac
    assert len({name.hmac for name in names}) == 3


def test_keys_and_callers_are_never_confused() -> None:
    naming = Naming({1: OLD})
    words = ["192.0.2.1", "network:192.0.2.1", "payer:0xab", "generated:qt_1", "key:\n" + STRONG]
    named = [naming.names(word, word)[0].hmac for word in words]
    named += [name for word in words for name in naming.network_names(word) + naming.payer_names(word)]
    named += [name for word in words for name in naming.generated_keys(word)]
    assert len(set(named)) == len(named)


def test_a_payer_is_one_however_its_address_is_spelled() -> None:
    naming = Naming({1: OLD, 2: NEW})
    assert naming.payer_names("0xAB") == naming.payer_names("0xab")
    assert len(naming.payer_names("0xab")) == len(naming.network_names("192.0.2.1")) == 2


def test_a_generated_key_is_a_strong_key() -> None:
    (key,) = Naming({1: OLD}).generated_keys("qt_1")
    assert WEAK_KEY_LENGTH <= len(key) <= 128
    assert key.isalnum()


@pytest.mark.parametrize("value", [Naming({1: OLD}), NodeSeal({1: OLD}), KeyName.of(1, OLD, b"spoken")])
def test_nothing_secret_is_shown(value: object) -> None:
    value_shown = repr(value)
    if isinstance(value, KeyName):
        value.wrap("op_1", DATA_KEY)
    for text in (value_shown, repr(value)):
        assert "1111" not in text
        assert "spoken" not in text


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::1", "::/64"),
    ],
)
def test_a_network_is_an_ipv4_address_or_an_ipv6_64(address: str, network: str) -> None:
    assert caller_network(address) == network
