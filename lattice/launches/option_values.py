"""Reads the values of srun's options: counts, ranges of nodes, layouts, bindings, GPUs, exports."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from lattice.errors import Rejected
from lattice.units import expand_nodes, is_digits, parse_slurm_time

MOST: Final = 16_777_216
"""The largest count of tasks, nodes or CPUs that is read."""
MOST_NUMBERS: Final = 65_536
"""Numbers of one list of CPUs, masks or GPUs."""
LIMITS: Final = ("CPU", "FSIZE", "DATA", "STACK", "CORE", "RSS", "NPROC", "NOFILE", "MEMLOCK", "AS")
"""The soft limits that `--propagate` names."""
SERVED_MPI: Final = ("auto", "none", "pmi1", "pmi2", "pmix")
_GPU_WORDS: Final = ("gpu", "gpus")
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_BINDINGS: Final = ("none", "no", "rank", "threads", "cores", "sockets", "ldoms", "map_cpu", "mask_cpu", "map_ldom", "rank_ldom")
_LAYOUTS: Final = ("block", "cyclic", "plane")
_INNER: Final = frozenset({"*", "block", "cyclic", "fcyclic"})
_OVER_SOCKETS: Final = frozenset({"cyclic", "fcyclic"})
_HINTS: Final = {"multithread": 0, "nomultithread": 1, "compute_bound": 1}


@dataclass(frozen=True)
class Export:
    """The variables of the caller that `--export` passes on: all, or the names listed, and values given in place of the caller's."""

    all: bool = True
    names: tuple[str, ...] = ()
    values: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class CpuBind:
    """The binding that `--cpu-bind` asks for: a kind of Slurm's (empty: not asked), its numbers, and whether each task says its mask."""

    kind: str = ""
    values: tuple[int, ...] = ()
    verbose: bool = False


@dataclass(frozen=True)
class GpuBind:
    """The binding that `--gpu-bind` asks for: a word such as `closest` or `map_gpu` (empty: not asked), and its numbers."""

    kind: str = ""
    values: tuple[int, ...] = ()


@dataclass(frozen=True)
class Distribution:
    """The order in which ranks are dealt to nodes: `block`, `cyclic`, or `plane` with its size; `packed`: one node is filled first.

    `inner`: the order of their cores over the sockets of a node, `cyclic` or `fcyclic`; empty: in a row.
    """

    kind: str = "block"
    plane: int = 0
    packed: bool = False
    inner: str = ""


DEFAULT_DISTRIBUTION: Final = Distribution()
ALL: Final = Export()


def read_count(text: str) -> int:
    """Returns a whole number from 1 to 16,777,216. Raises Rejected for anything else."""
    if not _is_number(text) or not 1 <= int(text) <= MOST:
        raise Rejected(f"{text!r} is no number from 1 on")
    return int(text)


def read_number(text: str) -> int:
    """Returns a whole number from 0 to 16,777,216. Raises Rejected for anything else."""
    if not _is_number(text) or int(text) > MOST:
        raise Rejected(f"{text!r} is no number from 0 on")
    return int(text)


def read_nodes(text: str) -> tuple[int, int]:
    """Returns the least and the largest number of nodes of `4` or `2-4`; raises Rejected for anything else."""
    low, dash, high = text.partition("-")
    if not _is_number(low) or (dash and not _is_number(high)) or not 1 <= int(low) <= int(high or low) <= MOST:
        raise Rejected(f"{text!r} is no number of nodes: write for example 4, or 2-4 for a range")
    return int(low), int(high or low)


def read_node_names(text: str) -> tuple[str, ...]:
    """Returns the names of a node set, each once; raises Rejected for a file of names, and for what does not parse."""
    if "/" in text:
        raise Rejected(f"{text!r} is a file; name the nodes themselves, as nid[001-004]")
    return tuple(dict.fromkeys(expand_nodes(text)))


