#!/bin/bash
#SBATCH --nodes=2 --ntasks=4 --time=5 
printf 'one\ntwo\n' > words
srun -N 1 -n 1 cat < words
srun -N 1 -n 2 -l cat < words | sort
