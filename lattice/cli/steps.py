"""Asks the nodes of an allocation, through the gateway, which step before or after the work they are at."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from lattice.cli.gateway import ask_document
from lattice.cli.render.preparation import preparation_text
from lattice.errors import LatticeError
from lattice.lifecycle.preparation import Preparation
from lattice.models.conditions import FINAL_PHASES
from lattice.scheduling.queries.status_rows import phase_of

if TYPE_CHECKING:
    from lattice.cli.console import Console
    from lattice.views import Allocation

PATIENCE_SECONDS = 8.0
"""How long the rest of `lattice status ID` waits for it: agents have twice three seconds."""


def steps_text(console: Console, one: Allocation) -> str:
    """Returns the lines on which step before or after the work the nodes of an allocation are at; empty: at none, or it has no nodes, has
    ended, or is on hollow ones.

    Where the nodes cannot be asked: `unknown` and why while the work waits for them, else empty.
    """
    status, metadata = one.status, one.metadata
    if not status.nodes or status.hollow or phase_of(one) in FINAL_PHASES:
        return ""
    try:
        path = f"/v1/steps/{quote(metadata.namespace)}/{quote(metadata.name)}"
        found = ask_document(console, path, Preparation, PATIENCE_SECONDS)
    except LatticeError as error:
        return "" if status.start_time else f"unknown: {error.message}"
    return preparation_text(found, console.outside.now(), started=bool(status.start_time))
