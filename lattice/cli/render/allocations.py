"""Renders Allocations for people: one line each, the status table, and everything about one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from lattice.cli.render.answers import expected_sentence
from lattice.cli.render.launches import totals_text
from lattice.cli.render.status_table import kill_words
from lattice.cli.render.text import age, clock, fields, memory, plural, span
from lattice.lifecycle.conditions import condition
from lattice.models.conditions import CANCELLED, COMPLETED, ENDING, PENDING, STAGED
from lattice.scheduling.queries.answers import ExpectedStart
from lattice.scheduling.queries.status_rows import (
    blocker,
    expected_of,
    is_final,
    leaving,
    phase_of,
    place_or_reason,
    since,
    submitted,
)
from lattice.units import parse_duration, parse_quantity, parse_time
from lattice.views import Allocation, Attempt, Exit
from lattice.workflow.mutexes import MUTEX

MOST_EDGES_SHOWN: Final = 20
_EDGE_STATES: Final = {"": "open", "M": "met", "F": "never met", "N": "never met, as nothing failed"}


def label(allocation: Allocation) -> str:
    """Returns how sentences name an allocation: its number, or its name while it has none."""
    return str(allocation.status.number or allocation.metadata.name)


def kill_sentence(allocation: Allocation, now: float) -> str:
    """Returns when KILL follows, for started work that is being ended or has exceeded its walltime; empty for other work."""
    lifecycle, status = allocation.spec.lifecycle, allocation.status
    if is_final(allocation) or not status.start_time or status.end_time:
        return ""
    at = parse_time(status.kill_time) if status.kill_time else None
    over = parse_time(status.start_time) + _seconds(allocation)
    if at is None and lifecycle.walltime and over < now:
        at = over + parse_duration(lifecycle.grace_period)
    return kill_words(at, now)


def end_lines(allocation: Allocation) -> list[str]:
    """Returns the lines on an ended allocation: its state, and if it did not complete, why and where to look."""
    name, state = label(allocation), state_line(allocation)
    if phase_of(allocation) == COMPLETED:
        return [f"{name} {state}"]
    why = reason_sentence(allocation)
    more = [f"  {why}"] if why not in ("", phase_of(allocation)) and f"({why})" not in state else []
    hint = [f"  Hint: lattice logs {name}"] if allocation.status.start_time else []
    return [f"{name} {state}", *more, *hint]


def state_line(allocation: Allocation) -> str:
    """Returns the phase, followed by the nodes or the reason where they add something."""
    wish = leaving(allocation)
    phase, more = phase_of(allocation), f"({wish})" if wish else place_or_reason(allocation)
    return phase if more == f"({phase})" else f"{phase} {more}".rstrip()


def reason_sentence(allocation: Allocation) -> str:
    """Returns the reason and its sentence, without repeating words of the reason; for work that somebody wants to end, that and when KILL
    follows.

    Empty without a reason.
    """
    why, wish = blocker(allocation), leaving(allocation)
    if wish not in ("", ENDING):
        return f"{wish}: TERM follows at once, and KILL {allocation.spec.lifecycle.grace_period} after it"
    if why is None:
        return ""
    message = why.message.removeprefix("cancelled").removeprefix(": ") if why.reason == CANCELLED else why.message
    return f"{why.reason}: {message}" if message else why.reason


def allocation_details(one: Allocation, now: float, steps: str = "", *, width: int = 0) -> list[str]:
    """Returns the lines of `lattice status` on one allocation, from what it asks for to how its attempts ended.

    `steps`: the lines on what its nodes do before or after the work; empty: nothing. `width`: of the terminal, 0 for no limit.
    """
    spec, status = one.spec, one.status
    state = phase_of(one) + (f" since {since(one)} ({age(since(one), now)})" if since(one) else "")
    attempts = "\n".join(map(attempt_sentence, status.attempts))
    return fields(
        [
            ("Allocation", f"{status.number or ''} {one.metadata.namespace}/{one.metadata.name}".strip()),
            ("Job name", spec.tags.get("name", "")),
            ("State", state),
            ("Reason", reason_sentence(one)),
            ("Ending", kill_sentence(one, now)),
            ("Cancel", f"requested: {spec.cancel.reason or 'no reason given'}" if spec.cancel is not None else ""),
            ("Exit", _exit(status.exit)),
            ("Used", _used(status.exit)),
            ("Launches", totals_text(status.launches)),
            ("Nodes", _nodes(one)),
            ("Head node", status.head),
            ("Steps", steps),
            ("Staged", _staged(one)),
            ("Attempt", f"{status.attempt} of at most {spec.lifecycle.requeue.max + 1}" if status.attempt > 1 else ""),
            ("Earlier", attempts),
            ("User", spec.user),
            ("Tenant", spec.tenant + (f", project {spec.project}" if spec.project else "")),
            ("VCluster", spec.vcluster),
            ("Class", str(spec.lifecycle.preemption_class)),
            ("Score", status.score.total if status.score is not None else ""),
            ("Walltime", _walltime(one, now)),
            ("Again", f"what {spec.rerun_of} did" if spec.rerun_of else ""),
            ("Depends on", "\n".join(edge_lines(one))),
            ("Submitted", f"{submitted(one)} ({age(submitted(one), now)} ago)" if submitted(one) else ""),
            ("Expected start", expected_sentence(_expected(one), now)),
            ("Started", status.start_time or ""),
            ("Ended", status.end_time or ""),
            ("Not before", spec.lifecycle.not_before or ""),
            ("Hollow", "it ran on hollow nodes, which only wait" if status.hollow else ""),
            ("UID", one.metadata.uid),
            ("Next", _next(one)),
        ],
        width,
    )


def edge_lines(one: Allocation, states: Mapping[int, str] | None = None) -> list[str]:
    """Returns a line for each entry of spec.dependsOn, open ones first, 20 at most: `Success of prep: open, Running`.

    `states`: by place in spec.dependsOn, the present state of the work that it names; where it is not known nothing is said of it.
    """
    answers = {edge.index: edge for edge in one.status.edges}
    asked = sorted(enumerate(one.spec.depends_on), key=lambda entry: bool(entry[0] in answers and answers[entry[0]].answer))
    lines = []
    for index, edge in asked[:MOST_EDGES_SHOWN]:
        found = answers.get(index)
        letter, due = (found.answer, found.due) if found is not None else ("", None)
        state = f", {states[index]}" if states and index in states else ""
        late = f", its delay until {due}" if due else f" + {edge.delay}" if edge.delay else ""
        what = f"{edge.condition} {edge.ref}" if edge.condition == MUTEX else f"{edge.condition} of {edge.ref}"
        lines.append(f"{what}: {_EDGE_STATES.get(letter, letter)}{late}{state}")
    if len(asked) > MOST_EDGES_SHOWN:
        lines.append(f"and {len(asked) - MOST_EDGES_SHOWN} more")
    return lines


def _expected(one: Allocation) -> ExpectedStart | None:
    """Returns the expected start of an allocation; None where none is told."""
    found = expected_of(one)
    return ExpectedStart(p50=found.p50, p90=found.p90, reason=found.reason) if found is not None else None


def _nodes(one: Allocation) -> str:
    """Returns the nodes that an allocation holds or held, or how many it asks for."""
    if one.status.nodes:
        return f"{one.status.nodes} ({plural(one.status.node_count, 'node')})"
    return f"{one.spec.resources.nodes} asked for"


def _staged(one: Allocation) -> str:
    """Returns when every node had what the work needs of the site's registry, or why they have it not yet; empty: nothing was brought."""
    found = condition(one.status.conditions, STAGED)
    if found is None or not one.status.software:
        return ""
    return f"{found.last_transition_time}: {found.message}" if found.status == "True" else f"not yet: {found.message}"


