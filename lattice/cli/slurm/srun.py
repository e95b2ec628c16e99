"""`srun`: within an allocation it becomes the nodes' own program; outside of one it says what to do."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lattice.cli import exits
from lattice.cli.slurm import sayings
from lattice.cli.slurm.options import VERSION

if TYPE_CHECKING:
    from lattice.cli.console import Outside

PROGRAMS: Final = "LATTICE_BIN"
"""The variable by which work finds the directory of the nodes' own programs."""


def run_srun(outside: Outside, words: Sequence[str]) -> int:
    """Becomes the nodes' own `srun` within an allocation, with the words as they are; else prints the version, or what to do instead, and
    returns the exit code.
    """
    own = Path(outside.environ.get(PROGRAMS, "")) / "srun"
    if outside.environ.get(PROGRAMS) and own.is_file():
        os.execv(own, ["srun", *words])  # noqa: S606 - on purpose, with the words as they are
    if set(words) & {"-V", "--version"}:
        sayings.answer(outside, VERSION)
        return exits.DONE
    sayings.error(
        outside,
        "srun",
        "this is no allocation: srun starts tasks within one, and nothing was started",
        "Hint: put the line into a script and submit it: `sbatch job.sh`, or `lattice submit --ntasks=N -- COMMAND`",
    )
    return exits.FAILED
