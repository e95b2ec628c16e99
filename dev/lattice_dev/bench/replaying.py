"""Measures the jobs a second of both replay engines on KTH-SP2: counts-only, and the production cycle at two depths.

CPU time of this process, the log read before; the counts-only engine replays the log several times over, shifted, so that a run is long
enough to be timed.
"""

from __future__ import annotations

import gzip
import os
import time
from array import array
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from lattice.errors import NotFound
from lattice.replay.engine import Estimates, Policy, simulate
from lattice.replay.plain import alike, jobs_of
from lattice.replay.production import Setting, replay
from lattice.replay.profiles import base_policy
from lattice.replay.swf import Trace, parse
from lattice.replay.workload import Machine, Workload, select
from lattice_dev.bench.figures import Aim, Figure

NODES: Final = 100
_TURNS: Final = 3
_COUNTS_AIM: Final = 200_000
_FULL_AIM: Final = 2_000
_EVERY: Final = (
    (Policy.FCFS, Estimates.USER),
    (Policy.EASY, Estimates.EXACT),
    (Policy.EASY, Estimates.USER),
    (Policy.EASY_SJBF, Estimates.USER),
)


def log_path() -> Path:
    """Returns the path of KTH-SP2.swf.gz in `LATTICE_DATA`, or where that is not set in `shared/data` beside the checkout; raises NotFound
    where it is not there.
    """
    folder = Path(os.environ.get("LATTICE_DATA", Path(__file__).resolve().parents[4] / "shared" / "data"))
    path = folder / "KTH-SP2.swf.gz"
    if not path.is_file():
        raise NotFound(f"{path} is not there: set LATTICE_DATA to the folder of KTH-SP2.swf.gz", reason="NoTrace")
    return path


def measure(*, quick: bool, say: Callable[[float], None] = lambda _share: None) -> list[Figure]:
    """Returns the figures of both engines; `quick`: the production cycle on a tenth of the log."""
    with gzip.open(log_path()) as lines:
        trace = parse(lines)
    found = [_counts(trace, policy, estimates) for policy, estimates in _EVERY]
    share = 0.1 if quick else 1.0
    found.append(_production(trace, 1, share, None, lambda done: say(done / 2)))
    found.append(_production(trace, 10, share, Aim(_FULL_AIM, at_least=True), lambda done: say(0.5 + done / 2)))
    return found


def _counts(trace: Trace, policy: Policy, estimates: Estimates) -> Figure:
    """Returns the figure of the counts-only engine's jobs a second."""
    workload, _ = select(trace, Machine(NODES))
    span = workload.submit[-1] + 1
    submit = array("q", (at + turn * span for turn in range(_TURNS) for at in workload.submit))
    rest = (workload.run, workload.estimate, workload.procs, workload.nodes)
    many = Workload(workload.job * _TURNS, submit, *(column * _TURNS for column in rest))
    begin = time.process_time()
    simulate(many, NODES, policy, estimates)
    speed = len(many) / (time.process_time() - begin)
    return Figure(f"replay, counts only, {policy}, {estimates} estimates", speed, "jobs/s", Aim(_COUNTS_AIM, at_least=True))


def _production(trace: Trace, depth: int, share: float, aim: Aim | None, say: Callable[[float], None]) -> Figure:
    """Returns the figure of the production cycle's jobs a second on a share of the trace."""
    log, _ = jobs_of(trace, Machine(NODES), "default")
    log = replace(log, jobs=log.jobs[: int(len(log.jobs) * share)])
    policy = replace(base_policy("default"), depth=depth)
    begin = time.process_time()
    done = replay(log, Setting(alike(NODES), {"default": policy}), lambda submitted: say(submitted / len(log.jobs)))
    spent = time.process_time() - begin
    detail = f"{len(log.jobs)} jobs, {done.cycles} cycles of {done.decided / max(done.cycles, 1):.0f} pending on average"
    return Figure(f"replay, production cycle, depth {depth}", len(log.jobs) / spent, "jobs/s", aim, detail=detail)
