"""`sinfo`: lists partitions and the states of their nodes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from lattice.cli import exits
from lattice.cli.slurm import sayings
from lattice.cli.slurm.clock import short_span
from lattice.cli.slurm.columns import lines, read_codes, read_names
from lattice.cli.slurm.fetch import JobQuery, fetch_jobs
from lattice.cli.slurm.iteration import iterate
from lattice.cli.slurm.nodes import NodeState, Partition, fetch_nodes, fetch_partitions, is_silent, state_of
from lattice.cli.slurm.options import Parsed, grammar
from lattice.scheduling.queries.node_rows import NodeRow
from lattice.units import expand_nodes, fold_nodes, quantity_bytes

if TYPE_CHECKING:
    from lattice.cli.console import Console

GRAMMAR: Final = grammar(
    "sinfo",
    switches="all dead exact federation future hide list-reasons local long noconvert Node noheader responding reservation summarize json",
    values="clusters cluster format Format iterate nodes partition sort states",
    short="a=all M=clusters d=dead e=exact F=future o=format O=Format i=iterate l=long R=list-reasons h=noheader N=Node n=nodes"
    " p=partition r=responding S=sort s=summarize t=states T=reservation",
    unserved={
        "json": "`lattice nodes -o json` prints nodes", "reservation": "reservations are shown by `lattice reservation list`",
    },
)  # fmt: skip
WRONG_USAGE = 1
DEFAULT: Final = "%#P %.5a %.10l %.6D %.6t %N"
SUMMARY: Final = "%#P %.5a %.10l %.16F %N"
LONG: Final = "%#P %.5a %.10l %.10s %.4r %.8h %.10g %.6D %.11T %N"
BY_NODE: Final = "%#N %.6D %#P %6t"
BY_NODE_LONG: Final = "%#N %.6D %#P %.11T %.4c %.8z %.6m %.8d %.6w %.8f %20E"
REASONS: Final = "%20E %.9u %19H %N"
_MEBI: Final = 1 << 20


class NodeLine(NamedTuple):
    """Nodes of one partition that a line tells of, and the state that they have (None: several)."""

    partition: Partition
    nodes: Sequence[NodeRow]
    busy: frozenset[str]
    state: NodeState | None


def _spread(values: Sequence[int]) -> str:
    """Returns a number that all nodes have, or the least with a `+` where some have more."""
    return (f"{min(values)}+" if min(values) != max(values) else str(min(values))) if values else "0"


def _memory(row: NodeRow) -> int:
    """Returns a node's memory in MiB."""
    return quantity_bytes(row.memory) // _MEBI if row.memory else 0


def _gres(line: NodeLine) -> str:
    """Returns the GPUs of the nodes as Slurm lists generic resources."""
    found = sorted({f"gpu:{row.gpu_type.lower()}:{row.gpus}" if row.gpu_type else f"gpu:{row.gpus}" for row in line.nodes if row.gpus})
    return ",".join(found) or "(null)"


def _limit(seconds: float | None, none: str) -> str:
    """Returns a time limit; `none` where there is none."""
    return none if seconds is None else short_span(seconds)


def _counts(line: NodeLine, weigh: Callable[[NodeRow], int]) -> tuple[int, int, int, int]:
    """Returns what nodes have by state: allocated, idle, other, total."""
    found = {"alloc": 0, "idle": 0, "other": 0}
    for row in line.nodes:
        short = state_of(row, line.busy).short
        found[short if short in found else "other"] += weigh(row)
    return found["alloc"], found["idle"], found["other"], sum(found.values())


def _slashes(numbers: Sequence[int]) -> str:
    """Returns numbers with slashes between them."""
    return "/".join(map(str, numbers))


def _one_reason(line: NodeLine) -> str:
    """Returns why a node takes no work; `none` where it does."""
    return next((row.reason for row in line.nodes if row.reason and row.reason != "hollow"), "none")


