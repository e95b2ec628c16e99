"""A cycle log as bytes: an opening with the format number, then frames, each with its length and checksum.

A frame is a whole snapshot with its decision, or the changes since the frame before. An unfinished last frame, left by a killed
process, is recognised by its length or its checksum; damage anywhere else is reported, and nothing after it in that file is read.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from lattice.errors import Corrupt, NotFound, Rejected
from lattice.units import is_digits

FORMAT: Final = 1
OPENING: Final = b"%d lattice cycle log\n" % FORMAT
LATEST: Final = 0
"""Stands for the last recorded cycle in a request."""
WHOLE, CHANGES = b"W", b"C"
_HEAD: Final = struct.Struct("<IIcHQd")
"""Length of the payload; CRC-32 of the rest of the head and of the payload; kind; how many frames of the same cycle follow; cycle;
time in seconds since the epoch.
"""
_CHECKED: Final = 8
"""The offset in the head at which the checksum begins."""
_LEVEL: Final = 1
"""The level of zlib."""
LARGEST: Final = 1 << 30
"""Most bytes of one frame, unpacked; more is damage."""


@dataclass(frozen=True, slots=True)
class Frame:
    """The place of one frame in a log file: bytes [start, end). One frame holds the cycle of one vcluster.

    `at`: the time of the cycle, seconds since the epoch. `more`: how many frames of the same cycle number follow.
    """

    kind: bytes
    more: int
    cycle: int
    at: float
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Scan:
    """The sound frames of a log file.

    `torn`: bytes at the end that belong to a cycle not written to its end. `damage`: a sentence on the first damage; empty: none.
    """

    frames: tuple[Frame, ...]
    torn: int = 0
    damage: str = ""


def cycle_of(text: str) -> int:
    """Returns the cycle number that a person typed: a whole number from 1 on, or `last` (LATEST); raises Rejected for anything else."""
    if text == "last":
        return LATEST
    if not (is_digits(text, 18) and int(text) >= 1):
        raise Rejected(f"{text!r} names no cycle: a whole number from 1 on, or last", reason="BadInput", fields=("cycle",))
    return int(text)


def frame(kind: bytes, cycle: int, at: float, payload: bytes, more: int = 0) -> bytes:
    """Returns the bytes of one frame: head with checksum, and compressed payload.

    `kind`: `WHOLE` or `CHANGES`. `at`: the time of the cycle, seconds since the epoch. `more`: how many frames of the same cycle follow.
    """
    packed = zlib.compress(payload, _LEVEL)
    head = _HEAD.pack(len(packed), 0, kind, more, cycle, at)
    checksum = zlib.crc32(packed, zlib.crc32(head[_CHECKED:]))
    return _HEAD.pack(len(packed), checksum, kind, more, cycle, at) + packed


def payload(data: bytes, one: Frame) -> bytes:
    """Returns the decompressed payload of a frame of `data`; raises Corrupt where it cannot be decompressed."""
    unpacking = zlib.decompressobj()
    try:
        found = unpacking.decompress(data[one.start + _HEAD.size : one.end], LARGEST)
    except zlib.error as error:
        raise Corrupt(f"cycle {one.cycle} of the log cannot be unpacked: {error}", reason="CycleLogDamaged") from error
    if not unpacking.eof:
        raise Corrupt(f"cycle {one.cycle} of the log unpacks to more than {LARGEST} bytes, or to no end", reason="CycleLogDamaged")
    return found


def check_format(data: bytes) -> int:
    """Returns the offset of the first frame of a log file, in bytes.

    Raises Rejected where the file is no cycle log, and, with both format numbers, where it has a format that this program does not read.
    """
    line, newline, _ = bytes(data[:64]).partition(b"\n")
    number, _, what = line.partition(b" ")
    if not newline or what != OPENING[:-1].partition(b" ")[2] or not is_digits(number):
        raise Rejected("this is no cycle log: it does not begin with its format number and 'lattice cycle log'", reason="BadCycleLog")
    if int(number) not in (FORMAT, FORMAT - 1) or int(number) == 0:
        sentence = f"the cycle log has format {int(number)}, and this program reads format {FORMAT}; use the version that wrote it"
        raise Rejected(sentence, reason="BadCycleLog")
    return len(line) + 1


def scan(data: bytes, *, check: bool = True) -> Scan:
    """Returns the frames of a log file up to the first damage, without those of a cycle that was not written to its end.

    Without `check` checksums are not compared, so that only wrong kinds and lengths show damage. Raises Rejected, as `check_format` does,
    where the data is no cycle log that this program reads; data too short to tell has no frames.
    """
    if len(data) < len(OPENING) and OPENING.startswith(bytes(data[:])):
        return Scan((), torn=len(data))  # whoever made the file was killed before it was begun
    at = check_format(data)
    frames: list[Frame] = []
    damage = ""
    while len(data) - at >= _HEAD.size:
        length, checksum, kind, more, cycle, time = _HEAD.unpack_from(data, at)
        end = at + _HEAD.size + length
        if end > len(data):
            break
        sound = kind in (WHOLE, CHANGES) and (not check or zlib.crc32(data[at + _CHECKED : end]) == checksum)
        if not sound:
            damage = "" if end == len(data) else _damage(at, frames)
            break
        if not frames and kind != WHOLE:
            return Scan((), damage="it begins with changes and no whole moment before them")
        frames.append(Frame(kind, more, cycle, time, at, end))
        at = end
    while frames and frames[-1].more:
        at = frames.pop().start
    return Scan(tuple(frames), 0 if damage else len(data) - at, damage)


def excerpt(data: bytes, cycle: int = LATEST) -> bytes:
    """Returns a log with only the frames that are needed to read one cycle; `LATEST`: the last one that was written to its end.

    They run from the whole snapshot before the cycle to its last frame. Raises NotFound where the cycle is not in this file, naming
    those that are; Corrupt where damage may hide it, for `LATEST` any damage; Rejected where the data is no cycle log.
    """
    found = scan(data)
    if not found.frames:
        raise _absent(cycle, found)
    wanted = found.frames[-1].cycle if cycle == LATEST else cycle
    places = [place for place, one in enumerate(found.frames) if one.cycle == wanted]
    if not places:
        raise _absent(wanted, found)
    if found.damage and cycle == LATEST:
        raise Corrupt(f"the last cycle cannot be told: {found.damage}", reason="CycleLogDamaged")
    begin = max(place for place in range(places[0] + 1) if found.frames[place].kind == WHOLE)
    return OPENING + bytes(data[found.frames[begin].start : found.frames[places[-1]].end])


def gaps(frames: Sequence[Frame]) -> Iterator[tuple[int, int]]:
    """Yields the first and the last number of each run of cycle numbers that are missing between frames."""
    for before, after in pairwise(frames):
        if after.cycle > before.cycle + 1:
            yield before.cycle + 1, after.cycle - 1


def _damage(at: int, frames: Sequence[Frame]) -> str:
    """Returns the sentence on a frame at byte `at` that does not match its checksum; `frames`: the sound ones before it."""
    last = f"after cycle {frames[-1].cycle}" if frames else "at its beginning"
    return f"the frame at byte {at}, {last}, does not match its checksum; nothing behind it is read"


def _absent(cycle: int, found: Scan) -> NotFound | Corrupt:
    """Makes the error for a cycle (`LATEST`: any) that a log does not hold: Corrupt where damage may hide it, else NotFound with the
    numbers that are there.
    """
    what = f"cycle {cycle}" if cycle != LATEST else "no cycle"
    if found.damage:
        return Corrupt(f"{what} is not in the sound part of the log: {found.damage}", reason="CycleLogDamaged")
    torn = f"; its last {found.torn} bytes are a frame that was never finished" if found.torn else ""
    if not found.frames:
        return NotFound(f"the log holds no cycle{torn}", reason="CycleNotRecorded")
    first, last = found.frames[0], found.frames[-1]
    missing = next((gap for gap in gaps(found.frames) if gap[0] <= cycle <= gap[1]), None)
    if missing is not None:
        return NotFound(f"cycle {cycle} was not recorded: {missing[0]} to {missing[1]} are missing", reason="CycleNotRecorded")
    return NotFound(f"cycle {cycle} is not in this log: it holds {first.cycle} to {last.cycle}{torn}", reason="CycleNotRecorded")
