"""Replays a log with the production cycle of one checkout, turn by turn; `turns` starts one process of this file for each checkout.

Usage: `player.py CHECKOUT LOG JOBS [FILE]`, with LOG `KTH-SP2` (then FILE is the log) or `made` (240 equal nodes). For each line with a
number on its standard input it plays until so many jobs are submitted, at the end until nothing happens any more, and answers with one line
of JSON: the CPU seconds of this turn, a digest of all starts and nodes so far, and whether the replay is over.

It imports no module of this checkout, and of the other one only names that commit 01893be has too.
"""

from __future__ import annotations

import gzip
import json
import sys
import time
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

KTH: Final = "KTH-SP2"
MADE: Final = "made"
KTH_NODES: Final = 100
MADE_NODES: Final = 240
MADE_LOAD: Final = 0.92
MADE_SEED: Final = 9
DEPTH: Final = 10


def player_of(name: str, jobs: int, file: str) -> Player:
    """Returns the player of a log's first jobs, on as many nodes as the log is for, with ten reservations."""
    from lattice.replay.production import World

    log, setting = _kth(Path(file)) if name == KTH else _made(jobs)
    log = replace(log, jobs=log.jobs[:jobs])
    return Player(World(log, setting), len(log.jobs))


def _kth(file: Path) -> tuple[Any, Any]:
    """Returns the log of KTH-SP2 in a file and the setting of its replay."""
    from lattice.replay.plain import alike, jobs_of
    from lattice.replay.production import Setting
    from lattice.replay.profiles import base_policy
    from lattice.replay.swf import parse
    from lattice.replay.workload import Machine

    with gzip.open(file) as lines:
        log, _ = jobs_of(parse(lines), Machine(KTH_NODES), "default")
    return log, Setting(alike(KTH_NODES), {"default": base_policy("default", depth=DEPTH)})


def _made(jobs: int) -> tuple[Any, Any]:
    """Returns a made log of so many jobs and the setting of its replay."""
    from lattice.replay.plain import alike
    from lattice.replay.production import Setting
    from lattice.replay.profiles import base_policy
    from lattice_dev.bench.scenes import made

    log = made(jobs, MADE_LOAD, MADE_SEED, MADE_NODES)
    return log, Setting(alike(MADE_NODES), {"default": base_policy("default", depth=DEPTH)})


class Player:
    """Plays a world turn by turn and digests the starts as they come."""

    def __init__(self, world: Any, jobs: int) -> None:
        self.jobs = jobs
        self._world = world
        self._digest = sha256()
        self._digested = 0

    def play(self, submitted: int) -> dict[str, object]:
        """Plays until so many jobs are submitted, or to the end where there are no more; returns the CPU seconds of this turn, the digest
        of all starts and nodes so far, and whether it is over.
        """
        world, last, going = self._world, submitted >= self.jobs, True
        began = time.process_time()
        while (last or world.submitted < submitted) and (going := world.advance()):
            pass
        seconds = time.process_time() - began
        for each in world.done.ran[self._digested :]:
            self._digest.update(f"{each.job.id} {each.start} {each.nodes}\n".encode())
        self._digested = len(world.done.ran)
        return {"seconds": seconds, "starts": self._digest.hexdigest(), "over": not going}


def main(argv: list[str]) -> None:
    """Plays a turn for each line of standard input, and prints the answer; `argv`: checkout, log, jobs, and perhaps a file."""
    checkout, name, jobs, file = argv[0], argv[1], int(argv[2]), argv[3] if len(argv) > 3 else ""
    sys.path[:0] = [checkout, str(Path(checkout, "dev"))]
    player = player_of(name, jobs, file)
    print(json.dumps({"lattice": str(Path(sys.modules["lattice"].__file__ or "").resolve()), "jobs": player.jobs}), flush=True)
    for line in sys.stdin:
        print(json.dumps(player.play(int(line))), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
