#!/bin/bash
#SBATCH --nodes=2 --ntasks=4 --time=5 
srun -N 1 -n 1 sh -c 'kill -KILL $$'; echo $?
srun -N 1 -n 1 sh -c 'exit 200'; echo $?
