"""The `mailsvc` command: one module for each group of subcommands. The work is done by the packages that they call."""
