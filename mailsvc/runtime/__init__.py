"""How the daemon runs: starting and stopping in order, listeners, polling, threads, long work in slices, and memory budgets."""
