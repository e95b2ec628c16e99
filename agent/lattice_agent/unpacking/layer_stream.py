"""Reads the tar of a layer out of its file: unpacks gzip or zstd, hashes what comes out, and stops at the limit of the image."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

import zstandard

from lattice.errors import Rejected

PIECE_BYTES: Final = 1 << 20
"""Most that is unpacked at a time, however much a few packed bytes stand for."""
PACKED_BYTES: Final = 1 << 16
LARGEST_WINDOW: Final = 1 << 27
"""Memory that a zstd frame may ask for."""
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"


@dataclass
class UnpackingBudget:
    """The unpacked bytes and the members that the layers of one image may still have together."""

    most_bytes: int
    most_members: int
    bytes: int = 0
    members: int = 0

    def spend_bytes(self, count: int) -> None:
        """Counts unpacked bytes; raises Rejected (ImageRefused) beyond the most."""
        self.bytes += count
        self.check_bytes(0)

    def check_bytes(self, coming: int) -> None:
        """Raises Rejected (ImageRefused) where this many bytes more are too many."""
        if self.bytes + coming > self.most_bytes:
            said = f"it unpacks to more than {self.most_bytes} bytes (software.largestImage)"
            raise refused(f"{said}; make it smaller, or ask the operators for more")

    def spend_member(self) -> None:
        """Counts a member of a layer; raises Rejected (ImageRefused) beyond the most."""
        self.members += 1
        if self.members > self.most_members:
            raise refused(f"its layers have more than {self.most_members} files; pack many small files into few, such as an archive")


class LayerStream:
    """The unpacked bytes of one layer, read once from the beginning to the end."""

    def __init__(self, file: BinaryIO, budget: UnpackingBudget, name: str) -> None:
        """Reads an open file; `name` is the layer in sentences."""
        self.name, self.position = name, 0
        self._pieces = _unpacked(file, name)
        self._piece, self._begin = b"", 0
        self._hash = hashlib.sha256()
        self._budget = budget

    @property
    def digest(self) -> str:
        """Returns the digest of what was unpacked so far."""
        return f"sha256:{self._hash.hexdigest()}"

    def read_exactly(self, count: int) -> bytes:
        """Returns the next `count` bytes, or fewer at the end of the layer."""
        parts: list[bytes] = []
        while count > 0 and (part := self.read_some(count)):
            parts.append(part)
            count -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def read_some(self, most: int) -> bytes:
        """Returns some of the next bytes, at most `most`; empty only at the end of the layer."""
        if self._begin >= len(self._piece) and not self._next_piece():
            return b""
        part = self._piece[self._begin : self._begin + most]
        self._begin += len(part)
        self.position += len(part)
        return part

    def skip(self, count: int) -> None:
        """Passes over bytes; raises Rejected where the layer ends before."""
        while count > 0:
            if self._begin >= len(self._piece) and not self._next_piece():
                raise refused(f"its layer {self.name} is cut off")
            step = min(count, len(self._piece) - self._begin)
            self._begin += step
            self.position += step
            count -= step

    def read_out(self) -> None:
        """Passes over all that is left, so that the digest is that of the whole layer."""
        while self._next_piece():
            pass

    def _next_piece(self) -> bool:
        """Makes the next unpacked piece the present one, counts it against the limit and hashes it; returns False at the end of the
        layer.
        """
        piece = next(self._pieces, b"")
        if not piece:
            self._piece, self._begin = b"", 0
            return False
        self._budget.spend_bytes(len(piece))
        self._hash.update(piece)
        self._piece, self._begin = piece, 0
        return True


def open_layer(path: Path) -> BinaryIO:
    """Opens a layer's file for reading."""
    return path.open("rb")


def _unpacked(file: BinaryIO, name: str) -> Iterator[bytes]:
    """Yields the unpacked bytes in pieces; the first bytes, not the media type, tell how they are packed.

    Raises Rejected where they cannot be unpacked.
    """
    head = file.read(len(_ZSTD))
    file.seek(0)
    try:
        if head.startswith(_GZIP):
            yield from _gunzipped(file)
        elif head == _ZSTD:
            yield from _unpacked_zstd(file)
        else:
            while piece := file.read(PIECE_BYTES):
                yield piece
    except (zlib.error, zstandard.ZstdError, EOFError) as error:
        raise refused(f"its layer {name} cannot be unpacked: {error}") from error


def _gunzipped(file: BinaryIO) -> Iterator[bytes]:
    """Unpacks all members of a gzip file, as parallel and seekable packers write several; zeros behind the last are padding."""
    unpacker, packed, begun = zlib.decompressobj(zlib.MAX_WBITS | 16), b"", False
    while packed or (packed := file.read(PACKED_BYTES)):
        if not begun and not packed.strip(b"\0"):
            packed = b""
            continue
        begun = True
        if piece := unpacker.decompress(packed, PIECE_BYTES):
            yield piece
        packed = unpacker.unconsumed_tail
        if unpacker.eof:
            packed, begun, unpacker = unpacker.unused_data, False, zlib.decompressobj(zlib.MAX_WBITS | 16)
    while begun and (piece := unpacker.decompress(b"", PIECE_BYTES)):
        yield piece
    if begun and not unpacker.eof:
        raise EOFError("it is cut off")


def _unpacked_zstd(file: BinaryIO) -> Iterator[bytes]:
    """Yields the unpacked pieces of a zstd file, of all its frames."""
    reader = zstandard.ZstdDecompressor(max_window_size=LARGEST_WINDOW).stream_reader(file, read_across_frames=True)
    while piece := reader.read(PIECE_BYTES):
        yield piece


def refused(why: str) -> Rejected:
    """Returns the error that an image cannot be run because of what is in it, for all nodes alike."""
    return Rejected(f"the image cannot be run: {why}", reason="ImageRefused")
