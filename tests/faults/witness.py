"""The work as its own witness: each task appends what it does to a file outside Lattice, and holds a lock of its node.

A line is `UID ATTEMPT NODE RANK WORD …`, appended by one write: `start TIME`, `exit CODE TIME`, or `overlap` when the
node's lock was held by another task that still lives. The lock is inherited by everything that the task starts, so
the kernel itself says when the last process of an attempt is gone.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

SCRIPT = """#!/bin/bash
# WITNESS SECONDS CODE STUBBORN LINES [FILE that ends it earlier]
file=$1/$LATTICE_NODENAME
me="$LATTICE_ALLOC_ID $LATTICE_ATTEMPT $LATTICE_NODENAME $LATTICE_PROCID"
[ "$4" = stubborn ] && trap '' TERM
exec 9>>"$file.lock"
flock -n 9 || echo "$me overlap" >>"$file"
echo "$me start $EPOCHREALTIME" >>"$file"
for ((line = 1; line <= $5; line++)); do echo "line $line of $5"; done
if [ -z "$6" ]; then
  sleep "$2" || kill -KILL $$
else
  until [ -e "$6" ] || ((SECONDS >= ${2%.*})); do sleep 0.2 || kill -KILL $$; done
fi
echo "$me exit $3 $EPOCHREALTIME" >>"$file"
exit "$3"
"""

Task = tuple[str, int, str, int]
"""uid, attempt, node, rank"""


@dataclass(frozen=True)
class Testimony:
    """One line."""

    task: Task
    word: str
    code: int = 0
    time: float = 0.0


def install(home: Path, uid: int) -> tuple[Path, Path]:
    """Lays the script and the directory of the witnesses down, owned by the user; answers both."""
    directory, script = home / "witness", home / "witness.sh"
    directory.mkdir(exist_ok=True)
    told(directory, "").mkdir(exist_ok=True)
    script.write_text(SCRIPT)
    script.chmod(0o755)
    for path in (directory, script):
        os.chown(path, uid, uid)
    return script, directory


def told(directory: Path, name: str) -> Path:
    """The file that ends this work of the instance, once it is there."""
    return directory.with_name("told") / name


def command(
    script: Path, directory: Path, *, seconds: float, code: int, stubborn: bool = False, lines: int = 0, told: Path | None = None
) -> str:
    """The entrypoint of a task that lives so long, or until the file `told` is there, and ends so."""
    until = f" {told}" if told else ""
    return f"{script} {directory} {seconds:.2f} {code} {'stubborn' if stubborn else 'meek'} {lines}{until}"


def read(directory: Path) -> list[Testimony]:
    """Every line of every node."""
    files = (path for path in sorted(directory.iterdir()) if path.suffix != ".lock")
    return [parse(line) for path in files for line in path.read_text().splitlines()]


def parse(line: str) -> Testimony:
    """One line; raises ValueError for one that no witness writes."""
    uid, attempt, node, rank, word, *rest = line.split(" ")
    task = (uid, int(attempt), node, int(rank))
    match word, rest:
        case "start", [time]:
            return Testimony(task, word, time=float(time))
        case "exit", [code, time]:
            return Testimony(task, word, int(code), float(time))
        case "overlap", []:
            return Testimony(task, word)
    raise ValueError(f"no witness writes {line!r}")


def exits(said: Iterable[Testimony]) -> dict[Task, int]:
    """The exit code of each task that said one."""
    return {testimony.task: testimony.code for testimony in said if testimony.word == "exit"}


def faults(said: Sequence[Testimony]) -> list[str]:
    """What no order of faults may lead to, as sentences: a task twice, two tasks at once on one node."""
    found: list[str] = []
    seen: set[tuple[Task, str]] = set()
    for testimony in said:
        uid, attempt, node, rank = testimony.task
        who = f"{uid} attempt {attempt} rank {rank} on {node}"
        if testimony.word == "overlap":
            found.append(f"{who} started while another task still lived there")
        elif (testimony.task, testimony.word) in seen:
            found.append(f"{who} said `{testimony.word}` twice")
        seen.add((testimony.task, testimony.word))
    found += [f"{task} said `exit` and never `start`" for task, word in sorted(seen) if word == "exit" and (task, "start") not in seen]
    return found + overlaps(said)


def overlaps(said: Iterable[Testimony]) -> list[str]:
    """Attempts whose told lives on one node overlap in time; a task that told no end is left to the lock."""
    lives: dict[str, list[tuple[float, float, Task]]] = {}
    begun: dict[Task, float] = {}
    for testimony in sorted((one for one in said if one.time), key=lambda one: one.time):
        if testimony.word == "start":
            begun[testimony.task] = testimony.time
        elif testimony.task in begun:
            lives.setdefault(testimony.task[2], []).append((begun[testimony.task], testimony.time, testimony.task))
    found = []
    for node, each in lives.items():
        each.sort()
        for (_, end, first), (start, _, second) in itertools.pairwise(each):
            if start < end and first[:2] != second[:2]:
                found.append(f"{first[:2]} and {second[:2]} ran at once on {node}")
    return found
