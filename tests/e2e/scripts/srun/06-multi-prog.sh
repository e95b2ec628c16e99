#!/bin/bash
#SBATCH --nodes=2 --ntasks=4 --time=5 
printf '0 echo manager %%t\n1-3 echo worker %%t %%o\n' > programs
srun -n 4 --multi-prog programs
