#!/bin/bash
#SBATCH -J short -N2 -t 0:05:00
#SBATCH -o short.%j.out -e short.%j.err
echo out
echo err >&2
