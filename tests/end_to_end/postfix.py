"""A Postfix of its own on loopback: configuration, queue and log in one folder. And one that hands all its mail on to the relay."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from tests.end_to_end.relay_rig import IMPLICIT
from tests.end_to_end.rig import free_port

POSTFIX = "/usr/sbin/postfix"

_SERVICES = """
pickup unix n - n 60 1 pickup
cleanup unix n - n - 0 cleanup
qmgr unix n - n 300 1 qmgr
tlsmgr unix - - n 1000? 1 tlsmgr
rewrite unix - - n - - trivial-rewrite
bounce unix - - n - 0 bounce
defer unix - - n - 0 bounce
trace unix - - n - 0 bounce
verify unix - - n - 1 verify
flush unix n - n 1000? 0 flush
proxymap unix - - n - - proxymap
proxywrite unix - - n - 1 proxymap
smtp unix - - n - - smtp
relay unix - - n - - smtp
showq unix n - n - - showq
error unix - - n - - error
retry unix - - n - - error
discard unix - - n - - discard
anvil unix - - n - 1 anvil
scache unix - - n - 1 scache
postlog unix-dgram n - n - 1 postlogd
"""
_MAIN = """
compatibility_level = 3.6
queue_directory = {folder}/queue
data_directory = {folder}/data
command_directory = /usr/sbin
daemon_directory = /usr/lib/postfix/sbin
mail_owner = postfix
setgid_group = postdrop
maillog_file = {folder}/log/mail
maillog_file_prefixes = {folder}
mydestination =
mynetworks = 127.0.0.0/8
inet_interfaces = 127.0.0.1
inet_protocols = ipv4
alias_maps =
"""


def missing() -> str | None:
    """Why there can be none here."""
    if not Path(POSTFIX).exists():
        return "Postfix is not installed"
    return None if os.geteuid() == 0 else "Postfix starts as root only"


class Instance:
    """What each Postfix of the tests has in `folder`. `write` completes its configuration."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, main: str, master: str) -> None:
        """`main` and `master` are added to what all have."""
        self.folder.chmod(0o755)
        for name in ("etc", "queue", "data", "log"):
            (self.folder / name).mkdir()
        shutil.chown(self.folder / "data", "postfix", "postfix")
        (self.folder / "etc/main.cf").write_text(_MAIN.format(folder=self.folder) + main)
        (self.folder / "etc/master.cf").write_text(master + _SERVICES)

    def start(self) -> None:
        self._do("start")

    def stop(self) -> None:
        self._do("stop")

    @property
    def pid(self) -> int:
        """That of the process whose children do all the work."""
        return int((self.folder / "queue/pid/master.pid").read_text())

    @property
    def log(self) -> str:
        return (self.folder / "log/mail").read_text(errors="replace")

    def _do(self, what: str) -> None:
        done = subprocess.run([POSTFIX, "-c", str(self.folder / "etc"), what], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr + done.stdout


_CLIENT = """
myhostname = client.example
smtpd_relay_restrictions = permit_mynetworks, reject
transport_maps = texthash:{folder}/etc/transport
smtp_sasl_auth_enable = yes
smtp_sasl_password_maps = texthash:{folder}/etc/passwords
smtp_sasl_security_options = noanonymous
smtp_tls_security_level = encrypt
smtp_tls_loglevel = 1
smtp_host_lookup = native
minimal_backoff_time = 5s
queue_run_delay = 5s
"""


class Postfix(Instance):
    """One whose smarthost we are, by one port for each domain `p<number>.example`. `port` is where it takes mail."""

    def __init__(self, ports: Mapping[str, int], user: str, password: str) -> None:
        super().__init__(Path(tempfile.mkdtemp(prefix="mailsvc-postfix-")))
        self.port = free_port()
        smtps = "smtps unix - - n - - smtp -o smtp_tls_wrappermode=yes\n"
        self.write(_CLIENT.format(folder=self.folder), f"127.0.0.1:{self.port} inet n - n - - smtpd\n{smtps}")
        hops = {number: f"[127.0.0.1]:{port}" for number, port in ports.items()}
        transports = [f"p{number}.example {'smtps' if number in IMPLICIT else 'smtp'}:{hop}" for number, hop in hops.items()]
        (self.folder / "etc/transport").write_text("\n".join(transports) + "\n")
        (self.folder / "etc/passwords").write_text("".join(f"{hop} {user}:{password}\n" for hop in hops.values()))
        (self.folder / "etc/passwords").chmod(0o600)

    def stop(self) -> None:
        super().stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def logged(self, text: str, times: int, seconds: float = 60) -> bool:
        """Whether the log has `text` so often by then: a program of its own writes it, after the mail has gone."""
        deadline = time.monotonic() + seconds
        while self.log.count(text) < times and time.monotonic() < deadline:
            time.sleep(0.05)
        return self.log.count(text) == times
