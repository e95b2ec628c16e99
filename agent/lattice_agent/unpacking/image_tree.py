"""The files of an OCI image: its layers applied one on the other as the OCI image specification says; pure, in memory.

Directories that are links are followed within the image, as containerd does: `lib/x` above a `lib -> usr/lib` becomes `usr/lib/x`. A
whiteout hides what lower layers have, never what its own layer brings.
"""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from lattice_agent.unpacking.layer_stream import refused
from lattice_agent.unpacking.tar_members import LONGEST_PATH, TarMember, clean_path, shown

WHITEOUT: Final = ".wh."
OPAQUE: Final = ".wh..wh..opq"
MOST_LINKS: Final = 40
"""That are followed on the way to a file, as the kernel has it."""


@dataclass(slots=True, eq=False)
class TreeFile:
    """A file: its bytes stand in a layer at an offset; hard links are several names of one."""

    mode: int
    mtime: int
    size: int
    layer: int
    offset: int


@dataclass(slots=True, eq=False)
class TreeLink:
    """A symbolic link."""

    mtime: int
    target: str


@dataclass(slots=True, eq=False)
class TreeDirectory:
    """A directory with its entries by name."""

    mode: int = 0o755
    mtime: int = 0
    entries: dict[str, TreeEntry] = field(default_factory=dict)
    cleared: int = -1
    """The layer that last hid all that lower ones have here."""


@dataclass(slots=True, eq=False)
class TreeEntry:
    """A name in a directory, and the layer that last had it."""

    node: TreeFile | TreeLink | TreeDirectory
    layer: int


class ImageTree:
    """The files that the layers applied so far make together."""

    def __init__(self, spend_member: Callable[[], None]) -> None:
        """Calls `spend_member`, which may raise, for each directory that a layer's paths need and no layer has."""
        self.root = TreeDirectory()
        self._spend_member = spend_member

    def apply(self, member: TarMember, layer: int) -> None:
        """Applies a member of a layer, whose number grows from the lowest on; raises Rejected (ImageRefused) for one that has no place."""
        if not member.path:
            return  # the root is everybody's to enter, whatever a layer says
        folder, _, name = member.path.rpartition("/")
        parent = self._directory(folder, layer)
        if name.startswith(WHITEOUT):
            _hide(parent, name, layer)
            return
        old = parent.entries.get(name)
        if member.type == tarfile.DIRTYPE and old is not None and isinstance(old.node, TreeDirectory):
            old.node.mode, old.node.mtime, old.layer = member.mode, member.mtime, layer
            return
        parent.entries[name] = TreeEntry(self._node(member, layer), layer)

    def _node(self, member: TarMember, layer: int) -> TreeFile | TreeLink | TreeDirectory:
        """Returns the directory, link or file that a member of a layer (its number) is; a hard link is the file that it names."""
        if member.type == tarfile.DIRTYPE:
            return TreeDirectory(member.mode, member.mtime)
        if member.type == tarfile.SYMTYPE:
            return TreeLink(member.mtime, member.target)
        if member.type == tarfile.LNKTYPE:
            return self._linked(member)
        return TreeFile(member.mode, member.mtime, member.size, layer, member.offset)

    def _linked(self, member: TarMember) -> TreeFile | TreeLink:
        """Returns what a hard link names: a file or a symbolic link that is in the image already."""
        target = clean_path(member.target, "of a hard link")
        folder, _, name = target.rpartition("/")
        parent = self._find_directory(folder)
        found = parent.entries.get(name) if parent is not None else None
        if found is None or isinstance(found.node, TreeDirectory):
            why = "which is a directory" if found is not None else "which the image does not have"
            raise refused(f"/{shown(member.path)} is a hard link to {shown(member.target)!r}, {why}")
        return found.node

    def _directory(self, path: str, layer: int) -> TreeDirectory:
        """Returns the directory of this path, which is made where it is missing, and marks it and those above as the layer's."""
        at = self._walk(path, layer)
        if at is None:
            raise refused(f"its layers have files below /{shown(path)}, which is no directory")
        return at

    def _find_directory(self, path: str) -> TreeDirectory | None:
        """Returns the directory at a path; None where there is none."""
        return self._walk(path, None)

    def _walk(self, path: str, layer: int | None) -> TreeDirectory | None:
        """Returns the directory of this path, links followed inside the image; None: it is none. With a layer, what is missing is made."""
        above: list[TreeDirectory] = [self.root]
        left = [part for part in reversed(path.split("/")) if part]
        links = 0
        while left:
            part = left.pop()
            if part == "..":
                above = above[:-1] or [self.root]
                continue
            entry = above[-1].entries.get(part)
            if entry is None and layer is not None:
                self._spend_member()
                entry = above[-1].entries[part] = TreeEntry(TreeDirectory(), layer)
            if entry is None or isinstance(entry.node, TreeFile):
                return None
            if isinstance(entry.node, TreeDirectory):
                entry.layer = layer if layer is not None else entry.layer
                above.append(entry.node)
                continue
            links += 1
            if links > MOST_LINKS:
                return None
            above = [self.root] if entry.node.target.startswith("/") else above
            left += [one for one in reversed(entry.node.target.split("/")) if one not in ("", ".")]
        return above[-1]

    def walk(self) -> Iterator[tuple[str, TreeFile | TreeLink | TreeDirectory]]:
        """Yields all paths but the root, a directory before what is in it, in order of their names; raises Rejected for one too long."""
        waiting: list[tuple[str, TreeDirectory]] = [("", self.root)]
        while waiting:
            path, directory = waiting.pop()
            below: list[tuple[str, TreeDirectory]] = []
            for name in sorted(directory.entries):
                node, here = directory.entries[name].node, f"{path}{name}"
                if len(here.encode("utf-8", "surrogateescape")) > LONGEST_PATH:
                    raise refused(f"the path /{shown(here)}… is longer than {LONGEST_PATH} bytes")
                yield here, node
                if isinstance(node, TreeDirectory):
                    below.append((here + "/", node))
            waiting += reversed(below)


def _hide(parent: TreeDirectory, name: str, layer: int) -> None:
    """Applies a whiteout: an opaque one hides all that lower layers have in the directory, any other the one file that it names."""
    if name == OPAQUE:
        _prune(parent, layer)
        return
    hidden = name.removeprefix(WHITEOUT)
    if hidden.startswith(WHITEOUT):
        return  # what the file system AUFS keeps for itself
    if hidden in ("", ".", ".."):
        raise refused(f"it has the whiteout {shown(name)!r}, which names no file")
    entry = parent.entries.get(hidden)
    if entry is None:
        return
    if entry.layer < layer:
        del parent.entries[hidden]
    elif isinstance(entry.node, TreeDirectory):
        _prune(entry.node, layer)


def _prune(directory: TreeDirectory, layer: int) -> None:
    """Removes what lower layers have below a directory; does nothing a second time, since nothing of theirs comes back."""
    waiting = [directory]
    while waiting:
        at = waiting.pop()
        if at.cleared == layer:
            continue
        at.cleared = layer
        at.entries = {name: entry for name, entry in at.entries.items() if entry.layer >= layer}
        waiting += [entry.node for entry in at.entries.values() if isinstance(entry.node, TreeDirectory)]
