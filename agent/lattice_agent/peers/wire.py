"""Translates the agent's own values to protobuf messages and back."""

from __future__ import annotations

from lattice.errors import Rejected
from lattice.rpc.v1 import agent_pb2 as pb
from lattice_agent.attempts import Key, ResourceUse, StepProgress
from lattice_agent.members import Direction, Member, Order, Phase, TaskEnd
from lattice_agent.peers.launch_wire import totals_from_wire, totals_to_wire
from lattice_agent.state.step_journal import BEGUN, DONE, UNDOING, UNDONE

_STEP_STATES = {BEGUN: pb.STEP_BEGUN, DONE: pb.STEP_DONE, UNDOING: pb.STEP_UNDOING, UNDONE: pb.STEP_UNDONE}


def member_to_wire(member: Member) -> pb.MemberState:
    """Returns a node's state of an attempt as its protobuf message, in which `message` is cut to 1024 characters."""
    return pb.MemberState(
        uid=member.key.uid,
        attempt=member.key.attempt,
        node=member.node,
        seq=member.seq,
        phase=pb.MemberPhase.ValueType(member.phase.value),
        reason=member.reason,
        message=member.message[:1024],
        started=member.started,
        exits=[pb.TaskExit(rank=end.rank, code=end.code, signal=end.signal, unknown=end.unknown, ended=end.ended) for end in member.exits],
        walltime=member.walltime,
        ordered=member.ordered,
        use=use_to_wire(member.use),
        launches=totals_to_wire(member.launches) if member.launches is not None else None,
        cpus=member.cpus,
    )


def use_to_wire(use: ResourceUse) -> pb.ResourceUse:
    """Returns what work has used as its protobuf message."""
    return pb.ResourceUse(
        cpu_seconds=use.cpu_seconds, peak_memory=use.peak_memory, memory_limit=use.memory_limit, oom_kills=use.oom_kills
    )  # fmt: skip


def member_from_wire(message: pb.MemberState) -> Member:
    """Returns the node's state that a protobuf message holds; raises Rejected for a phase that this agent does not know."""
    try:
        phase = Phase(message.phase)
    except ValueError as error:
        raise Rejected(f"member phase {message.phase} of {message.node} is not known here", reason="PhaseUnknown") from error
    return Member(
        key=Key(message.uid, message.attempt),
        node=message.node,
        seq=message.seq,
        phase=phase,
        reason=message.reason,
        message=message.message,
        started=message.started,
        exits=tuple(TaskEnd(end.rank, end.code, end.signal, end.unknown, end.ended) for end in message.exits),
        walltime=message.walltime,
        ordered=message.ordered,
        use=ResourceUse(message.use.cpu_seconds, message.use.peak_memory, message.use.memory_limit, message.use.oom_kills),
        launches=totals_from_wire(message.launches) if message.HasField("launches") else None,
        cpus=message.cpus,
    )


def direction_to_wire(direction: Direction) -> pb.ReporterState:
    """Returns the reporter's direction as its protobuf message."""
    return pb.ReporterState(order=pb.Order.ValueType(direction.order.value), cause=direction.cause, settled=direction.settled)


def direction_from_wire(message: pb.ReporterState) -> Direction:
    """Returns the reporter's direction that a protobuf message holds; an order that this agent does not know counts as WAIT."""
    order = Order(message.order) if message.order in {order.value for order in Order} else Order.WAIT
    return Direction(order, message.cause, message.settled)


def step_to_wire(found: StepProgress) -> pb.StepProgress:
    """Returns the progress of a prologue step as its protobuf message; an unknown state becomes STEP_STATE_UNSPECIFIED."""
    state = _STEP_STATES.get(found.state, pb.STEP_STATE_UNSPECIFIED)
    return pb.StepProgress(
        name=found.name, state=state, since=found.since, bytes=found.bytes, size=found.size, begun=found.begun, done=found.done,
        waits=found.waits[:1024], waits_since=found.waits_since,
    )  # fmt: skip
