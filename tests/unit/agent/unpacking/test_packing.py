"""An image's layers become one squashfs file: what each layer changes, and nothing that a layer's author must not do."""

from __future__ import annotations

import gzip
import os
import stat
import subprocess
import tarfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from lattice.errors import LatticeError, Rejected
from lattice_agent.unpacking.image_tree import ImageTree, TreeDirectory, TreeFile
from lattice_agent.unpacking.packing import PackedLayer, merge_layers, pack
from tests.containers import layer, member, packed, sha256
from tests.operations import operations
from tests.squashfs import needs_mksquashfs

LARGEST = 64 << 20


def stored(folder: Path, tars: Sequence[bytes], packing: str = "gzip") -> list[PackedLayer]:
    """The layers as files of the cache."""
    found = []
    for number, tar in enumerate(tars):
        (folder / str(number)).write_bytes(packed(tar, packing))
        found.append(PackedLayer(folder / str(number), sha256(tar)))
    return found


def merged(folder: Path, *tars: bytes, most: int = LARGEST) -> ImageTree:
    """The files that these layers make."""
    return merge_layers(stored(folder, tars), most)


def shown(tree: ImageTree) -> dict[str, str]:
    """What each path is: the layer and size of a file, the target of a link."""
    found = {}
    for path, node in tree.walk():
        if isinstance(node, TreeDirectory):
            found[path] = "/"
        else:
            found[path] = f"{node.layer}:{node.size}" if isinstance(node, TreeFile) else f"-> {node.target}"
    return found


def unpacked(folder: Path, tars: Sequence[bytes], packing: str = "gzip") -> Path:
    """The root directory of the image, made of the packed file by squashfs-tools."""
    layers = stored(folder, tars, packing)
    pack(merge_layers(layers, LARGEST), layers, folder / "image", LARGEST)
    subprocess.run(["unsquashfs", "-q", "-n", "-d", folder / "root", folder / "image"], check=True, stdout=subprocess.DEVNULL)
    return folder / "root"


def link(name: str, target: str) -> Any:
    return member(name, kind=tarfile.SYMTYPE, target=target)


def hard(name: str, target: str) -> Any:
    return member(name, kind=tarfile.LNKTYPE, target=target)


@pytest.mark.parametrize(
    ("tars", "expected"),
    [
        pytest.param(
            [layer(member("a", "1"), member("d"), member("d/b", "22")), layer(member("a", "333"))],
            {"a": "1:3", "d": "/", "d/b": "0:2"}, id="a file replaces a lower one",
        ),
        pytest.param(
            [layer(member("d"), member("d/a", "1"), member("d/b", "2")), layer(member("d/.wh.a", ""))], {"d": "/", "d/b": "0:1"},
            id="a whiteout hides a file",
        ),
        pytest.param(
            [layer(member("d"), member("d/e"), member("d/e/a", "1")), layer(member(".wh.d", ""), member("d"), member("d/n", "2"))],
            {"d": "/", "d/n": "1:1"}, id="a whiteout, then the directory anew",
        ),
        pytest.param(
            [layer(member("d"), member("d/e"), member("d/e/a", "1")), layer(member("d"), member("d/n", "2"), member(".wh.d", ""))],
            {"d": "/", "d/n": "1:1"}, id="a whiteout hides nothing of its own layer",
        ),
        pytest.param(
            [layer(member("d"), member("d/e"), member("d/e/a", "1")), layer(member("d"), member("d/e/n", "2"), member("d/.wh..wh..opq", ""))],
            {"d": "/", "d/e": "/", "d/e/n": "1:1"}, id="an opaque directory shows its own layer alone",
        ),
        pytest.param(
            [layer(member("usr"), member("usr/lib"), link("lib", "usr/lib")), layer(member("lib/x", "1"))],
            {"usr": "/", "usr/lib": "/", "usr/lib/x": "1:1", "lib": "-> usr/lib"}, id="a directory that is a link is followed",
        ),
        pytest.param(
            [layer(link("lib", "../../../etc"), member("etc"), member("etc/a", "1")), layer(member("lib/b", "2"))],
            {"lib": "-> ../../../etc", "etc": "/", "etc/a": "0:1", "etc/b": "1:1"}, id="a link never leads out of the image",
        ),
        pytest.param(
            [layer(member("a"), member("a/x", "1"), link("l", "a")), layer(member("l"), member("a", "file"))],
            {"a": "1:4", "l": "/"}, id="a directory replaces a link, a file a directory",
        ),
        pytest.param(
            [layer(member("a", "1"), hard("b", "a"), hard("c", "./b")), layer(member(".wh.a", ""))], {"b": "0:1", "c": "0:1"},
            id="a hard link outlives the first name",
        ),
        pytest.param(
            [layer(member("./deep/dir/file", "1")), layer(member(".wh..wh.plnk", ""), member("/deep/dir/other", "2"))],
            {"deep": "/", "deep/dir": "/", "deep/dir/file": "0:1", "deep/dir/other": "1:1"}, id="directories that nobody lists",
        ),
        pytest.param(
            [layer(member("dev"), member("dev/null", kind=tarfile.CHRTYPE), member("x", "1"))], {"dev": "/", "x": "0:1"},
            id="devices below dev, which no container sees",
        ),
        pytest.param(
            [layer(member("x" * 120 + "/" + "y" * 200, "1"), link("l", "t" * 300), form=tarfile.GNU_FORMAT)],
            {"l": "-> " + "t" * 300, "x" * 120: "/", "x" * 120 + "/" + "y" * 200: "0:1"}, id="long names as GNU writes them",
        ),
    ],
)  # fmt: skip
def test_layers_are_applied_as_the_specification_says(tmp_path: Path, tars: list[bytes], expected: dict[str, str]) -> None:
    assert shown(merged(tmp_path, *tars)) == expected


