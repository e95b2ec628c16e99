"""Makes of a client's request what each node is to start: options, places, streams and variables, in the words of keepers."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lattice.errors import Rejected
from lattice.launches import options, programs, remote_shell, streams, variables
from lattice.launches.binding import NodeCpus
from lattice.launches.layout import LaunchLayout, NodeRanks
from lattice.launches.options import LaunchDefaults, LaunchOptions, PrintedText
from lattice.launches.streams import Streams
from lattice.launches.variables import JobFacts
from lattice.units import is_digits, parse_duration
from lattice.views.cluster import MpiOptions
from lattice_agent.attempts import NodeWork
from lattice_agent.launches.client_side import ClientProcess, ClientSide
from lattice_agent.launches.interface import RankExchange
from lattice_agent.launches.record import LaunchRecord, NodePlaces
from lattice_agent.standalone import frames
from lattice_agent.standalone.frames import FrameError, LaunchRequest
from lattice_agent.work.mpi_launchers import LAUNCHER

NO_OPTIONS = MpiOptions()
PMIX = "pmix"
PMIX_SECRET = 16
"""Characters of the request's id in the name of a launch for PMIx."""
SHOWN = 200
"""Characters of a command in records and logs."""


@dataclass(frozen=True)
class LaunchPlan:
    """A request that was read: its options, the caller's variables, and with --multi-prog the text of the programs."""

    options: LaunchOptions
    variables: Mapping[str, str]
    request: LaunchRequest
    programs: str = ""

    def said(self) -> list[str]:
        """Returns what the client is told before anything begins."""
        return [f"srun: {note}" for note in self.options.notes] if self.options.verbose else []


def plan_of(work: NodeWork, request: LaunchRequest, mpi: MpiOptions = NO_OPTIONS) -> LaunchPlan | str:
    """Returns what a request asks for, or the text that answers it (--help); raises Rejected for options that do not read. `mpi`: the
    site's options.
    """
    caller = {name: value for name, _, value in (os.fsdecode(one).partition("=") for one in request.variables)}
    words = [os.fsdecode(word) for word in request.argv]
    if words and words[0].rpartition("/")[2] == LAUNCHER:
        found = remote_shell.parse(words, caller, work.nodes, defaults_of(work, mpi))
    else:
        found = options.parse(words, caller, defaults_of(work, mpi))
    if isinstance(found, PrintedText):
        return found.text
    if found.jobid and found.jobid.partition(".")[0] != str(work.number):
        raise Rejected(f"--jobid={found.jobid}: this is allocation {work.number}; a launch runs in its caller's own", reason="NotServed")
    return LaunchPlan(found, caller, request)


def size_of(plan: LaunchPlan) -> int:
    """Returns how many bytes of arguments, variables and programs a request has."""
    return sum(map(len, plan.request.argv)) + sum(map(len, plan.request.variables)) + len(plan.programs)


def defaults_of(work: NodeWork, mpi: MpiOptions) -> LaunchDefaults:
    """Returns what an allocation and the site ask of all its launches."""
    tasks = work.total_tasks if work.total_tasks > 1 or len(work.nodes) == 1 else None
    asked = work.asked
    return LaunchDefaults(
        nodes=len(work.nodes), tasks=tasks, tasks_per_node=asked.per_node, cpus_per_task=asked.cpus, gpus_per_task=asked.gpus,
        distribution=asked.layout, cpu_bind=asked.bind, uenv=work.uenv, view=work.view, mpi=asked.mpi or mpi.default.lower(),
    )  # fmt: skip


def interrupts(asked: LaunchOptions) -> int:
    """Returns what one Ctrl-C does, as ACCEPTED says it."""
    return 2 if asked.quit_on_interrupt else 1 if asked.disable_status else 0


async def with_programs(client: ClientSide, plan: LaunchPlan) -> LaunchPlan:
    """Returns the plan with the text of the file of --multi-prog, which the client reads with its own rights; raises Rejected."""
    client.send(frames.READ, os.fsencode(plan.options.command[0]))
    payload = await _answered(client, frames.CONTENT)
    if not payload or payload[0]:
        raise Rejected(f"--multi-prog: {plan.options.command[0]} cannot be read", reason="BadPrograms")
    return replace(plan, programs=os.fsdecode(payload[1:]))


