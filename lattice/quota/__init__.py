"""The elastic quota tree, pure: groups, demand and capacity in; what each group may use now out.

What belongs here: the division among siblings (`division`), one tree that keeps it up to date (`tree`, its figures in
`columns`, divided by `descent` and `sweep`), all trees (`forest`), what they say to an amount (`gates`) and what is taken
back (`revocation`); groups as objects declare them (`declared`, `gathering`, `layout`, `selection`, `settings`), the rules
that they must keep (`rules`, `checks`), a tree from a document (`document`), amounts (`amounts`), and what is published
(`publication`). What does not: files, requests to the API server, clocks, and the counting of nodes. Rounding is exact:
integers only, one largest-remainder step.
"""