@pytest.mark.parametrize(
    ("tars", "said"),
    [
        pytest.param([layer(member("../../etc/cron.d/x", "1"))], "leads out of the image", id="dot dot"),
        pytest.param([layer(member("a/../../x", "1"))], "leads out of the image", id="dot dot amid a path"),
        pytest.param([layer(member("a", "1"), hard("b", "../../etc/shadow"))], "leads out of the image", id="a hard link out"),
        pytest.param([layer(hard("b", "/etc/shadow"))], "which the image does not have", id="a hard link to what the node has"),
        pytest.param([layer(member("d"), hard("b", "d"))], "which is a directory", id="a hard link to a directory"),
        pytest.param([layer(member("disk", kind=tarfile.BLKTYPE))], "/disk is a device node", id="a device node"),
        pytest.param([layer(member("etc/passwd", kind=tarfile.FIFOTYPE))], "/etc/passwd is a named pipe", id="a pipe that root would open"),
        pytest.param([layer(member("x", kind=b"S"))], "kind b'S'", id="a sparse file"),
        pytest.param([layer(member("x", kind=b"Z"))], "kind b'Z'", id="an unknown kind"),
        pytest.param([layer(link("a", "b"), link("b", "a"), member("a/x", "1"))], "no directory", id="links in a circle"),
        pytest.param([layer(member("a", "1"), member("a/x", "1"))], "no directory", id="a file below a file"),
        pytest.param([layer(member("n" * 256, "1"))], "no file may have", id="a name too long"),
        pytest.param([layer(member("d/.wh...", ""))], "names no file", id="a whiteout of the directory above"),
        pytest.param([layer(member("a", "1"))[:512]], "cut off", id="a layer cut off"),
        pytest.param([b"\x01" * 512], "damaged header", id="no tar"),
        pytest.param([layer(member("a", "x" * (LARGEST + 1)))], "unpacks to more than", id="more than may be unpacked"),
    ],
)
def test_what_no_image_may_have_is_refused(tmp_path: Path, tars: list[bytes], said: str) -> None:
    with pytest.raises(Rejected, match=said) as refused:
        merged(tmp_path, *tars)
    assert refused.value.reason == "ImageRefused"


def test_a_directory_is_hidden_once_a_layer_however_often_that_is_said(tmp_path: Path) -> None:
    def steps(files: int) -> int:
        below = layer(*(member(f"d/{number}", "1") for number in range(files)))
        above = [member("d/.wh..wh..opq", ""), *(member(f"d/new{number}", "1") for number in range(files))]
        layers = stored(tmp_path, [below, layer(*above, *(member("d/.wh..wh..opq", "") for _ in range(files)))])
        assert set(shown(merge_layers(layers, LARGEST))) == {"d", *(f"d/new{number}" for number in range(files))}
        return operations(lambda: merge_layers(layers, LARGEST))

    assert steps(400) < 6 * steps(100), "each time all files were sought: sixteen times as much"


def test_attributes_that_only_the_kernel_may_set_are_refused(tmp_path: Path) -> None:
    info, body = member("a", "1")
    info.pax_headers = {"SCHILY.xattr.trusted.overlay.redirect": "/etc"}
    with pytest.raises(Rejected, match=r"trusted\.overlay\.redirect"):
        merged(tmp_path, layer((info, body)))


def test_a_terabyte_of_zeros_is_refused_by_its_header_and_a_bomb_by_its_bytes(tmp_path: Path) -> None:
    info = tarfile.TarInfo("zeros")
    info.size = 1 << 40
    (tmp_path / "claims").write_bytes(info.tobuf(tarfile.GNU_FORMAT))
    zeros = gzip.compress(bytes(1 << 24))

    def steps(name: str) -> int:
        def refuse() -> None:
            with pytest.raises(Rejected, match=r"software\.largestImage"):
                merge_layers([PackedLayer(tmp_path / name, "")], LARGEST)

        refuse()  # what is imported once does not count
        return operations(refuse)

    def bomb(first: bytes, pieces: int) -> int:
        (tmp_path / "bomb").write_bytes(gzip.compress(first) + zeros * pieces)
        return steps("bomb")

    assert steps("claims") < 100_000
    for first in (info.tobuf(tarfile.GNU_FORMAT), layer(member("a", "1"))):  # the end of the tar is not the end of the bytes
        assert bomb(first, 64) < 2 * bomb(first, 8), "what comes after the limit was unpacked"


