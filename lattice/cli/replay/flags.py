"""The flags of `lattice replay`, and which of them belong to only one engine, trace format or action."""

from __future__ import annotations

import argparse
from typing import Final

from lattice.replay.engine import Estimates, Policy
from lattice.scheduling.model.policy import PROFILES
from lattice.units import is_digits, whole_number

MOST_NODES: Final = 10**9
ENGINES: Final = ("counts", "production")
PLOTS: Final = ("svg", "png", "none")
FOR_PRODUCTION: Final = ("weights", "profile", "depth", "baseline", "target_wait", "plots")
"""Flags that only the production engine has."""
FOR_COUNTS: Final = ("policy", "estimates", "schedule")
"""Flags that only the counts-only engine has."""
RUN_TIME: Final = "run-time"
"""The value of --missing-estimates by which the run time replaces a missing requested time."""
ONLY_OF: Final = {
    "swf": ("procs_per_node", "missing_estimates"),
    "sacct": ("time_zone", "class_of"),
    "capture": ("since",),
    "generate and suite": ("seed", "hours"),
    "suite": ("full",),
}
"""By trace format or action, the flags that only it has."""
RECORDED: Final = "cycles"
"""The word of the action that lists the recorded cycles."""
_USAGE: Final = """lattice replay TRACE --nodes N|INVENTORY [flags]
       lattice replay capture [--since 7d] [-o FILE]
       lattice replay generate KIND [--seed S] [-o FILE]
       lattice replay suite [--full]
       lattice replay --cycle N|last [--log FILE|FOLDER] [--vcluster V]
       lattice replay cycles [--log FILE|FOLDER]"""
_EPILOG: Final = """examples:
  lattice replay KTH-SP2.swf.gz --nodes 100 --policy easy --estimates exact
      a plain log, nodes are counted: a year of a machine in about a second
  lattice replay KTH-SP2.swf.gz --nodes 100 --depth 10
      the same log through Lattice's own cycle
  lattice replay capture --since 7d -o week.jsonl
      what was submitted here in a week
  lattice replay week.jsonl --weights now.yaml --weights fairer.yaml -o results/
      two weight profiles on it, compared; reports, CSV and plots in results/
  rm-replay --trace=week.jsonl --weights=now.yaml --nodes=inventory/alps.yaml --output=results/now/
      the same in the book's words
  lattice replay generate burst --seed 1 -o burst.jsonl
      one of the six traces of the regression suite
  lattice replay --cycle last
      what the scheduler decided in its last recorded cycle, decided again here and compared byte for byte

The production engine is used for JSON lines and sacct, for an inventory, and with any of its flags; else the counts-only one."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `replay`."""
    parser.usage, parser.epilog = _USAGE, _EPILOG
    parser.set_defaults(output_may_be_a_path=True)
    parser.add_argument(
        "words", metavar="TRACE", nargs="*", help="SWF, sacct -P or JSON lines, plain or gzip; - for standard input; or an action"
    )
    parser.add_argument("--trace", metavar="TRACE", help="the same as the argument")
    parser.add_argument("--format", choices=("swf", "sacct", "jsonl"), help="of the trace; told by its first line without")
    parser.add_argument("--nodes", type=_nodes, metavar="N|INVENTORY", help="a number of equal nodes, or a YAML file of classes and nodes")
    parser.add_argument("--procs-per-node", type=_count, metavar="K", help="SWF: processors of a node, default 1; jobs hold whole nodes")
    parser.add_argument(
        "--missing-estimates",
        choices=("drop", RUN_TIME),
        help="SWF: leave jobs without a requested time out (default), or plan with their run",
    )
    parser.add_argument("--engine", choices=ENGINES, help="counts-only for plain logs, or the production cycle")
    recorded = parser.add_argument_group("recorded cycles (administrators)")
    recorded.add_argument("--cycle", metavar="N", help="decide this recorded cycle again, or the last one (last), and compare")
    recorded.add_argument("--log", metavar="PATH", help="a cycle log, or the folder of them; default: asks the running scheduler")
    _counts(parser.add_argument_group("counts-only engine"))
    _production(parser.add_argument_group("production engine"))
    _reading(parser.add_argument_group("reading sacct"))
    made = parser.add_argument_group("capture, generate, suite")
    made.add_argument("--since", metavar="TIME", help="capture: 7d (ago, the default) or 2026-12-01T08:00:00Z")
    made.add_argument("--seed", type=int, metavar="S", help="generate, suite: default 1")
    made.add_argument("--hours", type=float, metavar="H", help="generate, suite: length of the trace")
    made.add_argument("--full", action="store_true", help="suite: the full size, minutes instead of seconds")


def _counts(group: argparse._ArgumentGroup) -> None:
    """Adds the flags of the counts-only engine."""
    group.add_argument("--policy", choices=[policy.value for policy in Policy], help="how waiting jobs start, default easy")
    group.add_argument("--estimates", choices=[each.value for each in Estimates], help="run times the scheduler plans with, default user")
    group.add_argument("--schedule", metavar="OUT.csv", help="write each job's start there: job,submit,start,end,procs")


def _production(group: argparse._ArgumentGroup) -> None:
    """Adds the flags of the production cycle."""
    group.add_argument("--weights", action="append", metavar="FILE", help="a profile: vcluster → weights; several are compared")
    group.add_argument("--profile", choices=sorted(PROFILES), help="the weights of vclusters that nothing else describes")
    group.add_argument("--depth", type=_depth, metavar="D", help="blocked jobs that hold a reservation, default 10; 1 is EASY")
    group.add_argument("--baseline", metavar="REPORT", help="compare with this report.json, or the folder it is in")
    group.add_argument("--target-wait", metavar="TIME", help="also say how many jobs waited no longer, such as 4h")
    group.add_argument("--plots", choices=PLOTS, help="pictures in the folder of -o, default svg where matplotlib is installed")


def _reading(group: argparse._ArgumentGroup) -> None:
    """Adds the flags of how a trace is read."""
    group.add_argument("--time-zone", metavar="ZONE", help="of its local times, such as Europe/Zurich; default UTC")
    group.add_argument("--class-of", action="append", metavar="QOS=CLASS", help="the preemption class of a QOS; others get 5")


def _count(text: str) -> int:
    """Returns a whole number from 1 to MOST_NODES. Raises ArgumentTypeError for anything else."""
    if whole_number(text, 1, MOST_NODES) is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 to {MOST_NODES}")
    return int(text)


def _nodes(text: str) -> int | str:
    """Returns a number of nodes, or a path where the text has a slash or a suffix; raises ArgumentTypeError for others."""
    if "/" in text or "." in text:
        return text
    try:
        return _count(text)
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f"{error}, nor an inventory such as alps.yaml") from error


def _depth(text: str) -> int:
    """Returns a whole number from 0 to 1000. Raises ArgumentTypeError for anything else."""
    if not is_digits(text, 6) or int(text) > 1000:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 0 to 1000")
    return int(text)
