"""One process for each of several cells: which cells this machine serves, and keeping their processes running."""
