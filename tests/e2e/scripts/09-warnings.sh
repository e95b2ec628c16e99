#!/bin/bash
#SBATCH --nodes=1
#SBATCH --time=00:05:00
#SBATCH --mem=64G
#SBATCH --cpus-per-task=2
#SBATCH --hint=nomultithread
#SBATCH --mail-type=ALL --mail-user=alice@example.org
#SBATCH --exclusive
#SBATCH --output=warned.out

set -e
#SBATCH --nodes=1000
echo ran
