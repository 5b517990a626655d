"""How the daemon runs: starting and stopping in order, listeners, threads, long work in slices, and the memory budget."""
