"""`lattice replay`: a workload on another machine, policy or weights; capture of workloads, generation, the regression suite."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lattice.cli.registry import FORMATS
from lattice.cli.replay.flags import RECORDED, arguments
from lattice.errors import Rejected

if TYPE_CHECKING:
    from lattice.cli.console import Console

__all__ = ["INTERMIXED", "arguments", "run"]

INTERMIXED = True
_ACTIONS: Final = ("capture", "generate", "suite")


def run(console: Console) -> int:
    """Runs the action that the first word names, or replays a trace, and returns the exit code.

    Raises Rejected where flags and words do not go together, or no one trace is named.
    """
    args = console.args
    path = _path(console)
    words = list(args.words)
    if args.cycle is not None or args.log is not None or words == [RECORDED]:
        if words != ([RECORDED] if args.cycle is None else []) or args.trace or path is not None:
            raise Rejected(
                "recorded cycles: lattice replay --cycle N [--log PATH], or lattice replay cycles [--log PATH]", reason="BadInput"
            )
        from lattice.cli.replay import cycle

        return cycle.run(console)
    if words and words[0] in _ACTIONS:
        if words[0] == "capture":
            from lattice.cli.replay import capture

            return capture.run(console, path)
        from lattice.cli.replay import suite

        return suite.run(console, path)
    if args.trace:
        words.insert(0, args.trace)
    if len(words) != 1:
        what = "name one trace" if words else "name a trace, or an action: capture, cycles, generate, suite"
        raise Rejected(f"{what} (lattice replay --help shows examples)", reason="BadInput")
    args.trace = words[0]
    if console.format == "name":
        raise Rejected("a replay has no names to print: use -o table, json or yaml", reason="BadInput")
    from lattice.cli.replay import trace

    return trace.run(console, path)


def _path(console: Console) -> str | None:
    """Returns the file or folder that `-o` names, and takes it from the flags; None where it names a format, or is absent.

    `./json` is always a path; raises Rejected for an empty one.
    """
    given = console.args.output
    if given is None or given in FORMATS:
        return None
    console.args.output = None
    if not given:
        raise Rejected("-o is empty: give a format, a file or a folder", reason="BadInput")
    return str(given)
