#!/bin/bash
#SBATCH --nodes=1
#SBATCH --time=00:05:00
#SBATCH --chdir=results
#SBATCH --output=here.txt
pwd
