#!/bin/bash
#SBATCH --job-name=fails
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --time=00:05:00
#SBATCH --error=fails.err
#SBATCH --open-mode=append
echo "about to fail" >&2
exit 42
