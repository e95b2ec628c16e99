#!/bin/bash
##SBATCH --nodes=64
#SBATCH --partition=normal
#SBATCH --account=physics
#SBATCH -N 1
#SBATCH --time=00:05:00
echo "queue $LATTICE_VCLUSTER, account $LATTICE_TENANT"
