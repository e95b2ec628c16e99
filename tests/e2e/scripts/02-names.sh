#!/bin/bash -l
#SBATCH --job-name=names
#SBATCH --nodes=2                 # two of them
#SBATCH --time=5
#SBATCH --output=%x-%j.log

echo "job $LATTICE_JOB_NAME on $LATTICE_NNODES nodes"
