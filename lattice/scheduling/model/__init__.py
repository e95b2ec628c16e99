"""The words of a decision: nodes and their hardware, work, policies, outcomes.

What belongs here: immutable facts that every other package of scheduling reads. What does not: anything that changes
between cycles (`cluster`, `state`) or that reads an API object (`conversion`).
"""
