"""Answers of the gateway about the steps of an attempt on its nodes, before and after the work, as `lattice status ID` shows them."""

from __future__ import annotations

import msgspec

BEGUN, DONE, UNDOING, UNDONE = "Begun", "Done", "Undoing", "Undone"


class StepRow(msgspec.Struct, rename="camel", frozen=True):
    """One step of a prologue on a node: `state` is Begun, Done, Undoing or Undone; `since` in seconds since the epoch (0: unknown); of the
    bytes that it brings now, `bytes` of `size` stand (0: it brings nothing).
    """

    name: str
    state: str
    since: float = 0.0
    bytes: int = 0
    size: int = 0
    begun: float = 0.0
    """When it began, seconds since the epoch; 0: unknown."""
    done: float = 0.0
    """When it was done; 0: it is not."""
    waits: str = ""
    """What keeps it: what the registry failed of that it asks again; empty: nothing."""
    waits_since: float = 0.0
    """Since when, seconds since the epoch."""


class NodeSteps(msgspec.Struct, rename="camel", frozen=True):
    """The begun steps of one node in order; where its agent cannot be asked, `message` says why."""

    node: str
    steps: list[StepRow]
    message: str = ""

    @property
    def current(self) -> StepRow | None:
        """Returns the step that is carried out or undone now; None: every begun one is done."""
        return next((step for step in self.steps if step.state != DONE), None)


class Preparation(msgspec.Struct, rename="camel", frozen=True):
    """The nodes of an allocation's present attempt that were asked; `left_out`: how many more it has."""

    attempt: int
    nodes: list[NodeSteps]
    left_out: int = 0
