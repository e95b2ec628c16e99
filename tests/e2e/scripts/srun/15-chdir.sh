#!/bin/bash
#SBATCH --nodes=2 --ntasks=4 --time=5 
mkdir inner
srun -N 1 -n 1 -D inner sh -c 'basename $PWD; touch made'
