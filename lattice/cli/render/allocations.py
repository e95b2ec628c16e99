"""An Allocation as people read it: one line that says what, where, since when and why, and the details of one."""

from __future__ import annotations

from collections.abc import Sequence

from lattice.cli.render.answers import expected_sentence, start_cell
from lattice.cli.render.text import Column, age, clock, fields, plural, span, table
from lattice.lifecycle.conditions import condition
from lattice.models.conditions import CANCELLED, COMPLETED, ENDING, FINAL_PHASES, FINISHED, PENDING, READY, RUNNING, SCHEDULED, UNKILLABLE
from lattice.scheduling.queries.answers import ExpectedStart
from lattice.units import format_clock, parse_duration, parse_time
from lattice.views import Allocation, Attempt, Condition, Exit

_COLUMNS = (
    Column("NAMESPACE", shrink_to=8),
    Column("ID", right=True),
    Column("NAME", shrink_to=12),
    Column("USER", shrink_to=6),
    Column("STATE"),
    Column("NODES", right=True),
    Column("WALLTIME", right=True, leave=2),
    Column("ELAPSED", right=True, leave=3),
    Column("VCLUSTER", shrink_to=8, leave=1),
    Column("SINCE", right=True),
    Column("START", right=True, leave=4),
    Column("NODELIST(REASON)", shrink_to=12),
    Column("JOB", shrink_to=8),
    Column("TENANT", shrink_to=8),
    Column("PROJECT", shrink_to=8),
    Column("ATTEMPT", right=True),
    Column("CLASS", right=True),
    Column("SCORE", right=True),
    Column("MESSAGE", shrink_to=20),
)


def phase_of(allocation: Allocation) -> str:
    """Returns its phase; Pending before the scheduler has seen it."""
    return allocation.status.phase or PENDING


def is_final(allocation: Allocation) -> bool:
    """Tells whether it has ended for good."""
    return phase_of(allocation) in FINAL_PHASES


def label(allocation: Allocation) -> str:
    """Returns its name in sentences: its number, or its name while it has none."""
    return str(allocation.status.number or allocation.metadata.name)


def since(allocation: Allocation) -> str | None:
    """Returns since when it is in the state that it shows."""
    status = allocation.status
    if is_final(allocation):
        finished = condition(status.conditions, FINISHED)
        return status.end_time or (finished.last_transition_time if finished else None)
    if phase_of(allocation) == PENDING:
        scheduled = condition(status.conditions, SCHEDULED)
        waiting = scheduled is not None and scheduled.status == "False"
        return scheduled.last_transition_time if waiting and scheduled is not None else submitted(allocation)
    return status.start_time or submitted(allocation)


def submitted(allocation: Allocation) -> str:
    """Returns when it was submitted."""
    return allocation.status.submit_time or allocation.metadata.creation_timestamp


def blocker(allocation: Allocation) -> Condition | None:
    """Returns the condition that says why it is not running, or how it ended."""
    conditions = allocation.status.conditions
    if is_final(allocation):
        return condition(conditions, FINISHED) or condition(conditions, READY)
    scheduled = condition(conditions, SCHEDULED)
    if scheduled is not None and scheduled.status != "True":
        return scheduled
    return condition(conditions, READY)


def leaving(allocation: Allocation) -> str:
    """Returns `Ending`, or the wish that it end which no status shows yet; empty for work that goes on or has ended."""
    if is_final(allocation):
        return ""
    why = condition(allocation.status.conditions, READY)
    if why is not None and why.reason in (ENDING, UNKILLABLE):
        return why.reason
    if allocation.metadata.deletion_timestamp:
        return "DeleteRequested"
    return "CancelRequested" if allocation.spec.cancel is not None else ""


def kill_sentence(allocation: Allocation, now: float) -> str:
    """Says when KILL follows, for work that ends by order or has outrun its walltime; empty for others."""
    lifecycle, status = allocation.spec.lifecycle, allocation.status
    if is_final(allocation) or not status.start_time or status.end_time:
        return ""
    at = parse_time(status.kill_time) if status.kill_time else None
    over = parse_time(status.start_time) + _seconds(allocation)
    if at is None and lifecycle.walltime and over < now:
        at = over + parse_duration(lifecycle.grace_period)
    if at is None:
        return ""
    return f"KILL in {span(at - now)}" if at > now else f"KILL was due {span(now - at)} ago"


