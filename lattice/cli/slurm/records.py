"""Writes the records that `scontrol show` prints: jobs, partitions, nodes, the configuration; pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from lattice.cli.slurm.clock import long_span, stamp
from lattice.cli.slurm.fetch import MIN_JOB_AGE
from lattice.cli.slurm.jobs import PD, SlurmJob
from lattice.cli.slurm.nodes import Partition, state_of
from lattice.scheduling.queries.node_rows import NodeRow
from lattice.units import expand_nodes, fold_nodes, parse_time, quantity_bytes
from lattice.views.work import Work

MAX_ARRAY: Final = 1001
"""MaxArraySize, one more than the largest index, as Slurm has it by default: clients run with no less."""
_MEBI: Final = 1 << 20
_DEPENDENCY: Final = {"Success": "afterok", "Failure": "afternotok", "Any": "afterany", "Started": "after", "Corresponding": "aftercorr"}
_NONE: Final = "(null)"


def job_text(job: SlurmJob, work: Work) -> list[str]:
    """Returns the lines of `scontrol show job`, of a job and the object that it is."""
    spec = work.spec
    nodes = expand_nodes(job.nodelist) if job.nodelist else []
    requeues = 0 if (spec.lifecycle.requeue is not None and spec.lifecycle.requeue.policy == "Never") else 1
    began = stamp(job.start if job.state is not PD else parse_time(job.expected) if job.expected else None)
    last = job.end if not job.is_active else job.start + job.time_limit if job.start is not None and job.time_limit is not None else None
    held = spec.hold
    eligible = "Unknown" if held or job.reason == "Dependency" else stamp(job.submitted)
    output, error = _files(job, work)
    tasks = spec.tasks.total or job.nodes
    lines = [
        f"JobId={job.id.text} JobName={job.name}",
        f"UserId={job.user} GroupId={job.user} MCS_label=N/A",
        f"Priority={job.priority} Nice=0 Account={job.account or _NONE} QOS={spec.lifecycle.preemption_class}",
        f"JobState={job.state.name} Reason={job.reason} Dependency={_dependency(work)}",
        f"Requeue={requeues} Restarts={job.attempt - 1} BatchFlag={int(spec.is_script)} Reboot=0 ExitCode={job.exit_code}",
        f"RunTime={long_span(job.elapsed)} TimeLimit={long_span(job.time_limit)} TimeMin=N/A",
        f"SubmitTime={stamp(job.submitted)} EligibleTime={eligible}",
        f"AccrueTime={eligible}",
        f"StartTime={began} EndTime={stamp(last)} Deadline={_moment(spec.lifecycle.deadline, 'N/A')}",
        f"SuspendTime=None SecsPreSuspend=0 LastSchedEval={stamp(job.submitted)} Scheduler=Main",
        f"Partition={job.partition} AllocNode:Sid=lattice:0",
        f"ReqNodeList={_listed(work, 'node_list')} ExcNodeList={_listed(work, 'exclude_nodes')}",
        f"NodeList={job.nodelist}",
        *([f"BatchHost={nodes[0]}"] if nodes else []),
        f"NumNodes={job.nodes} NumCPUs={job.cpus or job.nodes} NumTasks={tasks} CPUs/Task={spec.tasks.cpus or 1} ReqB:S:C:T=0:0:*:*",
        f"TRES=cpu={job.cpus or job.nodes},node={job.nodes}",
        f"Socks/Node=* NtasksPerN:B:S:C={spec.tasks.per_node or 0}:0:*:* CoreSpec=*",
        f"MinCPUsNode={spec.resources.cpus or 1} MinMemoryNode=0 MinTmpDiskNode=0",
        "Features=(null) DelayBoot=00:00:00",
        "OverSubscribe=NO Contiguous=0 Licenses=(null) Network=(null)",
        f"Command={spec.entrypoint or _NONE}",
        f"WorkDir={spec.environment.workdir or _NONE}",
        f"StdErr={error}",
        "StdIn=/dev/null",
        f"StdOut={output}",
        "Power=",
    ]
    return [lines[0], *(f"   {line}" for line in lines[1:])]


def _moment(text: str | None, absent: str) -> str:
    """Returns a time of the API as Slurm writes it."""
    return stamp(parse_time(text)) if text else absent


def _listed(work: Work, name: str) -> str:
    """Returns a node set that was asked for."""
    constraints = work.spec.resources.constraints
    return (getattr(constraints, name, "") if constraints is not None else "") or _NONE


def _dependency(work: Work) -> str:
    """Returns what it depends on, in Slurm's words."""
    found = [f"{_DEPENDENCY.get(edge.condition, edge.condition.lower())}:{edge.ref}" for edge in work.spec.depends_on]
    return ",".join(found) or _NONE


def _files(job: SlurmJob, work: Work) -> tuple[str, str]:
    """Returns the files of standard output and error, with the number and the name of the job filled in."""
    output = work.spec.environment.output
    stdout = output.stdout if output is not None else ""
    stderr = (output.stderr if output is not None else "") or stdout
    return _path(job, work, stdout), _path(job, work, stderr)


