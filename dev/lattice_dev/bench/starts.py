"""Joins the daemons' `--trace-starts` lines by uid into one timeline for each start; pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from lattice.daemon.starts import LINE, STEPS
from lattice.errors import NotFound
from lattice_dev.bench.auditlog import Moment
from lattice_dev.bench.figures import percentile, shown

COVERS: Final = {
    "post": "the request reaches the API server and, from there, the webhook",
    "webhook": "the webhook fills in and judges",
    "informer": "the API server checks and stores, the scheduler's watch brings it",
    "queue": "it is made a candidate; changes gather for a cycle",
    "cycle": "scored, placed, proposed",
    "batch": "the committer is free",
    "commit": "one write of the Ledger",
    "plan": "one write of the nodes' plan",
    "watch": "the last node's agent reads the plan",
    "ask": "the last node's question reaches a gateway",
    "read": "the last node knows the work",
    "probe": "account, directories and output files are looked at",
    "prepare": "journal, script and scope are laid down on the last node",
    "gather": "the reporter has heard that every node is ready",
    "ready": "the order to start reaches the first node",
    "fork": "runner and shim are forked, the right to start is taken",
    "exec": "the first process runs",
}
"""The part of a start that each step covers, from the step before it; up to `gather` the last node counts, after it the first."""
WIDTH: Final = 52
_BY_LAST_NODE: Final = frozenset(STEPS[: STEPS.index("gather")])
_PAIR: Final = re.compile(r"(\w+)=(\S+)")
_SET_SECONDS: Final = 0.005
"""Both clocks of two lines differ by less than this, unless somebody has set one of them."""


@dataclass(frozen=True, slots=True)
class StepLine:
    """One log line: the step that was done, and when, in seconds since the epoch; `offset` is the epoch of boottime 0."""

    allocation: str
    step: str
    at: float
    offset: float
    node: str = ""
    key: str = ""


@dataclass(frozen=True, slots=True)
class TracedStart:
    """One start as the submitter saw it: when the POST began and when the first process ran, in seconds since the epoch."""

    uid: str
    key: str
    began: float
    first: float


def read_steps(lines: Iterable[str]) -> Iterator[StepLine]:
    """Yields the steps in a daemon's log, text or JSON; other lines, and lines without all fields, are ignored."""
    for line in lines:
        if LINE not in line:
            continue
        fields = json.loads(line) if line.startswith("{") else dict(_PAIR.findall(line))
        if {"allocation", "step", "boottime", "epoch"} <= fields.keys():
            at = float(fields["epoch"])
            yield StepLine(
                fields["allocation"], fields["step"], at, at - float(fields["boottime"]), fields.get("node", ""), fields.get("key", "")
            )


def whole_starts(steps: Iterable[StepLine]) -> list[TracedStart]:
    """Returns the starts that end with a first process and whose uid and name one line joins, each from the first step that is there."""
    keys, times = dict[str, str](), dict[str, dict[str, float]]()
    for step in steps:
        keys |= {step.allocation: step.key} if step.key else {}
        times.setdefault(step.allocation, {}).setdefault(step.step, step.at)
    found = []
    for uid, key in keys.items():
        when = times[uid] | times.get(key, {})
        if "exec" in when:
            found.append(TracedStart(uid, key, min(when.values()), when["exec"]))
    return found


def report(lines: Iterable[str]) -> list[str]:
    """Returns a table of all starts in the daemons' logs, and the slowest as a timeline; raises NotFound where none is complete."""
    steps = list(read_steps(lines))
    found = {start: ends(start, steps) for start in whole_starts(steps)}
    if not found:
        raise NotFound("no start is whole in these logs: scheduler and agents have to run with --trace-starts", reason="NotTraced")
    slowest = max(found, key=lambda start: found[start]["exec"])
    return [f"{len(found)} starts", *table(list(found.values())), *timeline(slowest, found[slowest], ())]


