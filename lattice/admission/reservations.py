"""Checks a Reservation (nodes, times, overlaps), and an Allocation that names one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from lattice.admission.facts import Facts, Occupied
from lattice.admission.ownership import listed
from lattice.admission.submission import Submission, malformed
from lattice.admission.verdicts import Caution, Finding, Object, Refused, reading
from lattice.errors import Rejected
from lattice.lifecycle.reservations import ENDED, Calendar, Span, calendar_of, odd_start, refusal_of_use, show_span, state_at
from lattice.units import expand_nodes, fold_nodes, format_duration, format_time, parse_duration, parse_node_count
from lattice.views import Reservation

MOST_NODES: Final = 16384
"""Most nodes of a Reservation, as many as the ledger knows."""
LATE_SECONDS: Final = 60.0
"""Seconds by which a start may lie in the past, since clocks differ and a request takes time."""
START_SECONDS: Final = 60.0
"""Seconds that a cycle plans between a placement and the first process."""
_SHOWN: Final = 5


def judge(obj: Object, facts: Facts) -> Iterator[Finding]:
    """Yields every refusal and warning for a new Reservation."""
    yield from _judge(obj, facts, is_new=True)


def judge_change(old: Object, new: Object, facts: Facts) -> Iterator[Finding]:
    """Yields every refusal and warning for a changed Reservation; none where its spec is unchanged.

    Past windows and running work are no reason to refuse a change.
    """
    if old.get("spec") != new.get("spec"):
        yield from _judge(new, facts, is_new=False)


def _judge(obj: Object, facts: Facts, *, is_new: bool) -> Iterator[Finding]:
    """Yields the findings on a Reservation: its form first, whose refusal ends the check, then size, times, overlaps with others, and the
    people it names.

    The nodes of running work are checked only for a new one that does not ignore it, and only where the present time is known.
    """
    try:
        asked = msgspec.convert(obj, Reservation)
        calendar = calendar_of(asked.spec)
        nodes = frozenset(expand_nodes(asked.spec.nodes))
    except msgspec.ValidationError as error:
        yield malformed(error, "")
        return
    except Rejected as error:
        field = error.fields[0] if error.fields else "spec.nodes"
        text = error.message if error.fields else f"spec.nodes: {error.message}"
        yield Refused(error.reason if error.fields else "NodeSetInvalid", text, field)
        return
    yield from _size(asked, nodes, facts)
    yield from _windows(asked, calendar, facts, is_new=is_new)
    yield from _others(asked, calendar, nodes, facts)
    if is_new and not asked.spec.ignore_running and facts.now is not None and (span := calendar.span(facts.now)) is not None:
        yield from _running(nodes, span, facts.occupied or ())
    yield from _people(asked, facts)


def _size(asked: Reservation, nodes: frozenset[str], facts: Facts) -> Iterator[Finding]:
    """Yields a refusal unless a Reservation either names nodes or gives their number, within 1 to 16,384, and a caution on nodes that do
    not exist yet, or more than there are, where the nodes are known.
    """
    wanted = len(nodes) or asked.spec.node_count or 0
    field = "spec.nodes" if asked.spec.nodes else "spec.nodeCount"
    if bool(asked.spec.nodes) == (asked.spec.node_count is not None):
        yield Refused("NodesInvalid", "give either spec.nodes or spec.nodeCount, exactly one of them", "spec.nodes")
    if not 1 <= wanted <= MOST_NODES:
        yield Refused("NodesInvalid", f"{field} asks for {wanted} nodes (limits: 1 to {MOST_NODES})", field, "ask for fewer nodes")
    missing = sorted(nodes - facts.node_names) if facts.node_names is not None else []
    if missing:
        yield Caution(
            f"{len(missing)} of {len(nodes)} nodes do not exist yet: {_names(missing)}; the reservation holds those that do,"
            + (" and is Impossible until one does" if len(missing) == len(nodes) else " and says so")
        )
    if facts.node_names is not None and not nodes and wanted > len(facts.node_names):
        yield Caution(
            f"spec.nodeCount is {wanted} and the cluster has {len(facts.node_names)} nodes: the reservation is Impossible until more join"
        )


def _windows(asked: Reservation, calendar: Calendar, facts: Facts, *, is_new: bool) -> Iterator[Finding]:
    """Yields a refusal unless a Reservation has a window, and a new one a window that is not over (one that does not recur: a start not
    more than a minute ago), and a caution on starts that a change of clocks moves.
    """
    first = calendar.span(float("-inf"))
    if first is None:
        sentence = f"spec.recurrence.until is before the first window, which would begin after spec.start {asked.spec.start}"
        yield Refused("RecurrenceInvalid", sentence, "spec.recurrence.until", "choose a later end")
        return
    if facts.now is not None and is_new:
        late = facts.now - first.start
        if not calendar.recurs and late > LATE_SECONDS:
            sentence = f"spec.start {asked.spec.start} lies {format_duration(late)} in the past"
            yield Refused("ReservationInPast", sentence, "spec.start", f"choose a start after {format_time(facts.now)}")
        if calendar.recurs and calendar.span(facts.now) is None:
            yield Refused(
                "ReservationInPast", f"every window is over: the first began at {format_time(first.start)}", "spec.recurrence",
                "choose a later start, until or count",
            )  # fmt: skip
    odd = odd_start(asked.spec)
    if odd:
        yield Caution(odd)


def _others(asked: Reservation, calendar: Calendar, nodes: frozenset[str], facts: Facts) -> Iterator[Finding]:
    """Yields a refusal for each other Reservation that holds the same nodes at the same time, windows that are over left out; of a number
    of nodes, those chosen before count.

    Yields a caution where fewer nodes than the number asked for are in no other one then.
    """
    now = facts.now if facts.now is not None else float("-inf")
    name, elsewhere = asked.metadata.name, set[str]()
    for other in sorted((facts.reservations or {}).values(), key=lambda one: one.metadata.name):
        if other.metadata.name == name:
            continue
        meeting = _meeting(calendar, other, now)
        if meeting is None:
            continue
        theirs = held_nodes(other)
        elsewhere |= theirs
        shared = sorted((nodes or own_nodes(asked)) & theirs)
        if shared:
            sentence = (
                f'reservation "{name}" ({show_span(meeting[0])}) and reservation "{other.metadata.name}" ({show_span(meeting[1])}) '
                f"both hold {_names(shared)}"
            )
            yield Refused("ReservationOverlaps", sentence, "spec.nodes", "choose other nodes, another time, or delete the other one")
    left = len((facts.node_names or frozenset()) - elsewhere)
    count = asked.spec.node_count
    if facts.node_names is not None and elsewhere and count is not None and left < count <= len(facts.node_names):
        yield Caution(
            f"spec.nodeCount is {count}, and {left} of {len(facts.node_names)} nodes are in no other reservation at that time: "
            "the reservation is Impossible until more are"
        )


def _meeting(calendar: Calendar, other: Reservation, since: float) -> tuple[Span, Span] | None:
    """Returns the first two windows after `since` of a calendar and of another Reservation that overlap, in that order.

    None: none do, or the other Reservation does not parse.
    """
    try:
        return calendar.overlap(calendar_of(other.spec), since)
    except Rejected:
        return None


def held_nodes(reservation: Reservation) -> frozenset[str]:
    """Returns the nodes that a Reservation names, else those that were chosen for it; empty: it holds none, or does not parse."""
    try:
        return frozenset(expand_nodes(reservation.spec.nodes or reservation.status.nodes))
    except Rejected:
        return frozenset()


def own_nodes(asked: Reservation) -> frozenset[str]:
    """Returns the nodes that were chosen before for a Reservation of a number of nodes; empty for a new one, or one that names its
    nodes.
    """
    return held_nodes(asked) if not asked.spec.nodes else frozenset()


def _running(nodes: frozenset[str], span: Span, occupied: tuple[Occupied, ...]) -> Iterator[Finding]:
    """Yields a refusal where running work may last into the first window (as Slurm refuses it without IGNORE_JOBS); work without a known
    end does.
    """
    late = [one for one in occupied if one.nodes & nodes and (one.end is None or one.end > span.start)]
    if not late:
        return
    held = frozenset().union(*(one.nodes & nodes for one in late))
    ends = [one.end for one in late if one.end is not None]
    unknown = len(late) - len(ends)
    latest = f"the last of them ends by {format_time(max(ends))}" if ends else "none of them has an end"
    latest += f", and {unknown} without an end" if ends and unknown else ""
    sentence = (
        f"{len(late)} {'allocation' if len(late) == 1 else 'allocations'} on {_names(sorted(held))} may run into the first window, "
        f"{show_span(span)}: {latest}"
    )
    later = "" if unknown else f"begin at {format_time(max(ends))} or later, or "
    yield Refused("NodesBusy", sentence, "spec.start", f"{later}set spec.ignoreRunning: true, and they go on to their end")


def _people(asked: Reservation, facts: Facts) -> Iterator[Finding]:
    """Yields a refusal where a maintenance admits anybody, and a caution on tenants and vclusters that do not exist yet."""
    spec = asked.spec
    if spec.maintenance and (spec.users or spec.tenants or spec.vclusters):
        sentence = "spec.maintenance means that nobody may use it, and users, tenants or vclusters are named"
        yield Refused("OptionInvalid", sentence, "spec.maintenance", "leave spec.users, spec.tenants and spec.vclusters out")
    for field, names, known in (("tenants", spec.tenants, facts.tenants), ("vclusters", spec.vclusters, facts.vclusters)):
        unknown = [one for one in names if known is not None and one not in known]
        if unknown:
            yield Caution(f"spec.{field} names {field} that do not exist yet: {listed(unknown)}")


def _names(names: list[str]) -> str:
    """Returns the first five names as a node set, and how many more there are."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return fold_nodes(names[:_SHOWN]) + more


