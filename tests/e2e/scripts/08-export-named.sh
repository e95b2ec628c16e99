#!/bin/bash
#SBATCH --nodes=1 --time=00:05:00 --export=GREETING,COLOUR=blue
#SBATCH --output=named.out
echo "greeting=${GREETING:-unset} colour=$COLOUR"
