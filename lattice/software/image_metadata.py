"""Reads an image's `meta/env.json`: its name, its mount point, its views, and the changes of variables that a view makes."""

from __future__ import annotations

import io
import json
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from lattice.errors import Rejected

if TYPE_CHECKING:
    import tarfile

LARGEST_ARCHIVE: Final = 16 * 1024 * 1024
"""Bytes of the gzipped `meta/` that is attached to an image."""
LARGEST_FILE: Final = 4 * 1024 * 1024
"""Bytes of `env.json`."""
MOST_MEMBERS: Final = 10_000
"""Files of `meta/` that are looked through for it."""
MOST_ENTRIES: Final = 10_000
"""Views of an image, with the changes of variables that they make and the paths in these."""
LONGEST_MOUNT: Final = 1024
_FILES: Final = ("meta/env.json", "env.json")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


class ListOperation(StrEnum):
    """The operations on a variable that holds a list of paths, such as PATH: set, prepend, append, unset."""

    SET = "set"
    PREPEND = "prepend"
    APPEND = "append"
    UNSET = "unset"


@dataclass(frozen=True)
class ListChange:
    """One operation on a variable that holds a list of paths, with the paths to set or to add."""

    variable: str
    operation: ListOperation
    paths: tuple[str, ...]


@dataclass(frozen=True)
class ScalarChange:
    """Sets a variable to a text, or unsets it where the text is None."""

    variable: str
    value: str | None


@dataclass(frozen=True)
class View:
    """A named set of changes to environment variables, in the order of the file; of two with one name the scalar one counts."""

    name: str
    description: str
    lists: tuple[ListChange, ...]
    scalars: tuple[ScalarChange, ...]


@dataclass(frozen=True)
class ImageMetadata:
    """The content of an image's `env.json`: its name, its views, and the absolute path (`mount`) for which it was built."""

    name: str
    description: str
    mount: str
    views: tuple[View, ...]
    default_view: str = ""
    """The view that work gets which names none of this image; empty: none."""

    def view(self, name: str) -> View:
        """Returns the view of this name; raises Rejected (ViewUnknown), naming the views of the image, where it has none of this name."""
        for view in self.views:
            if view.name == name:
                return view
        there = ", ".join(view.name for view in self.views) or "none"
        raise Rejected(f"the view {name!r} does not exist in {self.name}; there are: {there}", reason="ViewUnknown")


def unpack_metadata(archive: bytes) -> bytes | None:
    """Returns the bytes of `env.json` in a gzipped tar of the directory `meta/`; None: the archive does not contain it.

    Raises Rejected (MetadataInvalid) for what is no such archive, or one that unpacks to more than the limit.
    """
    import tarfile  # agents, which only read the metadata, load it not

    try:
        unpacker = zlib.decompressobj(zlib.MAX_WBITS | 16)
        unpacked = unpacker.decompress(archive, LARGEST_ARCHIVE)
        if unpacker.unconsumed_tail:
            raise _invalid(f"meta/ unpacks to more than {LARGEST_ARCHIVE} bytes")
        with tarfile.open(fileobj=io.BytesIO(unpacked), mode="r:") as files:
            for _ in range(MOST_MEMBERS):
                member = files.next()
                if member is None:
                    return None
                if member.isfile() and member.name.removeprefix("./") in _FILES:
                    return _content(files, member)
    except (tarfile.TarError, zlib.error, EOFError, ValueError) as error:  # ValueError: numbers in tar headers
        raise _invalid(f"meta/ is no gzipped tar: {error}") from error
    raise _invalid(f"meta/ has more than {MOST_MEMBERS} files")


def read_metadata(document: bytes) -> ImageMetadata:
    """Returns the content of an `env.json`; raises Rejected (MetadataInvalid), naming the place, where it is not of the expected form.

    A view without variables (only a script that activates it) is a view that changes nothing. A default view that does not exist is
    none, as `uenv` has it.
    """
    try:
        raw = json.loads(document)
    except (ValueError, RecursionError) as error:
        raise _invalid(f"env.json is no JSON: {error}") from error
    found = _mapping(raw, "env.json")
    mount = found.get("mount")
    if not isinstance(mount, str) or not mount.startswith("/"):
        raise _invalid("env.json: mount is no absolute path")
    if len(mount) > LONGEST_MOUNT or not mount.isprintable():
        raise _invalid(f"env.json: mount has more than {LONGEST_MOUNT} characters, or one that cannot be printed")
    views = _views(_mapping(found.get("views") or {}, "views"))
    default = _text(found, "default-view")
    default = default if any(view.name == default for view in views) else ""
    return ImageMetadata(_text(found, "name") or "unnamed", _text(found, "description"), mount, views, default)