def end_lines(allocation: Allocation) -> list[str]:
    """Says how it ended, to a person who waited for it: the state, and of what did not complete the reason and where to look."""
    name, state = label(allocation), state_line(allocation)
    if phase_of(allocation) == COMPLETED:
        return [f"{name} {state}"]
    why = reason_sentence(allocation)
    more = [f"  {why}"] if why not in ("", phase_of(allocation)) and f"({why})" not in state else []
    hint = [f"  Hint: lattice logs {name}"] if allocation.status.start_time else []
    return [f"{name} {state}", *more, *hint]


def where_or_why(allocation: Allocation, kill: str = "") -> str:
    """Returns the nodes of work that runs or has completed, else the reason in brackets, with `kill` behind it for work that ends."""
    phase, status = phase_of(allocation), allocation.status
    if leaving(allocation) or kill:
        return f"({', '.join(filter(None, (leaving(allocation) or 'WalltimeExceeded', kill)))})"
    if phase in (RUNNING, COMPLETED) and status.nodes:
        return status.nodes
    why = blocker(allocation)
    if why is None:
        return "(NotYetEvaluated)" if phase == PENDING else status.nodes
    code = f", exit {status.exit.code}" if phase not in (PENDING, CANCELLED) and status.exit is not None and status.exit.code else ""
    return f"({why.reason}{code})"


def state_line(allocation: Allocation) -> str:
    """Returns its phase, and the nodes or the reason where they say more than the phase does."""
    phase, more = phase_of(allocation), where_or_why(allocation)
    return phase if more == f"({phase})" else f"{phase} {more}".rstrip()


def reason_sentence(allocation: Allocation) -> str:
    """Returns the reason and its sentence, without words that the two share; empty without a reason."""
    why, wish = blocker(allocation), leaving(allocation)
    if wish not in ("", ENDING):
        return f"{wish}: TERM follows at once, and KILL {allocation.spec.lifecycle.grace_period} after it"
    if why is None:
        return ""
    message = why.message.removeprefix("cancelled").removeprefix(": ") if why.reason == CANCELLED else why.message
    return f"{why.reason}: {message}" if message else why.reason


def expected_cell(allocation: Allocation, now: float) -> str:
    """Says when a pending one is expected to start: `in 12m–1h17m`, from even odds to nine times of ten."""
    return start_cell(_expected(allocation), now)


_NO_START = frozenset({"VClusterClosed", "Held", "NeverFits"})
"""Reasons beside which an expected start of the moment before would be wrong."""


def _expected(allocation: Allocation) -> ExpectedStart | None:
    found = allocation.status.expected_start
    why = blocker(allocation)
    if found is None or phase_of(allocation) != PENDING or (why is not None and why.reason in _NO_START):
        return None
    return ExpectedStart(p50=found.p50, p90=found.p90, reason=found.reason)


def elapsed(allocation: Allocation, now: float) -> str:
    """Returns how long it has run, or ran."""
    status = allocation.status
    if not status.start_time:
        return ""
    end = parse_time(status.end_time) if status.end_time else now
    return format_clock(end - parse_time(status.start_time))


def allocation_table(
    allocations: Sequence[Allocation], *, now: float, wide: bool, users: bool, namespaces: bool, width: int, color: bool
) -> list[str]:
    """Returns the book's columns, and one that shows the nodes, or the reason, and since when."""
    rows = [_row(one, now, wide, users, namespaces) for one in allocations]
    return table(_COLUMNS, rows, width=0 if wide else width, color=color)


