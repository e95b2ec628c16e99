"""Makes the work of one node from an Allocation and a plan row; pure. Names and patterns are expanded, defaults filled in."""

from __future__ import annotations

import msgspec

from lattice.ledger.plans import PlanRow
from lattice.lifecycle.grace import grace_seconds
from lattice.scripts.commands import has_slurm_lines
from lattice.software.site_rules import check_devices, wants_signature
from lattice.units import parse_duration, parse_time, quantity_bytes
from lattice.views.allocation import SoftwareImage, Tasks
from lattice.views.cluster import ConfigSpec
from lattice.views.work import Environment, WorkSpec
from lattice.views.work import Work as Allocation
from lattice_agent.attempts import AskedTasks, EarlySignal, Key, NodeWork
from lattice_agent.lifecycle.events import WorkTerms
from lattice_agent.work.patterns import PatternValues, expand, is_per_node

EARLY_SECONDS = 60.0
"""How long before the walltime work gets its signal where the spec does not say."""


def tasks_on(allocation: Allocation, node: str, head: str) -> int:
    """Returns how many tasks the node's own shim starts: of work on the head only, and of a launched entrypoint, one there and none
    elsewhere, else the spec's tasks for each node.
    """
    if allocation.spec.on_head_only:
        return 1 if node == head else 0
    return allocation.spec.tasks.per_node or 1


def terms_of(allocation: Allocation, node: str, head: str, config: ConfigSpec) -> WorkTerms:
    """Returns walltime, grace period and number of tasks on `node` as the spec's present generation has them; `head` runs what runs once.

    The longest time of the epilogue comes from the site's configuration. All times in seconds.
    """
    lifecycle = allocation.spec.lifecycle
    walltime = parse_duration(lifecycle.walltime) if lifecycle.walltime else None
    grace = grace_seconds(lifecycle.grace_period)
    patience = parse_duration(config.work.epilogue_timeout)
    return WorkTerms(allocation.metadata.generation, grace, walltime, tasks_on(allocation, node, head), patience, _early_signal(allocation))


def _early_signal(allocation: Allocation) -> EarlySignal | None:
    """Returns the signal that the work gets before its end; None: none. Of a script, and of a launched entrypoint, the tasks are its
    launches'.
    """
    asked, spec = allocation.spec.lifecycle.signal, allocation.spec
    if asked is None:
        return None
    launches = spec.is_script or spec.is_launched
    to = "script" if asked.to == "Script" else "launches" if launches else "work"
    return EarlySignal(asked.name, parse_duration(asked.before) if asked.before else EARLY_SECONDS, to)


def walltime_of(allocation: Allocation, row: PlanRow) -> float | None:
    """Returns the walltime in seconds: the shorter of the spec's and the one admitted in the row; None: neither sets one."""
    walltime = allocation.spec.lifecycle.walltime
    asked = parse_duration(walltime) if walltime else None
    return min((seconds for seconds in (asked, row.walltime) if seconds is not None), default=None)


