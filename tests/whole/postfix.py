"""A Postfix of its own that hands all its mail on to the relay's ports, one domain for each: `<number>.example`."""

from __future__ import annotations

import grp
import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from tests.whole.relay import IMPLICIT
from tests.whole.rig import free_port

POSTFIX = "/usr/sbin/postfix"

_MASTER = """
127.0.0.1:{port} inet n - n - - smtpd
postlog unix-dgram n - n - 1 postlogd
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
smtp unix - - n - - smtp
smtps unix - - n - - smtp -o smtp_tls_wrappermode=yes
error unix - - n - - error
retry unix - - n - - error
discard unix - - n - - discard
anvil unix - - n - 1 anvil
scache unix - - n - 1 scache
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
myhostname = client.example
mydestination =
inet_protocols = ipv4
alias_maps =
smtpd_relay_restrictions = permit_mynetworks, reject
mynetworks = 127.0.0.0/8
transport_maps = texthash:{folder}/transport
smtp_sasl_auth_enable = yes
smtp_sasl_password_maps = texthash:{folder}/passwords
smtp_sasl_security_options = noanonymous
smtp_tls_security_level = encrypt
smtp_tls_loglevel = 1
smtp_host_lookup = native
minimal_backoff_time = 5s
queue_run_delay = 5s
"""


def missing() -> str | None:
    """Why there can be none here."""
    if not Path(POSTFIX).exists():
        return "Postfix is not installed"
    return None if os.geteuid() == 0 else "Postfix starts as root only"


class Postfix:
    """`port` is where it takes mail."""

    def __init__(self, ports: Mapping[str, int], user: str, password: str) -> None:
        self.port = free_port()
        self.folder = Path(tempfile.mkdtemp(prefix="mailsvc-postfix-"))
        self.folder.chmod(0o755)
        owner, group = pwd.getpwnam("postfix").pw_uid, grp.getgrnam("postfix").gr_gid
        for name in ("queue", "data", "log"):
            (self.folder / name).mkdir()
        os.chown(self.folder / "data", owner, group)
        values = {"folder": str(self.folder), "port": self.port}
        (self.folder / "main.cf").write_text(_MAIN.format(**values))
        (self.folder / "master.cf").write_text(_MASTER.format(**values).lstrip())
        hops = {number: f"[127.0.0.1]:{port}" for number, port in ports.items()}
        transports = [f"p{number}.example {'smtps' if number in IMPLICIT else 'smtp'}:{hop}" for number, hop in hops.items()]
        (self.folder / "transport").write_text("\n".join(transports) + "\n")
        (self.folder / "passwords").write_text("".join(f"{hop} {user}:{password}\n" for hop in hops.values()))
        (self.folder / "passwords").chmod(0o600)

    def start(self) -> None:
        self._do("start")

    def stop(self) -> None:
        self._do("stop")
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def log(self) -> str:
        return (self.folder / "log/mail").read_text(errors="replace")

    def logged(self, text: str, times: int, seconds: float = 20) -> bool:
        """Whether the log has `text` so often by then: a program of its own writes it, after the mail has gone."""
        deadline = time.monotonic() + seconds
        while self.log.count(text) < times and time.monotonic() < deadline:
            time.sleep(0.05)
        return self.log.count(text) == times

    def _do(self, what: str) -> None:
        done = subprocess.run([POSTFIX, "-c", str(self.folder), what], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr + done.stdout
