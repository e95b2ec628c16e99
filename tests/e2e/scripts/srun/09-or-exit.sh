#!/bin/bash
#SBATCH --nodes=2 --ntasks=4 --time=5 
srun -n 1 -N 1 true || exit 3
srun -n 2 -N 1 sh -c 'exit $((SLURM_PROCID * 4))' || exit $?
echo never
