"""A daemon whose listening sockets are opened by somebody else, as by systemd, so that several processes can share them."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import attrs

from tests.end_to_end.rig import Daemon

API, RELAY = "systemd:domain=INET:name=api", "systemd:domain=INET:name=relay"  # endpoints for the two sockets
# As systemd does it: the sockets are the descriptors from 3 on, and the environment says so.
HANDED_OVER = """
import os, sys
spare = [os.dup2(int(number), 100 + at) for at, number in enumerate(sys.argv[1].split(","))]
for at, number in enumerate(spare):
    os.dup2(number, 3 + at)
os.environ.update(LISTEN_FDS=str(len(spare)), LISTEN_FDNAMES="api:relay", LISTEN_PID=str(os.getpid()))
os.execv(sys.argv[2], sys.argv[2:])
"""


@attrs.define
class Shared(Daemon):
    """Takes its sockets over from whoever holds them open."""

    sockets: tuple[int, ...] = ()

    @property
    def socket(self) -> str:
        """Its own, though the port is not."""
        return super().socket.replace(".sock", f"-{self.folder.name}.sock")

    def _popen(self, log: Any) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", HANDED_OVER, ",".join(map(str, self.sockets)), *self._command()]
        return subprocess.Popen(
            command, cwd=self.home, stdout=log, stderr=subprocess.STDOUT, env=self.environment, pass_fds=self.sockets
        )  # fmt: skip
