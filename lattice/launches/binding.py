"""Gives the ranks of one node their CPUs and GPUs: shared evenly, or cores of their own (decisions, "CPUs and GPUs of a launch")."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Final

from lattice.errors import Rejected
from lattice.launches.option_values import CpuBind
from lattice.launches.options import LaunchOptions

_OWN_CORES: Final = frozenset({"cores", "threads", "sockets", "ldoms", "rank", "rank_ldom"})
"""Kinds of `--cpu-bind` that give each task cores of its own."""
_NAMED: Final = frozenset({"map_cpu", "mask_cpu", "map_ldom", "mask_ldom"})
"""Kinds of `--cpu-bind` that name the CPUs."""
MOST_SHOWN: Final = 64
"""Characters of a number in a sentence."""


@dataclass(frozen=True)
class NodeCpus:
    """The CPUs and GPUs that an attempt has on one of its nodes.

    `cores`: the hardware threads of each core, cores in NUMA order; `domains`, `sockets`: the CPUs of each NUMA domain and socket; `gpus`:
    in NUMA order, `gpu_domains`: the index of the domain of each; `gpu_vendor`: nvidia, amd or intel. What is empty is unknown.
    """

    name: str
    cores: tuple[tuple[int, ...], ...]
    domains: tuple[tuple[int, ...], ...] = ()
    gpus: tuple[int, ...] = ()
    gpu_domains: tuple[int, ...] = ()
    sockets: tuple[tuple[int, ...], ...] = ()
    gpu_vendor: str = ""
    pmix: bool = False
    """Whether the node serves PMIx."""

    @property
    def cpus(self) -> tuple[int, ...]:
        """Returns all CPUs, by cores."""
        return tuple(cpu for core in self.cores for cpu in core)


@dataclass(frozen=True)
class RankCpus:
    """The CPUs of each rank of a node (empty: those of the attempt), and all CPUs that the launch holds there."""

    cpus: tuple[tuple[int, ...], ...]
    held: frozenset[int]


@dataclass(frozen=True)
class RankGpus:
    """The GPUs that each rank of a node sees (None: all of the attempt's), and those that the launch holds there."""

    gpus: tuple[tuple[int, ...] | None, ...]
    held: frozenset[int]


def usable_cores(node: NodeCpus, options: LaunchOptions) -> tuple[tuple[int, ...], ...]:
    """Returns the CPUs of each core that tasks may use: as many threads as `--threads-per-core` leaves."""
    threads = options.threads_per_core
    return tuple(core[:threads] for core in node.cores) if threads else node.cores


def cores_of_task(node: NodeCpus, options: LaunchOptions) -> int:
    """Returns how many whole cores one task counts on this node: those of its CPUs, one where none are asked for."""
    threads = max((len(core) for core in usable_cores(node, options)), default=1)
    return -(-(options.cpus_per_task or 1) // threads)


def has_own_cores(options: LaunchOptions) -> bool:
    """Tells whether each task has cores of its own: CPUs are asked for, or binding, or exactness."""
    if options.cpu_bind.kind == "none":
        return False
    return options.cpus_per_task is not None or options.exact or options.cpu_bind.kind in _OWN_CORES


def bind_cpus(tasks: int, node: NodeCpus, options: LaunchOptions, busy: frozenset[int]) -> RankCpus | None:
    """Returns the CPUs of a node's tasks; None: too many of them are in use now.

    Raises Rejected where a binding names CPUs that the allocation does not have there.
    """
    cores = usable_cores(node, options)
    free = [core for core in cores if options.overlap or not busy & set(core)]
    if options.cpu_bind.kind in _NAMED:
        return _bind_named(tasks, node, options, busy)
    needed = min(tasks * cores_of_task(node, options), len(cores)) if options.overcommit else tasks * cores_of_task(node, options)
    if needed > len(free):
        return None
    over = tasks * cores_of_task(node, options) > len(cores)
    own = has_own_cores(options) and not over
    taken = _own_cores(tasks, cores_of_task(node, options), free, node, options.distribution.inner) if own else [free[:needed]]
    held = frozenset() if options.overlap else _whole(node, [core for cores_taken in taken for core in cores_taken])
    if options.cpu_bind.kind == "none" or over:
        return RankCpus(((),) * tasks, held)
    if not own:
        return RankCpus(_share(tasks, cores), held)
    cpus = [tuple(cpu for core in cores_taken for cpu in core) for cores_taken in taken]
    return RankCpus(tuple(_widen(rank, own_cpus, node, options) for rank, own_cpus in enumerate(cpus)), held)


def bind_gpus(
    tasks: int, cpus: Sequence[tuple[int, ...]], node: NodeCpus, options: LaunchOptions, place: tuple[int, int], busy: frozenset[int]
) -> RankGpus | None:
    """Returns the GPUs of a node's tasks; `place`: the node's among those of the launch, and their number. None: too many are in use now.

    Raises Rejected where the allocation has fewer there than are asked for.
    """
    free = tuple(gpu for gpu in node.gpus if options.overlap or gpu not in busy)
    wanted = gpus_of_node(tasks, options, place)
    if wanted is None:
        seen, held = node.gpus, frozenset[int]()
    elif wanted > len(node.gpus):
        asked = f"{wanted} GPUs on {node.name} are asked for, and the allocation has {len(node.gpus)} there"
        raise Rejected(f"{asked}: ask for fewer, or submit with --gpus={wanted}", reason="TooFewGpus")
    elif wanted > len(free):
        return None
    else:
        seen = free[:wanted]
        held = frozenset() if options.overlap else frozenset(seen)
    bind = options.gpu_bind
    if options.gpus_per_task is not None and bind.kind in ("", "per_task"):
        each = options.gpus_per_task
        return RankGpus(tuple(seen[rank * each : (rank + 1) * each] for rank in range(tasks)), held)
    if not bind.kind or bind.kind == "none":
        return RankGpus((None if wanted is None else seen,) * tasks, held)
    return RankGpus(tuple(_bound_gpus(rank, cpus[rank], seen, node, options) for rank in range(tasks)), held)


def gpus_of_node(tasks: int, options: LaunchOptions, place: tuple[int, int]) -> int | None:
    """Returns how many GPUs a launch asks for on one of its nodes, the first of which have those left over; None: it asks for none."""
    if options.gpus_per_task is not None:
        return options.gpus_per_task * tasks
    if options.gpus_per_node is not None:
        return options.gpus_per_node
    index, nodes = place
    return None if options.gpus is None else options.gpus // nodes + (index < options.gpus % nodes)


def _own_cores(tasks: int, each: int, free: Sequence[tuple[int, ...]], node: NodeCpus, order: str) -> list[list[tuple[int, ...]]]:
    """Returns the cores of each task, of which there are enough: in a row, or as `order` has them.

    `cyclic`: a task's come from one socket where that has as many, the next task's from the next; `fcyclic`: each comes from the next.
    """
    rows = list(free)
    if order:
        queues = _by_socket(free, node)
        if order == "cyclic":
            return [_next_cores(queues, each) for _ in range(tasks)]
        rows = [core for row in zip_longest(*queues) for core in row if core is not None]
    return [rows[rank * each : (rank + 1) * each] for rank in range(tasks)]


def _by_socket(cores: Sequence[tuple[int, ...]], node: NodeCpus) -> deque[deque[tuple[int, ...]]]:
    """Returns these cores by socket, where none are known by NUMA domain; those of none come last."""
    sockets = node.sockets or node.domains
    numbers = {cpu: number for number, socket in reversed(list(enumerate(sockets))) for cpu in socket}
    queues = [deque[tuple[int, ...]]() for _ in range(len(sockets) + 1)]
    for core in cores:
        queues[numbers.get(core[0], -1)].append(core)
    return deque(queue for queue in queues if queue)


def _next_cores(queues: deque[deque[tuple[int, ...]]], each: int) -> list[tuple[int, ...]]:
    """Takes the cores of one task from the first socket that has as many, else from several; turns to the next socket."""
    for _ in range(len(queues)):
        if len(queues[0]) >= each:
            break
        queues.rotate(-1)
    taken = list[tuple[int, ...]]()
    while len(taken) < each:
        if queues[0]:
            taken.append(queues[0].popleft())
        else:
            queues.rotate(-1)
    queues.rotate(-1)
    return taken


def _groups_of(cpus: Sequence[int], groups: Sequence[tuple[int, ...]], node: NodeCpus, options: LaunchOptions) -> tuple[int, ...]:
    """Returns the usable CPUs of all groups (sockets, NUMA domains) that have any of these; all that are usable where none has."""
    usable = dict.fromkeys(cpu for core in usable_cores(node, options) for cpu in core)
    own = frozenset(cpus)
    return tuple(cpu for group in groups if own & set(group) for cpu in group if cpu in usable) or tuple(usable)


def _share(tasks: int, cores: Sequence[tuple[int, ...]]) -> tuple[tuple[int, ...], ...]:
    """Returns the CPUs of each task where all cores are shared evenly, in a row; those of all cores for one task."""
    count = len(cores)
    parts = (cores[rank * count // tasks : (rank + 1) * count // tasks] for rank in range(tasks))
    return tuple(tuple(cpu for core in part for cpu in core) for part in parts)


def _whole(node: NodeCpus, cores: Sequence[tuple[int, ...]]) -> frozenset[int]:
    """Returns all CPUs of these cores, those that no task uses too."""
    used = {cpu for core in cores for cpu in core}
    return frozenset(cpu for core in node.cores if used & set(core) for cpu in core)


def _widen(rank: int, cpus: tuple[int, ...], node: NodeCpus, options: LaunchOptions) -> tuple[int, ...]:
    """Returns a task's CPUs as its kind of binding has them: single threads, its cores, or all of their sockets or NUMA domains."""
    match options.cpu_bind.kind:
        case "threads":
            return cpus[: options.cpus_per_task or 1]
        case "sockets":
            return _groups_of(cpus, node.sockets or node.domains, node, options)
        case "ldoms":
            return _groups_of(cpus, node.domains, node, options)
        case "rank_ldom" if node.domains:
            return _groups_of(node.domains[rank % len(node.domains)], node.domains, node, options)
    return cpus


def _bind_named(tasks: int, node: NodeCpus, options: LaunchOptions, busy: frozenset[int]) -> RankCpus | None:
    """Returns the CPUs that a binding names for each task, lists shorter than the tasks from their start again; None: they are in use.

    Raises Rejected where a task would have none.
    """
    bind, usable = options.cpu_bind, node.cpus
    there = frozenset(usable)
    cpus = []
    for rank in range(tasks):
        value = bind.values[rank % len(bind.values)]
        named = _named(bind, value, node, usable)
        if not (own := tuple(cpu for cpu in usable if cpu in named)) or (bind.kind == "map_cpu" and not named <= there):
            shown = _shown(value, mask=bind.kind.startswith("mask"))
            raise Rejected(
                f"--cpu-bind={bind.kind}: {shown} names no CPU that the allocation has on {node.name}: {_ids(usable)}",
                reason="BadBinding",
            )
        cpus.append(own)
    held = _whole(node, cpus)
    if held & busy and not options.overlap:
        return None
    return RankCpus(tuple(cpus), frozenset() if options.overlap else held)


def _named(bind: CpuBind, value: int, node: NodeCpus, usable: tuple[int, ...]) -> set[int]:
    """Returns the CPUs that one entry of a list names, of the usable ones: by number, by mask, or by NUMA domain."""
    if bind.kind == "map_cpu":
        return {value}
    if bind.kind == "mask_cpu":
        return {cpu for cpu in usable if value >> cpu & 1}
    domains = enumerate(node.domains or (usable,))
    return {cpu for index, domain in domains if (index == value if bind.kind == "map_ldom" else value >> index & 1) for cpu in domain}


def _shown(value: int, *, mask: bool = False) -> str:
    """Returns a number of a list for a sentence: a mask, and what has more digits than a CPU's number has, hexadecimal and cut."""
    text = hex(value) if mask or value >= 1 << 64 else str(value)
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}…"


def _bound_gpus(rank: int, cpus: tuple[int, ...], seen: tuple[int, ...], node: NodeCpus, options: LaunchOptions) -> tuple[int, ...] | None:
    """Returns the GPUs that `--gpu-bind` gives one task, by its number on the node; None: all, where which are near is unknown.

    Raises Rejected for a GPU that is not there.
    """
    bind = options.gpu_bind
    picked: tuple[int, ...]
    match bind.kind:
        case "closest":
            near = {index for index, domain in enumerate(node.domains) if set(domain) & set(cpus or node.cpus)}
            own = tuple(gpu for gpu, domain in zip(node.gpus, node.gpu_domains, strict=False) if domain in near and gpu in seen)
            return own or None
        case "single":
            picked = (rank // bind.values[0] % len(seen),) if seen else ()
        case "per_task":
            each = min(bind.values[0], len(seen) + 1)
            picked = tuple(range(rank * bind.values[0], rank * bind.values[0] + each))
        case "map_gpu":
            picked = (bind.values[rank % len(bind.values)],)
        case _:
            mask = bind.values[rank % len(bind.values)]
            picked = tuple(bit for bit in range(mask.bit_length()) if mask >> bit & 1)
    if not picked or max(picked) >= len(seen):
        gpu = _shown(max(picked, default=0))
        raise Rejected(
            f"--gpu-bind={bind.kind}: task {rank} of {node.name} is to see GPU {gpu} of the launch's {len(seen)}", reason="TooFewGpus"
        )
    return tuple(seen[index] for index in picked)


def _ids(cpus: Sequence[int]) -> str:
    """Returns the numbers of CPUs for a sentence, the first 16 of them."""
    return ", ".join(map(str, cpus[:16])) + (", …" if len(cpus) > 16 else "")
