"""`lattice replay generate` and `lattice replay suite`: writes the six traces of the regression suite, or judges a run of them."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from lattice.cli import exits
from lattice.cli.files import write_whole
from lattice.cli.render.text import Column, plural, table
from lattice.cli.replay.progress import Progress
from lattice.errors import Rejected
from lattice.replay import suite, synthetic
from lattice.replay.events import lines_of

if TYPE_CHECKING:
    import argparse

    from lattice.cli.console import Console


def run(console: Console, path: str | None) -> int:
    """Generates a trace, or runs the suite, as the first word says; returns FAILED where a verdict of the suite does not hold,
    else DONE.
    """
    return (_generate if console.args.words[0] == "generate" else _suite)(console, path)


def _seed(args: argparse.Namespace) -> int:
    """Returns the seed given, 1 where none is."""
    return 1 if args.seed is None else int(args.seed)


def _generate(console: Console, path: str | None) -> int:
    """Writes a generated trace of the kind named, to a path, or to standard output for None and `-`; returns DONE.

    Raises Rejected for wrong arguments.
    """
    args = console.args
    if len(args.words) != 2:
        kinds = "; ".join(f"{name}: {kind.what}" for name, kind in synthetic.KINDS.items())
        raise Rejected(f"generate takes one kind of trace ({kinds})", reason="BadInput")
    nodes = synthetic.NODES if args.nodes is None else args.nodes
    if not isinstance(nodes, int):
        raise Rejected("generate makes its own machine: --nodes is a number here", reason="BadInput")
    log = synthetic.generate(args.words[1], _seed(args), nodes=nodes, hours=synthetic.HOURS if args.hours is None else args.hours)
    lines = [line + "\n" for line in lines_of(log)]
    if path is None or path == "-":
        console.outside.stdout.writelines(lines)
    else:
        write_whole(Path(path), (line.encode() for line in lines), "-o")
    console.note(f"Generated {plural(len(log.jobs), 'job')} on {nodes} nodes, seed {_seed(args)}")
    return exits.DONE


def _suite(console: Console, path: str | None) -> int:
    """Replays the generated traces named (none: all) and prints their verdicts; returns FAILED where one does not hold; one that could not
    be judged counts as held.

    Raises Rejected for wrong arguments, and where a job never started.
    """
    args = console.args
    unknown = [word for word in args.words[1:] if word not in synthetic.KINDS]
    if unknown or path is not None:
        what = f"-o {path}: the suite writes no files" if path is not None else f"no trace {unknown[0]!r}"
        raise Rejected(f"{what}; suite takes names of traces: {', '.join(synthetic.KINDS)}", reason="BadInput")
    size = suite.FULL if args.full else suite.REDUCED
    if isinstance(args.nodes, str):
        raise Rejected("the suite makes its own machine: --nodes is a number here", reason="BadInput")
    size = suite.SuiteSize(args.nodes or size.nodes, size.hours if args.hours is None else args.hours)
    progress = Progress(console.outside.stderr, console.outside.now, quiet=args.quiet)
    found: list[suite.Outcome] = []
    try:
        for kind in args.words[1:] or suite.TRACES:
            found += [suite.outcome(kind, _seed(args), size, time.process_time, partial(progress.show, kind[:12]))]
    finally:
        progress.close()
    verdicts = [verdict for outcome in found for verdict in outcome.verdicts]
    if console.is_document:
        console.document({"format": 1, "kind": "ReplaySuite", "traces": [_document(outcome) for outcome in found]})
    else:
        console.say(*_table(found))
    return exits.FAILED if any(verdict.holds is False for verdict in verdicts) else exits.DONE


def _document(outcome: suite.Outcome) -> dict[str, object]:
    """Returns one trace's outcome as a document."""
    verdicts = [{"asked": each.asked, "found": each.found, "holds": each.holds} for each in outcome.verdicts]
    return {"report": outcome.measures.document(), "verdicts": verdicts}


def _table(found: list[suite.Outcome]) -> list[str]:
    """Returns the outcomes as a table, a line for each verdict."""
    words = {True: "holds", False: "BROKEN", None: "not judged"}
    columns = [
        Column("TRACE"),
        Column("JOBS", right=True),
        Column("JOBS/S", right=True),
        Column("ASKED"),
        Column("FOUND"),
        Column("VERDICT"),
    ]
    rows = [
        [
            outcome.trace,
            str(outcome.jobs),
            f"{outcome.jobs / max(outcome.cpu_seconds, 1e-9):,.0f}",
            verdict.asked,
            verdict.found,
            words[verdict.holds],
        ]
        for outcome in found
        for verdict in outcome.verdicts
    ]
    return table(columns, rows)