async def _answered(client: ClientSide, kind: int) -> bytes:
    """Returns the payload of the client's next frame, which must be of this type; raises Rejected for another, TimeoutError at its end."""
    frame = await client.next_frame()
    if frame is None:
        raise TimeoutError
    if frame.kind != kind:
        raise Rejected(f"srun has answered with a frame {frame.kind}, not {kind}")
    return frame.payload


def record_of(plan: LaunchPlan, placed: LaunchLayout, number: int, request_id: str, process: ClientProcess, now: float) -> LaunchRecord:
    """Returns the record of a new launch."""
    nodes = tuple(
        NodePlaces(part.name, part.index, part.ranks, part.cpus, tuple(sorted(part.held)), part.gpus, tuple(sorted(part.held_gpus)))
        for part in placed.nodes
    )
    shown = " ".join(plan.options.command)[:SHOWN].encode(errors="replace").decode()
    return LaunchRecord(
        number, request_id, plan.options.name[:SHOWN].encode(errors="replace").decode(), shown, nodes, caller_node=process.node,
        caller_pid=process.pid, caller_ticks=process.ticks, begun=now,
    )  # fmt: skip


def recorded_layout(record: LaunchRecord) -> LaunchLayout:
    """Returns where the ranks of a launch go that was begun before."""
    nodes = tuple(
        NodeRanks(part.name, part.index, part.ranks, part.cpus, part.gpus, frozenset(part.held), frozenset(part.held_gpus))
        for part in record.nodes
    )
    return LaunchLayout(sum(len(part.ranks) for part in nodes), nodes, ())


def plan_streams(work: NodeWork, plan: LaunchPlan, placed: LaunchLayout, number: int) -> Streams:
    """Returns where a launch's streams come from and go to."""
    names = streams.FileNames(work.number, number, plan.options.name, work.account or work.user)
    return streams.plan_streams(plan.options, names, placed.total)


async def open_files(client: ClientSide, planned: Streams) -> None:
    """Has the client open the files of all tasks, with its own rights; raises Rejected where it cannot, after it has said why."""
    for file in planned.opened:
        client.send(frames.OPEN, frames.encode_open(file.stream, os.fsencode(file.path), append=file.append))
    for file in planned.opened:
        try:
            error = frames.decode_opened(await _answered(client, frames.OPENED))[1]
        except FrameError as flaw:
            raise Rejected(f"srun has answered with no frame: {flaw}") from flaw
        if error:
            raise Rejected(f"{file.path} cannot be opened: {os.strerror(error)}")


def input_of(plan: LaunchPlan, planned: Streams) -> str:
    """Returns which ranks take the client's input: all, none, or a rank's number."""
    from_file = any(file.stream == streams.INPUT for file in planned.opened)
    return planned.stdin if plan.request.has_input or from_file else "none"


def starts_of(
    work: NodeWork, plan: LaunchPlan, placed: LaunchLayout, record: LaunchRecord, planned: Streams, nodes: Sequence[NodeCpus],
    mpi: MpiOptions = NO_OPTIONS,
) -> list[Mapping[str, Any]]:  # fmt: skip
    """Returns what each node of a launch starts: the launch's half of `rank_start.LaunchDescription`."""
    job, asked = _job(work, plan, record.number, nodes), plan.options
    argvs = programs.read_programs(plan.programs, placed.total, asked.command[0]) if asked.multi_prog else ()
    caller = variables.exported(asked, plan.variables)
    shared = caller | variables.of_launch(job, asked, placed, plan.variables)
    directory = os.path.normpath(os.path.join(os.fsdecode(plan.request.directory), asked.chdir))  # noqa: PTH118 - of the caller's node
    pmi = _served(work, record, asked, nodes, mpi) if asked.mpi != "none" else {}
    limits, found = _limits(plan), list[Mapping[str, Any]]()
    for place, part in enumerate(placed.nodes):
        ranks = []
        for local, rank in enumerate(part.ranks):
            own = planned.of_task(rank, part.name, place)
            ranks.append({
                "rank": rank, "local": local, "argv": argvs[rank] if argvs else (),
                "environment": variables.of_rank(part, local, nodes[part.index].gpu_vendor),
                "cpus": part.cpus[local] if part.cpus else (), "stdin": own.stdin, "stdout": own.stdout, "stderr": own.stderr,
            })  # fmt: skip
        found.append({
            "number": record.number, "argv": () if argvs else asked.command,
            "environment": shared | variables.of_node(job, asked, placed, part), "workdir": directory, "umask": plan.request.umask,
            "soft_limits": limits, "label": len(str(placed.total - 1)) if asked.label else 0, "unbuffered": asked.unbuffered,
            "append": planned.append, "stdin": record.input, "ranks": ranks, "go": len(placed.nodes) == 1,
            "pmi": pmi | {"node": place} if pmi else {}, "lingers": asked.external_launcher,
        })  # fmt: skip
    return found


