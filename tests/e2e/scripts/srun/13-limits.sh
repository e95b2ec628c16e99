#!/bin/bash
#SBATCH --nodes=2 --ntasks=4 --time=5 
umask 027
ulimit -S -n 200
srun -N 1 -n 1 sh -c 'umask; ulimit -n'
