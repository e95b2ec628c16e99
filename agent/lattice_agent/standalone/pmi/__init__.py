"""Serves PMI, by which the ranks of an MPI program find each other, inside the keeper of a launch, of standard library alone.

Belongs here: the bytes of PMI-1 and PMI-2 (`wire`), one rank's conversation (`session`), the part of one node in a launch (`exchange`,
`mapping`), the joining of all nodes (`hub`), the note of who asks for PMIx (`pmix_calls`), and the ranks' descriptors in the keeper's poll
loop (`ranks`). Does not belong here: any clock or process, which the keeper has; this file stays without code, because a keeper loads it.
"""