# the Allocation


def check_reservation(asked: Submission, facts: Facts) -> Iterator[Finding]:
    """Yields a refusal unless the Reservation which an Allocation names exists, is not over, admits its user, tenant and vcluster, and is
    large enough; nothing where it names none.

    Its nodes, and a window with the grace period and a minute for the start, must hold the work. Yields a caution where Reservations are
    unknown.
    """
    name = asked.spec.reservation
    if not name:
        return
    field = "spec.reservation"
    if facts.reservations is None:
        yield Caution(f'{field} is "{name}": the server looks whether it exists and admits this work')
        return
    found = facts.reservations.get(name)
    if found is None:
        usable = [known for known, one in facts.reservations.items() if not _refusal(one, known, asked)]
        yield Refused("ReservationUnknown", f'reservation "{name}" not found. Open to this work: {listed(usable)}', field)
        return
    why = _refusal(found, name, asked)
    if why:
        yield Refused("ReservationNotAllowed", why, field, "ask the operators, or leave spec.reservation out")
        return
    try:
        calendar = calendar_of(found.spec)
    except Rejected:
        return  # its own state says why it holds nothing
    if facts.now is not None and state_at(calendar, facts.now) == ENDED:
        yield Refused("ReservationEnded", f'the last window of reservation "{name}" is over', field, "leave spec.reservation out")
    yield from _inside(asked, found, calendar)


