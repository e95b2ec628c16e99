"""Decides what one launch (Slurm's step) is: its options, the ranks of each node, their CPUs and GPUs, files and variables.

What belongs here: how srun's arguments and variables are read (`options`, `option_table`, `option_values`, `usage`), ranks to nodes and
CPUs to ranks (`layout`, `placement`, `binding`, `verbose`), `--multi-prog` files (`programs`), file names (`streams`), variables
(`variables`). What does not: starting anything, who may launch, when a launch that waits is asked again; these are the agent's.
"""
