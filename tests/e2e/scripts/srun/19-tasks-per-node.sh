#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=2 --time=5
echo $SLURM_NTASKS tasks, $SLURM_TASKS_PER_NODE on $SLURM_NNODES nodes
srun -n $SLURM_NTASKS --ntasks-per-node=$SLURM_NTASKS_PER_NODE sh -c 'echo $SLURM_PROCID of $SLURM_NTASKS, $SLURM_LOCALID of $SLURM_TASKS_PER_NODE' > ranks
while read -r rank of size local; do
  srun -N 1 -n 1 --exact sh -c "echo part $rank" > part-$rank < /dev/null
done < ranks
