"""Hostile inputs to a running daemon: no input may block other clients, or use unlimited memory.

`bodies.py`, `mails.py` and `wires.py` generate the inputs, `targets.py` sends them, `watch.py` measures the daemon meanwhile, and `run.py`
combines them and checks the results. `make full` runs everything at full size.
"""
