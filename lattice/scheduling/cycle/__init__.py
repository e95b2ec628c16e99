"""The scheduling cycle of one vcluster: pending work in order; nodes, or a reason with numbers, for each candidate.

What belongs here: the chain of gates, the search for nodes, backfill around reservations, ranges, reasons for waiting. What does
not: the scores that order the queue (`priority`), preemption, and answers that are only shown to people (`queries`).
"""
