"""NodeHistory: what a node has journaled, written by its agent when the ledger is recovered, and removed afterwards."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from lattice.models.shape import LINE_PATTERN, Column, Kind, Meta, Part, Rule

LARGEST_ROWS = 131072
"""Bytes of the rows of one page, at most."""


class NodeHistorySpec(Part):
    """One page of a node's answer to a recovery: attempts from its journal, one line each."""

    node: Annotated[str, Field(min_length=1, max_length=253)]
    """The node that tells it."""
    recovery: Annotated[str, Field(pattern=LINE_PATTERN, min_length=1, max_length=32)]
    """The recovery that it answers."""
    page: Annotated[int, Field(ge=0, le=99999)] = 0
    """Number of this page, from 0."""
    pages: Annotated[int, Field(ge=1, le=100000)] = 1
    """How many pages the answer has."""
    made: Annotated[int, Field(ge=0)] = 0
    """When the node's state directory was made, in seconds since the epoch: what was before, the node does not know."""
    rows: Annotated[str, Field(max_length=LARGEST_ROWS)]
    """One line an attempt; format in docs/explanation/formats.md."""

    rules: ClassVar = (Rule("self.node == oldSelf.node", "a NodeHistory keeps its node"),)


class NodeHistory(Kind):
    """The attempts that a node has journaled since the snapshot from which etcd was restored; one object is one numbered page."""

    meta: ClassVar = Meta(
        kind="NodeHistory",
        plural="nodehistories",
        short_names=("nhist",),
        namespaced=False,
        columns=(
            Column("Node", ".spec.node"),
            Column("Recovery", ".spec.recovery"),
            Column("Page", ".spec.page", "integer"),
            Column("Pages", ".spec.pages", "integer"),
            Column("Age", ".metadata.creationTimestamp", "date"),
        ),
    )
    kind: str = "NodeHistory"
    spec: NodeHistorySpec
    """The page."""
