"""Files that people name are read whole or refused."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from lattice.cli import submission
from lattice.cli.files import read_bounded, read_file
from lattice.errors import Rejected

MANIFEST = b"apiVersion: lattice.dev/v1alpha1\nkind: Allocation\nmetadata: {name: one}\nspec: {entrypoint: 'true'}\n"


@pytest.mark.parametrize("size", [9, 10])
def test_what_fits_is_read_whole(tmp_path: Path, size: int) -> None:
    (tmp_path / "file").write_bytes(b"x" * size)
    assert read_file(str(tmp_path / "file"), 10) == read_bounded(io.BytesIO(b"x" * size), 10, "it") == b"x" * size


def test_what_is_longer_is_refused_and_never_cut(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 11)
    with pytest.raises(Rejected, match="file is longer than 10 bytes"):
        read_file(str(tmp_path / "file"), 10)
    with pytest.raises(Rejected, match="it is longer than 10 bytes"):
        read_bounded(io.BytesIO(b"x" * 11), 10, "it")


def test_no_allocation_of_a_long_manifest_is_dropped_without_a_word() -> None:
    more = b"---\n".join([MANIFEST] * (submission._LONGEST_MANIFEST // len(MANIFEST) + 1))
    with pytest.raises(Rejected, match="standard input is longer than 8388608 bytes"):
        submission.read_manifests("-", io.BytesIO(more))
