"""Reads the members of a layer's tar: the ustar, PAX and GNU forms that images are made in, with a limit on all that a header may ask for.

Python's `tarfile` reads headers of any size into memory, and follows what it finds: here only its decoder of one 512-byte block is used.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from lattice.units import whole_number
from lattice_agent.unpacking.layer_stream import LayerStream, UnpackingBudget, refused

BLOCK: Final = 512
LARGEST_HEADER: Final = 1 << 20
"""Bytes of what PAX and GNU put before a member: long names, times, attributes."""
LONGEST_PATH, LONGEST_NAME, LONGEST_TARGET = 4096, 255, 4095
"""Bytes that the kernel takes."""
LATEST_TIME: Final = 2**32 - 1
FILES: Final = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE)
BARE: Final = (tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE)
"""Members without bytes, whatever their size says."""
_SPECIAL: Final = {tarfile.CHRTYPE: "a device node", tarfile.BLKTYPE: "a device node", tarfile.FIFOTYPE: "a named pipe"}
_HIDDEN: Final = "dev/"
"""A container has a /dev of its own: what an image has there is never seen."""


@dataclass(frozen=True, slots=True)
class TarMember:
    """One file, directory or link of a layer; `path` has neither `.` nor `..` nor a slash at its ends, and is empty for the root itself."""

    path: str
    type: bytes
    mode: int
    mtime: int
    size: int = 0
    offset: int = 0
    """Where its bytes begin in the unpacked layer."""
    target: str = ""


@dataclass(slots=True)
class _Extended:
    """Holds the fields that headers before a member give it; None: they give none."""

    path: str | None = None
    target: str | None = None
    size: int | None = None
    mtime: int | None = None


def read_members(layer: LayerStream, budget: UnpackingBudget) -> Iterator[TarMember]:
    """Yields the members of a layer in order, and passes over their bytes; raises Rejected (ImageRefused) for what no image may have.

    The layer may be read on behind the last of them: padding follows.
    """
    said, everywhere = _Extended(), _Extended()
    while (header := _next_header(layer)) is not None:
        budget.spend_member()
        if header.type in (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE):
            _read_pax(_extension(layer, header), said, layer.name)
        elif header.type == tarfile.XGLTYPE:
            _read_pax(_extension(layer, header), everywhere, layer.name)
        elif header.type == tarfile.GNUTYPE_LONGNAME:
            said.path = _text(_extension(layer, header).partition(b"\0")[0])
        elif header.type == tarfile.GNUTYPE_LONGLINK:
            said.target = _text(_extension(layer, header).partition(b"\0")[0])
        else:
            member = _member(header, said, everywhere, layer)
            said = _Extended()
            if member is None:
                continue
            budget.check_bytes(member.size)
            yield member
            layer.skip(member.offset + member.size - layer.position)
            layer.read_exactly(-member.size % BLOCK)  # umoci leaves the last one's out


def _next_header(layer: LayerStream) -> tarfile.TarInfo | None:
    """Returns the next header; None: the tar is over."""
    block = layer.read_exactly(BLOCK)
    if not block:
        return None  # some programs write no end
    try:
        found = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except tarfile.EOFHeaderError:  # type: ignore[attr-defined]
        return None
    except (tarfile.HeaderError, ValueError) as error:
        raise refused(f"its layer {layer.name} has a damaged header at byte {layer.position - len(block)}: {error}") from error
    if found.size < 0:
        raise refused(f"its layer {layer.name} has a file of {found.size} bytes")
    return found


def _extension(layer: LayerStream, header: tarfile.TarInfo) -> bytes:
    """Returns the bytes of a header that says more of the next member."""
    if header.size > LARGEST_HEADER:
        raise refused(f"its layer {layer.name} has a header of {header.size} bytes (limit: {LARGEST_HEADER})")
    found = layer.read_exactly(header.size)
    if len(found) < header.size:
        raise refused(f"its layer {layer.name} is cut off")
    layer.skip(-header.size % BLOCK)
    return found


def _read_pax(document: bytes, said: _Extended, name: str) -> None:
    """Reads records `LENGTH KEY=VALUE` of a PAX header into `said`."""
    begin = 0
    while begin < len(document) and document[begin : begin + 1] != b"\0":
        digits, _, _ = document[begin : begin + 20].partition(b" ")
        length = whole_number(digits) or 0
        record = document[begin : begin + length]
        key, equals, value = record[len(digits) + 1 : -1].partition(b"=")
        if not equals or record[-1:] != b"\n" or len(record) != length:
            raise refused(f"its layer {name} has a damaged PAX header")
        _take_record(_text(key), value, said, name)
        begin += length


def _take_record(key: str, value: bytes, said: _Extended, name: str) -> None:
    """Notes one record of a PAX header in `said`; those of other attributes are not kept.

    Raises Rejected for a sparse file, an attribute that only a kernel may set, and a value that does not parse.
    """
    try:
        match key:
            case "path":
                said.path = _text(value)
            case "linkpath":
                said.target = _text(value)
            case "size":
                said.size = int(value)
            case "mtime":
                said.mtime = int(float(value))
            case _ if key.startswith("GNU.sparse."):
                raise refused(f"its layer {name} has a sparse file, which images do not have; write it out in full")
            case _ if key.startswith("SCHILY.xattr.trusted."):
                raise refused(f"its layer {name} has the attribute {key.removeprefix('SCHILY.xattr.')[:80]}, which only a kernel may set")
            case _:
                pass  # other attributes, owners and times are not kept
    except (ValueError, OverflowError) as error:
        raise refused(f"its layer {name} has a damaged PAX header: {key[:80]}") from error


def _member(header: tarfile.TarInfo, said: _Extended, everywhere: _Extended, layer: LayerStream) -> TarMember | None:
    """Returns the member that a header and those before it describe; None: it is one that no container sees."""
    raw = _first(said.path, everywhere.path, header.name)
    path = clean_path(raw, layer.name)
    if header.type in _SPECIAL:
        if path.startswith(_HIDDEN):
            return None
        raise refused(f"/{shown(path)} is {_SPECIAL[header.type]}; leave it out of the image")
    if header.type not in (*FILES, *BARE):
        raise refused(f"/{shown(path)} is a member of the kind {header.type!r}, which images do not have")
    bare = header.type in BARE or (header.type == tarfile.AREGTYPE and raw.endswith("/"))
    size = 0 if bare else said.size if said.size is not None else header.size
    if size < 0:
        raise refused(f"/{shown(path)} has {size} bytes")
    mtime = said.mtime if said.mtime is not None else int(header.mtime)
    kind = tarfile.DIRTYPE if bare and header.type not in BARE else header.type
    target = _first(said.target, everywhere.target, header.linkname) if bare else ""
    return TarMember(path, kind, header.mode & 0o1777, min(max(mtime, 0), LATEST_TIME), size, layer.position, _target(path, kind, target))


def _target(path: str, kind: bytes, target: str) -> str:
    """Returns the target of a link, empty for other kinds of member. Raises Rejected for a symbolic link that no kernel follows."""
    if kind == tarfile.SYMTYPE and (not target or "\0" in target or len(_raw(target)) > LONGEST_TARGET):
        raise refused(f"/{shown(path)} is a link to {shown(target)!r}, which no kernel follows")
    return target if kind in (tarfile.SYMTYPE, tarfile.LNKTYPE) else ""


def clean_path(path: str, layer: str) -> str:
    """Returns a path from the image's root, without `.` and empty parts; raises Rejected for `..` and for what no file may be called."""
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise refused(f"its layer {layer} has {shown(path)!r}, which leads out of the image")
    if "\0" in path or len(_raw(path)) > LONGEST_PATH or any(len(_raw(part)) > LONGEST_NAME for part in parts):
        raise refused(f"its layer {layer} has the name {shown(path)!r}, which no file may have")
    return "/".join(parts)


def shown(text: str) -> str:
    """Returns the beginning of a name that a stranger wrote, as sentences may have it."""
    return "".join(letter if letter.isprintable() else "?" for letter in text[:100])


def _first(*found: str | None) -> str:
    """Returns the first of these texts that is not None; one must be."""
    return next(text for text in found if text is not None)


def _text(raw: bytes) -> str:
    """Returns the text of bytes in UTF-8; others are kept as surrogates."""
    return raw.decode("utf-8", "surrogateescape")


def _raw(text: str) -> bytes:
    """Returns the bytes of a text, the inverse of `_text`."""
    return text.encode("utf-8", "surrogateescape")
