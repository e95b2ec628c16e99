#!/bin/bash
#SBATCH --nodes=2 --ntasks=4 --time=5 
seq 1000 | srun -N 1 -n 1 grep 7 | wc -l
srun -N 1 -n 1 seq 5000 | tail -n 1