def _views(raw: Mapping[str, Any]) -> tuple[View, ...]:
    """Returns the views of an image's metadata. Raises Rejected where one is malformed, or all together have too many changes."""
    found, entries = list[View](), 0
    for name, described in raw.items():
        view = _view(name, described)
        entries += 1 + len(view.scalars) + sum(1 + len(change.paths) for change in view.lists)
        if entries > MOST_ENTRIES:
            raise _invalid(f"the views have more than {MOST_ENTRIES} changes of variables, and paths in these")
        found.append(view)
    return tuple(found)


def _view(name: str, raw: Any) -> View:
    """Returns one view with its changes of variables; what is absent is empty. Raises Rejected where a part is malformed."""
    view = _mapping(raw, f"views.{name}")
    values = _mapping(_mapping(view.get("env") or {}, f"views.{name}.env").get("values") or {}, f"views.{name}.env.values")
    lists = _mapping(values.get("list") or {}, f"views.{name}.env.values.list")
    scalars = _mapping(values.get("scalar") or {}, f"views.{name}.env.values.scalar")
    return View(
        name, _text(view, "description"),
        tuple(change for variable, changes in lists.items() for change in _list_changes(name, variable, changes)),
        tuple(_scalar(name, variable, value) for variable, value in scalars.items()),
    )  # fmt: skip


def _list_changes(view: str, variable: str, raw: Any) -> list[ListChange]:
    """Returns the changes that a view makes to a variable that is a list. Raises Rejected where one is malformed."""
    where = f"views.{view}.env.values.list.{_variable(view, variable)}"
    if not isinstance(raw, list):
        raise _invalid(f"{where} is no list")
    changes: list[ListChange] = []
    for given in raw:
        change = _mapping(given, where)
        paths = change.get("value")
        if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
            raise _invalid(f"{where}: value is no list of texts")
        changes.append(ListChange(variable, _operation(_text(change, "op")), tuple(paths)))
    return changes


def _operation(word: str) -> ListOperation:
    """Returns the operation with this name; an unknown name means UNSET, as the program `uenv` takes it."""
    return ListOperation(word) if word in set(ListOperation) else ListOperation.UNSET


def _scalar(view: str, variable: str, value: Any) -> ScalarChange:
    """Returns the change that sets a variable to a text, or unsets it (null). Raises Rejected for any other value, or a wrong name."""
    if value is not None and not isinstance(value, str):
        raise _invalid(f"views.{view}.env.values.scalar.{_variable(view, variable)} is neither a text nor null")
    return ScalarChange(_variable(view, variable), value)


def _variable(view: str, name: str) -> str:
    """Returns a variable's name unchanged. Raises Rejected where it is none."""
    if not _VARIABLE.fullmatch(name):
        raise _invalid(f"views.{view}: {name!r} is no name of a variable")
    return name


def _content(files: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    """Returns the content of a file of an archive. Raises Rejected where it is no regular file or too large."""
    file = files.extractfile(member)
    if file is None or member.size > LARGEST_FILE:
        raise _invalid(f"{member.name} has {member.size} bytes (limit: {LARGEST_FILE})")
    return file.read()


def _mapping(raw: Any, where: str) -> Mapping[str, Any]:
    """Returns a JSON object unchanged. Raises Rejected, which names the place, for anything else."""
    if not isinstance(raw, dict):
        raise _invalid(f"{where} is no object")
    return raw


def _text(raw: Mapping[str, Any], key: str) -> str:
    """Returns the text of a key; empty where it is absent or no text."""
    value = raw.get(key)
    return value if isinstance(value, str) else ""


def _invalid(why: str) -> Rejected:
    """Returns the error that says why an image's metadata cannot be read."""
    return Rejected(f"the image's metadata cannot be read: {why}", reason="MetadataInvalid")
