#!/bin/bash
#SBATCH --job-name=batch
#SBATCH --account=physics
#SBATCH --partition=hpc-batch
#SBATCH --nodes=2 --ntasks-per-node=4     # two whole nodes
#SBATCH --time=00:05:00
#SBATCH --output=batch-%j.out
#SBATCH --export=NONE

# An unmodified Slurm script: lattice submit examples/06-batch-script.sh
# As with sbatch, it runs once, on the first node.
echo "allocation $LATTICE_ALLOC_ID on $LATTICE_NODELIST, $LATTICE_NPROCS tasks"
sleep 1
