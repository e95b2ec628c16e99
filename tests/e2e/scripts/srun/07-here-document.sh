#!/bin/bash
#SBATCH --nodes=2 --ntasks=4 --time=5 
srun -N 1 -n 1 sh -s <<'END'
echo from here $SLURM_PROCID
END
