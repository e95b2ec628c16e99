"""Writes the squashfs file of an image: its merged files as one tar, made here, into `mksquashfs`.

The tar is written in a fixed order, all files root's, without attributes: the same image gives the same bytes on every node that has the
same squashfs-tools.
"""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from lattice.errors import Corrupt, Rejected, Retry
from lattice_agent.unpacking.image_tree import ImageTree, TreeDirectory, TreeFile, TreeLink
from lattice_agent.unpacking.layer_stream import PIECE_BYTES, LayerStream, UnpackingBudget, open_layer, refused
from lattice_agent.unpacking.tar_members import BLOCK, read_members

MOST_MEMBERS: Final = 2_000_000
PACKER: Final = "mksquashfs"
PACKER_OPTIONS: Final = (
    "-tar", "-noappend", "-comp", "zstd", "-Xcompression-level", "3", "-no-xattrs", "-no-exports", "-quiet", "-no-progress", "-mem", "512M",
    "-root-mode", "755", "-root-uid", "0", "-root-gid", "0",
)  # fmt: skip
CACHE_FULL: Final = "CacheFull"


@dataclass(frozen=True)
class PackedLayer:
    """A layer's file as it was pulled, and the digest that its unpacked bytes must have."""

    path: Path
    diff_id: str


def merge_layers(layers: Sequence[PackedLayer], most_bytes: int, most_members: int = MOST_MEMBERS) -> ImageTree:
    """Reads all layers, the lowest first, and returns the files that they make together.

    Raises Rejected (ImageRefused) for what no image may have, beyond the limits, and where a layer is not what its configuration says.
    """
    budget = UnpackingBudget(most_bytes, most_members)
    tree = ImageTree(budget.spend_member)
    for number, layer in enumerate(layers):
        with open_layer(layer.path) as file:
            stream = LayerStream(file, budget, str(number + 1))
            for member in read_members(stream, budget):
                tree.apply(member, number)
            stream.read_out()
        if stream.digest != layer.diff_id:
            raise refused(f"its layer {number + 1} unpacks to {stream.digest}, where its configuration says {layer.diff_id}")
    return tree


def pack(tree: ImageTree, layers: Sequence[PackedLayer], file: Path, most_bytes: int) -> None:
    """Writes the squashfs file, of at most `most_bytes`, and makes it durable.

    Raises Rejected (CacheFull) where the disk has no room for it, Retry (PackerMissing) where the node has no squashfs-tools.
    """
    program = shutil.which(PACKER)
    if program is None:
        raise Retry(f"this node has no {PACKER}: install squashfs-tools 4.5 or later", reason="PackerMissing")
    file.unlink(missing_ok=True)
    with subprocess.Popen(
        [program, "-", str(file), *PACKER_OPTIONS], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd="/",
        env={"PATH": os.environ.get("PATH", ""), "LANG": "C.UTF-8", "SOURCE_DATE_EPOCH": str(_latest(tree))},
    ) as child:  # fmt: skip
        try:
            resource.prlimit(child.pid, resource.RLIMIT_FSIZE, (most_bytes, most_bytes))
            assert child.stdin is not None  # noqa: S101 - it is a pipe
            broken = _written(tree, layers, child.stdin)
        except BaseException:
            child.kill()
            raise
        _, said = child.communicate()
    if broken or child.returncode:
        file.unlink(missing_ok=True)
        raise _failure(child.returncode, said.decode(errors="replace"), file)
    fd = os.open(file, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _latest(tree: ImageTree) -> int:
    """Returns the latest time of a file, to which the packer sets what else it would give the present time."""
    return max((node.mtime for _, node in tree.walk()), default=0)


def _written(tree: ImageTree, layers: Sequence[PackedLayer], out: IO[bytes]) -> bool:
    """Writes the tar and tells whether the packer ended before it had read all of it."""
    try:
        TarWriter(out).write_tree(tree, layers)
        out.flush()
    except BrokenPipeError:
        return True
    return False


def _failure(code: int, said: str, file: Path) -> Rejected | Retry | Corrupt:
    """Returns the error for a packer that failed: Rejected where there was no room for the file, else Retry with the last line that it
    said.
    """
    last = said.strip().splitlines()[-1][:300] if said.strip() else f"exit code {code}"
    if code == -signal.SIGXFSZ or "No space left" in said or "File too large" in said:
        return Rejected(f"there is no room for the packed image at {file}", reason=CACHE_FULL)
    return Retry(f"{PACKER} failed: {last}", reason="PackerFailed")


class TarWriter:
    """Writes the files of an image as one tar: directories and links first, then files in the order in which the layers have them."""

    def __init__(self, out: IO[bytes]) -> None:
        self._out = out

    def write_tree(self, tree: ImageTree, layers: Sequence[PackedLayer]) -> None:
        """Writes all of it, with the blocks that end a tar; reads each layer that still has a file once more."""
        names: dict[TreeFile, list[str]] = {}
        links: dict[TreeLink, str] = {}
        for path, node in tree.walk():
            if isinstance(node, TreeDirectory):
                self._header(_info(path + "/", tarfile.DIRTYPE, node.mode, node.mtime))
            elif isinstance(node, TreeFile):
                names.setdefault(node, []).append(path)
            elif node in links:
                self._header(_info(path, tarfile.LNKTYPE, 0o777, node.mtime, target=links[node]))
            else:
                links[node] = path
                self._header(_info(path, tarfile.SYMTYPE, 0o777, node.mtime, target=node.target))
        files: dict[int, list[TreeFile]] = {}
        for file in names:
            files.setdefault(file.layer, []).append(file)
        for number in sorted(files):
            self._copy_files(sorted(files[number], key=lambda file: file.offset), names, layers[number])
        self._out.write(bytes(2 * BLOCK))

    def _copy_files(self, files: Sequence[TreeFile], names: dict[TreeFile, list[str]], layer: PackedLayer) -> None:
        """Writes the files of one layer into the tar, in the order of their places in the layer, with a hard link for each further name.

        Raises Corrupt where the layer has become shorter.
        """
        with open_layer(layer.path) as packed:
            stream = LayerStream(packed, UnpackingBudget(1 << 62, 0), str(layer.path.name))
            for file in files:
                first, *others = names[file]
                self._header(_info(first, tarfile.REGTYPE, file.mode, file.mtime, size=file.size))
                stream.skip(file.offset - stream.position)
                self._copy(stream, file.size)
                for other in others:
                    self._header(_info(other, tarfile.LNKTYPE, file.mode, file.mtime, target=first))

    def _copy(self, stream: LayerStream, size: int) -> None:
        """Copies so many bytes of a layer into the tar, filled up to whole blocks. Raises Corrupt where the layer ends before."""
        left = size
        while left > 0:
            piece = stream.read_some(min(left, PIECE_BYTES))
            if not piece:
                raise Corrupt("a layer has become shorter while it was packed", reason="DigestMismatch")
            self._out.write(piece)
            left -= len(piece)
        self._out.write(bytes(-size % BLOCK))

    def _header(self, info: tarfile.TarInfo) -> None:
        """Writes the header of one member."""
        self._out.write(info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape"))


def _info(path: str, kind: bytes, mode: int, mtime: int, *, size: int = 0, target: str = "") -> tarfile.TarInfo:
    """Returns the header of a member of this kind, mode and time, owned by root."""
    info = tarfile.TarInfo(path)
    info.type, info.mode, info.mtime, info.size, info.linkname = kind, mode, mtime, size, target
    return info
