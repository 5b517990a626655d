"""`mailsvc` as a process that stops at one step of an account's move, says so in a file, and continues when it reads a line."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from unittest import mock

from mailsvc.cli.main import main
from mailsvc.store.cells import account_place
from mailsvc.store.cells.account_move import AccountMove


def run(step: str, reached: Path, words: list[str]) -> None:
    def wait(name: str) -> None:
        if name == step and not reached.exists():
            reached.touch()
            sys.stdin.readline()

    with mock.patch.object(account_place, "AccountMove", partial(AccountMove, moment=wait)):
        main(words, prog_name="mailsvc")


if __name__ == "__main__":
    run(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
