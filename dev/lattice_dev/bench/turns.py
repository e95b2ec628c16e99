"""Compares the production replay of this checkout with that of another one, both interleaved in one run.

Each checkout replays in a process of its own (`player`), and both take turns of a few hundred submissions, the first turn alternating, so
that whatever else the machine does hits both alike. After each turn both must have given the same nodes to the same jobs at the same times.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

import lattice
from lattice.errors import Corrupt, Rejected
from lattice_dev.bench import player
from lattice_dev.bench.figures import Aim, Baseline, Figure
from lattice_dev.bench.replaying import log_path

TURN: Final = 250
"""Submissions of one turn."""
FASTER: Final = 1.5
"""The aim: so many times the jobs a second of the baseline."""
LOGS: Final = ((player.KTH, 30_000), (player.MADE, 6_000))
"""The logs that are compared, each with how many of its jobs at most."""
QUICK_JOBS: Final = 500


@dataclass(frozen=True, slots=True)
class Turn:
    """The CPU seconds of one turn in both checkouts."""

    ours: float
    theirs: float


class Replayer:
    """A process that replays one log with one checkout; it is idle between turns."""

    def __init__(self, process: subprocess.Popen[str], checkout: Path) -> None:
        self._process = process
        self._checkout = checkout
        began = self._read()
        if not Path(began["lattice"]).is_relative_to(checkout.resolve()):
            raise Rejected(f"{checkout} is no checkout of Lattice: the replay found {began['lattice']}", reason="NoCheckout")
        self.jobs: int = began["jobs"]

    def play(self, submitted: int) -> dict[str, Any]:
        """Plays one turn, until so many jobs are submitted; returns the player's answer. Raises Rejected where the player has ended."""
        if self._process.stdin is None:
            raise Rejected("the replay has no input", reason="NoCheckout")
        print(submitted, file=self._process.stdin, flush=True)
        return self._read()

    def _read(self) -> dict[str, Any]:
        """Returns the next answer of the process. Raises Rejected where it ended early."""
        line = self._process.stdout.readline() if self._process.stdout is not None else ""
        if not line:
            raise Rejected(f"the replay of {self._checkout} ended early; what it said stands above", reason="NoCheckout")
        found: dict[str, Any] = json.loads(line)
        return found


@contextmanager
def replayer(checkout: Path, name: str, jobs: int) -> Iterator[Replayer]:
    """Starts the replay of a log with a checkout, and ends its process with the block; raises Rejected where there is no checkout."""
    if not (checkout / "lattice" / "replay").is_dir():
        raise Rejected(f"{checkout} is no checkout of Lattice: it has no lattice/replay", reason="NoCheckout")
    command = [
        sys.executable,
        str(Path(player.__file__)),
        str(checkout),
        name,
        str(jobs),
        *([str(log_path())] if name == player.KTH else []),
    ]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield Replayer(process, checkout)
    finally:
        process.kill()
        process.communicate()


def interleave(ours: Replayer, theirs: Replayer, say: Callable[[float], None]) -> list[Turn]:
    """Plays both replays to their ends, turn by turn, who goes first alternating; raises Corrupt where a start or a node differs, Rejected
    where a process has ended.
    """
    turns: list[Turn] = []
    over = False
    while not over:
        submitted = min(TURN * (len(turns) + 1), ours.jobs)
        first, second = (ours, theirs) if len(turns) % 2 else (theirs, ours)
        found = {id(each): each.play(submitted) for each in (first, second)}
        mine, other = found[id(ours)], found[id(theirs)]
        if mine["starts"] != other["starts"]:
            raise Corrupt(f"starts differ among the first {submitted} jobs", reason="StartsDiffer")
        turns.append(Turn(mine["seconds"], other["seconds"]))
        over = mine["over"] and other["over"]
        say(submitted / ours.jobs)
    return turns


def compare(baseline: Path, *, quick: bool, say: Callable[[float], None] = lambda _share: None) -> list[Figure]:
    """Returns the jobs a second of this checkout beside those of `baseline`, for each log; equal starts are a condition, not a figure."""
    here = Path(lattice.__file__).resolve().parents[1]
    found: list[Figure] = []
    for name, jobs in LOGS:
        with replayer(here, name, QUICK_JOBS if quick else jobs) as ours, replayer(baseline, name, QUICK_JOBS if quick else jobs) as theirs:
            found.append(figure(name, ours.jobs, interleave(ours, theirs, say)))
    return found


def figure(name: str, jobs: int, turns: Sequence[Turn]) -> Figure:
    """Returns the figure of one log: jobs a second of all turns together, and how the turns spread."""
    mine, other = sum(turn.ours for turn in turns), sum(turn.theirs for turn in turns)
    ratios = sorted(turn.theirs / turn.ours for turn in turns)
    base = Baseline("jobs/s of the baseline", jobs / other)
    detail = f"{jobs} jobs in {len(turns)} turns each, starts and nodes identical"
    parts = {"least by turn": ratios[0], "median": median(ratios), "most": ratios[-1]}
    aim = Aim(FASTER * base.value, at_least=True)
    return Figure(f"replay beside the baseline, {name}", jobs / mine, "jobs/s", aim, base, detail, parts)