def test_too_many_files_and_too_large_headers_are_refused(tmp_path: Path) -> None:
    layers = stored(tmp_path, [layer(*(member(f"f{number}", "") for number in range(50)))])
    with pytest.raises(Rejected, match="more than 40 files"):
        merge_layers(layers, LARGEST, 40)
    deep = stored(tmp_path, [layer(*(member(f"{number}/" + "d/" * 20 + "f", "") for number in range(3)))])
    with pytest.raises(Rejected, match="more than 40 files"):  # directories that no member lists are files, too
        merge_layers(deep, LARGEST, 40)
    header = tarfile.TarInfo("x")
    header.type, header.size = tarfile.XHDTYPE, 1 << 30
    with pytest.raises(Rejected, match="a header of 1073741824 bytes"):
        merged(tmp_path, header.tobuf(tarfile.GNU_FORMAT))


@pytest.mark.parametrize("damage", [lambda raw: raw[:-9], lambda raw: raw[:40] + bytes(20) + raw[60:]], ids=["cut off", "changed"])
@pytest.mark.parametrize("packing", ["gzip", "zstd"])
def test_a_damaged_layer_is_refused(tmp_path: Path, damage: Any, packing: str) -> None:
    tar = layer(member("a", os.urandom(5000)))
    (tmp_path / "0").write_bytes(damage(packed(tar, packing)))
    with pytest.raises(Rejected, match=r"cannot be unpacked|cut off|unpacks to|damaged header"):
        merge_layers([PackedLayer(tmp_path / "0", sha256(tar))], LARGEST)


def test_a_layer_that_is_not_what_the_configuration_says_is_refused(tmp_path: Path) -> None:
    (tmp_path / "0").write_bytes(packed(layer(member("a", "1")), "gzip"))
    with pytest.raises(Rejected, match="where its configuration says sha256:beef"):
        merge_layers([PackedLayer(tmp_path / "0", "sha256:beef")], LARGEST)


@needs_mksquashfs()
@pytest.mark.parametrize("packing", ["gzip", "zstd", "tar"])
def test_the_packed_image_has_the_files_as_they_were_but_roots_and_without_power(tmp_path: Path, packing: str) -> None:
    lower = layer(
        member("bin"), member("bin/tool", "#!/bin/sh\n", mode=0o4755), hard("bin/same", "bin/tool"), member("tmp", mode=0o1777),
        link("bin/abs", "/etc/passwd"), hard("bin/link", "bin/abs"), member("gone", "x"), member("empty", b""),
        member("big", bytes(range(256)) * 9000), member("na\udce9me", "latin"),
    )  # fmt: skip
    root = unpacked(tmp_path, [lower, layer(member(".wh.gone", ""), member("new", "2"))], packing)
    assert sorted(path.relative_to(root).as_posix() for path in root.rglob("*")) == [
        "big", "bin", "bin/abs", "bin/link", "bin/same", "bin/tool", "empty", "na\udce9me", "new", "tmp",
    ]  # fmt: skip
    tool = (root / "bin/tool").stat()
    assert (stat.S_IMODE(tool.st_mode), tool.st_uid, tool.st_nlink, int(tool.st_mtime)) == (0o755, 0, 2, 1_700_000_000)
    assert stat.S_IMODE(root.stat().st_mode) == 0o755
    assert ((root / "bin/abs").readlink(), (root / "big").read_bytes()) == (Path("/etc/passwd"), bytes(range(256)) * 9000)


@needs_mksquashfs()
def test_the_same_image_gives_the_same_bytes(tmp_path: Path) -> None:
    tars = [layer(*(member(f"d/{number}", str(number) * 5000) for number in range(40))), layer(member("d/7", "seven"))]
    found: list[str] = []
    for name in ("one", "two"):
        if found:
            time.sleep(1.1)  # mksquashfs writes seconds of the machine's clock unless it is told otherwise
        (tmp_path / name).mkdir()
        layers = stored(tmp_path / name, tars)
        pack(merge_layers(layers, LARGEST), layers, tmp_path / name / "image", LARGEST)
        found.append(sha256((tmp_path / name / "image").read_bytes()))
    assert found[0] == found[1]


@needs_mksquashfs()
def test_a_packed_file_beyond_its_room_is_said_to_find_none(tmp_path: Path) -> None:
    layers = stored(tmp_path, [layer(member("noise", os.urandom(8 << 20)))])
    with pytest.raises(LatticeError) as failed:
        pack(merge_layers(layers, LARGEST), layers, tmp_path / "image", 1 << 20)
    assert (failed.value.reason, (tmp_path / "image").exists()) == ("CacheFull", False)