def _row(one: Allocation, now: float, wide: bool, users: bool, namespaces: bool) -> list[str]:
    extra = ["", "", "", "", "", "", ""]
    if wide:
        why = blocker(one)
        extra = [
            one.spec.tags.get("name", ""),
            one.spec.tenant,
            one.spec.project,
            str(one.status.attempt or ""),
            str(one.spec.lifecycle.preemption_class),
            one.status.score.total if one.status.score is not None else "",
            why.message if why is not None else "",
        ]
    return [
        one.metadata.namespace if namespaces else "",
        str(one.status.number or ""),
        one.metadata.name,
        one.spec.user if users or wide else "",
        phase_of(one),
        str(one.status.node_count or one.spec.resources.nodes),
        clock(one.spec.lifecycle.walltime),
        elapsed(one, now),
        one.spec.vcluster,
        age(since(one), now),
        expected_cell(one, now),
        where_or_why(one, kill_sentence(one, now)),
        *extra,
    ]


def allocation_details(one: Allocation, now: float) -> list[str]:
    """Returns everything that a person asks about one allocation, from what it is to what may be done."""
    spec, status = one.spec, one.status
    state = phase_of(one) + (f" since {since(one)} ({age(since(one), now)})" if since(one) else "")
    attempts = "\n".join(_attempt(attempt) for attempt in status.attempts)
    return fields(
        [
            ("Allocation", f"{status.number or ''} {one.metadata.namespace}/{one.metadata.name}".strip()),
            ("Job name", spec.tags.get("name", "")),
            ("State", state),
            ("Reason", reason_sentence(one)),
            ("Ending", kill_sentence(one, now)),
            ("Cancel", f"requested: {spec.cancel.reason or 'no reason given'}" if spec.cancel is not None else ""),
            ("Exit", _exit(status.exit)),
            ("Nodes", _nodes(one)),
            ("Head node", status.head),
            ("Attempt", f"{status.attempt} of at most {spec.lifecycle.requeue.max + 1}" if status.attempt > 1 else ""),
            ("Earlier", attempts),
            ("User", spec.user),
            ("Tenant", spec.tenant + (f", project {spec.project}" if spec.project else "")),
            ("VCluster", spec.vcluster),
            ("Class", str(spec.lifecycle.preemption_class)),
            ("Score", status.score.total if status.score is not None else ""),
            ("Walltime", _walltime(one, now)),
            ("Submitted", f"{submitted(one)} ({age(submitted(one), now)} ago)" if submitted(one) else ""),
            ("Expected start", expected_sentence(_expected(one), now)),
            ("Started", status.start_time or ""),
            ("Ended", status.end_time or ""),
            ("Not before", spec.lifecycle.not_before or ""),
            ("Hollow", "it ran on hollow nodes, which only wait" if status.hollow else ""),
            ("UID", one.metadata.uid),
            ("Next", _next(one)),
        ]
    )


def _nodes(one: Allocation) -> str:
    if one.status.nodes:
        return f"{one.status.nodes} ({plural(one.status.node_count, 'node')})"
    return f"{one.spec.resources.nodes} asked for"


def _walltime(one: Allocation, now: float) -> str:
    text = clock(one.spec.lifecycle.walltime)
    if text and one.status.start_time and not is_final(one):
        left = parse_time(one.status.start_time) + _seconds(one) - now
        text += f", {span(left)} left" if left > 0 else ", over"
    return text


def _seconds(one: Allocation) -> float:
    return parse_duration(one.spec.lifecycle.walltime or "0s")


def _exit(end: Exit | None) -> str:
    if end is None or end.code is None:
        return ""
    signal = f", signal {end.signal}" if end.signal else ""
    where = f" (node {end.node}, rank {end.rank})" if end.node and end.code else ""
    return f"{end.code}{signal}{where}"


def _attempt(attempt: Attempt) -> str:
    code = f", exit {attempt.exit.code}" if attempt.exit is not None and attempt.exit.code is not None else ""
    when = f"{attempt.start_time or 'never started'} to {attempt.end_time or '?'}"
    return f"{attempt.attempt}: {attempt.reason}{code}, on {attempt.nodes or 'no node'}, {when}"


def _next(one: Allocation) -> str:
    name = label(one)
    if is_final(one):
        return f"lattice logs {name}" if one.status.start_time else ""
    return f"lattice why {name}" if phase_of(one) == PENDING else f"lattice logs -f {name}"