def _inside(asked: Submission, found: Reservation, calendar: Calendar) -> Iterator[Finding]:
    """Yields a refusal unless an Allocation fits into one window: its least nodes, and its walltime with grace period and start; work
    without an end never does.

    What does not parse is left to its own checks.
    """
    name, field = found.metadata.name, "spec.reservation"
    nodes = reading(parse_node_count, asked.spec.resources.nodes, field="spec.resources.nodes", reason="NodesInvalid")
    holds = found.spec.node_count or len(held_nodes(found))
    if holds and not isinstance(nodes, Refused) and nodes[0] > holds:
        sentence = f'reservation "{name}" has fewer nodes than are asked for (requested: {nodes[0]}, limit: {holds})'
        yield Refused("ReservationTooSmall", sentence, "spec.resources.nodes", f"ask for at most {holds} nodes, or leave {field} out")
    elif not isinstance(nodes, Refused):
        yield from _among(asked, found, nodes[0])
    lifecycle = asked.spec.lifecycle
    if lifecycle.type == "Unbounded":
        sentence = f'work without an end does not fit a window of reservation "{name}", which lasts {found.spec.duration}'
        yield Refused("ReservationTooSmall", sentence, "spec.lifecycle.type", f"set a walltime, or leave {field} out")
        return
    walltime = reading(parse_duration, lifecycle.walltime or "0s", field="spec.lifecycle.walltime", reason="DurationInvalid")
    grace = reading(parse_duration, lifecycle.grace_period, field="spec.lifecycle.gracePeriod", reason="DurationInvalid")
    if isinstance(walltime, Refused) or isinstance(grace, Refused):
        return  # said by their own checks
    longest = calendar.seconds - grace - START_SECONDS
    if walltime > longest:
        sentence = (
            f'walltime {lifecycle.walltime} does not fit a window of reservation "{name}", which lasts {found.spec.duration}, '
            f"with {lifecycle.grace_period} of grace and a minute for the start"
        )
        hint = f"ask for at most {format_duration(longest)}" if longest > 0 else f"leave {field} out"
        yield Refused("ReservationTooSmall", sentence, "spec.lifecycle.walltime", hint)


def _among(asked: Submission, found: Reservation, least: int) -> Iterator[Finding]:
    """Yields a refusal unless node list and excluded nodes of an Allocation leave it enough nodes of the Reservation; skipped where these
    are unknown.
    """
    constraints, held = asked.spec.resources.constraints, held_nodes(found)
    try:
        only, without = frozenset(expand_nodes(constraints.node_list)), frozenset(expand_nodes(constraints.exclude_nodes))
    except Rejected:
        return  # said by its own check
    left = (held & only if only else held) - without
    if held and len(left) < least:
        names = " and ".join(name for name, given in (("nodeList", only), ("excludeNodes", without)) if given)
        sentence = (
            f'reservation "{found.metadata.name}" holds {len(held)} nodes, of which {names} {"leave" if only and without else "leaves"} '
            f"{len(left)} (requested: {least})"
        )
        hint = "name nodes of the reservation, which `lattice reservation show` lists, or leave spec.reservation out"
        yield Refused("ConstraintsContradict", sentence, "spec.resources.constraints", hint)


def _refusal(reservation: Reservation, name: str, asked: Submission) -> str:
    """Returns why a submission may not use a Reservation of this name; empty: it may."""
    spec = asked.spec
    return refusal_of_use(reservation.spec, name, user=spec.user, tenant=spec.tenant, vcluster=spec.vcluster)
