"""Slurm's programs for clients that drive Slurm: `sbatch`, `squeue`, `scancel`, `sacct`, `scontrol`, `sinfo` and others, a module each.

What belongs here: the option grammars, the format codes, the states and the words of Slurm 22.05, as tables and pure functions, and one
module a program that fetches and acts. Lists come from the gateway's memory or the API server, as those of `lattice status` do; work is
made by the same translation as that of `lattice submit`. What does not: anything that a person is told of Lattice's own verbs.
"""
