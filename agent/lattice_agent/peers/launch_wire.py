"""Translates rows and totals of launches to protobuf messages and back; what another node says is cut to what a status may hold."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from lattice.launches.answers import FAILED, NODE_FAIL, TIMEOUT, LaunchRow
from lattice.rpc.v1 import agent_pb2 as pb
from lattice.views.allocation import FailedLaunch, LaunchTotals
from lattice_agent.peers.interface import EndedLaunch, FoundLaunches

PAGE: Final = 500
"""Rows of one message."""
MOST_FAILURES: Final = 5
LONGEST_STEP, LONGEST_NODE, LONGEST_REASON = 32, 253, 256
MOST: Final = (1 << 63) - 1


def row_to_wire(row: LaunchRow) -> pb.LaunchRow:
    """Returns the protobuf message of a row."""
    return pb.LaunchRow(
        number=row.number, state=row.state, command=row.command, name=row.name, nodes=row.nodes, node_count=row.node_count,
        tasks=row.tasks, cpus=row.cpus, started=row.started, ended=row.ended, seconds=row.seconds, code=row.code, signal=row.signal,
        cpu_seconds=row.cpu_seconds, peak_memory=row.peak_memory, node=row.node, reason=row.reason,
    )  # fmt: skip


def totals_to_wire(totals: LaunchTotals) -> pb.LaunchTotals:
    """Returns the protobuf message of totals."""
    failures = [
        pb.FailedLaunch(step=one.step, result=one.result, code=one.code, signal=one.signal, node=one.node, reason=one.reason)
        for one in totals.failures
    ]
    return pb.LaunchTotals(
        total=totals.total, completed=totals.completed, failed=totals.failed, cancelled=totals.cancelled, timeout=totals.timeout,
        node_fail=totals.node_fail, failures=failures,
    )  # fmt: skip


def totals_from_wire(message: pb.LaunchTotals) -> LaunchTotals:
    """Returns the totals of a message, cut to what a status may hold."""
    failures = [
        FailedLaunch(
            step=one.step[:LONGEST_STEP], result=one.result if one.result in (TIMEOUT, NODE_FAIL) else FAILED, code=min(one.code, 255),
            signal=min(one.signal, 128), node=one.node[:LONGEST_NODE], reason=one.reason[:LONGEST_REASON],
        )
        for one in message.failures[:MOST_FAILURES]
    ]  # fmt: skip
    unique = {one.step: one for one in reversed(failures)}  # a status names each step once
    return LaunchTotals(
        total=min(message.total, MOST), completed=min(message.completed, MOST), failed=min(message.failed, MOST),
        cancelled=min(message.cancelled, MOST), timeout=min(message.timeout, MOST), node_fail=min(message.node_fail, MOST),
        failures=tuple(reversed(unique.values())),
    )  # fmt: skip


def pages_to_wire(found: FoundLaunches) -> Iterator[pb.LaunchesReport]:
    """Yields the messages of an answer: pages of rows, the last one with what is known beside them."""
    for at in range(0, max(0, len(found.rows) - PAGE), PAGE):
        yield pb.LaunchesReport(launches=map(row_to_wire, found.rows[at : at + PAGE]))
    rest = found.rows[-(len(found.rows) % PAGE or min(PAGE, len(found.rows))) :] if found.rows else []
    yield pb.LaunchesReport(
        launches=map(row_to_wire, rest), dropped=found.dropped, left_out=found.left_out, deleted=found.deleted,
        totals=totals_to_wire(found.totals),
    )  # fmt: skip


def end_to_wire(answer: EndedLaunch) -> pb.EndLaunchReport:
    """Returns the protobuf message that answers an order to end a launch."""
    launch = row_to_wire(answer.row) if answer.row is not None else None
    return pb.EndLaunchReport(ending=answer.ending, grace_seconds=answer.grace_seconds, launch=launch)