def _job(work: NodeWork, plan: LaunchPlan, number: int, nodes: Sequence[NodeCpus]) -> JobFacts:
    """Returns what tasks are told of their allocation."""
    return JobFacts(
        number=work.number, step=number, uid=work.key.uid, name=work.job_name, user=work.account or work.user, tenant=work.tenant,
        vcluster=work.vcluster, nodes=work.nodes, cpus=tuple(len(node.cpus) for node in nodes), head=work.head, attempt=work.key.attempt,
        project=work.project, submit_dir=plan.variables.get("LATTICE_SUBMIT_DIR", work.workdir), umask=plan.request.umask,
        gpus=tuple(len(node.gpus) for node in nodes), submit_host=work.submit_host, cluster=work.cluster_name,
    )  # fmt: skip


def _limits(plan: LaunchPlan) -> dict[str, int]:
    """Returns the caller's soft limits that hold for tasks, by name, -1: none; those that do not read are left out."""
    found = dict[str, int]()
    for text in plan.request.limits:
        name, _, value = text.decode(errors="replace").partition("=")
        name = name.removeprefix("RLIMIT_")
        wanted = plan.options.propagate is None or name in plan.options.propagate
        if wanted and is_digits(value.removeprefix("-"), 20):
            number = int(value)
            found[name] = number if 0 <= number < 1 << 63 else -1
    return found


def fence_seconds(mpi: MpiOptions) -> float:
    """Returns how long a node may be silent in a fence, and ranks be late before they are named."""
    return parse_duration(mpi.fence_timeout)


def _served(work: NodeWork, record: LaunchRecord, asked: LaunchOptions, nodes: Sequence[NodeCpus], mpi: MpiOptions) -> dict[str, Any]:
    """Returns the fields of a launch's PMI server that all nodes share; raises Rejected where PMIx is asked for and a node has none.

    The name for PMIx holds the request's id: it is what a process must know that joins the ranks over the loopback interface.
    """
    identity = f"lattice-{work.key.uid}-{work.key.attempt}-{record.number}"
    found: dict[str, Any] = {
        "identity": identity, "nodes": [list(part.ranks) for part in record.nodes], "names": [part.name for part in record.nodes],
        "late_seconds": fence_seconds(mpi),
    }  # fmt: skip
    serving = {node.name for node in nodes if node.pmix}
    lacking = [part.name for part in record.nodes if part.name not in serving]
    if asked.mpi == PMIX and lacking:
        raise Rejected(
            f"--mpi=pmix: {_named(lacking)} of this allocation has no PMIx, which needs libpmix there: ask for nodes with the feature "
            "pmix (--constraint=pmix), or leave --mpi out for PMI-1 and PMI-2",
            reason="NoPmix",
        )
    several = sum(len(part.ranks) for part in record.nodes) > 1
    if asked.mpi == PMIX or (asked.mpi == "auto" and several and not lacking):
        found |= {"pmix": f"{identity}-{record.request_id[:PMIX_SECRET]}", "pmi": asked.mpi != PMIX}
    return found


def _named(nodes: Sequence[str]) -> str:
    """Returns the first of these nodes, and how many there are beside it."""
    return f"node {nodes[0]}" + (f", with {len(nodes) - 1} more," if len(nodes) > 1 else "")


def make_exchange(record: LaunchRecord) -> RankExchange | None:
    """Makes what joins the PMI servers of a launch's nodes; None: there is one node, or no PMI."""
    if len(record.nodes) < 2 or not record.pmi:
        return None
    from lattice_agent.standalone.pmi.hub import Hub  # launches on one node never pay for it

    return Hub([part.ranks for part in record.nodes], [part.name for part in record.nodes])
