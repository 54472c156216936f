"""h11, strict about the bytes between requests: what ends a line, what stands in one, and where a body ends.

h11 takes bare line feeds, folded fields, repeated lengths and any chunk extension.  A proxy in front of the node may
read those differently, and then a request could hide in another one (RFC 9112 section 11.2).
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import h11
from h11._receivebuffer import ReceiveBuffer

_LEGAL = b"\t\r\n" + bytes(range(0x20, 0x7F)) + bytes(range(0x80, 0x100))  # in a line; the line ends are judged apart
_EMPTY_LINES = re.compile(rb"(?:\r\n)*")
_TOKEN = rb"[-!#$%&'*+.^_`|~0-9A-Za-z]+"
_QUOTED = rb'"(?:[\t \x21\x23-\x5b\x5d-\x7e\x80-\xff]|\\[\t \x21-\x7e\x80-\xff])*"'
_CHUNK = re.compile(  # RFC 9112 section 7.1, without its "bad" whitespace
    rb"([0-9A-Fa-f]{1,16})((?:;%b(?:=(?:%b|%b))?)*)" % (_TOKEN, _TOKEN, _QUOTED)
)
_CHUNK_SO_FAR = re.compile(rb"[0-9A-Fa-f]{1,16}(?:;[\t\x20-\x7e\x80-\xff]*)?\r?|\r?")
_CHUNK_LINE = 512  # bytes of the line before a chunk
_EXTENSIONS = 1024  # bytes of all chunk extensions of one body
_NO_TRAILERS = re.compile(  # framing, routing, and all that the node reads in a head (RFC 9110 section 6.5.1)
    rb"host|trailer|te|transfer-encoding|connection|keep-alive|proxy-.*|upgrade|via|forwarded|x-forwarded-.*|x-real-ip"
    rb"|content-(?:length|type|encoding|range|language|location|disposition)|expect|range|if-.*|max-forwards"
    rb"|cache-control|pragma|age|date|accept.*|authorization|cookie|set-cookie|www-authenticate|origin|prefer"
    rb"|idempotency-key|(?:x-)?payment.*|x-402-.*|x-gateway-.*"
)


class StrictConnection(h11.Connection):
    """The server's side of a connection.

    Args:
        section_bytes: what a header section with its request line may have, and a trailer section; over it 431.
    """

    def __init__(self, section_bytes: int) -> None:
        super().__init__(h11.SERVER, section_bytes)
        self.received = StrictBuffer(section_bytes)
        self._receive_buffer = self.received


class StrictBuffer(ReceiveBuffer):
    """Bytes received and not yet understood; its methods raise `h11.LocalProtocolError` for a malformed line."""

    def __init__(self, section_bytes: int) -> None:
        super().__init__()
        self._chunk = 0
        self._section_bytes = section_bytes
        self._judged = 0  # bytes at the beginning that were found to be well-formed lines
        self._extensions = 0  # bytes of the extensions of this body

    def take_chunk(self) -> int:
        """Return once the size of the chunk whose line was read last, 0 after that."""
        size, self._chunk = self._chunk, 0
        return size

    def skip_empty_lines(self) -> bool:
        """Drop empty lines before a request (RFC 9112 section 2.2); true if the request has begun then."""
        found = _EMPTY_LINES.match(self._data)
        if found is not None and found.end():
            self._extract(found.end())
        return bool(self._data) and self._data != b"\r"

    def maybe_extract_lines(self) -> list[bytearray] | None:
        """Take the lines of a header or trailer section, None while it is incomplete."""
        data = self._data
        if data.startswith(b"\r\n"):
            self._extract(2)
            self._extensions = 0
            return []
        end = data.find(b"\r\n\r\n", max(self._judged - 3, 0))
        self._judge(end + 4 if end >= 0 else len(data) - data.endswith(b"\r"))  # the LF of a CR may be on its way
        if end < 0:
            return None
        if end + 4 > self._section_bytes:
            raise h11.LocalProtocolError("too long a section", error_status_hint=431)
        section = self._extract(end + 4)
        self._extensions = 0
        _require_one_length(section)
        return section[:-4].split(b"\r\n")

    def maybe_extract_next_line(self) -> bytearray | None:
        """Take the line before a chunk, None while it is incomplete."""
        data = self._data
        end = data.find(b"\r\n", 0, _CHUNK_LINE)
        if end < 0:
            if len(data) >= _CHUNK_LINE or not _CHUNK_SO_FAR.fullmatch(data):
                raise h11.LocalProtocolError("illegal chunk header")
            return None
        found = _CHUNK.fullmatch(data, 0, end)
        self._extensions += 0 if found is None else len(found[2])
        if found is None or self._extensions > _EXTENSIONS:
            raise h11.LocalProtocolError("illegal chunk header")
        self._chunk = int(found[1], 16)
        return self._extract(end + 2)

    def _judge(self, end: int) -> None:
        """Raise if the bytes up to `end` hold a control byte, a CR or LF by itself, or a folded line."""
        start, data = self._judged, self._data
        if end <= start:
            return
        part = data[max(start - 1, 0) : end]  # one byte more: the fold of a line shows behind its end
        lines = part.count(b"\r\n")
        ends = part.count(b"\n") - (start > 0 and part.startswith(b"\n"))
        if part.translate(None, _LEGAL) or not lines == ends == part.count(b"\r"):
            raise h11.LocalProtocolError("illegal byte or line end")
        if b"\n " in part or b"\n\t" in part:
            raise h11.LocalProtocolError("folded line")
        self._judged = end

    def _extract(self, count: int) -> bytearray:
        self._judged = 0
        return super()._extract(count)


def _require_one_length(section: bytearray) -> None:
    """Raise if a section tells its length more than once, be it the same one."""
    lower = section.lower()
    at = lower.find(b"\ncontent-length:")
    if at >= 0 and (lower.find(b"\ncontent-length:", at + 1) >= 0 or b"," in lower[at : lower.find(b"\r", at)]):
        raise h11.LocalProtocolError("several lengths")


def is_trailer(fields: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether all fields (names in lower case) may stand in a trailer section."""
    return not any(_NO_TRAILERS.fullmatch(name) for name, _ in fields)
