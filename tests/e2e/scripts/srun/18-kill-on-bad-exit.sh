#!/bin/bash
#SBATCH --nodes=2 --ntasks=4 --time=5 
srun -n 2 -N 1 -K1 sh -c 'test $SLURM_PROCID = 0 && exit 6; sleep 60'; test $? != 0 && echo ended
