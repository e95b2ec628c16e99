"""`lattice version`: prints the versions of this program, of the cluster's Lattice, and of Kubernetes."""

from __future__ import annotations

import argparse
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from lattice.cli import exits
from lattice.cli.render.text import fields
from lattice.errors import Denied, LatticeError, NotFound
from lattice.kube.resources import CONFIG_MAPS

if TYPE_CHECKING:
    from lattice.cli.console import Console

INTERMIXED = True


def arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `version`."""
    parser.add_argument("--client", action="store_true", help="only of this program")


def run(console: Console) -> int:
    """Prints the versions; a cluster that cannot be reached is mentioned, and the exit code is still 0."""
    found = {"client": client_version(), "cluster": "", "kubernetes": ""}
    if not console.args.client:
        try:
            found["kubernetes"] = console.cluster.version().get("gitVersion", "")
            found["cluster"] = _cluster(console)
        except LatticeError as error:
            console.note(f"Note: {error.message}")
    if console.format in ("json", "yaml"):
        console.document({"schema": "lattice.dev/version/v1", **{key: value or None for key, value in found.items()}})
    else:
        console.say(*fields([("Lattice CLI", found["client"]), ("Lattice", found["cluster"]), ("Kubernetes", found["kubernetes"])]))
    return exits.DONE


def client_version() -> str:
    """Returns the version of the installed distribution; `not installed` where it runs from a source tree."""
    try:
        return version("lattice-hpc")
    except PackageNotFoundError:
        return "not installed"


def _cluster(console: Console) -> str:
    """Returns the version of Lattice in the cluster; empty where it is not there or may not be read."""
    try:
        data = console.cluster.get(CONFIG_MAPS, "lattice-public", "lattice-system", type=dict[str, Any]).get("data") or {}
    except (NotFound, Denied):
        return ""
    return str(data.get("version", ""))