def assign(allocation: Allocation, row: PlanRow, node: str, config: ConfigSpec) -> NodeWork:
    """Returns an allocation's work on `node`, one of the row's (ValueError for another): with defaults and the site's limits, names and
    patterns expanded.

    Raises Rejected for devices that the site does not let work name.
    """
    spec, terms = allocation.spec, terms_of(allocation, node, row.head, config)
    check_devices(spec.environment.devices, config.software.container_devices)
    signed = wants_signature(spec.environment.require, spec.tenant, spec.vcluster, config.software.require_signature)
    rank = row.nodes.index(node)
    account = config.work.account_of(spec.user)
    job_name = spec.tags.get("name", "") or row.name
    names = PatternValues(row.number, job_name, account, node, rank)
    stdout, stderr, append = _files(spec.environment, names)
    on_head = spec.on_head_only
    each = spec.tasks.per_node or 1
    submitted = allocation.status.submit_time or allocation.metadata.creation_timestamp
    return NodeWork(
        key=Key(*row.key), number=row.number, namespace=row.namespace, name=row.name, user=spec.user, account=account, tenant=spec.tenant,
        job_name=job_name, nodes=row.nodes, node=node, rank_of_node=rank, head=row.head, tasks=terms.tasks,
        first_rank=0 if on_head else rank * each, total_tasks=spec.tasks.total or (1 if on_head else each * len(row.nodes)),
        entrypoint=spec.entrypoint, script=spec.script, script_arguments=spec.script_arguments, variables=dict(spec.environment.variables),
        workdir=spec.environment.workdir, stdout=stdout, stderr=stderr, append=append,
        grace_seconds=terms.grace_seconds, walltime_seconds=walltime_of(allocation, row),
        min_uid=config.work.min_uid, open_files=config.work.open_files, log_bytes=quantity_bytes(config.work.log_bytes),
        max_processes=config.work.max_processes, reserved_memory=quantity_bytes(config.work.reserved_memory),
        hook_seconds=parse_duration(config.work.hook_timeout), epilogue_seconds=terms.epilogue_seconds,
        remove_leftovers=config.work.remove_leftovers, site_variables=dict(config.work.environment),
        core_bytes=quantity_bytes(config.work.core_bytes), private_tmp=config.work.private_tmp,
        private_tmp_keep=config.work.private_tmp_keep,
        uenv=spec.environment.uenv, tools_uenv=spec.environment.tools_uenv, view=spec.environment.view,
        default_views=not spec.environment.no_default_view, user_files=config.software.user_files,
        scratch_bytes=spec.data.scratch_bytes, writable=bool(spec.environment.writable), devices=spec.environment.devices,
        container_mounts=config.software.container_mounts,
        slurm_env=_slurm_env(config.compat.set_slurm_env, spec), project=spec.project, vcluster=spec.vcluster,
        submit_time=parse_time(submitted) if submitted else 0.0, software=_software(allocation.status.software, signed=signed),
        registry=config.software.registry, registries=config.software.registries, require_signature=signed,
        trusted_keys=config.software.trusted_keys if signed else (), image=spec.environment.image,
        largest_image=quantity_bytes(config.software.largest_image), pull_seconds=parse_duration(config.software.pull_timeout),
        is_launched=spec.is_launched, asked=_asked_tasks(spec.tasks), submit_host=spec.environment.submit_host,
        cluster_name=config.compat.cluster_name,
    )  # fmt: skip


def _asked_tasks(tasks: Tasks) -> AskedTasks:
    """Returns what `spec.tasks` asks of launches, in srun's words."""
    layout, bind, mpi = (word.lower() if word is not None else "" for word in (tasks.layout, tasks.bind, tasks.mpi))
    return AskedTasks(tasks.per_node, tasks.cpus, tasks.gpus, layout, bind, mpi)


def _slurm_env(site: bool | None, spec: WorkSpec) -> bool:
    """Tells whether the work has Slurm's variables: as the site says, else where it asks for them or is a script with `#SBATCH` lines."""
    return (spec.environment.slurm_variables or has_slurm_lines(spec.script or "")) if site is None else site


def _software(images: tuple[SoftwareImage, ...], *, signed: bool) -> tuple[SoftwareImage, ...]:
    """Returns the pinned images; of those that must be signed without attached metadata, which no signature of the image covers."""
    return tuple(msgspec.structs.replace(image, metadata="", mount="") if signed else image for image in images)


def _files(environment: Environment, names: PatternValues) -> tuple[str, str, bool]:
    """Returns the expanded names of the files for output and errors (empty: none), and whether they are appended to.

    They are where the work asks for it, and on all nodes but rank 0 where a file has no name that differs from node to node.
    """
    output = environment.output
    if output is None:
        return "", "", False
    patterns = [pattern for pattern in (output.stdout, output.stderr) if pattern]
    shared = any(not is_per_node(pattern) for pattern in patterns)
    append = output.mode == "Append" or (shared and names.rank_of_node != 0)
    return expand(output.stdout, names) if output.stdout else "", expand(output.stderr, names) if output.stderr else "", append
