"""The scheduling cycle of one vcluster: pending work in order; nodes, or a reason with numbers, for each.

What belongs here: the gates that a request must pass, backfill around reservations, ranges, reasons for waiting. What does
not: the scores that order the queue (`priority`), preemption, and whatever is only shown to people (`queries`).
"""
