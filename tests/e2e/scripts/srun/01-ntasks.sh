#!/bin/bash
#SBATCH --nodes=2 --ntasks=4 --time=5 
srun -n $SLURM_NTASKS sh -c 'echo $SLURM_PROCID of $SLURM_NTASKS'
