#!/bin/bash
#SBATCH --nodes=2 --ntasks=4 --time=5 
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
scontrol show hostnames "$SLURM_JOB_NODELIST" | wc -l
test "$MASTER_ADDR" = "$SLURMD_NODENAME" && echo head
srun sh -c 'test -n "$MASTER_ADDR" && echo $SLURM_NODEID'
