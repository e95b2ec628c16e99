"""`lattice`, which is also `kubectl lattice`: verbs, what they ask of the cluster and the gateway, text for people.

What belongs here: reading flags and files, one-shot requests through `lattice.kube.blocking`, tables and
sentences for people, exit codes. What does not: decisions about allocations (`lattice.admission`,
`lattice.lifecycle`), the reading of scripts (`lattice.scripts`). `verbs` has one module a verb; `admin`, `quota` and
`replay` have the actions of the verbs of these names; `render` turns objects into text; what several verbs share stands
beside them. Imports are lazy: `--help` loads argparse and nothing else of weight, and no verb loads pydantic before it has to.
"""
