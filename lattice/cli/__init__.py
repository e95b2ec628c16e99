"""`lattice`, which is also `kubectl lattice`: one module a verb, rendering apart from fetching.

What belongs here: reading flags and files, one-shot requests through `lattice.kube.blocking`, tables and
sentences for people, exit codes. What does not: decisions about allocations (`lattice.admission`,
`lattice.lifecycle`), the reading of scripts (`lattice.scripts`). Imports are lazy: `--help` loads argparse
and nothing else of weight, and no verb loads pydantic before it has to.
"""
