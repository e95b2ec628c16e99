"""Serves launches, which Slurm calls steps: the socket of srun, who asks, numbers and CPUs of launches, the way to their keepers.

What starts and keeps ranks belongs to the room of standalone programs (the keeper) and to the host (its cgroups and account); what srun's
options mean belongs to the library's room of launches, which is pure.
"""
