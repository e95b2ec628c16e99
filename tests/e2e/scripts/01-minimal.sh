#!/bin/bash
#SBATCH --nodes=1
#SBATCH --time=00:05:00
echo "minimal on $LATTICE_NODENAME"
