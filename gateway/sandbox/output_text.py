"""What a command wrote to standard output and standard error: exactly the first N bytes of both together.

No I/O here: whoever reads the pipes feeds what came and stops the run when told that it wrote more than it may.
"""

from __future__ import annotations

import base64
import hashlib
from typing import Any, Literal

import attrs

Stream = Literal["stdout", "stderr"]
CHUNK = 2**16
"""The most bytes to read at once: what a pipe holds."""


@attrs.frozen
class Text:
    """What was kept of one stream; `truncated` where it wrote more than was kept, `sha256` in lower-case hex digits."""

    kept: bytes = attrs.field(repr=False)
    truncated: bool
    sha256: str = attrs.field(
        init=False, eq=False, default=attrs.Factory(lambda self: hashlib.sha256(self.kept).hexdigest(), takes_self=True)
    )

    @property
    def encoding(self) -> Literal["utf-8", "base64"]:
        """How the bytes stand in the answer, so that they can be had back exactly.

        `utf-8` where they are valid UTF-8 without NUL, all else `base64`.  Other control characters, escape sequences
        and marks of direction stay: they are the text that the command wrote, JSON carries them, and who shows it on a
        terminal has to make it safe anyway.  NUL is base64 since it marks what is not text, and since databases and C
        programs that readers use cannot hold it in text.
        """
        if b"\0" in self.kept:
            return "base64"
        try:
            self.kept.decode()
        except UnicodeDecodeError:
            return "base64"
        return "utf-8"

    def as_json(self) -> dict[str, Any]:
        """Return the member of the output (spec/outputs); `bytes` and `sha256` are of the bytes kept."""
        encoding = self.encoding
        return {
            "encoding": encoding,
            "data": self.kept.decode() if encoding == "utf-8" else base64.b64encode(self.kept).decode(),
            "bytes": len(self.kept),
            "truncated": self.truncated,
            "sha256": self.sha256,
        }


def _no_bytes() -> dict[Stream, bytearray]:
    return {"stdout": bytearray(), "stderr": bytearray()}


@attrs.define
class Capture:
    """Keeps the first `most` bytes of both streams together, in the order in which they are fed."""

    most: int
    _kept: dict[Stream, bytearray] = attrs.field(init=False, factory=_no_bytes, repr=False)
    _cut: set[Stream] = attrs.field(init=False, factory=set)
    _texts: dict[Stream, Text] = attrs.field(init=False, factory=dict, repr=False)

    def feed(self, stream: Stream, chunk: bytes) -> bool:
        """Take what was read from a stream; returns True once more was written than may be, and the run is to end."""
        self._texts.pop(stream, None)
        room = self.most - self.kept_bytes
        self._kept[stream] += chunk[:room]
        if len(chunk) > room:
            self._cut.add(stream)
        return self.passed

    @property
    def kept_bytes(self) -> int:
        """How many bytes are kept, of both streams together."""
        return sum(map(len, self._kept.values()))

    @property
    def passed(self) -> bool:
        """Whether more was written than may be; exactly `most` bytes are not."""
        return bool(self._cut)

    @property
    def next_read(self) -> int:
        """How many bytes to ask a pipe for next: never more than it takes to tell that the limit is passed."""
        return min(CHUNK, self.most - self.kept_bytes + 1)

    def text(self, stream: Stream) -> Text:
        """Return what was kept of a stream so far; asking again is no work."""
        if stream not in self._texts:
            kept, cut = bytes(self._kept[stream]), stream in self._cut
            self._texts[stream] = Text(whole_characters(kept) if cut else kept, cut)
        return self._texts[stream]


def whole_characters(text: bytes) -> bytes:
    """Return UTF-8 text without the part of a character that a cut left at its end; all else as it is."""
    try:
        text.decode()
    except UnicodeDecodeError as error:
        if error.reason == "unexpected end of data":
            return text[: error.start]
    return text
