#!/bin/bash
#SBATCH --nodes=2 --ntasks=4 --time=5 
srun -l sh -c 'echo out $SLURM_LOCALID; echo err >&2' 2>&1 | sort
