"""Hostile inputs against a running daemon: nothing that anybody sends may hold up others, or use memory without bound.

`inputs*.py` generate the inputs, one function for each family; `targets.py` sends them; `watch.py` looks at the daemon meanwhile;
`run.py` puts the three together, and prints and judges what was found. `make full` runs all of it at full size.
"""