def _walltime(one: Allocation, now: float) -> str:
    """Returns an allocation's walltime, and while it runs how much of it is left; empty where it has none."""
    text = clock(one.spec.lifecycle.walltime)
    if text and one.status.start_time and not is_final(one):
        left = parse_time(one.status.start_time) + _seconds(one) - now
        text += f", {span(left)} left" if left > 0 else ", over"
    return text


def _seconds(one: Allocation) -> float:
    """Returns an allocation's walltime in seconds; 0 where it has none."""
    return parse_duration(one.spec.lifecycle.walltime or "0s")


def _exit(end: Exit | None) -> str:
    """Returns exit code, signal and where the failed process ran, in words; empty where no code is known."""
    if end is None or end.code is None:
        return ""
    signal = f", signal {end.signal}" if end.signal else ""
    where = f" (node {end.node}, rank {end.rank})" if end.node and end.code else ""
    return f"{end.code}{signal}{where}"


def _used(end: Exit | None) -> str:
    """Says what the work has used, as far as its nodes have counted it."""
    if end is None:
        return ""
    words = [
        f"{float(parse_quantity(end.cpu_seconds)):,.2f} CPU seconds" if end.cpu_seconds is not None else "",
        f"{memory(end.peak_memory)} of memory at the most" if end.peak_memory is not None else "",
        f"memory was short {plural(end.oom_kills, 'time')}: the kernel killed a process" if end.oom_kills else "",
    ]
    return ", ".join(filter(None, words))


def attempt_sentence(attempt: Attempt) -> str:
    """Returns one earlier attempt as a line: its number, reason, exit code, nodes, times, and what its node said."""
    code = f", exit {attempt.exit.code}" if attempt.exit is not None and attempt.exit.code is not None else ""
    when = f"{attempt.start_time} to {attempt.end_time or '?'}" if attempt.start_time else f"never started, ended {attempt.end_time or '?'}"
    said = f": {attempt.message}" if attempt.message else ""
    return f"{attempt.attempt}: {attempt.reason}{code}, on {attempt.nodes or 'no node'}, {when}{said}"


def _next(one: Allocation) -> str:
    """Returns the command that shows what matters next: why, or the output; empty where work ended before it started."""
    name = label(one)
    if is_final(one):
        return f"lattice logs {name}" if one.status.start_time else ""
    return f"lattice why {name}" if phase_of(one) == PENDING else f"lattice logs -f {name}"
