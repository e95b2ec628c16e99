"""The actions of `lattice quota`, one module each: the trees as they are, every gate before one allocation, a tree of a file.

What belongs here: flags, questions to the gateway and reading the file. What does not: the tables of groups and gates
(`lattice.cli.render`) and the division of a tree (`lattice.quota`).
"""
