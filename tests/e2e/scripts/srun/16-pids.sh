#!/bin/bash
#SBATCH --nodes=2 --ntasks=4 --time=5 
srun -N 1 -n 1 --exact sh -c 'exit 2' & first=$!
srun -N 1 -n 1 --exact true & second=$!
wait $first; echo first $?
wait $second; echo second $?
