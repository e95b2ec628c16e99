"""The ledger, pure: who holds which node, in numbered texts and in memory.

Belongs here: the numbered formats (`format`, `plans`, `reports`, `history`), proposals and their application in memory (`proposals`,
`commit`, `stored`), the next step of an allocation (`steps`, `starting`, `ends`), the status that follows (`projection`), a recovery
from the nodes' histories (`attempts`, `membership`, `restoration`), the check of a stored ledger with a parser of its own (`verify`).
Does not belong here: requests, clocks, randomness; the scheduler's committer brings those.
"""
