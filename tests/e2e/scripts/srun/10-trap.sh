#!/bin/bash
#SBATCH --nodes=2 --ntasks=4 --time=5 
trap 'echo cleaned > trapped' EXIT
srun -N 1 -n 1 echo works
exit 5
