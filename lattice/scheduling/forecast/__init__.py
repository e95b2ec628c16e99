"""Expected starts of pending work, in every vcluster at once.

What belongs here: run times learnt from finished work, the simulation of the queues over counts of nodes, how well earlier
forecasts came true. What does not: a reservation that the cycle keeps (`cycle`), the answer to a person (`queries`).
"""
