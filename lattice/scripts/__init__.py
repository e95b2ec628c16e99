"""Batch scripts and the book's own YAML in; an Allocation and the warnings about what is not honoured out.

What belongs here: how `#LATTICE` and `#SBATCH` lines are read (`directives`), which options there are
(`options`), how sources override each other (`asked`), and what they become (`translate`, `book`).
What does not: reading files, asking the cluster, printing; facts come in as `Site` and `Submitter`.
"""
