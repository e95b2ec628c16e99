"""Work that waits for other work: when an edge is met, what becomes of who waits. Pure; the scheduler gathers, writes and wakes.

| module | what it holds |
|---|---|
| `references` | what people write to name other work: a number, a name, NAMESPACE/NAME |
| `edges` | the answer of one edge, from what is known of its predecessor |
| `release` | whether work may be queued, waits, or can never start, from the answers of its edges |
| `rerun` | the request to run ended work once more |
| `mutexes` | which work may have nodes only one at a time, and in which order |
| `dags` | the graph of a DAG: what is wrong with it, the order of its members, how it has ended |
| `members` | the Allocation of each member of a DAG |
| `unfinished` | what of a DAG is submitted again |
| `critical_path` | the longest path through a DAG, and its expected end |
"""
