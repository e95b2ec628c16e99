#!/usr/bin/env bash
#SBATCH --ntasks=8
#SBATCH --ntasks-per-node=4
#SBATCH --time 0-00:05
#SBATCH --job-name "eight tasks"
echo "tasks $LATTICE_NPROCS on $LATTICE_NNODES"