def _path(job: SlurmJob, work: Work, pattern: str) -> str:
    """Returns the whole path of an output file."""
    if not pattern:
        return "/dev/null"
    name = pattern.replace("%j", str(job.id.number)).replace("%A", str(job.id.number)).replace("%J", str(job.id.number))
    name = name.replace("%x", job.name).replace("%u", job.user)
    return name if name.startswith("/") else f"{work.spec.environment.workdir.rstrip('/')}/{name}"


def partition_text(one: Partition) -> list[str]:
    """Returns the lines of `scontrol show partition`."""
    cpus = sum(row.cpus for row in one.nodes)
    memory = sum(_memory(row) for row in one.nodes)
    limit = str(one.max_nodes or "UNLIMITED")
    usual = "NONE" if one.default_seconds is None else long_span(one.default_seconds)
    lines = [
        f"PartitionName={one.name}",
        "AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL",
        f"AllocNodes=ALL Default={'YES' if one.is_default else 'NO'} QoS=N/A",
        f"DefaultTime={usual} DisableRootJobs=YES ExclusiveUser=NO GraceTime=0 Hidden=NO",
        f"MaxNodes={limit} MaxTime={long_span(one.max_seconds)} MinNodes=0 LLN=NO MaxCPUsPerNode=UNLIMITED",
        f"Nodes={fold_nodes([row.name for row in one.nodes]) or _NONE}",
        "PriorityJobFactor=1 PriorityTier=1 RootOnly=NO ReqResv=NO OverSubscribe=EXCLUSIVE",
        "OverTimeLimit=NONE PreemptMode=OFF",
        f"State={'UP' if one.is_up else 'DOWN'} TotalCPUs={cpus} TotalNodes={len(one.nodes)} SelectTypeParameters=NONE",
        "JobDefaults=(null)",
        "DefMemPerNode=UNLIMITED MaxMemPerNode=UNLIMITED",
        f"TRES=cpu={cpus},mem={memory}M,node={len(one.nodes)},billing={cpus}",
    ]
    return [lines[0], *(f"   {line}" for line in lines[1:])]


def node_text(row: NodeRow, busy: frozenset[str]) -> list[str]:
    """Returns the lines of `scontrol show node`; `busy`: the names of nodes that have work."""
    state = state_of(row, busy)
    gres = "(null)" if not row.gpus else f"gpu:{row.gpu_type.lower()}:{row.gpus}" if row.gpu_type else f"gpu:{row.gpus}"
    lines = [
        f"NodeName={row.name} Arch=x86_64 CoresPerSocket={row.cpus} ",
        f"CPUAlloc={row.cpus if row.name in busy else 0} CPUEfctv={row.cpus} CPUTot={row.cpus} CPULoad=N/A",
        f"AvailableFeatures={row.features or _NONE}",
        f"ActiveFeatures={row.features or _NONE}",
        f"Gres={gres}",
        f"NodeAddr={row.address.rpartition(':')[0] or row.name} NodeHostName={row.name} Version=22.05.8",
        f"OS=Linux {row.kernel}",
        f"RealMemory={_memory(row)} AllocMem=0 FreeMem=N/A Sockets=1 Boards=1",
        f"State={state.name.upper()} ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A",
        *([f"Reason={row.reason}"] if row.reason and row.reason != "hollow" else []),
    ]
    return [lines[0], *(f"   {line}" for line in lines[1:])]


def _memory(row: NodeRow) -> int:
    """Returns a node's memory in MiB."""
    return quantity_bytes(row.memory) // _MEBI if row.memory else 0


def config_text(now: float, nodes: Sequence[str]) -> list[str]:
    """Returns the lines of `scontrol show config`: those that clients read, with what they mean here."""
    pairs = (
        ("AccountingStorageType", "accounting_storage/slurmdbd"), ("ClusterName", "lattice"), ("CompleteWait", "0 sec"),
        ("FirstJobId", "1"), ("JobRequeue", "1"), ("KillOnBadExit", "0"), ("KillWait", "30 sec"), ("MaxArraySize", str(MAX_ARRAY)),
        ("MaxJobCount", "100000"), ("MaxNodeCount", str(len(nodes))), ("MaxStepCount", "1000000"), ("MessageTimeout", "10 sec"),
        ("MinJobAge", f"{MIN_JOB_AGE} sec"), ("MpiDefault", "none"), ("PriorityType", "priority/multifactor"),
        ("PrivateData", "none"), ("SchedulerType", "sched/backfill"), ("SelectType", "select/linear"), ("SLURM_VERSION", "22.05.8"),
        ("SlurmctldHost[0]", "lattice"), ("TopologyPlugin", "topology/none"), ("UnkillableStepTimeout", "60 sec"),
    )  # fmt: skip
    heading = f"Configuration data as of {stamp(now)}"
    return [heading, *(f"{name:<23} = {value}" for name, value in pairs), "", "Slurmctld(primary) at lattice is UP"]
