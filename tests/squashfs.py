"""Squashfs images for tests, made by mksquashfs, as `uenv` and its users build them."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest


def needs_mksquashfs() -> pytest.MarkDecorator:
    """Skips where images cannot be made; in CI nothing of it is skipped."""
    return pytest.mark.skipif(shutil.which("mksquashfs") is None, reason="mksquashfs (squashfs-tools) is not installed")


def make_image(path: Path, files: Mapping[str, str], metadata: Mapping[str, Any] | str | None = None) -> Path:
    """Makes an image with these texts, `meta/env.json` among them where given; programs are those that begin with #!."""
    with tempfile.TemporaryDirectory() as name:
        tree = Path(name, "tree")
        tree.mkdir(mode=0o755)
        for inside, text in files.items():
            file = tree / inside
            file.parent.mkdir(parents=True, exist_ok=True)
            if text.startswith("-> "):
                file.symlink_to(text.removeprefix("-> "))
            else:
                file.write_text(text)
                file.chmod(0o755 if text.startswith("#!") else 0o644)
        if metadata is not None:
            (tree / "meta").mkdir(exist_ok=True)
            (tree / "meta/env.json").write_text(metadata if isinstance(metadata, str) else json.dumps(metadata), errors="surrogateescape")
        argv = ["mksquashfs", str(tree), str(path), "-comp", "gzip", "-noappend", "-no-progress", "-all-root", "-quiet"]
        subprocess.run(argv, check=True, capture_output=True)
    path.chmod(0o644)
    return path


def described(name: str, mount: str, views: Mapping[str, Mapping[str, Any]] | None = None, default: str = "") -> dict[str, Any]:
    """The description of an image; `views` are, by name, their `values`: lists and scalars."""
    made = {view: {"description": "", "env": {"version": 1, "type": "augment", "values": values}} for view, values in (views or {}).items()}
    return {"name": name, "mount": mount, "views": made} | ({"default-view": default} if default else {})
