"""The version of what runs: that of the installed distribution, else of the working tree."""

from __future__ import annotations

import importlib.metadata
import tomllib
from pathlib import Path


def version() -> str:
    """Returns the version of Lattice, such as `0.1.0`: of the installed distribution, else of the working tree."""
    try:
        return importlib.metadata.version("lattice-hpc")
    except importlib.metadata.PackageNotFoundError:
        text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
        return str(tomllib.loads(text)["project"]["version"])
