#!/bin/bash

   # Written for another site, years ago: nothing here was changed.
#SBATCH --workdir=results --wait-all-nodes=1 --x11
   # The job's name has no blanks, its file has.
#SBATCH -N 1 -t 0-0:05 -J old -o "%x of %u.out"

cd "$SLURM_SUBMIT_DIR" || exit 9
srun sh -c 'echo "a step on $(hostname)"'
