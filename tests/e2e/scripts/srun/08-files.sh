#!/bin/bash
#SBATCH --nodes=2 --ntasks=4 --time=5 
srun -n 4 -o out-%t -e err-%t sh -c 'echo task $SLURM_PROCID; echo error >&2'
