"""The NodeHistory as the scheduler reads it."""

from __future__ import annotations

from lattice.views.meta import Metadata, View


class NodeHistorySpec(View, frozen=True):
    """One page of a node's journal; `lattice.ledger.history` parses the rows."""

    node: str = ""
    recovery: str = ""
    page: int = 0
    pages: int = 1
    made: int = 0
    rows: str = ""


class NodeHistory(View, frozen=True):
    """One page of a node's answer to a recovery."""

    metadata: Metadata
    spec: NodeHistorySpec = NodeHistorySpec()
