"""The ledger, pure: who holds which node, in numbered texts and in memory.

What belongs here: reading and writing the numbered formats (`format`, `plans`, `reports`), applying
proposals to the state in memory (`commit`), checking a stored ledger with a parser of its own (`verify`).
What does not: requests, clocks, randomness; the scheduler's committer brings those.
"""
