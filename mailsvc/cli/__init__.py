"""The `mailsvc` command: one file for each group of subcommands. What a subcommand does stands in the packages that it calls."""
