"""Nodes and their hardware, work, policies, outcomes: the immutable facts that every other package of scheduling reads.

Belongs here: what a decision is made of. Does not belong here: anything that changes between cycles (`cluster`, `state`) or that reads
an API object (`conversion`).
"""
