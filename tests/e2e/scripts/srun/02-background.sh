#!/bin/bash
#SBATCH --nodes=2 --ntasks=4 --time=5 
for i in 1 2 3; do
  srun -N 1 -n 1 --exact sh -c "echo part $i > part-$i" &
done
wait
cat part-1 part-2 part-3
