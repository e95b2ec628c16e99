"""`python -m lattice_dev.generate`: write CRDs, a policy, a table of forms, stubs, reference pages, JSON Schemas; `--check` compares."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from lattice_dev.generate import crds, patterned, policies, references, schemas, stubs

ROOT = Path(__file__).resolve().parents[3]


def generated(root: Path) -> dict[Path, str]:
    """Returns the text that each generated file shall have, by path; writes nothing below `root`."""
    reference = root / "docs" / "reference"
    chart = policies.files(root / "charts" / "lattice" / "files")
    return {
        **crds.files(root / "crds"),
        **chart,
        **patterned.files(root),
        **references.files(reference),
        **schemas.files(reference / "schemas"),
        **_stubs(root),
    }


def _stubs(root: Path) -> dict[Path, str]:
    """Returns the protobuf stubs, made in a temporary folder, because protoc writes files itself."""
    with tempfile.TemporaryDirectory(prefix="lattice-stubs-") as folder:
        beside = Path(folder)
        shutil.copytree(root / "proto", beside / "proto")
        return {root / path.relative_to(beside): path.read_text(encoding="utf-8") for path in stubs.generate(beside)}


def drifted(root: Path) -> list[Path]:
    """Returns the paths, sorted, of files that differ from what would be generated, are missing, or exist without a source in a folder of
    generated files (those of the chart and of admission aside).
    """
    wanted = generated(root)
    by_hand = {root / "charts" / "lattice" / "files", root / "lattice" / "admission"}  # but for a file each
    folders = {path.parent for path in wanted} - by_hand
    standing = {path for folder in folders for path in folder.glob("*.*")}
    differing = {path for path, text in wanted.items() if not path.is_file() or path.read_text(encoding="utf-8") != text}
    return sorted(differing | (standing - set(wanted)))


def write(root: Path) -> list[Path]:
    """Writes every generated file that differs, and deletes those without a source; returns the paths of both."""
    changed = drifted(root)
    wanted = generated(root)
    for path in changed:
        if path in wanted:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(wanted[path], encoding="utf-8")
        else:
            path.unlink()
    return changed


def main() -> int:
    """Writes all generated files, or with --check only names those that differ; returns 1 where one does."""
    parser = argparse.ArgumentParser(
        prog="python -m lattice_dev.generate", description="Write CRDs, a policy, protobuf stubs and reference pages."
    )
    parser.add_argument("--check", action="store_true", help="name the files that differ, write nothing, end with 1 if any does")
    parser.add_argument("--root", type=Path, default=ROOT, help="the checkout")
    arguments = parser.parse_args()
    paths = drifted(arguments.root) if arguments.check else write(arguments.root)
    for path in paths:
        sys.stdout.write(f"{'differs' if arguments.check else 'wrote'} {path.relative_to(arguments.root)}\n")
    return 1 if arguments.check and paths else 0


if __name__ == "__main__":
    raise SystemExit(main())
