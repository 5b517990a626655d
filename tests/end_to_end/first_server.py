"""`make run` for tests, in a folder whose files are those of the project; and the commands of Markdown pages, run in it.

The Python packages are those of the tests: nothing is installed.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import attrs

from tests.end_to_end.rig import PROJECT, free_port

INSTALLED = ("-o", ".venv/.installed", "-o", "mailsvc/dashboard/static/packages/htmx.min.js")  # make takes them as they are
SETTINGS = "etc/development.toml"


def busy(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False


def with_free_ports(text: str, ports: Mapping[str, int]) -> str:
    """The text with other ports, where they follow a colon."""
    return re.sub(r"(?<=:)\d+\b", lambda found: str(ports.get(found[0], found[0])), text)


def environment() -> dict[str, str]:
    """That of a terminal in which the virtual environment is active."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    return {**inherited, "PATH": f"{Path(sys.prefix) / 'bin'}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(PROJECT)}


def run(commands: str, folder: Path, status: int = 0) -> str:
    """What the commands print; the errors, too, if they are to fail. They end at the first one that fails."""
    done = subprocess.run(
        ["bash", "-e"], input=commands, cwd=folder, env=environment(), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == status, done.stdout[-1000:] + done.stderr[-2000:]
    return done.stdout + done.stderr if status else done.stdout


@attrs.define(eq=False)
class FirstServer:
    """The folder of a new user. Only ports that are busy on this machine are replaced, in the settings and in commands."""

    folder: Path = attrs.field(factory=lambda: Path(tempfile.mkdtemp(prefix="mailsvc-")))
    ports: dict[str, int] = attrs.field(factory=dict)
    process: subprocess.Popen[bytes] | None = None

    def __attrs_post_init__(self) -> None:
        self.folder.chmod(0o755)  # as root, Postgres runs as another user, who keeps its data here only if that user can enter
        (self.folder / "etc").mkdir()
        for name in ("Makefile", "setup.cfg", "requirements-dev.lock", "mailsvc", "twisted"):
            (self.folder / name).symlink_to(PROJECT / name)
        for path in (PROJECT / "etc").iterdir():
            (self.folder / "etc" / path.name).symlink_to(path)
        (self.folder / ".venv").symlink_to(sys.prefix)
        settings = (PROJECT / SETTINGS).read_text("utf-8")
        self.ports = {port: free_port() for port in re.findall(r"tcp:(\d+):", settings) if busy(int(port))}
        (self.folder / SETTINGS).unlink()
        (self.folder / SETTINGS).write_text(with_free_ports(settings, self.ports))

    @property
    def printed(self) -> str:
        return (self.folder / "printed").read_text("utf-8")

    @property
    def key(self) -> str:
        return (self.folder / "var/dev.key").read_text("utf-8").strip()

    def start(self, command: str, seconds: float = 120) -> None:
        """`command` is that of the page; the options tell make that everything is installed. Returns when the server is ready."""
        assert command == "make run"
        with (self.folder / "printed").open("wb") as output:
            self.process = subprocess.Popen(
                ["env", "--default-signal=INT", "make", *INSTALLED, "run"],  # tests in the background of a shell ignore Ctrl+C
                cwd=self.folder, env=environment(), stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        deadline = time.monotonic() + seconds
        while not (self.folder / "var/dev.json").exists() or "What to do next" not in self.printed:
            assert self.process.poll() is None, self.printed
            assert time.monotonic() < deadline, self.printed
            time.sleep(0.05)  # another process: it has to be polled

    def ctrl_c(self) -> None:
        """What a terminal does: every process of the command gets the signal."""
        assert self.process is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGINT)
        self.process.wait(60)
        self.process = None

    def run(self, commands: str, status: int = 0) -> str:
        return run(with_free_ports(commands, self.ports), self.folder, status)

    def remove(self) -> None:
        if self.process is not None:
            self.ctrl_c()
        shutil.rmtree(self.folder)
