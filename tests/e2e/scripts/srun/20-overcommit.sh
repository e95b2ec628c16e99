#!/bin/bash
#SBATCH --nodes=2 --ntasks=4 --time=5 
srun -O -n 9 sh -c 'echo $SLURM_PROCID'
srun -n 4 --cpu-bind=none -Q sh -c 'test $SLURM_PROCID != 3' || echo one failed