CODES: Final[dict[str, tuple[str, Callable[[NodeLine], str]]]] = {
    "a": ("AVAIL", lambda line: "up" if line.partition.is_up else "down"),
    "A": ("NODES(A/I)", lambda line: _slashes(_counts(line, lambda _: 1)[:2])),
    "c": ("CPUS", lambda line: _spread([row.cpus for row in line.nodes])),
    "C": ("CPUS(A/I/O/T)", lambda line: _slashes(_counts(line, lambda row: row.cpus))),
    "d": ("TMP_DISK", lambda _: "0"),
    "D": ("NODES", lambda line: str(len(line.nodes))),
    "e": ("FREE_MEM", lambda _: "N/A"),
    "E": ("REASON", _one_reason),
    "f": ("AVAIL_FEATURES", lambda line: ",".join(sorted({f for row in line.nodes for f in row.features.split(",") if f})) or "(null)"),
    "F": ("NODES(A/I/O/T)", lambda line: _slashes(_counts(line, lambda _: 1))),
    "g": ("GROUPS", lambda _: "all"),
    "G": ("GRES", _gres),
    "h": ("OVERSUBS", lambda _: "EXCLUSIV"),
    "H": ("TIMESTAMP", lambda _: "Unknown"),
    "l": ("TIMELIMIT", lambda line: _limit(line.partition.max_seconds, "infinite")),
    "L": ("DEFAULTTIME", lambda line: _limit(line.partition.default_seconds, "n/a")),
    "m": ("MEMORY", lambda line: _spread([_memory(row) for row in line.nodes])),
    "n": ("HOSTNAMES", lambda line: fold_nodes([row.name for row in line.nodes])),
    "N": ("NODELIST", lambda line: fold_nodes([row.name for row in line.nodes])),
    "O": ("CPU_LOAD", lambda _: "N/A"),
    "p": ("PRIO_TIER", lambda _: "1"),
    "P": ("PARTITION", lambda line: line.partition.name + ("*" if line.partition.is_default else "")),
    "r": ("ROOT", lambda _: "no"),
    "R": ("PARTITION", lambda line: line.partition.name),
    "s": ("JOB_SIZE", lambda line: f"1-{line.partition.max_nodes or 'infinite'}"),
    "t": ("STATE", lambda line: line.state.short if line.state is not None else "n/a"),
    "T": ("STATE", lambda line: line.state.name if line.state is not None else "n/a"),
    "u": ("USER", lambda _: "Unknown"),
    "v": ("VERSION", lambda _: "22.05.8"),
    "V": ("CLUSTER", lambda _: "N/A"),
    "w": ("WEIGHT", lambda _: "1"),
    "X": ("SOCKETS", lambda _: "1"),
    "Y": ("CORES", lambda line: _spread([row.cpus for row in line.nodes])),
    "z": ("S:C:T", lambda line: f"1:{_spread([row.cpus for row in line.nodes])}:1"),
    "Z": ("THREADS", lambda _: "1"),
}
_NAMES: Final = {
    "available": "a", "cpus": "c", "cpusstate": "C", "defaulttime": "L", "features": "f", "freemem": "e", "gres": "G", "memory": "m",
    "nodeaiot": "F", "nodeai": "A", "nodehost": "n", "nodelist": "N", "nodes": "D", "partition": "P", "partitionname": "R", "reason": "E",
    "size": "s", "statecompact": "t", "statelong": "T", "time": "l", "version": "v",
}  # fmt: skip
_OF_NODES: Final = frozenset("cdefmnNtTXYZzEHuwO")
"""Codes by which nodes stand in lines of their own where they differ in state."""


def run(console: Console, given: Parsed) -> int:
    """Prints partitions, or with `--Node` nodes, again every few seconds with `--iterate`, and returns the exit code."""
    return iterate(console, given, _show)


