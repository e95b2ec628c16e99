"""The cost function, which orders the pending work of a vcluster (book, "Scheduling Algorithm").

Belongs here: its terms (`cost`), the usage behind the fair share (`shares`), the capacity behind topology and conformance
(`capacities`), scores of all pending work (`scoring`). Does not belong here: limits that keep work waiting whatever its score is
(`state`, `cycle`).
"""
