"""The elastic quota tree, pure: groups, demand and capacity in; what each group may use now out.

What belongs here: the division among siblings (`division`), the tree that keeps it up to date (`tree`), the rules
that a tree must keep (`rules`), the reading of a tree from a document (`document`). What does not: files, requests to
the API server, clocks, and the counting of nodes. Rounding is exact: integers only, one largest-remainder step.
"""
