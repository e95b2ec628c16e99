"""Work that found no nodes in a cycle, kept until something happens that could give it some (kube-scheduler: unschedulable pods).

Nodes that are taken and reservations that are given only take away, and so does time, until the rounding of ends or a window changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from lattice.scheduling.model.work import Candidate

Opportunities = tuple[object, ...]
"""Stamp of all that may give nodes to waiting work; see `ClusterState.opportunities`."""


class Unschedulable(NamedTuple):
    """The work of a vcluster that found no nodes in its last cycle, by uid, and when."""

    candidates: Mapping[str, Candidate]
    at: float
    """Seconds since the epoch."""
    opportunities: Opportunities
    """At the end of that cycle."""