def read_distribution(text: str) -> Distribution:
    """Returns the layout of `block`, `cyclic:fcyclic`, `plane=4`; what follows a second `:` is about cores and is read only.

    Raises Rejected for other words; `arbitrary` needs a file of hosts and is one.
    """
    layout, *rest = text.lower().split(",")
    if not set(rest) <= {"pack", "nopack"}:
        raise Rejected(f"{text!r} is no layout: behind the comma stands Pack or NoPack")
    outer, *inner = layout.split(":")
    kind, equals, size = outer.partition("=")
    if kind in ("", "*"):
        kind = "block"
    if kind == "arbitrary":
        raise Rejected("arbitrary is not served: name the nodes with --nodelist, and use block, cyclic or plane=SIZE")
    if kind not in _LAYOUTS or len(inner) > 2 or not set(inner) <= _INNER or (kind == "plane") != bool(equals):
        raise Rejected(f"{text!r} is no layout: use block, cyclic or plane=SIZE")
    over_sockets = inner[0] if inner and inner[0] in _OVER_SOCKETS else ""
    return Distribution(kind, read_count(size) if equals else 0, "pack" in rest, over_sockets)


def read_time(text: str) -> float | None:
    """Returns the seconds of a time as Slurm writes it; None where it is unlimited. Raises Rejected for anything else."""
    return parse_slurm_time(text)


def read_seconds(text: str) -> float:
    """Returns a whole number of seconds. Raises Rejected for anything else."""
    if not _is_number(text):
        raise Rejected(f"{text!r} is no number of seconds")
    return float(int(text))


def read_gpus(text: str) -> int:
    """Returns the GPUs of `4`, `gpu:4`, `gpu:gh200:4`, `gh200:4` or `none` (0), those of all types together; raises Rejected for others."""
    if text.lower() in ("none", "0"):
        return 0
    total = 0
    for part in text.split(","):
        words = part.partition("(")[0].removeprefix("gres/").replace("=", ":").split(":")
        if words[0].lower() in _GPU_WORDS:
            words = words[1:] or ["1"]
        total += read_number(words[-1]) if _is_number(words[-1]) or len(words) > 1 else 1
    return total


def read_gres(text: str) -> int | None:
    """Returns the GPUs of a list of generic resources; None: it names none. Raises Rejected where their count does not read."""
    if text.lower() == "none":
        return 0
    gpus = [part for part in text.split(",") if re.split("[:=]", part.removeprefix("gres/").removeprefix("gres:"))[0].lower() in _GPU_WORDS]
    return read_gpus(",".join(part.removeprefix("gres:") for part in gpus)) if gpus else None


def read_gpu_bind(text: str) -> GpuBind:
    """Returns what `--gpu-bind` asks, without `verbose,`; raises Rejected for other words."""
    kind, _, numbers = text.lower().removeprefix("verbose,").partition(":")
    match kind:
        case "none" | "closest" if not numbers:
            return GpuBind(kind)
        case "single" | "per_task":
            return GpuBind(kind, (read_count(numbers or "1"),))
        case "map_gpu" | "mask_gpu":
            return GpuBind(kind, _numbers(numbers, masks=kind == "mask_gpu"))
    raise Rejected(f"{text!r} is no binding of GPUs: use none, closest, single:TASKS, per_task:GPUS, map_gpu:LIST or mask_gpu:LIST")


def read_cpu_bind(text: str) -> CpuBind:
    """Returns what `--cpu-bind` asks; raises Rejected for other words."""
    verbose, found = False, CpuBind()
    head, colon, numbers = text.partition(":")
    for word in head.lower().split(","):
        if word in ("verbose", "v", "quiet", "q"):
            verbose = word.startswith("v")
        elif word in _BINDINGS or word == "mask_ldom":
            found = CpuBind("none" if word == "no" else word)
        elif word in ("autobind", "one_thread", ""):
            continue
        else:
            raise Rejected(f"{text!r} is no binding: use none, cores, threads, sockets, ldoms, rank, map_cpu:LIST or mask_cpu:LIST")
    takes = found.kind.startswith(("map_", "mask_"))
    if takes != bool(colon and numbers):
        raise Rejected(f"{text!r} is no binding: map_cpu and mask_cpu are followed by a list, as map_cpu:0,2,4; the others by none")
    return CpuBind(found.kind, _numbers(numbers, masks=found.kind.startswith("mask_")) if takes else (), verbose)


