"""What comes out of a container: two capped texts, then an ending that only we could ask for. Pure.

The supervisor (see payload.py) ends each stream with a marker that holds the call's nonce. After
it, stdout carries a trailer: ``exit <code> <oom kills> [signal]``, then the wanted files.
"""

import codecs
from dataclasses import dataclass
from typing import Literal

from worker.sandbox.payload import MARK

STDERR = 2
LINE_MAX = 64
"""Longest line of a trailer, in bytes."""

CODES = frozenset(map(str, range(256)))

Found = Literal["file", "missing", "unreadable", "large"]


@dataclass(frozen=True, slots=True)
class OutputFile:
    """One wanted file: ``content`` when found, its ``size`` in bytes when it is too large."""

    found: Found
    content: bytes = b""
    size: int = 0


@dataclass(frozen=True, slots=True)
class Ending:
    """How the program ended, as its supervisor saw it; ``code`` None: nothing could be unpacked."""

    code: int | None
    oom_kills: int = 0
    signalled: bool = False
    files: tuple[OutputFile, ...] = ()


class Capture:
    """The first ``cap`` characters of a byte stream, decoded as it comes; the rest is counted."""

    def __init__(self, cap: int) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._parts: list[str] = []
        self._room = cap
        self.dropped = 0

    def feed(self, data: bytes, *, final: bool = False) -> None:
        """Take bytes; ``final`` turns an unfinished character into U+FFFD."""
        if self.dropped:
            self.dropped += len(data)
            return
        text = self._decoder.decode(data, final)
        kept = text[: self._room]
        self._room -= len(kept)
        self.dropped = len(text[len(kept) :].encode())
        self._parts.append(kept)

    @property
    def text(self) -> str:
        """Return what was kept."""
        return "".join(self._parts)

    @property
    def truncated(self) -> bool:
        """Tell whether anything was dropped."""
        return self.dropped > 0


class Channel:
    """One stream: what the program wrote up to the marker, and what stands behind it."""

    def __init__(self, marker: bytes, cap: int, trailer_max: int) -> None:
        self.program = Capture(cap)
        self.trailer = bytearray()
        self.marked = False
        self._marker = marker
        self._held = b""
        self._trailer_max = trailer_max

    def feed(self, data: bytes) -> None:
        """Take bytes; the marker is found also when chunks split it."""
        if not self.marked:
            data = self._held + data
            start = data.find(self._marker)
            if start < 0:
                cut = len(data) - held_back(data, self._marker)
                self._held = data[cut:]
                self.program.feed(data[:cut])
                return
            self.marked, self._held = True, b""
            self.program.feed(data[:start], final=True)
            data = data[start + len(self._marker) :]
        self.trailer += data[: self._trailer_max - len(self.trailer)]

    def close(self) -> None:
        """Take the stream's end: what was held back belonged to the program after all."""
        if not self.marked:
            self.program.feed(self._held, final=True)
            self._held = b""


def held_back(data: bytes, marker: bytes) -> int:
    """Return how many bytes at the end may be the beginning of the marker.

    An unfinished marker holds its first byte once, so the last one found is its start.
    """
    start = data.rfind(marker[:1], max(0, len(data) - len(marker) + 1))
    if start < 0:
        return 0
    return len(data) - start if marker.startswith(data[start:]) else 0


class Reply:
    """Both streams of one call; ``ending`` is there once the ending came in-band, complete."""

    def __init__(self, nonce: str, *, cap: int, files: int = 0, files_bytes: int = 0) -> None:
        marker = MARK + nonce.encode() + MARK
        self._stdout = Channel(marker, cap, files_bytes + (files + 2) * LINE_MAX)
        self._stderr = Channel(marker, cap, 0)
        self.nonce = nonce
        self.ending: Ending | None = None

    def feed(self, stream: int, data: bytes) -> None:
        """Take a chunk as the engine sent it; stream 2 is stderr."""
        (self._stderr if stream == STDERR else self._stdout).feed(data)
        if self._stdout.marked and self._stderr.marked and self.ending is None:
            self.ending = parse(bytes(self._stdout.trailer))

    def close(self) -> None:
        """Take the end of both streams."""
        self._stdout.close()
        self._stderr.close()
        if self._stdout.marked and self.ending is None:
            self.ending = parse(bytes(self._stdout.trailer))

    @property
    def stdout(self) -> Capture:
        """Return what the program wrote to its standard output."""
        return self._stdout.program

    @property
    def stderr(self) -> Capture:
        """Return what the program wrote to its standard error."""
        return self._stderr.program

    @property
    def dropped(self) -> int:
        """Return the bytes beyond both caps."""
        return self.stdout.dropped + self.stderr.dropped


def parse(trailer: bytes) -> Ending | None:
    """Read a trailer; None while it is incomplete, or when something else got in between."""
    first, rest = line(trailer)
    if first == ["unpack"]:
        return Ending(code=None)
    match first:
        # The program may read the nonce in its supervisor's memory and speak for it: it can only
        # lie about itself, in words that a supervisor could have said.
        case ["exit", code, kills, *told] if code in CODES and kills.isdecimal():
            signalled = told == ["signal"]
        case _:
            return None
    files: list[OutputFile] = []
    while True:
        words, rest = line(rest)
        match words:
            case ["end"]:
                return Ending(int(code), int(kills), signalled, tuple(files))
            case ["file", digits] if digits.isdecimal() and len(rest) >= int(digits):
                size = int(digits)
                files.append(OutputFile("file", rest[:size], size))
                rest = rest[size:]
            case ["missing" | "unreadable" | "large" as found, digits] if digits.isdecimal():
                files.append(OutputFile(found, size=int(digits)))
            case _:
                return None


def line(data: bytes) -> tuple[list[str], bytes]:
    """Split off the first line as words; no words when it is not complete yet."""
    head, newline, rest = data.partition(b"\n")
    if not newline or len(head) > LINE_MAX:
        return [], data
    return head.decode("ascii", "replace").split(), rest
