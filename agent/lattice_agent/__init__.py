"""The agent: one process on every node, which starts, watches and ends the work that the plan names.

What belongs here: the node's state machine and the reporter's view (`lifecycle`, `head`: pure), the shell that acts
for them (`agent`, `__main__`), what agents say to each other (`peers`), and the effects on the machine (`host`,
`runner`, `shim`). What does not: scheduling, and any decision that the ledger makes.
"""
