"""The cost function: what orders the pending work of a vcluster (book, "Scheduling Algorithm").

What belongs here: its terms, the usage behind the fair share, scores of all pending work. What does not: limits that keep
work waiting whatever its score is (`state`, `cycle`).
"""
