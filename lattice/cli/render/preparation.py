"""The steps of nodes before and after the work of an allocation, as `lattice status ID` shows them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lattice.cli.render.text import memory, plural, span
from lattice.lifecycle.preparation import UNDOING, NodeSteps, Preparation, StepRow
from lattice.units import format_time

MOST_LINES = 4
"""Nodes that have a line each; of more the steps have."""


def preparation_text(found: Preparation, now: float, *, started: bool) -> str:
    """Returns a line a node that is at some step, or a line a step where these are many, then how many are ready, or have not begun.

    Empty where the work runs and nothing is undone.
    """
    busy = [(node.node, step) for node in found.nodes if (step := node.current) is not None]
    silent = [node.message for node in found.nodes if node.message]
    if started and not busy:
        return ""
    lines = list(_by_node(busy, now) if len(busy) <= MOST_LINES else _by_step(busy, now))
    return "\n".join([*lines, *_counts(found, busy), *silent[:MOST_LINES]])


def _by_node(busy: Sequence[tuple[str, StepRow]], now: float) -> Iterator[str]:
    """Yields a line for each node that is busy with a step: which one, how many bytes, for how long; and one on what keeps it."""
    for node, step in busy:
        yield f"{node}: {_words(step)}{_bytes([step])}{_time([step], now)}"
        if step.waits:
            yield _wait(step, now)


def _by_step(busy: Sequence[tuple[str, StepRow]], now: float) -> Iterator[str]:
    """Yields a line for each step that nodes are at, with the node that has been at it for longest; and one on what keeps some of them."""
    for words in dict.fromkeys(_words(step) for _, step in busy):
        these = [(node, step) for node, step in busy if _words(step) == words]
        steps = [step for _, step in these]
        longest = min(these, key=lambda pair: pair[1].since or float("inf"))[0]
        yield f"{words} on {plural(len(these), 'node')}{_bytes(steps)}{_time(steps, now)} ({longest} for longest)"
        if waiting := [step for step in steps if step.waits]:
            first = min(waiting, key=lambda step: step.waits_since)
            yield f"{plural(len(waiting), 'node')} of these:{_wait(first, now)}"


def _counts(found: Preparation, busy: Sequence[tuple[str, StepRow]]) -> list[str]:
    """Returns at most one line: how many nodes are ready, have not begun, or were not asked."""
    at = {node for node, _ in busy}
    rest: list[NodeSteps] = [node for node in found.nodes if node.node not in at and not node.message]
    ready = sum(1 for node in rest if node.steps)
    counts = ((ready, "ready"), (len(rest) - ready, "not begun"), (found.left_out, "not asked"))
    words = [f"{plural(count, 'node')} {what}" for count, what in counts if count]
    return [", ".join(words)] if words else []


def _words(step: StepRow) -> str:
    """Returns a step's name, and that it is being undone where it is."""
    return f"undoing {step.name}" if step.state == UNDOING else step.name


def _wait(step: StepRow, now: float) -> str:
    """Returns a line, indented, on how long a step has waited, since when and for what."""
    return f"  waiting for {span(max(0.0, now - step.waits_since))} (since {format_time(int(step.waits_since))}): {step.waits}"


def _bytes(steps: Sequence[StepRow]) -> str:
    """Returns how many bytes of how many these steps have done, with a comma before it; empty where they have no size."""
    size = sum(step.size for step in steps)
    return f", {memory(sum(step.bytes for step in steps)) or 0} of {memory(size)}" if size else ""


def _time(steps: Sequence[StepRow], now: float) -> str:
    """Returns for how long the first of these steps has run, with a comma before it; empty below a second or where it is not known."""
    since = min((step.since for step in steps if step.since), default=0.0)
    return f", for {span(now - since)}" if since and now - since >= 1 else ""
