"""Translates the facts of a node, as people are told them, to their protobuf message."""

from __future__ import annotations

from typing import Final

from lattice.rpc.v1 import agent_pb2 as pb
from lattice_agent.peers import wire
from lattice_agent.peers.interface import CacheUse, NodeFacts, ReportedAttempt

LONGEST_MESSAGE: Final = 1024


def node_to_wire(facts: NodeFacts) -> pb.NodeReport:
    """Returns the facts of a node as their protobuf message; sentences are cut to 1024 characters."""
    return pb.NodeReport(
        version=facts.version,
        since=facts.since,
        heartbeat=facts.heartbeat,
        seq=facts.seq,
        flaw=facts.flaw[:LONGEST_MESSAGE],
        cgroups=facts.cgroups,
        unlimited=facts.unlimited,
        reserved_cpus=facts.reserved_cpus,
        reserved_memory=facts.reserved_memory,
        cache=_cache(facts.cache),
        prologue_hooks=facts.prologue_hooks,
        epilogue_hooks=facts.epilogue_hooks,
        hooks_message=facts.hooks_message[:LONGEST_MESSAGE],
        attempts=map(_attempt, facts.attempts),
        attempts_left_out=facts.left_out,
        scratch=facts.scratch,
        containers=facts.containers,
    )


def _cache(use: CacheUse) -> pb.CacheState:
    """Returns how full an image cache is as its protobuf message; a long sentence is cut."""
    return pb.CacheState(
        images=use.images, bytes=use.bytes, total_bytes=use.total, free_bytes=use.free, pulls=use.pulls, directory=use.directory,
        message=use.message[:LONGEST_MESSAGE],
    )  # fmt: skip


def _attempt(one: ReportedAttempt) -> pb.AttemptReport:
    """Returns what is told of an attempt as its protobuf message; a long sentence is cut."""
    facts = one.facts
    return pb.AttemptReport(
        uid=one.key.uid,
        attempt=one.key.attempt,
        stage=one.stage,
        message=one.message[:LONGEST_MESSAGE],
        started=facts.started,
        steps=map(wire.step_to_wire, facts.steps),
        mounts=[pb.MountReport(target=mount.target, type=mount.type, source=mount.source) for mount in facts.mounts],
        mounts_left_out=facts.mounts_left_out,
        limits=[pb.LimitReport(controller=name, limit=limit) for name, limit in sorted(facts.limits.items())],
        use=wire.use_to_wire(facts.use),
        processes=facts.processes,
    )
