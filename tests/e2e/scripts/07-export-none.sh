#!/bin/bash
#SBATCH --nodes=1
#SBATCH --time=00:05:00
#SBATCH --export=NONE
#SBATCH --output=export.out
echo "greeting=${GREETING:-unset}"