def read_hint(text: str) -> int:
    """Returns the threads of each core that a hint leaves (0: all). Raises Rejected for a hint that would choose other cores."""
    if text.lower() not in _HINTS:
        raise Rejected(f"{text!r} is not served: use nomultithread, multithread or compute_bound, or bind with --cpu-bind")
    return _HINTS[text.lower()]


def read_export(text: str) -> Export:
    """Returns what `--export` asks: ALL, NONE, and names, or names with values. Raises Rejected for what is no name."""
    everything, names, values = False, [], []
    if text.upper() in ("NONE", "NIL"):
        return Export(all=False)
    for part in _split_quoted(text):
        name, equals, value = part.partition("=")
        if name.upper() == "ALL" and not equals:
            everything = True
        elif not _NAME.fullmatch(name):
            raise Rejected(f"{name!r} is not the name of a variable")
        elif equals:
            values.append((name, value))
        else:
            names.append(name)
    return Export(everything, tuple(names), tuple(values))


def read_mpi(text: str) -> str:
    """Returns how ranks are served (`pmix_vN`, as Slurm names its own, is pmix); raises Rejected for a kind that is not known."""
    kind = text.lower()
    if kind in SERVED_MPI:
        return kind
    if kind.startswith("pmix_v"):
        return "pmix"
    raise Rejected(f"{text!r} is not known: use {', '.join(SERVED_MPI)}, or leave the option out")


def read_propagate(text: str) -> frozenset[str] | None:
    """Returns the names of the soft limits that are passed on; None: all of them. Raises Rejected for a name that is none."""
    words = [word.upper().removeprefix("RLIMIT_") for word in text.split(",") if word]
    if not words or words == ["ALL"]:
        return None
    if words == ["NONE"]:
        return frozenset()
    if unknown := sorted(set(words) - set(LIMITS)):
        raise Rejected(f"{unknown[0]!r} is no limit: use ALL, NONE, or some of {', '.join(LIMITS)}")
    return frozenset(words)


def read_open_mode(text: str) -> bool:
    """Tells whether files are appended to; raises Rejected for words other than append and truncate."""
    words = {"a": True, "append": True, "t": False, "truncate": False}
    if text.lower() not in words:
        raise Rejected(f"{text!r} is neither append nor truncate")
    return words[text.lower()]


def read_switch(text: str) -> bool:
    """Tells whether a variable turns a switch on: any value but 0, `no` and `false`."""
    return text.lower() not in ("0", "no", "false")


def _is_number(text: str) -> bool:
    """Tells whether a text is up to 9 digits, and nothing else."""
    return is_digits(text, 9)


def _numbers(text: str, *, masks: bool) -> tuple[int, ...]:
    """Returns the numbers of a list such as `0,2*3,0x5`; masks are hexadecimal. Raises Rejected for anything else."""
    found: list[int] = []
    for part in text.split(","):
        number, star, times = part.partition("*")
        count = read_count(times) if star else 1
        try:
            value = int(number, 16 if masks or number.lower().startswith("0x") else 10)
        except ValueError:
            value = -1
        if value < 0 or len(number) > 4096 or count > 4096:
            raise Rejected(f"{part!r} is no {'mask' if masks else 'number'} of the list")
        if len(found) + count > MOST_NUMBERS:
            raise Rejected(
                f"the list has more than {MOST_NUMBERS} numbers, which is the limit: it begins again for the tasks behind its end"
            )
        found.extend([value] * count)
    return tuple(found)


def _split_quoted(text: str) -> list[str]:
    """Returns the parts of a text between commas outside quotes, without the quotes; empty ones are left out."""
    parts, quote = [list[str]()], ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
            parts[-1] += [character] if quote else []
        elif character in "'\"":
            quote = character
        elif character == ",":
            parts.append([])
        else:
            parts[-1].append(character)
    return ["".join(part) for part in parts if part]
