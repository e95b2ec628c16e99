"""The verbs of `lattice`, one module each, loaded by name when the verb is asked for (`lattice.cli.registry` lists them).

What belongs here: the flags of a verb, what it asks of the cluster or the gateway, and what it changes. What does not: how
answers look (`lattice.cli.render`), the parts of a verb that has several subjects (`admin`, `quota`, `replay` beside this).
"""
