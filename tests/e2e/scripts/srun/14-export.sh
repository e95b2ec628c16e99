#!/bin/bash
#SBATCH --nodes=2 --ntasks=4 --time=5 
export COLOUR=red
srun -N 1 -n 1 --export=ALL,SHAPE=round /bin/sh -c 'echo $COLOUR $SHAPE'
srun -N 1 -n 1 --export=NONE /bin/sh -c 'echo ${COLOUR:-none}'
