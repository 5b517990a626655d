"""Completion in real shells: what is on the command line after Tab."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from mailsvc.cli.main import main
from tests.cli.test_cli import ROOT

SHELLS = {
    "bash": (["bash", "--norc", "--noprofile", "-i"], "source {script}\n"),
    "zsh": (["zsh", "-f", "-i"], "autoload -Uz compinit && compinit -u -d {folder}/dump; source {script}\n"),
}


def prepared(shell: str, folder: Path) -> tuple[Path, dict[str, str]]:
    """The script for the shell, and an environment in which it finds the command."""
    if shutil.which(shell) is None:
        pytest.skip(f"needs {shell}")
    program, script = folder / "mailsvc", folder / "script"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -c \'from mailsvc.cli.main import main; main(prog_name="mailsvc")\' "$@"\n')
    program.chmod(0o755)
    script.write_text(CliRunner().invoke(main, ["completion", shell]).stdout)
    path = f"{folder}:{os.environ['PATH']}"
    return script, {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "HOME": str(folder), "TERM": "xterm"}


@pytest.mark.slow
def test_fish_completes_commands_and_options(tmp_path: Path) -> None:
    script, environment = prepared("fish", tmp_path)
    line = f"source {script}; complete --do-complete 'mailsvc doct'; complete --do-complete 'mailsvc doctor --no-pr'"
    done = subprocess.run(["fish", "--no-config", "-c", line], env=environment, capture_output=True, text=True, timeout=120, check=True)
    assert [each.split("\t")[0] for each in done.stdout.splitlines()] == ["doctor", "--no-probe"]


@pytest.mark.slow
@pytest.mark.parametrize("shell", SHELLS)
def test_tab_completes_commands_and_options(shell: str, tmp_path: Path) -> None:
    script, environment = prepared(shell, tmp_path)
    command, begin = SHELLS[shell]
    terminal, shell_side = pty.openpty()
    process = subprocess.Popen(command, stdin=shell_side, stdout=shell_side, stderr=shell_side, env=environment, start_new_session=True)
    os.close(shell_side)
    try:
        os.write(terminal, begin.format(script=script, folder=tmp_path).encode() + b"echo rea''dy\n")
        until(terminal, "ready")
        os.write(terminal, b"mailsvc doct\t")
        until(terminal, "doctor")
        os.write(terminal, b"--no-pr\t")
        until(terminal, "--no-probe")
    finally:
        process.kill()
        process.wait()
        os.close(terminal)


def until(terminal: int, wanted: str, seconds: float = 60) -> None:
    """Reads the terminal until the text is on it."""
    shown, deadline = "", time.monotonic() + seconds
    while wanted not in shown:
        ready, _, _ = select.select([terminal], [], [], max(0.0, deadline - time.monotonic()))
        assert ready, f"{wanted!r} is not in {shown[-2000:]!r}"
        shown += os.read(terminal, 4096).decode(errors="replace")
