"""The elastic quota tree, pure: takes groups, demand and capacity, and computes how much each group may use now.

Belongs here: the division among siblings (`division`), one tree that keeps it up to date (`tree`, its figures in `columns`, divided by
`descent` and `sweep`), all trees (`forest`), their verdict on an amount (`gates`), the taking back of loans (`revocation`); groups as
objects declare them (`declared`, `gathering`, `layout`, `selection`, `settings`, `groups`), the rules that they must keep (`rules`,
`checks`, `breaches`), a tree from a document (`document`), amounts (`amounts`), and the published figures (`publication`). Does not
belong here: files, requests to the API server, clocks, and the counting of nodes. Rounding is exact: integers only, one
largest-remainder step.
"""
