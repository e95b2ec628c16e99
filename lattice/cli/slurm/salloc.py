"""`salloc`: says what to do instead, since allocations without a script are not made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lattice.cli import exits
from lattice.cli.slurm import sayings
from lattice.cli.slurm.options import Parsed
from lattice.cli.slurm.sbatch import GRAMMAR as OF_SBATCH

if TYPE_CHECKING:
    from lattice.cli.console import Console

GRAMMAR: Final = OF_SBATCH._replace(program="salloc")
WRONG_USAGE = 1


def run(console: Console, given: Parsed) -> int:
    """Says what to do instead, and returns FAILED."""
    del given
    sayings.error(
        console.outside, "salloc",
        "allocations without a script are not made by this release: nothing was allocated",
        "Hint: put the commands into a script and submit it: `sbatch --wait job.sh`, or `lattice submit --wait -- COMMAND`;"
        " `srun` in it starts tasks on all of its nodes",
    )  # fmt: skip
    return exits.FAILED
