#!/bin/bash
#SBATCH --nodes=2 --ntasks=4 --time=5 
srun -n 4 -m cyclic sh -c 'echo cyclic $SLURM_PROCID on $SLURM_NODEID'
srun -n 4 -m block sh -c 'echo block $SLURM_PROCID on $SLURM_NODEID'
srun -N 2 --ntasks-per-node=1 -n 2 sh -c 'echo $SLURM_LOCALID on $SLURM_NODEID'
