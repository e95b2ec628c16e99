"""The gate: what `make test` runs, what it costs, and what makes it red.

`suites.toml` says which files run each time, which are drawn, which tests belong to which part of the tree, and what each suite may cost.
`plan.py` draws from the commit, purely; `changes.py` asks git what was changed; `plugin.py` listens to pytest; `__main__.py` runs it all.
"""
