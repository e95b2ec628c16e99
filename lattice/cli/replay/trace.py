"""A replay: which engine a trace and its flags ask for, the trace in, and what was left out of it said."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING

from lattice.cli.replay.flags import FOR_COUNTS, FOR_PRODUCTION, ONLY_OF
from lattice.cli.replay.progress import Progress
from lattice.cli.replay.trace_file import trace_lines
from lattice.errors import Rejected

if TYPE_CHECKING:
    from lattice.cli.console import Console


def run(console: Console, path: str | None) -> int:
    """Read the trace's first line, choose the engine, and let it run."""
    progress = Progress(console.outside.stderr, console.outside.now, quiet=console.args.quiet)
    try:
        found, lines = sniff(trace_lines(console.args.trace, console.outside.stdin, progress))
        form = console.args.format or found
        refuse_flags_of_others(console, form)
        if engine(console, form, path) == "counts":
            from lattice.cli.replay import counts

            return counts.run(console, lines, progress)
        from lattice.cli.replay import production

        return production.run(console, form, lines, progress, path)
    finally:
        progress.close()


def sniff(lines: Iterable[bytes]) -> tuple[str, Iterator[bytes]]:
    """The format by the first line that is not blank, and all lines."""
    lines = iter(lines)
    seen: list[bytes] = []
    for line in lines:
        seen.append(line)
        text = line.strip()
        if text:
            is_sacct = b"jobid" in text.lower() and not text.startswith(b";")
            found = "jsonl" if text.startswith(b"{") else "sacct" if is_sacct else "swf"
            return found, chain(seen, lines)
    return "swf", iter(seen)


def refuse_flags_of_others(console: Console, form: str) -> None:
    """Rejected (`BadInput`) for a flag that means nothing with this trace: passed over in silence it would seem to have counted."""
    for place, names in ONLY_OF.items():
        for name in names:
            if place != form and getattr(console.args, name) not in (None, False):
                flag, meant = (
                    name.replace("_", "-"),
                    "traces of sacct" if place == "sacct" else "traces in SWF" if place == "swf" else place,
                )
                shown = {"swf": "in SWF", "sacct": "of sacct", "jsonl": "in JSON lines"}[form]
                raise Rejected(f"--{flag} is for {meant}, this is a trace {shown}: leave it out", reason="BadInput")


def engine(console: Console, form: str, path: str | None) -> str:
    """`counts` or `production`; flags of both, or of the other than the one named, are refused."""
    args = console.args
    production = [f"--{name.replace('_', '-')}" for name in FOR_PRODUCTION if getattr(args, name) is not None]
    if path is not None:
        production.append("-o FOLDER")
    if isinstance(args.nodes, str):
        production.append("an inventory")
    if form != "swf":
        production.append("a trace in JSON lines" if form == "jsonl" else "a trace of sacct")
    counts = [f"--{name}" for name in FOR_COUNTS if getattr(args, name) is not None]
    if production and (counts or args.engine == "counts"):
        ours = counts[0] if counts else "--engine=counts"
        raise Rejected(f"{ours} is of the counts-only engine, {production[0]} of the production engine: choose one", reason="BadInput")
    if counts and args.engine == "production":
        raise Rejected(f"{counts[0]} is of the counts-only engine: leave it out with --engine=production", reason="BadInput")
    return str(args.engine or ("production" if production else "counts"))