def _show(console: Console, given: Parsed) -> int:
    """Prints them once, and returns DONE."""
    now = console.outside.now()
    spec = _format(given)
    found = _lines(console, given, spec)
    if given.has("Format"):
        lead, (columns, wrong) = "", read_names(given.last("Format") or "", {name: CODES[code] for name, code in _NAMES.items()}, "node")
    else:
        lead, columns, wrong = read_codes(_fitted(spec, found), CODES, "node")
    sayings.error(console.outside, "sinfo", *wrong)
    if given.has("long") and not given.has("noheader"):
        console.say(time.strftime("%a %b %d %H:%M:%S %Y", time.localtime(now)))
    console.say(*lines(columns, found, lead=lead, header=not given.has("noheader")))
    return exits.DONE


def _format(given: Parsed) -> str:
    """Returns the format that the options ask for."""
    asked = given.last("format")
    if asked is not None:
        return asked
    if given.has("list-reasons"):
        return REASONS
    if given.has("Node"):
        return BY_NODE_LONG if given.has("long") else BY_NODE
    return SUMMARY if given.has("summarize") else LONG if given.has("long") else DEFAULT


def _fitted(spec: str, found: Sequence[NodeLine]) -> str:
    """Returns a format in which `%#P` and `%#N` are as wide as their longest cell, as Slurm's own formats have them."""
    for code in ("P", "N"):
        heading, text = CODES[code]
        spec = spec.replace(f"%#{code}", f"%{max([len(heading), *(len(text(line)) for line in found)])}{code}")
    return spec


def _lines(console: Console, given: Parsed, spec: str) -> list[NodeLine]:
    """Returns a line for each partition, or for each state in it where the format tells nodes apart, or for each node."""
    nodes = fetch_nodes(console)
    partitions = fetch_partitions(console, nodes)
    names = given.all("partition")
    wanted_nodes = set(expand_nodes(given.last("nodes") or "")) if given.last("nodes") else None
    states = {word.lower() for word in given.all("states")} - {"all"}
    busy = _busy(console)
    apart = bool(_OF_NODES & set(spec.replace("%#", "%").replace("%.", "%"))) and not given.has("summarize")
    found: list[NodeLine] = []
    for partition in partitions:
        if names and partition.name not in names:
            continue
        kept = [row for row in partition.nodes if wanted_nodes is None or row.name in wanted_nodes]
        if given.has("dead") != given.has("responding"):
            kept = [row for row in kept if is_silent(row) == given.has("dead")]
        by_state: dict[NodeState, list[NodeRow]] = {}
        for row in kept:
            state = state_of(row, busy)
            if not states or {state.name.rstrip("*"), state.short.rstrip("*")} & states:
                by_state.setdefault(state, []).append(row)
        if given.has("list-reasons"):
            by_state = {state: [row for row in rows if row.reason and row.reason != "hollow"] for state, rows in by_state.items()}
            by_state = {state: rows for state, rows in by_state.items() if rows}
        if given.has("Node"):
            found += [NodeLine(partition, [row], busy, state) for state, rows in by_state.items() for row in rows]
        elif given.has("list-reasons") or (apart and _tells_states(spec)):
            found += [NodeLine(partition, rows, busy, state) for state, rows in sorted(by_state.items())]
        else:
            rows = [row for group in by_state.values() for row in group]
            found.append(NodeLine(partition, rows, busy, next(iter(by_state)) if len(by_state) == 1 else None))
    if given.has("Node"):
        found.sort(key=lambda line: line.nodes[0].name)
    return found


def _tells_states(spec: str) -> bool:
    """Tells whether a format shows states, so that nodes of each have a line."""
    return "t" in spec or "T" in spec


def _busy(console: Console) -> frozenset[str]:
    """Returns the names of the nodes on which work that the person may see runs."""
    jobs = fetch_jobs(console, JobQuery(after=console.outside.now()))
    return frozenset(name for job in jobs if job.is_active and job.nodelist for name in expand_nodes(job.nodelist))
