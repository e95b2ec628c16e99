"""Makes `spec.tasks` of the options that describe tasks: their number, CPUs, GPUs, layout, binding and PMI."""

from __future__ import annotations

import re
from typing import Any, Final

from lattice.scripts.asked import Asked, Given, one_of, read_number
from lattice.scripts.constraints import read_gpus
from lattice.scripts.options import INSIDE, WITHOUT_NUMBER
from lattice.units import parse_node_count

_ON: Final = {"headnode": "HeadNode", "head-node": "HeadNode", "everynode": "EveryNode", "every-node": "EveryNode"}
_BINDINGS: Final = {"none": "None", "no": "None", "cores": "Cores", "threads": "Threads", "sockets": "Sockets", "ldoms": "Ldoms"}
_MPI: Final = {"auto": "Auto", "none": "None", "pmi1": "Pmi1", "pmi2": "Pmi2", "pmix": "Pmix"}
_LAYOUT: Final = re.compile(r"(\*|block|cyclic|plane=[1-9][0-9]{0,5})(?::(\*|block|cyclic|fcyclic))?(?::[a-z*]+)?", re.IGNORECASE)


def tasks_of(asked: Asked, nodes: int | str, *, is_script: bool) -> tuple[dict[str, Any], list[str]]:
    """Returns `spec.tasks` for work on so many nodes, as far as it is given or follows, and a warning for each option that is ignored.

    Of a script (`is_script`) the fields are the defaults of its `srun`. A command has them only with the number of its tasks, given or
    following from the number on each node. Raises Rejected for a value that does not read.
    """
    tasks, ignored = dict[str, Any](), list[str]()
    low, high = parse_node_count(nodes)
    each = read_number(asked["ntasks-per-node"]) if "ntasks-per-node" in asked else None
    if "tasks-on" in asked:
        tasks["on"] = one_of(asked["tasks-on"], (asked["tasks-on"].value or "").strip(), _ON)
    if each is not None:
        tasks["perNode"] = each
    if "ntasks" in asked:
        tasks["total"] = read_number(asked["ntasks"])
        if is_script and tasks.get("on") == "EveryNode" and each is None and low == high < tasks["total"] and tasks["total"] % low == 0:
            tasks["perNode"] = tasks["total"] // low
    elif each is not None and low == high:
        tasks["total"] = each * low
    shape = _shape(asked, ignored)
    if is_script or "total" in tasks or tasks.get("on") == "HeadNode":
        tasks |= shape
    else:
        ignored += [_passed_over(asked[_SLOTS[name]], WITHOUT_NUMBER) for name in shape if name != "gpus"]
    return tasks, ignored


_SLOTS: Final = {"cpus": "cpus-per-task", "gpus": "gpus-per-task", "layout": "distribution", "bind": "cpu-bind", "mpi": "mpi"}
"""By field, the slot of its option."""


def _shape(asked: Asked, ignored: list[str]) -> dict[str, Any]:
    """Returns what each task is asked to have; adds a warning for what only `srun` itself takes. Raises Rejected."""
    found = dict[str, Any]()
    if "cpus-per-task" in asked:
        found["cpus"] = read_number(asked["cpus-per-task"])
    if "gpus-per-task" in asked and (gpus := read_gpus(asked["gpus-per-task"])[0]):
        found["gpus"] = gpus
    for name, read in (("layout", _layout), ("bind", _binding)):
        if (given := asked.get(_SLOTS[name])) is not None:
            value = read(given)
            if value:
                found[name] = value
            else:
                ignored.append(_passed_over(given, INSIDE))
    if "mpi" in asked:
        kind = (asked["mpi"].value or "").strip()
        found["mpi"] = one_of(asked["mpi"], "pmix" if kind.startswith("pmix_v") else kind, _MPI)
    return found


def _passed_over(given: Given, why: str) -> str:
    """Returns the warning of an option that is ignored."""
    written = f"--{given.option}={given.value}"
    return f"{written} ignored ({why})" if given.place == written else f"{written} ignored ({given.place}: {why})"


def _layout(given: Given) -> str:
    """Returns a layout as `spec.tasks.layout` has it; empty: only `srun` takes it."""
    read = _LAYOUT.fullmatch((given.value or "").strip().partition(",")[0])
    if read is None:
        return ""
    outer, inner = ("" if word in (None, "*") else word.capitalize() for word in read.groups())
    return (outer or "Block") + (f":{inner}" if inner else "")


def _binding(given: Given) -> str:
    """Returns a binding as `spec.tasks.bind` has it; empty: only `srun` takes it."""
    words = [word for word in (given.value or "").strip().lower().split(",") if word not in ("quiet", "q", "verbose", "v")]
    return _BINDINGS.get(words[0], "") if len(words) == 1 else ""
