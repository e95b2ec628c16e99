"""Turns batch scripts, and the book's own YAML, into an Allocation, with warnings about everything that is not honoured.

What belongs here: how `#LATTICE` and `#SBATCH` lines are read (`directives`), which options there are (`options`), how sources override
each other (`asked`), and what they become (`translate`, `book`). What does not: reading files, asking the cluster, printing; facts come in
as `SiteFacts` and `Submitter`.
"""
