"""The subjects of `lattice admin`, one module each: tenants, vclusters, topology, configuration, the ledger, the state of Lattice.

What belongs here: flags and requests that administrators alone use. What does not: the words `lattice admin SUBJECT`
themselves (`lattice.cli.verbs.admin`) and tables that other verbs show too (`lattice.cli.render`).
"""
