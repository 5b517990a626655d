"""One run of `mailsvc` in a process that was forked: the output goes to files. Imports nothing but the command, and so no reactor."""

from __future__ import annotations

import os

from mailsvc.cli.main import main


def run(words: tuple[str, ...], output: str) -> None:
    for fd, name in ((1, output), (2, f"{output}.err")):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), fd)
    main(words, prog_name="mailsvc")
