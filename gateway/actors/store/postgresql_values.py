"""Values on their way to PostgreSQL and back, in its binary formats.

Integers travel as BIGINT, so that `:now - 1000` is computed in 64 bits; bytes as BYTEA; text with no type, so that the
server takes the one that the place demands.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import psycopg
from psycopg import pq
from psycopg.abc import Buffer
from psycopg.adapt import AdaptersMap, Loader, Transformer

from gateway.actors.store.protocol import Row, Value

if TYPE_CHECKING:
    from psycopg.pq.abc import PGresult

BOOL, BYTEA, INT8, INT2, INT4, TEXT, OID, FLOAT8, VARCHAR, NUMERIC = 16, 17, 20, 21, 23, 25, 26, 701, 1043, 1700
UNKNOWN = 0
_NAMES = frozenset({18, 19, 705, 1042})  # "char", name, unknown, character(n)
_READ = frozenset({BOOL, BYTEA, INT8, INT2, INT4, TEXT, OID, VARCHAR, NUMERIC}) | _NAMES

_ARRAYS = {BYTEA: 1001, INT2: 1005, INT4: 1007, TEXT: 1009, VARCHAR: 1015, INT8: 1016}
ARRAY_TYPES = {BYTEA: "bytea", INT2: "int2", INT4: "int4", TEXT: "text", VARCHAR: "varchar", INT8: "int8"}
"""The types whose arrays can be sent, by their SQL names."""

_BINARY = 1
_NULL = struct.pack("!i", -1)
_INTEGERS = {INT2: struct.Struct("!ih"), INT4: struct.Struct("!ii"), INT8: struct.Struct("!iq")}
_LENGTH = struct.Struct("!i")


class Unreadable(Exception):
    """A column that is neither text, nor an integer, nor bytes."""


def type_of(value: Value) -> int:
    """The type (OID) that a value is sent as; 0 where the server is to infer it."""
    match value:
        case int():
            return INT8
        case bytes():
            return BYTEA
        case _:
            return UNKNOWN


def encoded(value: Value) -> bytes | None:
    """The value in the format that goes with `type_of`; text and numbers as text, bytes as they are."""
    match value:
        case int():
            return b"%d" % value
        case str():
            return value.encode()
        case _:
            return value


def array(values: Sequence[Value], oid: int) -> bytes:
    """A one-dimensional array in binary format.  Raises struct.error or AttributeError where a value does not fit."""
    head = struct.pack("!iiIii", 1, 1, oid, len(values), 1)
    return head + b"".join(map(_ELEMENTS[oid], values))


def array_type(oid: int) -> int:
    """The OID of the array type."""
    return _ARRAYS[oid]


def _integers(oid: int) -> Callable[[Value], bytes]:
    packed, size = _INTEGERS[oid], _INTEGERS[oid].size - 4
    return lambda value: _NULL if value is None else packed.pack(size, value)


def _text(value: Value) -> bytes:
    if value is None:
        return _NULL
    content = value.encode()  # type: ignore[union-attr]  # other values are an AttributeError
    return _LENGTH.pack(len(content)) + content


def _bytes(value: Value) -> bytes:
    return _NULL if value is None else _LENGTH.pack(len(value)) + value  # type: ignore[arg-type, operator]


_ELEMENTS: dict[int, Callable[[Value], bytes]] = {
    TEXT: _text,
    VARCHAR: _text,
    BYTEA: _bytes,
    **{oid: _integers(oid) for oid in _INTEGERS},
}


def rows_of(result: PGresult) -> list[Row]:
    """The rows of a result in binary format.  Raises Unreadable."""
    if not result.nfields:
        return []
    for column in range(result.nfields):
        if result.ftype(column) not in _READ:
            name = (result.fname(column) or b"").decode()
            raise Unreadable(f"column {name} is of type {result.ftype(column)}; cast it to BIGINT or TEXT")
    transformer = Transformer(_CONTEXT)
    transformer.set_pgresult(result)
    return transformer.load_rows(0, result.ntuples, tuple)


class _WholeLoader(Loader):
    """A NUMERIC without a fraction (what SUM(bigint) returns) as an int: base 10,000 digits, the first of `weight`."""

    format = pq.Format.BINARY

    def load(self, data: Buffer) -> int:
        """Raises Unreadable."""
        count, weight, sign, _scale = struct.unpack_from("!hhHH", data)
        digits = struct.unpack_from(f"!{count}H", data, 8)
        if sign not in (0, 0x4000) or count > weight + 1:
            raise Unreadable("a number with a fraction")
        whole: int = sum(digit * 10_000 ** (weight - place) for place, digit in enumerate(digits))
        return -whole if sign else whole


class _BoolLoader(Loader):
    """A truth value as 0 or 1."""

    format = pq.Format.BINARY

    def load(self, data: Buffer) -> int:
        """See the class."""
        return int(bytes(data)[0])


class _Context:
    """What `Transformer` asks for: how to read each type."""

    connection = None

    def __init__(self) -> None:
        self.adapters = AdaptersMap(psycopg.adapters)
        self.adapters.register_loader(NUMERIC, _WholeLoader)
        self.adapters.register_loader(BOOL, _BoolLoader)


_CONTEXT = _Context()