def clock_was_set(steps: Sequence[StepLine]) -> bool:
    """Tells whether the machine's clock was set between two of these steps, so that their times cannot be compared."""
    offsets = [step.offset for step in steps]
    return bool(offsets) and max(offsets) - min(offsets) > _SET_SECONDS


def ends(start: TracedStart, steps: Iterable[StepLine]) -> dict[str, float]:
    """Returns when each step of a start that was logged was done, in seconds from its POST, in the order of `STEPS`, up to `gather` by the
    last node, after it by the first; raises NotFound without any.

    A step that was still under way when a later one was done (the answer to a write comes after its watch event) ends with that.
    """
    found: dict[str, dict[str, float]] = {}
    for step in steps:
        if step.allocation in (start.uid, start.key) and step.at >= start.began:  # not of an earlier one of the same name
            nodes, at = found.setdefault(step.step, {}), step.at - start.began
            nodes[step.node] = max(nodes.get(step.node, at), at) if step.step == "webhook" else min(nodes.get(step.node, at), at)
    if not found:
        raise NotFound(f"no line of the start of {start.key}: do the daemons run with --trace-starts?", reason="NotTraced")
    when: dict[str, float] = {name: (max if name in _BY_LAST_NODE else min)(found[name].values()) for name in STEPS if name in found}
    when["exec"] = latest = start.first - start.began
    for name in reversed(when):
        when[name] = latest = min(when[name], latest)
    return when


def took(when: Mapping[str, float]) -> dict[str, float]:
    """Returns how long each step took, from the end of the step before it, in seconds."""
    stretches, before = {}, 0.0
    for name, at in when.items():
        stretches[name], before = at - before, at
    return stretches


def table(starts: Sequence[Mapping[str, float]]) -> list[str]:
    """Returns the table of steps over these starts (`ends` of each): median and p99 in milliseconds, share of the whole.

    Each line says what its step covers.
    """
    stretches = [took(when) for when in starts]
    whole = sum(when["exec"] for when in starts)
    lines = [f"{'STEP':<9}{'P50':>8}{'P99':>8}{'SHARE':>8}  COVERS"]
    for name in STEPS:
        values = [each[name] for each in stretches if name in each]
        if values:
            middle, tail = (shown(percentile(values, share) * 1000) for share in (0.5, 0.99))
            lines.append(f"{name:<9}{middle:>8}{tail:>8}{sum(values) / whole:>8.1%}  {COVERS[name]}")
    totals = [when["exec"] * 1000 for when in starts]
    return [*lines, f"{'all':<9}{shown(percentile(totals, 0.5)):>8}{shown(percentile(totals, 0.99)):>8}{'100.0%':>8}  milliseconds"]


def timeline(start: TracedStart, when: Mapping[str, float], requests: Iterable[Moment]) -> list[str]:
    """Returns one start as a bar a step, and below the writes that the API server answered meanwhile; in milliseconds."""
    whole, before = when["exec"], 0.0
    lines = [f"{start.key}: {whole * 1000:.1f} ms from its POST to its first process"]
    for name, at in when.items():
        lines.append(_bar(name, before, at, whole))
        before = at
    writes = []
    for request in requests:
        began, ended = request.received - start.began, request.answered - start.began
        if ended > 0 and began < whole:
            writes.append(_bar(request.what, max(0.0, began), min(ended, whole), whole))
    return [*lines, *(["writes that the API server answered meanwhile:"] if writes else []), *writes]


def _bar(name: str, began: float, ended: float, whole: float) -> str:
    """Returns the line of one step: its name, begin and length in milliseconds, and a bar within the whole."""
    first = min(WIDTH - 1, int(began / whole * WIDTH))
    length = max(1, round(ended / whole * WIDTH) - first)
    bar = (" " * first + "█" * length)[:WIDTH]
    return f"  {name:<26.26}{began * 1000:>7.1f}{(ended - began) * 1000:>7.1f}  {bar}".rstrip()
