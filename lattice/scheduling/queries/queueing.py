"""Shows the queues as a reader may see them: his own and his tenant's work by name, runs of other work as counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import groupby

from lattice.errors import NotFound
from lattice.scheduling.model.strategies import strategy_of
from lattice.scheduling.model.work import Candidate
from lattice.scheduling.queries.answers import QUEUE_SCHEMA, Entry, Queue, Queues, Window
from lattice.scheduling.queries.context import QueryContext, expected_start, in_order, named, ranking, startable, unable, whose
from lattice.scheduling.queries.explanation import is_known
from lattice.scheduling.queries.readers import Reader
from lattice.scheduling.queries.timeline import timeline
from lattice.units import format_duration, format_time


def queues(context: QueryContext, vclusters: Sequence[str], reader: Reader, limit: int, *, only: str = "") -> Queues:
    """Returns the document of `queue` for all `vclusters`, or for `only`; raises NotFound where `only` is none of them.

    `only` empty: all of them. `limit`: most entries shown of each queue, at least 1; a run of work of others is one entry.
    """
    if only and only not in vclusters:
        raise NotFound(f'there is no vcluster "{only}". Known: {", ".join(sorted(vclusters)) or "none"}', reason="VClusterUnknown")
    found = [_queue(context, name, in_order(context, name), reader, limit) for name in ([only] if only else sorted(vclusters))]
    to_come = timeline(context, only)
    return Queues(
        schema=QUEUE_SCHEMA, at=format_time(context.now), vclusters=found, reservations=_windows(context, reader), timeline=to_come
    )


def _queue(context: QueryContext, vcluster: str, order: Sequence[Candidate], reader: Reader, limit: int) -> Queue:
    """Returns the queue of a vcluster for a reader; `order`: its pending work in order of evaluation.

    Work that free nodes would not start comes last, with position 0; `limit`: most entries.
    """
    policy = context.policy(vcluster)
    apart = [(reason, one) for one in order if (reason := unable(context, one))]
    places = [*enumerate(startable(context, order), 1), *((0, one) for _, one in apart)]
    entries: list[Entry] = []
    shown = 0
    for (known, _), group in groupby(places, key=lambda place: (reader.may_name(place[1].user, place[1].key), place[0] > 0)):
        run = list(group)
        if known:
            run = run[: limit - len(entries)]
            entries += [_entry(context, position, candidate, reader) for position, candidate in run]
        else:
            nodes = sum(candidate.minimum for _, candidate in run)
            entries.append(Entry(position=run[0][0], whose="other tenants", nodes=nodes, count=len(run)))
        shown += len(run)
        if len(entries) == limit:
            break
    return Queue(
        vcluster=vcluster,
        policy=policy.kind,
        pending=len(order),
        depth=strategy_of(policy).depth(policy),
        apart=dict(sorted(Counter(reason for reason, _ in apart).items())),
        entries=entries,
        left_out=len(order) - shown,
    )


def _entry(context: QueryContext, position: int, candidate: Candidate, reader: Reader) -> Entry:
    """Returns the line of a queue for an allocation that the reader may name; `position`: its place among those that could start, 0 for
    others.
    """
    waiting = context.waiting.get(candidate.uid)
    return Entry(
        position=position,
        whose=whose(candidate, reader),
        nodes=candidate.minimum,
        work=named(context, candidate, reader),
        maximum=candidate.maximum if candidate.maximum > candidate.minimum else None,
        walltime=format_duration(candidate.walltime) if candidate.walltime is not None else None,
        preemption_class=candidate.preemption_class,
        submitted=format_time(candidate.submitted),
        score=ranking(context, waiting.score if waiting is not None else None, candidate.vcluster),
        reason=waiting.reason if waiting is not None else "NotYetEvaluated",
        message=waiting.message if waiting is not None else "",
        expected_start=expected_start(context, candidate.uid, waiting.latest if waiting is not None else None),
    )


def _windows(context: QueryContext, reader: Reader) -> list[Window]:
    """Returns the reservation windows that are not over, without a name where the reader may not know it."""
    return [
        Window(
            name=window.name if is_known(window, reader) else "",
            start=format_time(window.start),
            end=format_time(window.end),
            nodes=window.nodes.bit_count(),
            maintenance=window.maintenance,
        )
        for window in context.state.windows
        if window.end > context.now
    ]
